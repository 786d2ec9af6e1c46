"""What an actor's calls are answered with."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from monarch_async.errors import PicklingError
from monarch_async.ranks import Point
from monarch_async.runtime.actor import Style
from monarch_async.runtime.context import Context
from monarch_async.runtime.outgoing import Parcel
from monarch_async.runtime.report import pack_error, pack_raised
from monarch_async.runtime.router import Router
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import CANCELLED, EAGER, FAILED, GATHERED, SHARES, STREAMED, WANTS_REPLY
from monarch_async.wire.payload import Buffer, Encoded, Ticketed, dumps, loads

NOTHING = dumps(None)

#: What a reply keeps of the flags of its call.
_KEPT = GATHERED | EAGER


class _Unsendable(Exception):
    """A result does not pickle: not what the endpoint raised, but what its caller gets."""

    def __init__(self, why: PicklingError) -> None:
        super().__init__(why)
        self.why = why


class Request:
    """One call that arrived."""

    __slots__ = (
        "buffers",
        "call",
        "context",
        "credit",
        "endpoint",
        "flags",
        "holds_slot",
        "is_abandoned",
        "is_cancelled",
        "since",
        "skeleton",
        "src",
        "style",
        "task",
        "via",
    )

    def __init__(
        self,
        src: int,
        call: int,
        flags: int,
        endpoint: str,
        skeleton: Buffer,
        buffers: Sequence[Buffer],
        via: Connection | None = None,
    ) -> None:
        """Not started yet. ``via``: the way it came, and its answers go."""
        self.via = via
        self.src, self.call, self.flags, self.endpoint = src, call, flags, endpoint
        self.skeleton, self.buffers = skeleton, buffers
        self.style = Style.COROUTINE
        self.task: asyncio.Task[None] | None = None
        self.context: Context | None = None
        self.credit: tuple[int, int] | None = None
        self.holds_slot = False
        self.is_cancelled = False  # its caller has asked for that
        self.is_abandoned = False  # cancelled, yet running on
        self.since = 0.0

    def take_arguments(self, actor: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Unpickle the arguments, once. What that raises says for which call of ``actor`` they were."""
        try:
            return loads(self.skeleton, self.buffers)  # type: ignore[return-value]
        except Exception as error:
            error.add_note(f"raised while unpickling the arguments of {actor}.{self.endpoint}")
            raise
        finally:  # not before: references in there are on their way until then
            self.skeleton, self.buffers = b"", ()


class Answers:
    """Answers of one actor. ``on_unanswered`` takes the report of a failure that no caller waits for."""

    def __init__(
        self, router: Router, label: str, host: str, point: Point, on_unanswered: Callable[[bytes], None]
    ) -> None:
        """``point``: the actor's own, in its mesh."""
        self._router, self._label, self._host, self._point = router, label, host, point
        self._rank = point.rank
        self._on_unanswered = on_unanswered

    def encode(self, request: Request, value: object) -> Encoded:
        """Pickle a result or an item. What this raises goes to `raised`."""
        try:
            encoded = dumps(value, "result", of=f"{self._label}.{request.endpoint}")
        except PicklingError as error:
            raise _Unsendable(error) from None
        if type(encoded) is Ticketed:
            encoded.sent_to((request.src,), request.call, is_answer=True)
        return encoded

    def value(self, request: Request, value: object) -> None:
        """The endpoint has returned."""
        if request.flags & WANTS_REPLY:
            try:
                encoded = self.encode(request, value)
                shares = request.flags & SHARES > 0
                kept = request.flags & _KEPT
                self._router.reply(request.src, request.call, self._rank, kept, encoded, request.via, shares)
            except Exception as error:  # also of sending it: the caller is not to wait for what cannot come
                self.raised(request, error)

    def prepare(self, request: Request, value: object) -> Encoded | Parcel:
        """Pickle a result that is sent later: the next call may change it as soon as this has returned."""
        encoded = self.encode(request, value)
        if not encoded.buffers:
            return encoded
        return self._router.outgoing.parcel(encoded, shares=request.flags & SHARES > 0)

    def prepared(self, request: Request, ready: Encoded | Parcel) -> None:
        """The endpoint has returned, and its result is ready."""
        if not request.flags & WANTS_REPLY:
            return
        reply = self._router.reply_parcel if isinstance(ready, Parcel) else self._router.reply
        reply(request.src, request.call, self._rank, request.flags & _KEPT, ready, request.via)  # type: ignore[arg-type]

    def item(self, request: Request, item: object) -> int:
        """A generator has yielded; return the size sent."""
        encoded = self.encode(request, item)
        shares = request.flags & SHARES > 0
        return self._router.reply(request.src, request.call, self._rank, STREAMED, encoded, request.via, shares)

    def raised(self, request: Request, error: BaseException) -> None:
        """The endpoint has raised."""
        report = self.report(error, request.endpoint)
        if request.flags & WANTS_REPLY:
            self.failed(request, report)
        else:
            self._on_unanswered(report)

    def failed(self, request: Request, report: bytes) -> None:
        """The answer is a failure."""
        if request.flags & WANTS_REPLY:
            self.refused(request, report)

    def refused(self, request: Request, report: bytes) -> None:
        """The call does not begin. A broadcast is told too: it has not been acknowledged yet."""
        self._send(request, FAILED, report)

    def cancelled(self, request: Request, why: str = "") -> None:
        """Acknowledge a cancellation."""
        self._send(request, CANCELLED, why.encode())

    def started(self, request: Request) -> None:
        """Acknowledge that a broadcast has begun: that is its sender's credit."""
        self._router.reply(request.src, request.call, self._rank, request.flags & _KEPT, NOTHING, request.via)

    def _send(self, request: Request, flags: int, payload: bytes) -> None:
        kept = flags | request.flags & _KEPT
        self._router.reply(request.src, request.call, self._rank, kept, Encoded(payload, []), request.via)

    def report(self, error: BaseException, endpoint: str) -> bytes:
        """Return the report of an exception raised in ``endpoint``. A result that cannot travel is reported as that."""
        if isinstance(error, _Unsendable):
            return pack_error(error.why)
        return pack_raised(error, self._rank, self._point, self._label, endpoint, self._host)
