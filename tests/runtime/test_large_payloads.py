"""Large arguments and results: which way they take, what receivers may do with them, and what is left of it."""

import pytest
import torch
from holders import MB, Holder, nothing_on_the_way, open_segments, shared_with, wait_until

import monarch_async as ma
from monarch_async.runtime.router import active_router

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

async def test_several_receivers_share_one_copy_and_may_all_write(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs({"gpus": 4})
    actors = await procs.spawn("holders", Holder)
    data = torch.ones(2 * MB)
    for _ in range(3):  # what one wrote is seen by nobody, nor in the next
        assert [tuple(r) for r in await actors.zero.call(data)] == [(2 * MB, True)] * 4
    assert float(data.sum()) == 2 * MB
    assert await wait_until(nothing_on_the_way)


async def test_one_receiver_gets_memory_of_its_own(hosts: ma.HostMesh) -> None:
    actor = await (await hosts.spawn_procs()).spawn("holder", Holder)
    data = torch.ones(2 * MB)
    assert tuple(await actor.zero.call_one(data)) == (2 * MB, False)
    assert tuple(await actor.zero.options(readonly=True).call_one(data)) == (2 * MB, True)
    assert tuple(await actor.zero.options(readonly=True).call_one(data)) == (2 * MB, True)


async def test_results_share_pages_where_that_is_asked_for(hosts: ma.HostMesh) -> None:
    actor = await (await hosts.spawn_procs()).spawn("holder", Holder)
    copied = await actor.ones.call_one(2 * MB)
    shared = await actor.ones.options(readonly=True).call_one(2 * MB)
    assert not shared_with(copied)
    assert shared_with(shared)
    assert torch.equal(copied, shared)
    shared.zero_()
    assert float((await actor.ones.options(readonly=True).call_one(2 * MB)).sum()) == 2 * MB


async def test_a_call_for_which_there_is_no_memory_is_not_made(
    hosts: ma.HostMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = await (await hosts.spawn_procs({"gpus": 2})).spawn("holders", Holder)
    router = active_router()

    def parcel(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(router.outgoing, "parcel", parcel)
        for send in (actors.total.call, actors.slice(gpus=1).total.call_one, actors.total.broadcast):
            with pytest.raises(MemoryError):
                send(bytes(MB))
    assert not router.pending
    assert list(await actors.total.call(bytes(MB))) == [(MB, 0)] * 2


async def test_a_segment_is_used_again_only_when_nobody_looks_at_it(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs({"gpus": 2})
    actors = await procs.spawn("holders", Holder)
    first, before = torch.full((MB,), 1.0), open_segments()
    await actors.keep.call(first)
    for value in range(2, 30):
        await actors.total.call(bytes([value]) * 4 * MB)
    assert await actors.slice(gpus=0).kept_sums.call_one() == [MB]
    await actors.slice(gpus=0).drop.call_one()
    assert await actors.slice(gpus=1).kept_sums.call_one() == [MB]
    await actors.slice(gpus=1).drop.call_one()
    assert await wait_until(nothing_on_the_way)
    assert open_segments() <= before + 6


async def test_receivers_that_keep_everything_do_not_keep_the_sender_from_sending(hosts: ma.HostMesh) -> None:
    """Segments that are looked at for long are given away: descriptors of the sender stay few."""
    procs = await hosts.spawn_procs({"gpus": 2})
    actors = await procs.spawn("holders", Holder)
    for value in range(300):
        await actors.keep.call(torch.full((MB // 4,), float(value)))
    assert open_segments() < 280
    assert list(await actors.kept_sums.call()) == [[value * (MB // 4) for value in range(300)]] * 2
    await actors.drop.call()
    assert await wait_until(nothing_on_the_way)


async def test_a_receiver_that_dies_leaves_nothing_lent(hosts: ma.HostMesh) -> None:
    async with ma.supervise(ma.ignore):
        procs = await hosts.spawn_procs({"gpus": 2})
        actors = await procs.spawn("holders", Holder)
        await actors.keep.call(torch.ones(MB))
        with pytest.raises(ma.ProcDied):
            await actors.slice(gpus=0).die.call_one()
        await actors.slice(gpus=1).drop.call_one()
        assert await wait_until(nothing_on_the_way)
