"""Locks and semaphores between real processes of one host."""

import asyncio
import pickle
from typing import Any

import pytest
from sharers import NAMED, Sharer

import monarch_async as ma
from monarch_async.mesh.domain import active_domain
from monarch_async.sync.asked import Asked

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("nothing_in_use")]


@pytest.mark.parametrize("make", [ma.Lock, lambda: ma.Semaphore(1)])
async def test_what_is_done_with_a_lock_is_done_by_one_at_a_time(hosts: ma.HostMesh, sharers: Any, make: Any) -> None:
    counter = await (await hosts.spawn_procs()).spawn("counter", Sharer)
    await sharers.add.call(make(), counter, 15)
    count, tokens = await counter.written.call_one()
    assert count == 45
    assert tokens == sorted(set(tokens)) and len(tokens) == 45


async def test_a_semaphore_lets_in_as_many_as_it_has_permits(sharers: Any) -> None:
    semaphore = ma.Semaphore(3)
    one, two = await sharers.slice(p=0).acquire.call_one(semaphore), await semaphore.acquire(2)
    assert await semaphore.free() == 0
    assert sorted((holder.count, holder.token) for holder in await semaphore.holders()) == [(1, one), (2, two)]
    waits = sharers.slice(p=1).acquire.call_one(semaphore)
    await semaphore.release(two)
    await sharers.slice(p=1).release.call_one(semaphore, await waits)
    await sharers.slice(p=0).release.call_one(semaphore, one)
    async with semaphore.taking(2), semaphore:
        assert await semaphore.free() == 0
    with pytest.raises(ma.BadCall, match="4 of 3 permits"):
        await semaphore.acquire(4)


async def test_a_holder_that_is_killed_has_nothing(hosts: ma.HostMesh, sharers: Any) -> None:
    """Nobody waits for anything but the agent's hearing of it."""
    async with ma.supervise(ma.ignore):
        procs = await hosts.spawn_procs(name="victims")
        victim = await procs.spawn("victim", Sharer)
        lock = ma.Lock()
        token = await victim.acquire.call_one(lock)
        holder = await lock.holder()
        assert holder is not None and holder.name == "victim.acquire" and holder.token == token
        waits = sharers.slice(p=0).acquire.call_one(lock)
        with pytest.raises(ma.NotHolder):
            await lock.release(token)  # another process's
        await procs.kill()
        async with asyncio.timeout(2):
            later = await waits
        assert later > token
        with pytest.raises(ma.NotHolder, match=r"sharers\[0\].acquire"):
            await lock.check(token)
        await lock.check(later)
        await sharers.slice(p=0).release.call_one(lock, later)


async def test_an_actor_that_ends_has_nothing(hosts: ma.HostMesh) -> None:
    """Also while its process lives on."""
    procs = await hosts.spawn_procs()
    actor = await procs.spawn("actor", Sharer)
    lock = ma.Lock()
    await actor.acquire.call_one(lock)
    await actor.stop()
    async with asyncio.timeout(2), lock:
        pass
    await procs.stop()


async def test_a_cancelled_endpoint_has_nothing(sharers: Any) -> None:
    lock, entered = ma.Lock(), ma.Event()
    call = sharers.slice(p=0).hold_until_cancelled.call_one(lock, entered)
    await entered.wait()
    entered.clear()
    call.cancel()
    async with asyncio.timeout(2), lock:
        pass
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_blocked_loop_stops_nobody_else(sharers: Any) -> None:
    """Neither the home nor giving back runs anybody's code."""
    lock, entered = ma.Lock(), ma.Event()
    blocked = sharers.slice(p=0).block.call_one(0.5, entered)
    await entered.wait()
    entered.clear()
    async with asyncio.timeout(0.3):
        for _ in range(10):
            async with lock:
                pass
    assert not blocked.done()
    await blocked


async def test_cancelled_while_it_waits(sharers: Any) -> None:
    lock = ma.Lock()
    async with lock:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await lock.acquire()
        assert not (await ma.cluster().locks()).rows[0].waiting
    assert not await lock.locked()


