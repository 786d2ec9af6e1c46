"""An actor in its proc, without agents or processes: two routers joined by the connection the real ones use.

The invariants are those of `monarch_async.runtime.instance`.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

import monarch_async as ma
from monarch_async.ids import address, host_of, random_id64
from monarch_async.ranks import Region
from monarch_async.runtime.call import Broadcast, Call
from monarch_async.runtime.context import ProcInfo
from monarch_async.runtime.instance import State
from monarch_async.runtime.proc import SPAWN, Proc, SpawnOrder
from monarch_async.runtime.router import Router
from monarch_async.transport.connection import Connection
from monarch_async.transport.inproc import connect
from monarch_async.wire.frame import WANTS_REPLY
from monarch_async.wire.message import CallFields, pack_call_fields
from monarch_async.wire.payload import Encoded, dumps, dumps_call

CALLER, WORKER = address(7, 1), address(7, 2)
CONFIG = ma.Config(resume_window=3600, cancel_grace=1.0, stop_grace=1.0)


class Pair:
    """A caller and a proc with one actor."""

    def __init__(self) -> None:
        self.caller, self.worker = Router(CALLER, CONFIG, "caller"), Router(WORKER, CONFIG, "worker")
        ends = Connection(self.caller, "worker", WORKER), Connection(self.worker, "caller", CALLER)
        self.caller.add_uplink(host_of(CALLER), ends[0])
        self.worker.add_uplink(host_of(WORKER), ends[1])
        info = ProcInfo(WORKER, "procs", 0, ma.Extent().point(0), "here", os.getpid())
        self.proc = Proc(self.worker, info)
        self.transports = connect(*ends)
        self.actor_id = random_id64()

    def spawn(self, cls: Any, *args: Any, **kwargs: Any) -> Call[None]:
        recipe = dumps((cls, args, kwargs))
        order = SpawnOrder("actor", Region.full(ma.Extent()), 0, recipe.skeleton)
        return self._send(Call, SPAWN, order.pack(recipe.buffers))

    def call(self, endpoint: str, *args: Any) -> Call[Any]:
        return self._send(Call, endpoint, dumps_call(args, {}, endpoint))

    def broadcast(self, endpoint: str, *args: Any) -> Broadcast:
        path = self.caller.path(WORKER, self.actor_id)
        call = Broadcast(self.caller, endpoint, [path])
        self._post(call, endpoint, 0, dumps_call(args, {}, endpoint))
        return call

    def _send(self, kind: type[Call[Any]], endpoint: str, encoded: Encoded) -> Call[Any]:
        call = kind(self.caller, endpoint, self.caller.path(WORKER, self.actor_id))
        self._post(call, endpoint, WANTS_REPLY, encoded)
        return call

    def _post(self, call: Any, endpoint: str, flags: int, encoded: Encoded) -> None:
        fields = CallFields(endpoint)
        call.id = self.caller.register(call)
        path = self.caller.path(WORKER, self.actor_id)
        call.nbytes = self.caller.post(path, flags, fields, pack_call_fields(fields), encoded, call.id)

    def write_together(self) -> None:
        """What is sent in this turn arrives in one read, also its first frame."""
        connection = self.caller.uplink(WORKER)
        connection._write = connection.send = connection._write_more
        self.caller.loop.call_soon(connection._end_turn, connection.wire)

    @property
    def instance(self) -> Any:
        return self.proc.instances[self.actor_id]

    @property
    def actor(self) -> Any:
        return self.instance.actor

    async def stop(self) -> None:
        await self.instance.stop("it was stopped")

    async def aclose(self) -> None:
        for instance in list(self.proc.instances.values()):
            await instance.stop("the end")
        assert not self.caller.pending
        assert not self.proc.producers
        self.proc.close()
        self.caller.close(ma.Closed("caller"))
        for transport in self.transports:
            transport.close()
        await asyncio.sleep(0)


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    await pair.aclose()


async def turns(count: int = 20) -> None:
    """Let everything happen that needs no time."""
    for _ in range(count):
        await asyncio.sleep(0)


class Subject(ma.Actor):
    """Notes what happens to it."""

    max_concurrency = 2

    def __init__(self, log: str = "") -> None:
        self.log: list[str] = [log] if log else []
        self.gates: dict[str, asyncio.Event] = {}
        self.free = threading.Event()

    @ma.endpoint
    async def note(self, name: str) -> str:
        self.log.append(name)
        return name

    @ma.endpoint
    async def hold(self, name: str) -> str:
        self.log.append(f"begin {name}")
        self.gates[name] = asyncio.Event()
        try:
            await self.gates[name].wait()
        except asyncio.CancelledError:
            self.log.append(f"cancelled {name}")
            raise
        self.log.append(f"end {name}")
        return name

    @ma.endpoint
    async def deaf(self, name: str) -> str:
        """Does not let itself be cancelled."""
        self.gates[name] = asyncio.Event()
        while not self.gates[name].is_set():
            try:
                await self.gates[name].wait()
            except asyncio.CancelledError:
                self.log.append("heard")
        return name

    @ma.endpoint
    async def fail(self) -> None:
        raise ValueError("on purpose")


class SlowToStart(Subject):
    started = asyncio.Event()

    async def setup(self) -> None:
        await SlowToStart.started.wait()
        self.log.append("setup")


class Threaded(Subject):
    @ma.endpoint
    def block(self, name: str) -> str:
        self.log.append(f"begin {name}")
        self.free.wait(10)
        return name


class Broken(Subject):
    def __init__(self) -> None:
        raise OSError("cannot be made")


async def test_calls_wait_until_the_actor_is_up_and_start_in_order(pair: Pair) -> None:
    """I1, Starting -> Running."""
    SlowToStart.started = asyncio.Event()
    spawned = pair.spawn(SlowToStart)
    calls = [pair.call("note", "a"), pair.call("hold", "b"), pair.call("note", "c")]
    await turns()
    assert pair.instance.state is State.STARTING
    assert not any(call.done() for call in [spawned, *calls])
    SlowToStart.started.set()
    await spawned
    assert await calls[0] == "a"
    assert await calls[2] == "c"
    assert pair.actor.log == ["setup", "a", "begin b", "c"]
    pair.actor.gates["b"].set()
    assert await calls[1] == "b"


async def test_a_call_never_overtakes_one_that_waits_for_its_turn(pair: Pair) -> None:
    """I1, for an endpoint that needs no task."""
    await pair.spawn(Subject)
    calls = [pair.call("hold", "1"), pair.call("note", "2"), pair.call("hold", "3"), pair.call("note", "4")]
    await turns()
    assert pair.actor.log == ["begin 1", "2", "begin 3"]  # both slots are taken now
    pair.actor.gates["1"].set()
    await calls[0]
    assert await calls[3] == "4"
    assert pair.actor.log == ["begin 1", "2", "begin 3", "end 1", "4"]
    pair.actor.gates["3"].set()
    await asyncio.gather(*calls)


async def test_max_concurrency_holds_the_others_back(pair: Pair) -> None:
    await pair.spawn(Subject)
    calls = [pair.call("hold", str(n)) for n in range(5)]
    await turns()
    assert pair.actor.log == ["begin 0", "begin 1"]
    assert len(pair.instance.mailbox) == 3
    for n in range(5):
        pair.actor.gates[str(n)].set()
        await calls[n]
        await turns()
    assert pair.instance._slots == 0
    assert not pair.instance.running


async def test_a_failed_init_answers_what_waits_and_what_comes(pair: Pair) -> None:
    """I2, Starting -> Failed."""
    pair.write_together()
    spawned, waiting = pair.spawn(Broken), pair.call("note", "a")
    for failed in (spawned, waiting):
        with pytest.raises(OSError, match="cannot be made"):
            await failed
    with pytest.raises(ma.ActorDied, match="__init__ raised OSError: cannot be made"):
        await pair.call("note", "b")
    with pytest.raises(ma.ActorDied):
        await pair.broadcast("note", "c")


async def test_stop_cancels_what_runs_refuses_what_waits_and_what_comes(pair: Pair) -> None:
    """I2, I3, Running -> Stopped."""
    await pair.spawn(Subject)
    actor = pair.actor
    calls = [pair.call("hold", str(n)) for n in range(4)]
    await turns()
    await pair.stop()
    assert actor.log == ["begin 0", "begin 1", "cancelled 0", "cancelled 1"]
    for call in [*calls, pair.call("note", "late"), pair.broadcast("note", "late")]:
        with pytest.raises(ma.ActorDied, match="it was stopped"):
            await call
    assert pair.instance.actor is None
    await pair.stop()


async def test_a_running_call_is_cancelled_and_acknowledged(pair: Pair) -> None:
    await pair.spawn(Subject)
    call = pair.call("hold", "a")
    await turns()
    call.cancel()
    assert not call.done()  # not before the other side says so
    with pytest.raises(asyncio.CancelledError):
        await call
    assert pair.actor.log == ["begin a", "cancelled a"]
    assert pair.instance._slots == 0


async def test_a_call_that_waits_in_the_mailbox_is_cancelled(pair: Pair) -> None:
    await pair.spawn(Subject)
    running = [pair.call("hold", "a"), pair.call("hold", "b")]
    waiting, behind = pair.call("hold", "c"), pair.call("note", "d")
    await turns()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for name in "ab":
        pair.actor.gates[name].set()
    await asyncio.gather(*running, behind)
    assert "begin c" not in pair.actor.log


async def test_a_call_is_cancelled_before_its_task_has_begun(pair: Pair) -> None:
    """Call and cancellation arrive in one read."""
    await pair.spawn(Subject)
    pair.write_together()
    call = pair.call("hold", "a")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert pair.actor.log == []
    assert await pair.call("note", "b") == "b"
    assert pair.instance._slots == 0


async def test_one_that_ignores_its_cancellation_is_given_up(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    await pair.spawn(Subject)
    call = pair.call("deaf", "a")
    await turns()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert "no acknowledgement of its cancellation after 1 s" in caplog.text
    assert pair.actor.log == ["heard"]
    pair.actor.gates["a"].set()
    await turns()


async def test_a_plain_def_cannot_be_interrupted_but_its_caller_goes_on(pair: Pair) -> None:
    await pair.spawn(Threaded)
    running, queued = pair.call("block", "a"), pair.call("block", "b")
    while not pair.actor.log:
        await asyncio.sleep(0.001)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await running
    assert "cannot be interrupted: it runs on" in str(caught.value)
    assert pair.instance.running
    pair.actor.free.set()
    while pair.instance.running:
        await asyncio.sleep(0.001)
    assert pair.actor.log == ["begin a"]


async def test_a_broadcast_is_acknowledged_when_it_begins(pair: Pair) -> None:
    await pair.spawn(Subject)
    first, second, third = [pair.broadcast("hold", name) for name in "abc"]
    await turns()
    assert (first.done(), second.done(), third.done()) == (True, True, False)
    pair.actor.gates["a"].set()
    await third
    for name in "bc":
        pair.actor.gates[name].set()
    await turns()


async def test_a_raised_exception_is_the_answer_and_the_actor_lives_on(pair: Pair) -> None:
    await pair.spawn(Subject)
    with pytest.raises(ValueError, match="on purpose") as caught:
        await pair.call("fail")
    assert isinstance(caught.value, ma.RemoteError)
    assert (caught.value.actor, caught.value.endpoint, caught.value.host) == ("actor", "fail", "here")
    assert await pair.call("note", "x") == "x"


async def test_an_endpoint_that_is_not_there_is_the_answer(pair: Pair) -> None:
    """The caller checks; a caller of another version may be wrong."""
    await pair.spawn(Subject)
    with pytest.raises(ma.NotAnEndpoint, match="actor has no endpoint 'nope'"):
        await pair.call("nope")


async def test_arguments_that_do_not_fit_are_the_answer(pair: Pair) -> None:
    await pair.spawn(Subject)
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        await pair.call("note", 1, 2)


async def test_a_call_to_an_actor_that_never_was(pair: Pair) -> None:
    with pytest.raises(ma.ActorDied, match="no such actor"):
        await pair.call("note", "x")
    with pytest.raises(ma.ActorDied):
        await pair.broadcast("note", "x")


async def test_an_actor_is_made_anew_in_its_place(pair: Pair) -> None:
    await pair.spawn(Subject, "first")
    await pair.stop()
    await pair.spawn(Subject, "second")
    assert await pair.call("note", "x") == "x"
    assert pair.actor.log == ["second", "x"]


class Leaving(Subject):
    """Its teardown waits for a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def teardown(self) -> None:
        self.log.append("teardown")
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.log.append("cut short")
            raise
        self.log.append("gone")


