"""Ports and channels: many values back, from anywhere, at any time.

    port, receiver = ma.channel()
    await workers.run.call(port)          # each does: await port.send(value)
    async for value in receiver: ...

A port is a small reference that pickles. A receiver holds at most ``limit`` values; a sender's `send` resolves when its
value has been admitted, so a full receiver makes its senders wait. Dropping a receiver closes it.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from monarch_async.errors import BadCall, Closed
from monarch_async.ids import random_id64
from monarch_async.runtime.answers import NOTHING
from monarch_async.runtime.call import Call
from monarch_async.runtime.delivery import SEND
from monarch_async.runtime.report import pack_error, pack_raised
from monarch_async.runtime.router import Router, active_router
from monarch_async.wire.frame import CANCELLED, FAILED, WANTS_REPLY
from monarch_async.wire.message import CallFields, pack_call_fields
from monarch_async.wire.payload import Buffer, Encoded, Ticketed, dumps, loads

T = TypeVar("T")

_SEND = CallFields(SEND)
_SEND_CONTROL = pack_call_fields(_SEND)


class Port(Generic[T]):
    """The sending end. Pickles; works from any proc."""

    __slots__ = ("_address", "_id")

    def __init__(self, address: int, port_id: int) -> None:
        """Made by `channel`."""
        self._address, self._id = address, port_id

    def __reduce__(self) -> tuple[Any, ...]:
        return Port, (self._address, self._id)

    def send(self, value: T) -> "asyncio.Future[None]":
        """Send now; the future resolves when the receiver has admitted the value (waits while it is full).

        Raises PicklingError at once, and Backpressure where 16 windows of values (``window_calls`` each) wait from here
        already. The future raises Closed where the receiver is closed, ProcDied where its proc is gone.
        """
        encoded = dumps(value, "value sent to a port")
        router = active_router()
        path = router.path(self._address, self._id)
        call: Call[None] = Call(router, "port.send", path)
        call.id = router.register(call)
        call.nbytes = router.post(path, WANTS_REPLY, _SEND, _SEND_CONTROL, encoded, call.id)
        if type(encoded) is Ticketed:
            encoded.sent_to((self._address,), call.id)
        return call


class Receiver(Generic[T]):
    """The receiving end; lives where it was made. Also an async context manager."""

    __slots__ = ("_intake",)

    def __init__(self, intake: "Intake[T]") -> None:
        """Made by `channel`. The router keeps ``intake``; this object is the user's and decides when it ends."""
        self._intake = intake

    async def recv(self) -> T:
        """Wait for the next value. Raises Closed after `close`."""
        return await self._intake.next()

    def __aiter__(self) -> "Receiver[T]":
        return self

    async def __anext__(self) -> T:
        """Wait for the next value; ends when the receiver is closed."""
        try:
            return await self.recv()
        except Closed:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Take nothing more: waiting and later senders get Closed. Twice is fine."""
        self._intake.close()

    async def __aenter__(self) -> "Receiver[T]":
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._intake.abandon()


class Intake(Generic[T]):
    """Where the values of one channel arrive."""

    def __init__(self, router: Router, limit: int) -> None:
        """Take values for ``router``, at most ``limit`` of them."""
        self._router, self._limit = router, limit
        self.id = random_id64()
        self.values: deque[T] = deque()
        self._waiting: deque[tuple[int, int, Buffer, Sequence[Buffer]]] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        router.targets[self.id] = self

    async def next(self) -> T:
        """Wait for the next value. Raises Closed after `close`."""
        while not self.values:
            if self._is_closed:
                raise Closed("the receiver of this channel")
            waiter: asyncio.Future[None] = self._router.loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self._waiters.remove(waiter)
                if self.values:
                    self._wake()  # it may have been woken for a value, which is another's now
                raise
            self._waiters.remove(waiter)
        value = self.values.popleft()
        if self.values:
            self._wake()
        self._admit()
        return value

    def close(self) -> None:
        """Take nothing more. Twice is fine."""
        self._is_closed = True
        self._router.targets.pop(self.id, None)
        while self._waiting:
            src, call, _, _ = self._waiting.popleft()
            self._refuse(src, call)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def abandon(self) -> None:
        """Nobody will receive any more. May be called by the collector, on any thread."""
        if not self._is_closed:
            self._router.call_soon(self.close)

    # -- delivery.Target ---------------------------------------------------------------------------------------------

    def accept(
        self, src: int, call: int, flags: int, fields: CallFields, skeleton: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        """Take one value, or let it wait where the receiver is full."""
        assert flags & WANTS_REPLY
        self._waiting.append((src, call, skeleton, buffers))
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self.values) < self._limit:
            src, call, skeleton, buffers = self._waiting.popleft()
            try:
                value: Any = loads(skeleton, buffers)
            except Exception as error:
                error.add_note("raised while unpickling a value sent to a port")
                self._fail(src, call, pack_raised(error, 0, {}, "channel", "recv", self._router.name))
            else:
                self.values.append(value)
                self._router.reply(src, call, 0, 0, NOTHING)
                self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    def cancel(self, src: int, call: int) -> None:
        """A sender gave up waiting."""
        for entry in self._waiting:
            if entry[0] == src and entry[1] == call:
                self._waiting.remove(entry)
                self._router.reply(src, call, 0, CANCELLED, Encoded(b"", []))
                return

    def has_waiting(self, src: int) -> bool:
        """Return whether values of this sender have not been unpickled yet."""
        return any(sender == src for sender, *_ in self._waiting)

    def credit(self, src: int, call: int, items: int, nbytes: int) -> None:
        """Ports are not streams."""

    def _refuse(self, src: int, call: int) -> None:
        self._fail(src, call, pack_error(Closed("the receiver of this channel")))

    def _fail(self, src: int, call: int, report: bytes) -> None:
        self._router.reply(src, call, 0, FAILED, Encoded(report, []))


def channel(limit: int = 1024) -> tuple[Port[Any], Receiver[Any]]:
    """Return a port and the receiver of what is sent to it, which holds at most ``limit`` values.

    Works in the client and in actors. Raises BadCall for a limit below 1.
    """
    if limit < 1:
        raise BadCall("channel", f"limit={limit}: it must be 1 or more")
    router = active_router()
    intake: Intake[Any] = Intake(router, limit)
    return Port(router.address, intake.id), Receiver(intake)
