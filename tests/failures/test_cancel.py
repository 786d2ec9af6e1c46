"""The caller is cancelled: so is what runs for it, and the caller waits until that has ended."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable

import pytest
import pytest_asyncio
from waiters import Blocking, Serial, Waiter

import monarch_async as ma
from monarch_async.config import Config
from monarch_async.runtime.router import active_router

#: Seconds. Long for a call that ends when it is cancelled, also on a busy machine.
GRACE = 0.8

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    """Hosts whose callers do not wait long for those who ignore a cancellation."""
    async with ma.local_hosts(config=Config(cancel_grace=GRACE)) as hosts:
        yield hosts


@pytest_asyncio.fixture(loop_scope="module")
async def procs(hosts: ma.HostMesh) -> AsyncIterator[ma.ProcMesh]:
    procs = await hosts.spawn_procs({"gpus": 2})
    yield procs
    await procs.stop()
    assert not active_router().pending


async def cancelled(task: "asyncio.Future[object]") -> asyncio.CancelledError:
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as info:
        async with asyncio.timeout(10):
            await task
    return info.value


async def test_a_cancelled_task_cancels_what_runs_for_it(procs: ma.ProcMesh) -> None:
    waiters = await procs.spawn("waiters", Waiter)

    async def body() -> None:
        await waiters.wait.call()

    task = asyncio.create_task(body())
    await waiters.wait_begun.call(1)
    await cancelled(task)
    assert list(await waiters.noted.call()) == [["cancelled"], ["cancelled"]]


async def test_a_cancelled_future_cancels_what_runs_for_it(procs: ma.ProcMesh) -> None:
    waiters = await procs.spawn("waiters", Waiter)
    calls: list[asyncio.Future[object]] = [waiters.at(0).wait.call_one(), waiters.wait.choose(), waiters.wait.call()]  # type: ignore[list-item]
    await waiters.wait_begun.call(2)
    for call in calls:
        assert call.cancel()
        assert not call.done()  # not before it is acknowledged
        await cancelled(call)
        assert not call.cancel()


async def test_a_timeout_waits_for_the_cleaning_up(procs: ma.ProcMesh) -> None:
    waiter = (await procs.spawn("waiters", Waiter)).at(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await waiter.wait_and_tidy.call_one(0.1)
    # it has ended before the block was left: this call is answered without waiting, and the note is there
    assert await waiter.noted.call_one() == ["tidied"]


async def test_a_task_group_that_fails_cancels_its_calls(procs: ma.ProcMesh) -> None:
    waiters = await procs.spawn("waiters", Waiter)

    async def fail() -> None:
        await waiters.wait_begun.call(2)
        raise KeyError("boom")

    async def wait(call: Awaitable[object]) -> None:
        await call

    with pytest.raises(ExceptionGroup) as info:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait(waiters.wait.call()))
            group.create_task(wait(waiters.wait_and_tidy.call(0.02)))
            group.create_task(fail())
    assert [type(e) for e in info.value.exceptions] == [KeyError]
    assert [sorted(notes) for notes in await waiters.noted.call()] == [["cancelled", "tidied"]] * 2


async def test_a_cancelled_gather_cancels_all_its_calls(procs: ma.ProcMesh) -> None:
    waiters = await procs.spawn("waiters", Waiter)
    gathered = asyncio.gather(*[waiters.at(index % 2).wait.call_one() for index in range(6)])
    await waiters.wait_begun.call(3)
    await cancelled(gathered)
    await asyncio.wait([asyncio.ensure_future(waiters.noted.call())])
    assert list(await waiters.noted.call()) == [["cancelled"] * 3] * 2


async def test_a_cancellation_goes_on_to_what_the_endpoint_waits_for(procs: ma.ProcMesh) -> None:
    first, second = await procs.spawn("first", Waiter), await procs.spawn("second", Waiter)
    call = first.at(0).relay.call_one(second, "wait")
    await second.wait_begun.call(1)
    await cancelled(call)
    assert list(await second.noted.call()) == [["cancelled"], ["cancelled"]]
    assert list(await first.pending.call()) == [0, 0]


async def test_a_result_in_spite_of_it_is_dropped(procs: ma.ProcMesh) -> None:
    waiters = await procs.spawn("waiters", Waiter)
    calls: list[asyncio.Future[object]] = [waiters.at(0).swallow.call_one(), waiters.swallow.call()]  # type: ignore[list-item]
    await waiters.at(0).wait_begun.call_one(2)
    for call in calls:
        await cancelled(call)
    assert await waiters.at(0).noted.call_one() == ["swallowed", "swallowed"]


async def test_an_endpoint_that_ignores_it_is_left_behind_after_the_grace(
    procs: ma.ProcMesh, caplog: pytest.LogCaptureFixture
) -> None:
    waiter = (await procs.spawn("waiters", Waiter)).at(0)
    call = waiter.refuse.call_one()
    await waiter.wait_begun.call_one(1)
    began = time.monotonic()
    error = await cancelled(call)
    assert GRACE * 0.9 < time.monotonic() - began < 5
    assert str(error) == "cancelled, but not acknowledged within 0.8 s"
    assert "waiters.refuse: no acknowledgement of its cancellation after 0.8 s from" in caplog.text
    assert await waiter.noted.call_one() == ["refused"]  # asked once, not again and again
    await waiter.open.call_one()
    await _nothing_pending()  # its late end frees its place


async def test_an_error_in_spite_of_it_is_not_lost(procs: ma.ProcMesh, caplog: pytest.LogCaptureFixture) -> None:
    waiters = await procs.spawn("waiters", Waiter)
    one, every = waiters.at(0).raise_when_cancelled, waiters.raise_when_cancelled
    calls: list[asyncio.Future[object]] = [one.call_one(), every.call()]  # type: ignore[list-item]
    await asyncio.gather(waiters.at(0).wait_begun.call_one(2), waiters.at(1).wait_begun.call_one(1))
    for call, count in zip(calls, (1, 2), strict=True):
        error = await cancelled(call)
        head = f"waiters.raise_when_cancelled was cancelled; meanwhile {count} failed, first: waiters["
        assert str(error).startswith(head)
        assert str(error).endswith("].raise_when_cancelled on host0 raised ValueError: while cleaning up")
        assert str(error) in caplog.text


async def test_a_timeout_says_which_member_had_failed_before(procs: ma.ProcMesh) -> None:
    """The others wait for it in a collective, the call waits for them: the cause must not be lost."""
    waiters = await procs.spawn("waiters", Waiter)
    with pytest.raises(TimeoutError) as info:
        async with asyncio.timeout(0.1):
            await waiters.raise_on.call(1)
    assert "waiters[1].raise_on on host0 raised ValueError: rank 1 says no" in str(info.value.__cause__)


async def test_calls_that_wait_their_turn_never_begin(procs: ma.ProcMesh) -> None:
    serial = (await procs.spawn("serial", Serial)).at(0)
    running = serial.wait.call_one()
    await asyncio.sleep(0)
    queued = [serial.note.call_one(str(index)) for index in range(4)]
    for call in queued[1:3]:
        await cancelled(call)
    await cancelled(running)
    await asyncio.gather(queued[0], queued[3])
    assert await serial.noted.call_one() == ["cancelled", "0", "3"]


async def test_a_plain_def_is_reported_as_not_interruptible_and_goes_on(
    procs: ma.ProcMesh, capfd: pytest.CaptureFixture[str]
) -> None:
    blocking = (await procs.spawn("blocking", Blocking)).at(0)
    first, second, third = [blocking.block.call_one(name, True) for name in ("first", "second", "third")]
    await blocking.wait_done.call_one("first begins")
    error = await cancelled(first)
    assert str(error) == "blocking[0].block is a plain def and cannot be interrupted: it runs on"
    await cancelled(second)  # has not begun, and will not
    await blocking.open.call_one()
    with pytest.raises(ValueError, match="too late"):
        await third
    done = await blocking.wait_done.call_one("third ends")
    assert done == ["first begins", "first ends", "third begins", "third ends"]
    await procs.stop()
    assert "block, which its caller had cancelled, raised:" in capfd.readouterr().err  # an error is never lost


async def test_a_stream_left_early_is_cancelled(procs: ma.ProcMesh) -> None:
    waiter = (await procs.spawn("waiters", Waiter)).at(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), waiter.items.stream_one() as items:
            async for _ in items:
                pass
    assert await waiter.noted.call_one() == ["stream cancelled"]


async def test_the_first_error_cancels_the_siblings(procs: ma.ProcMesh) -> None:
    waiters = await procs.spawn("waiters", Waiter)
    call = waiters.raise_when_told.options(first_error=True).call(1)
    await waiters.at(0).wait_begun.call_one(1)
    await waiters.at(1).tell.call_one()
    with pytest.raises(ValueError, match="rank 1 says no"):
        await call
    while await waiters.at(0).noted.call_one() != ["cancelled"]:
        await asyncio.sleep(0.001)
    await _nothing_pending()


@pytest.mark.parametrize("order", ["forwards", "backwards"])
@pytest.mark.parametrize("cls", [Serial, pytest.param(Waiter, marks=pytest.mark.slow)])
async def test_thousands_of_just_sent_calls_all_end(procs: ma.ProcMesh, cls: type[Waiter], order: str) -> None:
    """More than the window holds: some run, some wait there, some wait here; none is left hanging."""
    waiters = await procs.spawn("waiters", cls)
    calls: list[asyncio.Future[object]] = [waiters.at(0).wait.call_one() for _ in range(12_000)]
    calls += [waiters.wait.call() for _ in range(1000)]  # type: ignore[list-item]
    for call in calls if order == "forwards" else reversed(calls):
        call.cancel()
    began = time.monotonic()
    done, left = await asyncio.wait(calls, timeout=10)
    took = time.monotonic() - began
    assert not left
    assert all(call.cancelled() for call in done)
    assert not active_router().pending
    assert list(await waiters.pending.call()) == [0, 0]
    begun, ended = await waiters.at(0).counts.call_one()
    assert begun == ended
    path = active_router().path(waiters.at(0)._members[0], waiters.at(0)._actor_id)  # type: ignore[attr-defined]
    assert (path.inflight, path.inflight_bytes, len(path.queue)) == (0, 0, 0)
    assert took < 5, took


async def _nothing_pending() -> None:
    async with asyncio.timeout(5):
        while active_router().pending:
            await asyncio.sleep(0.001)
