"""Frames that arrive at a router: walked, sorted, handed on.

The common ones, plain calls and plain replies, are handed over in `Incoming.feed` itself; everything else goes round by
`Incoming._take`.
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_async.errors import BadFrame
from monarch_async.runtime.delivery import of_stream
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import (
    ACK,
    BUFFERS,
    CALL,
    CANCEL,
    CAST,
    CHUNK,
    CHUNKED,
    CREDIT,
    FAILED,
    HEADER,
    HEADER_SIZE,
    LEASE,
    LONG_CONTROL,
    PING,
    RELEASED,
    REPLY,
    STREAMED,
    long_control,
)
from monarch_async.wire.message import cut, parse_call_fields, parse_reply_fields
from monarch_async.wire.payload import Buffer

if TYPE_CHECKING:
    from monarch_async.runtime.router import Router

#: The payload of a CREDIT for a stream: items, bytes.
CREDITS = struct.Struct("<qq")

#: Some of the payload is not in one pickle.
_BESIDE = BUFFERS | CHUNKED


class Incoming:
    """The receiving half of a router."""

    def __init__(self, router: "Router") -> None:
        """Share the router's tables."""
        self._router = router
        self._pending, self._targets, self._delivery = router.pending, router.targets, router.delivery

    def feed(self, connection: Connection, data: bytes) -> tuple[int, int]:
        """Take whole frames; see `Consumer.feed`."""
        self._delivery.arriving = connection
        offset, end, frames = 0, len(data), 0
        unpack, pending, targets, held = HEADER.unpack_from, self._pending, self._targets, self._delivery.held
        while end - offset >= HEADER_SIZE:
            length, kind, flags, control, _, src, target, call = unpack(data, offset)
            stop = offset + length
            if stop > end:
                break
            start = offset + HEADER_SIZE
            if control == LONG_CONTROL:
                start, control = long_control(data, start)
            if stop < start + control:
                raise BadFrame(f"a length of {length} is less than its own fields")
            if kind == REPLY and not control and not held:
                waiting = pending.get(target)
                if waiting is not None and waiting.take_reply(src, flags, call, data[start:stop], ()):
                    pending.pop(target, None)
            elif kind == CALL and not flags & _BESIDE and not held:
                found = targets.get(target)
                fields = parse_call_fields(data[start : start + control])
                payload = data[start + control : stop]
                if found is not None:
                    found.accept(src, call, flags, fields, payload, ())
                else:
                    self._delivery.take_call(src, flags, target, call, fields, payload)
            elif kind in (PING, ACK):
                connection.take_link_frame(kind, data, offset)
                frames -= 1
            else:
                self._take(kind, flags, src, target, call, data[start : start + control], data[start + control : stop])
            offset = stop
            frames += 1
        return offset, frames

    def feed_large(self, connection: Connection, pieces: list[bytes]) -> None:
        """Take one large frame: a chunk, whose body is copied once, or else joined."""
        _, kind, _, _, _, src, target, call = HEADER.unpack_from(pieces[0])
        if kind != CHUNK:
            self.feed(connection, b"".join(pieces))
            return
        self._delivery.arriving = connection
        views: list[memoryview | bytes] = [memoryview(pieces[0])[HEADER_SIZE:], *pieces[1:]]
        self._delivery.take_chunk(src, target, call, views)

    def _take(self, kind: int, flags: int, src: int, target: int, call: int, control: bytes, payload: bytes) -> None:
        if kind == CALL:
            self._delivery.take_call(src, flags, target, call, parse_call_fields(control), payload)
        elif kind == REPLY:
            self._take_in_turn(src, flags, target, call, control, payload)
        elif kind == CHUNK:
            self._delivery.take_chunk(src, target, call, (payload,))
        elif kind == CANCEL:
            self._take_cancel(src, target, call)
            # once more when what it may be about has come in full
            self._delivery.after_held(src, target, lambda: self._take_cancel(src, target, call))
        elif kind == CREDIT:
            self._take_credit(src, flags, target, call, payload)
        elif CAST < kind <= LEASE:
            self._router.on_other(kind, flags, src, target, call, control, payload)
        else:  # it may have been anything: to go on would leave out what somebody waits for
            raise BadFrame(f"unknown kind {kind}")

    def _take_in_turn(self, src: int, flags: int, target: int, rank: int, control: bytes, payload: bytes) -> None:
        """Take a reply that has buffers, or that comes after one which is still on its way (D4)."""
        sizes, transfer, memory = parse_reply_fields(control)
        if flags & CHUNKED:
            if sizes is None or transfer is None:
                raise BadFrame("a chunked reply without sizes")
            self._delivery.expect_reply(
                src,
                target if flags & STREAMED else None,
                transfer,
                sizes,
                memory,
                lambda skeleton, buffers: self._take_reply(src, flags, target, rank, skeleton, buffers),
            )
            return
        skeleton, buffers = cut(payload, sizes) if sizes is not None else (payload, ())

        def take() -> None:
            self._take_reply(src, flags, target, rank, skeleton, buffers)

        if not self._delivery.after_held(src, of_stream(target), take):
            take()

    def _take_reply(
        self, src: int, flags: int, target: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        waiting = self._pending.get(target)
        if waiting is not None and waiting.take_reply(src, flags, rank, skeleton, buffers):
            self._pending.pop(target, None)

    def _take_cancel(self, src: int, target: int, call: int) -> None:
        found = self._targets.get(target)
        if found is not None:
            found.cancel(src, call)
        else:
            self._delivery.on_missing_cancel(src, target, call)

    def _take_credit(self, src: int, flags: int, target: int, call: int, payload: bytes) -> None:
        if flags & CHUNKED:
            if flags & FAILED:
                self._router.outgoing.refused(target)
            elif flags & RELEASED:
                self._router.outgoing.released(target)
            else:
                self._router.outgoing.received(target, call)
            return
        receiver = self._targets.get(target)
        if receiver is not None:
            items, nbytes = CREDITS.unpack(payload)
            receiver.credit(src, call, items, nbytes)
