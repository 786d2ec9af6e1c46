"""Calls of actors from one process: each actor's in the order in which they were made, straight to its process.

    finding   where it is, is being asked of the hub; calls wait          found: up; dead: dead
    up        calls are sent                                              a call is lost: asking
    asking    its death is seen here; what the hub makes of it is asked   restarts: finding; dead: dead
    dead      calls fail
    any       a call is lost that was sent to an incarnation which is known to be over: no other is asked about

    A1. Calls of one process to one actor are sent in the order in which they were made; one whose arguments are not
        there yet holds up the later ones, but those of an async actor.
    A2. A call that was sent and lost is sent again where it has retries left, before those that wait, in order.
    A3. An actor that has gone out of scope everywhere ends after the calls that were made: each keeps it.
"""

import contextlib
import itertools
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from monarch_async.errors import ActorDied, Lost
from monarch_async.mesh.actor_mesh import ActorMesh
from monarch_async.ray.entry import OVER, Entry
from monarch_async.ray.exceptions import ActorDiedError, ActorUnavailableError, cancelled
from monarch_async.ray.payload import Packed
from monarch_async.runtime.call import load_outcome
from monarch_async.runtime.path import Path
from monarch_async.wire.frame import CANCEL, CANCELLED, WANTS_REPLY, pack_frame
from monarch_async.wire.message import CallFields, pack_call_fields
from monarch_async.wire.payload import Buffer, Encoded, Ticketed, dumps_call

if TYPE_CHECKING:
    from monarch_async.ray.runtime import Runtime

_FIELDS = {name: CallFields(name) for name in ("run", "run_async", "run_threaded")}
_CONTROL = {name: pack_call_fields(fields) for name, fields in _FIELDS.items()}


#: Bytes of arguments that are surely not kept beside the pickle.
_SMALL = 32 << 10


