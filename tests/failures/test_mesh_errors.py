"""Several members of one call fail: what of each is known, and when."""

import asyncio
import signal
import time

import pytest
import pytest_asyncio
from raisers import Raiser
from waiters import Waiter

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def procs(hosts: ma.HostMesh) -> ma.ProcMesh:
    return await hosts.spawn_procs({"gpus": 4})


async def test_all_errors_and_all_results_by_rank(procs: ma.ProcMesh) -> None:
    mesh = await procs.spawn("raisers", Raiser)
    with pytest.raises(ma.MeshError) as info:
        await mesh.rank_raises.call(1, 3)
    error = info.value
    assert sorted(error.by_rank) == [1, 3]
    assert error.results == {0: 0, 2: 20}
    assert all(isinstance(e, ValueError) and isinstance(e, ma.RemoteError) for e in error.by_rank.values())
    assert [getattr(e, "actor", "") for e in error.by_rank.values()] == ["raisers[1]", "raisers[3]"]
    assert str(error) == (
        "raisers.rank_raises: 2 of 4 members failed; "
        "first: raisers[1].rank_raises on host0 raised ValueError: rank 1 says no"
    )
    caught = []
    try:
        raise error
    except* ValueError as group:
        caught = list(group.exceptions)
    assert caught == list(error.by_rank.values())


async def test_one_of_several_is_a_mesh_error_too(procs: ma.ProcMesh) -> None:
    mesh = await procs.spawn("raisers", Raiser)
    with pytest.raises(ma.MeshError, match="1 of 4 members failed") as info:
        await mesh.rank_raises.call(2)
    assert sorted(info.value.results) == [0, 1, 3]


async def test_ranks_are_those_of_the_slice_that_was_called(procs: ma.ProcMesh) -> None:
    mesh = await procs.spawn("raisers", Raiser)
    with pytest.raises(ma.MeshError) as info:
        await mesh.slice(gpus=slice(2, 4)).rank_raises.call(3)
    assert list(info.value.by_rank) == [1]
    assert info.value.results == {0: 20}
    error = info.value.by_rank[1]
    assert isinstance(error, ma.RemoteError)
    assert (error.rank, error.point) == (3, {"hosts": 0, "gpus": 3})


async def test_a_mesh_of_one_raises_the_error_itself(procs: ma.ProcMesh) -> None:
    mesh = await procs.spawn("raisers", Raiser)
    with pytest.raises(ValueError, match="rank 1 says no"):
        await mesh.at(1).rank_raises.call(1)


async def test_the_first_error_does_not_wait_for_the_others(procs: ma.ProcMesh) -> None:
    """Proved by others that never end by themselves: each of them has got a CancelledError."""
    waiters = await procs.spawn("waiters", Waiter)
    call = waiters.raise_when_told.options(first_error=True).call(2)
    for rank in (0, 1, 3):
        await waiters.at(rank).wait_begun.call_one(1)
    await waiters.at(2).tell.call_one()
    with pytest.raises(ValueError, match="rank 2 says no") as info:
        async with asyncio.timeout(10):
            await call
    assert not isinstance(info.value, ma.MeshError)
    async with asyncio.timeout(10):
        for rank in (0, 1, 3):
            while await waiters.at(rank).counts.call_one() != (1, 1):
                await asyncio.sleep(0.001)


async def test_gathering_waits_for_the_others(procs: ma.ProcMesh) -> None:
    waiters = await procs.spawn("waiters", Waiter)
    call = waiters.raise_on.call(2)
    for rank in (0, 1, 3):
        await waiters.at(rank).wait_begun.call_one(1)
    await asyncio.sleep(0.05)
    assert not call.done()
    await waiters.open.call()
    with pytest.raises(ma.MeshError) as info:
        await call
    assert list(info.value.by_rank) == [2]
    assert info.value.results == {0: None, 1: None, 3: None}


async def test_results_before_an_error_are_streamed(procs: ma.ProcMesh) -> None:
    mesh = await procs.spawn("raisers", Raiser)
    seen: list[int] = []
    with pytest.raises(ValueError, match="says no"):
        async for point, value in mesh.rank_raises.stream(0):
            seen.append(value)
            assert value == point["gpus"] * 10
    assert set(seen) <= {10, 20, 30}


@pytest.mark.parametrize("first_error", [False, True])
async def test_a_death_ends_the_call_at_once_and_cancels_the_others(hosts: ma.HostMesh, first_error: bool) -> None:
    procs = await hosts.spawn_procs({"gpus": 3}, name="doomed")
    waiters = await procs.spawn("waiters", Waiter)
    call = waiters.wait.options(first_error=first_error).call()
    await waiters.wait_begun.call(1)
    began = time.monotonic()
    await procs.slice(gpus=1).kill(signal.SIGKILL)
    with pytest.raises(ma.ProcDied, match=r"proc doomed\[1\] on host0 .* died: killed by SIGKILL"):
        async with asyncio.timeout(10):
            await call
    assert time.monotonic() - began < 1
    async with asyncio.timeout(10):
        for rank in (0, 2):
            while await waiters.at(rank).counts.call_one() != (1, 1):
                await asyncio.sleep(0.001)
    await procs.stop()


async def test_a_death_among_other_errors_is_what_is_raised(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs({"gpus": 3}, name="doomed")
    waiters = await procs.spawn("waiters", Waiter)
    call = waiters.raise_on.call(0)
    await waiters.at(1).wait_begun.call_one(1)
    await waiters.at(0).noted.call_one()
    await procs.slice(gpus=1).kill(signal.SIGKILL)
    with pytest.raises(ma.ProcDied) as info:
        await call
    assert info.value.__notes__ == [
        "waiters.raise_on: before that 1 failed, first: waiters[0].raise_on on host0 raised ValueError: rank 0 says no"
    ]
    await procs.stop()