class Staying(Leaving):
    """Its teardown does not let itself be cancelled."""

    async def teardown(self) -> None:
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.log.append("heard")


async def test_who_stops_it_again_waits_for_the_stop_in_progress(pair: Pair) -> None:
    """Else a restart would run the new ``__init__`` beside the old ``teardown``, and a proc would end in the midst."""
    await pair.spawn(Leaving)
    actor, proc = pair.actor, pair.proc
    stop = [proc._stop_actor(CALLER, 0, pair.actor_id, why) for why in ("it was stopped", "it is restarted")]
    first, second = map(asyncio.ensure_future, stop)
    await turns()
    shutdown = asyncio.ensure_future(proc.shutdown("the end"))
    await turns()
    assert actor.log == ["teardown"]
    assert not (first.done() or second.done() or proc.ended.done())
    first.cancel()  # who waits may give up, the teardown goes on
    await turns()
    assert actor.log == ["teardown"]
    actor.may_end.set()
    await asyncio.gather(second, shutdown)
    assert proc.ended.done()
    assert actor.log == ["teardown", "gone"]
    assert not proc.instances


async def test_a_failure_of_its_own_is_a_stop_in_progress_too(pair: Pair) -> None:
    await pair.spawn(Leaving)
    actor = pair.actor
    failing = asyncio.ensure_future(pair.instance.fail(ma.ActorDied("actor", "here", "why"), ValueError("cause")))
    await turns()
    stopping = asyncio.ensure_future(pair.stop())
    await turns()
    assert actor.log == ["teardown"] and not stopping.done()
    actor.may_end.set()
    await asyncio.gather(failing, stopping)
    assert actor.log == ["teardown", "gone"]


