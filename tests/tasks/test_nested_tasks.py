"""Tasks that submit tasks."""

import asyncio
from pathlib import Path

import pytest
from task_functions import (
    deep,
    deep_on_threads,
    fan,
    leave_a_failure,
    leave_all,
    leave_behind,
    look_at_a_failure,
    lose_an_actor,
    mapped,
    nest_a_hold,
    pids,
    who_holds,
)
from task_waits import wait_given_back, wait_noted

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_deeper_than_there_are_cpus(hosts: ma.HostMesh) -> None:
    """C3."""
    assert await asyncio.gather(ma.submit(deep, 10), ma.submit(deep_on_threads, 8)) == [10, 8]
    await wait_given_back()


async def test_a_tree(hosts: ma.HostMesh) -> None:
    assert await ma.submit(fan, 3, 2) == 13
    assert sorted(await asyncio.gather(*[ma.submit(fan, 2, 1) for _ in range(12)])) == [3] * 12
    await wait_given_back()


async def test_map_in_a_task(hosts: ma.HostMesh) -> None:
    assert await ma.submit(mapped, 50) == list(range(1, 51))


async def test_what_is_left_behind_is_waited_for(hosts: ma.HostMesh, tmp_path: Path) -> None:
    """C1."""
    assert await ma.submit(leave_behind, str(tmp_path)) == "returned"
    assert len(pids(tmp_path)) == 1
    with pytest.raises(ValueError, match="left behind"):
        await ma.submit(leave_a_failure)
    assert await ma.submit(look_at_a_failure) == "handled"


async def test_what_a_task_has_made_ends_with_it(hosts: ma.HostMesh) -> None:
    """S2. It was there as long as the worker was: for ever, where that had enough to do."""
    lock = ma.Lock()
    async with asyncio.timeout(5):
        pid = await ma.submit(leave_all, lock)
        assert not Path(f"/proc/{pid}").exists()
        assert await lock.holder() is None
        assert "left" not in str(await ma.cluster().holdings())
        with pytest.raises(ValueError, match=r"\d+") as info:
            await ma.submit(leave_all, lock, is_to_fail=True)
        assert not Path(f"/proc/{info.value.args[0]}").exists() and await lock.holder() is None


async def test_a_death_of_what_a_task_has_spawned_is_not_its_own(hosts: ma.HostMesh) -> None:
    """S2. It was run three times, and set aside as poison."""
    assert await ma.submit(lose_an_actor) == "handled"
    assert ma.quarantine() == []


async def test_holders_are_called_as_their_tasks_are(hosts: ma.HostMesh) -> None:
    lock = ma.Lock()
    assert await ma.submit(who_holds, lock) == "task who_holds"


async def test_a_task_that_is_cancelled_cancels_what_it_has_submitted(hosts: ma.HostMesh, tmp_path: Path) -> None:
    future = ma.submit(nest_a_hold, str(tmp_path))
    await wait_noted(tmp_path)
    future.cancel()
    await asyncio.wait([future])
    assert future.cancelled() and len(pids(tmp_path)) == 2
    await wait_given_back()