async def test_cancelled_when_the_grant_has_just_come(sharers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is there, and the task has not run since."""
    lock = ma.Lock()
    take_reply = Asked.take_reply
    waits: asyncio.Task[int]

    def take_and_cancel(self: Asked, *reply: Any) -> bool:
        is_over = take_reply(self, *reply)
        if not waits.done():
            assert self.done() and waits.cancel()
        return is_over

    monkeypatch.setattr(Asked, "take_reply", take_and_cancel)
    waits = asyncio.create_task(lock.acquire())
    with pytest.raises(asyncio.CancelledError):
        await waits
    monkeypatch.undo()
    async with asyncio.timeout(2), lock:
        pass


async def test_cancelled_before_anything_was_answered(sharers: Any) -> None:
    """Cancel and grant pass each other, or the grant was quicker."""
    lock = ma.Lock()
    for turns in range(5):
        waits = asyncio.create_task(lock.acquire())
        for _ in range(turns):
            await asyncio.sleep(0)
        waits.cancel()
        try:
            lock.release(await waits)
        except asyncio.CancelledError:
            assert waits.cancelled()
        async with asyncio.timeout(2), lock:
            pass


async def test_giving_back_twice_and_what_is_out_of_date(sharers: Any) -> None:
    lock = ma.Lock()
    token = await lock.acquire()
    await lock.release(token)
    with pytest.raises(ma.NotHolder, match="nobody does"):
        await lock.release(token)
    lock.release(token)  # nobody looks
    async with lock as later:
        assert later > token
        await lock.release(later)
        async with asyncio.timeout(2):  # in the block: so it is free
            await lock.release(await lock.acquire())


async def test_a_task_that_would_wait_for_itself(sharers: Any) -> None:
    lock = ma.Lock()
    async with lock:
        with pytest.raises(ma.BadCall, match="waits for itself"):
            async with lock:
                pass


async def test_names_are_shared(sharers: Any) -> None:
    token = await sharers.slice(p=0).acquire_named.call_one()
    assert ma.Lock("of this module") == NAMED
    holder = await ma.Lock("of this module").holder()
    assert holder is not None and holder.token == token
    await sharers.slice(p=0).release.call_one(NAMED, token)
    assert ma.Lock() != ma.Lock()


async def test_references_pickle(sharers: Any) -> None:
    for made in (ma.Lock(), ma.Lock("x"), ma.Semaphore(3), ma.Event(), ma.Barrier(2), ma.Queue(maxsize=3)):
        copy = pickle.loads(pickle.dumps(made))
        assert copy == made and hash(copy) == hash(made) and repr(copy) == repr(made)


async def test_on_a_thread(sharers: Any) -> None:
    lock = ma.Lock()
    with pytest.raises(ma.BadCall, match="run_coroutine_threadsafe"):
        await sharers.slice(p=0).from_a_thread.call_one(lock)
    await sharers.slice(p=0).remember_loop.call_one()
    token = await sharers.slice(p=0).over_the_loop.call_one(lock)
    await sharers.slice(p=0).release.call_one(lock, token)


async def test_the_table(sharers: Any) -> None:
    lock, entered, leave = ma.Lock("busy"), ma.Event(), ma.Event()
    holds = sharers.slice(p=0).hold.call_one(lock, entered, leave)
    await entered.wait()
    waits = asyncio.create_task(lock.acquire())
    busy = None
    while busy is None or not busy.waiting:
        busy = next((row for row in (await ma.cluster().locks()).rows if row.name == "lock busy"), None)
    assert (busy.host, busy.state) == ("host0", "0 of 1 free")
    assert [user.name for user in busy.holders] == ["sharers[0].hold"]
    assert [user.name for user in busy.waiting] == [active_domain().router.name]
    text = str(await ma.cluster().locks())
    assert "lock busy on host0: 0 of 1 free\n    held by   sharers[0].hold, 0." in text
    leave.set()
    await holds
    lock.release(await waits)
    await asyncio.gather(entered.clear(), leave.clear())


@pytest.mark.parametrize("name", ["", " x", "two\nlines", "#x", 3, "x" * 300])
async def test_bad_names(name: Any) -> None:
    with pytest.raises(ma.BadCall):
        ma.Lock(name)


async def test_bad_sizes(hosts: ma.HostMesh) -> None:
    for make in (ma.Semaphore, ma.Barrier, lambda n: ma.Queue(maxsize=n), lambda n: ma.Queue(max_bytes=n)):
        for size in (0, -1, True, 1.5, "1"):
            with pytest.raises(ma.BadCall):
                make(size)  # type: ignore[arg-type]
    with pytest.raises(ma.BadCall, match="expected one host"):
        ma.Lock(home="host0")  # type: ignore[arg-type]