async def test_a_teardown_that_takes_too_long_is_cancelled(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.worker.config = replace(CONFIG, stop_grace=0.02)
    await pair.spawn(Leaving)
    actor = pair.actor
    await pair.stop()
    assert actor.log == ["teardown", "cut short"]
    assert "teardown takes longer than stop_grace (0.02 s)" in caplog.text


async def test_a_teardown_that_will_not_end_is_left_behind(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.worker.config = replace(CONFIG, stop_grace=0.02, cancel_grace=0.02)
    await pair.spawn(Staying)
    actor = pair.actor
    await pair.stop()
    assert actor.log == ["heard"]
    assert "teardown takes longer" in caplog.text
    actor.may_end.set()
    await turns()


async def test_a_call_that_waits_for_its_actor_to_be_made_is_cancelled(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """P4: it came from another host before the message that makes its actor."""
    pair.proc._near.clear()
    given_up, kept = pair.call("note", "a"), pair.call("note", "b")
    await turns()
    assert len(pair.proc._early[pair.actor_id]) == 2
    given_up.cancel()
    await turns()
    assert given_up.cancelled()
    await pair.spawn(Subject)
    assert await kept == "b"
    assert pair.actor.log == ["b"]
    assert "no acknowledgement" not in caplog.text


async def test_a_status_is_answered_while_calls_wait(pair: Pair) -> None:
    """I3."""
    await pair.spawn(Subject)
    calls = [pair.call("hold", str(n)) for n in range(5)]
    await turns()
    (actor,) = pair.proc.status()["actors"]
    assert (actor["state"], actor["queued"]) == ("running", 3)
    assert [row[0] for row in actor["running"]] == ["hold", "hold"]
    await pair.stop()
    for call in calls:
        with pytest.raises(ma.ActorDied):
            await call


def test_what_creates_a_mesh_does_not_grow_with_it() -> None:
    """Each of its procs gets the same bytes: were its members listed, a mesh of n would cost n times n."""
    extent = ma.Extent(hosts=4096, gpus=32)
    for region in (Region.full(extent), Region.full(extent).slice(hosts=slice(3, None, 2), gpus=slice(0, 16))):
        assert len(SpawnOrder("actor", region, 0, b"").pack([]).skeleton) < 500