class ActorCall:
    """One call of one actor. A `runtime.call.Pending` while it is under way."""

    __slots__ = (
        "client", "entries", "incarnation", "is_cancelled", "keeps", "life", "method", "nbytes", "number", "packed",
        "path", "refs", "retries", "retry_on", "sent_as", "style",
    )  # fmt: skip
    is_carrier = True

    def __init__(
        self,
        style: str,
        method: tuple[Any, ...],
        packed: Packed,
        refs: Sequence[Entry],
        entries: Sequence[Entry],
        retries: int,
        life: object,
        retry_on: tuple[type[BaseException], ...] = (),
    ) -> None:
        """``method``: name, group, how many results; ``refs``: arguments that are objects; ``life`` keeps the actor.

        ``retries``: after how many losses it is sent again, or raised errors of the types ``retry_on``.
        """
        self.style, self.method, self.packed, self.refs, self.entries = style, method, packed, refs, entries
        self.retries, self.life, self.retry_on = retries, life, retry_on
        self.sent_as = self.nbytes = self.number = self.incarnation = 0
        self.is_cancelled = False
        self.client: ActorClient | None = None
        self.path: Path | None = None

    @property
    def is_ready(self) -> bool:
        """Whether its arguments are there."""
        return all(entry.is_done for entry in self.refs)

    @property
    def what(self) -> str:
        """What it is called in texts: ``Class.method``."""
        return self.entries[0].what if self.entries else self.method[0]

    def open(self, mesh: Any, values: Sequence[Packed | None]) -> None:
        """Send it, where it is of the style ``stream``. Raises what sending raises."""
        raise NotImplementedError

    def take_reply(self, src: int, flags: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        """It was answered."""
        assert self.client is not None and self.path is not None
        self.path.answered(self.nbytes)
        self.client.answered(self)
        if flags & CANCELLED:
            self.fail(cancelled(self.what))
            return True
        value, error = load_outcome(flags, skeleton, buffers, self.what)
        if error is not None:
            self.client.raised(self, error)
            return True
        self.client.unanswered -= 1
        if len(self.entries) == 1:
            self.entries[0].arrive(value)  # type: ignore[arg-type]
        else:
            for entry, part in zip(self.entries, value, strict=True):  # type: ignore[call-overload]
                entry.arrive(part)
        return True

    def lose(self, gone: Callable[[int], bool], error: Exception) -> bool:
        """Its process is gone."""
        assert self.client is not None and self.path is not None
        self.path.answered(self.nbytes)
        self.client.lost(self, error)
        return True

    def has_member(self, gone: Callable[[int], bool]) -> bool:
        """See `Pending`."""
        assert self.path is not None
        return gone(self.path.dst)

    def fail(self, error: BaseException) -> None:
        """It has no result."""
        if self.client is not None:
            self.client.unanswered -= 1
        for entry in self.entries:
            if not entry.is_done:
                entry.fail(error)


class ActorClient:
    """One actor, as this process calls it. On the loop."""

    def __init__(self, runtime: "Runtime", actor: str, *, keeps_order: bool) -> None:
        """``actor``: its id. Not known where it is."""
        self.runtime, self.actor, self._keeps_order = runtime, actor, keeps_order
        self._queue: deque[ActorCall] = deque()
        self._aside: set[ActorCall] = set()  # where order does not count: those whose arguments are not there yet
        self._lost: list[tuple[ActorCall, Exception]] = []
        self._under_way: dict[int, ActorCall] = {}
        self.unanswered = 0  #: calls that were made and are not answered; as threads see it, about
        self._order = itertools.count(1)
        self._is_asking = False
        self.mesh: ActorMesh | None = None
        self._path: Path | None = None
        self._incarnation = 0  #: the one that is called
        self._over = 0  #: the last one of which the hub has said that it is over
        self._death: BaseException | None = None

    # -- out -------------------------------------------------------------------------------------------------------

    def submit(self, call: ActorCall) -> None:
        """Take a call."""
        call.client, call.number = self, next(self._order)
        for entry in call.entries:
            entry.cancel = lambda by_force, is_recursive: self.cancel(call)
        if self._death is not None:
            call.fail(self._death)
        elif call.refs and not call.is_ready and not self._keeps_order:
            self._aside.add(call)
            self._await_arguments(call, self._bring_back)
        else:
            self._queue.append(call)
            if call.refs:
                self._await_arguments(call, self._pump_for)
            self._pump()

    def _await_arguments(self, call: ActorCall, then: Callable[[ActorCall], None]) -> None:
        for entry in call.refs:
            entry.when_done(lambda: call.is_ready and self.runtime.post(then, call))

    def _pump_for(self, call: ActorCall) -> None:
        self._pump()

    def _bring_back(self, call: ActorCall) -> None:
        """Its arguments are there."""
        if call in self._aside:
            self._aside.discard(call)
            self._queue.append(call)
            self._pump()

    def _pump(self) -> None:
        """Send what may be sent: as much as the actor takes. Any number may wait here, as under Ray."""
        if self._path is None:
            self._find()
        while self._queue and self._queue[0].is_ready and self._may_send:
            self._send(self._queue.popleft())

    @property
    def _may_send(self) -> bool:
        """Whether there is room; where nothing of ours is under way, that waits for others' end in the path itself."""
        return self._path is not None and (self._path.has_room or not self._under_way)

    def _send(self, call: ActorCall) -> None:
        for entry in call.refs:
            if entry.error is not None:
                call.fail(self.runtime.error_of(entry))
                return
        values = [entry.value for entry in call.refs] if call.refs else ()
        path, router = self._path, self.runtime.domain.router
        assert path is not None
        call.path, call.incarnation = path, self._incarnation
        try:
            if call.style == "stream":
                call.open(self.mesh, values)
                return
            encoded = _encoded(call, values)
            call.sent_as = router.register(call)
            self._under_way[call.sent_as] = call
            flags = WANTS_REPLY
            call.nbytes = router.post(path, flags, _FIELDS[call.style], _CONTROL[call.style], encoded, call.sent_as)
            if type(encoded) is Ticketed:
                encoded.sent_to((path.dst,), call.sent_as)
        except Lost as error:
            self._under_way.pop(call.sent_as, None)
            self.lost(call, error)
        except Exception as error:
            self._under_way.pop(call.sent_as, None)
            call.fail(error)

    def cancel(self, call: ActorCall) -> None:
        """Nobody wants it any more."""
        call.is_cancelled = True
        if call in self._aside or call in self._queue:
            self._aside.discard(call)
            with contextlib.suppress(ValueError):
                self._queue.remove(call)
            call.fail(cancelled(call.what))
            self.runtime.post(self._pump)
        elif call.sent_as in self._under_way and call.path is not None:
            router = self.runtime.domain.router
            if call.path.withdraw(call.sent_as):
                router.pending.pop(call.sent_as, None)
                self.answered(call)
                call.fail(cancelled(call.what))
                return
            frame = pack_frame(CANCEL, 0, call.path.dst, router.address, call.path.actor, call.sent_as)
            call.path.connection.send(frame)

    # -- back ------------------------------------------------------------------------------------------------------

    def answered(self, call: ActorCall) -> None:
        """It is under way no longer."""
        self._under_way.pop(call.sent_as, None)
        if self._queue:
            self._pump()

    def raised(self, call: ActorCall, error: Exception) -> None:
        """A method has raised, or the actor says that it is none any more."""
        if isinstance(error, ActorDied | Lost) or getattr(error, "endpoint", "") in ("__init__", "setup"):
            self.lost(call, error)
        elif call.retries and call.retry_on and isinstance(error, call.retry_on) and not call.is_cancelled:
            call.retries -= call.retries > 0
            self._queue.appendleft(call)
            self._pump()
        else:
            call.fail(error)

    def lost(self, call: ActorCall, error: Exception) -> None:
        """It was sent to a process that is gone: what that means the hub knows."""
        self._under_way.pop(call.sent_as, None)
        if self._death is not None:
            call.fail(self._death)
            return
        if call.incarnation <= self._over:  # told late: the one that is called now is another
            self._send_again([(call, error)])
            self._pump()
            return
        self._lost.append((call, error))
        if not self._is_asking:
            self._is_asking = True
            self._path, self.mesh = None, None
            self.runtime.start(self._ask_fate())

    async def _ask_fate(self) -> None:
        """What has become of the actor: it is dead, or it is made anew."""
        is_dead, why = True, None
        try:
            is_dead, why = await self.runtime.hub("actors.fate", self.actor, self._incarnation)
        except Exception as error:
            why = error
        self._is_asking = False
        lost, self._lost = self._lost, []
        if is_dead:
            for call, error in sorted(lost, key=lambda pair: pair[0].number):
                call.fail(self._died(why, error))
            self.die(self._died(why, None))
        else:
            self._over = self._incarnation
            self._send_again(lost)
            self._pump()

    def _send_again(self, lost: Sequence[tuple[ActorCall, Exception]]) -> None:
        """Put calls that were lost with an incarnation back into the queue, in order (A2), where that may be."""
        again: list[ActorCall] = []
        for call, error in lost:
            if call.is_cancelled:
                call.fail(cancelled(call.what))
            elif call.retries:
                call.retries -= call.retries > 0
                again.append(call)
            else:
                text = f"actor {self.actor} died while this call was under way, and is being restarted: {error}"
                call.fail(ActorUnavailableError(text, self.actor))
        if again:
            self._queue = deque(sorted([*again, *self._queue], key=lambda call: call.number))

    def _died(self, why: object, error: Exception | None) -> BaseException:
        if isinstance(why, BaseException):
            return why
        return ActorDiedError(str(why or error), self.actor)

    def die(self, death: BaseException) -> None:
        """There is no such actor any more."""
        if not isinstance(death, Lost):  # else the hub is lost: where this process outlives it, another one comes
            self._death = death.with_traceback(None)  # which refers to all that stood on the stack
        waiting = [*self._queue, *self._aside]
        self._queue.clear()
        self._aside.clear()
        for call in sorted(waiting, key=lambda call: call.number):
            call.fail(death)

    # -- where it is -----------------------------------------------------------------------------------------------

    def _find(self) -> None:
        if not self._is_asking and self._death is None:
            self._is_asking = True
            self.runtime.start(self._ask_where())

    async def _ask_where(self) -> None:
        try:
            mesh, self._incarnation = await self.runtime.hub("actors.find", self.actor)
        except BaseException as error:
            self._is_asking = False
            self.die(error)
            return
        self._is_asking = False
        self.mesh = mesh
        self._path = mesh.cast.paths[0]
        self._pump()


def _encoded(call: ActorCall, values: Sequence[Packed | None]) -> Encoded:
    """Return the arguments of the native call; plain ones, as most are, go straight to the C pickler."""
    if not values and type(call.packed) is bytes and len(call.packed) < _SMALL:
        return Encoded(pickle.dumps(((call.method, call.packed, ()), {}), 5), [])
    return dumps_call((call.method, call.packed, values), {}, call.method[0])


class Calling:
    """The actors that one process calls."""

    def __init__(self, runtime: "Runtime") -> None:
        """None yet."""
        self._runtime = runtime
        self._clients: weakref.WeakValueDictionary[str, ActorClient] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()  # a collection while it is held may run code that calls actors

    def close(self) -> None:
        """The session ends: what waits here is told. On the loop."""
        for known in self._clients.valuerefs():
            if (client := known()) is not None:
                client.die(ActorDiedError(OVER, client.actor))

    def client(self, actor: str, keeps_order: bool) -> ActorClient:
        """Return the client of an actor: it is kept by handles, and by calls that are not answered. On any thread."""
        with self._lock:
            found = self._clients.get(actor)
            if found is None:
                found = self._clients[actor] = ActorClient(self._runtime, actor, keeps_order=keeps_order)
            return found
