"""Messages with buffers, on their way out: in one frame where they are small, else beside the other messages.

A large payload is copied when the message is made, so that its sender may change it at once. A receiver on the same
machine (``is_near``) is offered the memory of that copy (`same_host`); it says when it has read it, or asks for chunks,
which every other receiver gets without asking.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from monarch_async.bulk.blocks import BlockPool
from monarch_async.config import Config
from monarch_async.ids import host_of
from monarch_async.runtime.same_host import Offer, can_offer
from monarch_async.runtime.transfer import Outbound
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import BUFFERS, CHUNKED, pack_frame
from monarch_async.wire.message import CallFields, ReplyFields, pack_call_fields, pack_reply_fields
from monarch_async.wire.payload import Encoded

Fields = CallFields | ReplyFields


@dataclass(frozen=True, slots=True)
class Parcel:
    """A payload ready to be sent, to one receiver or several: a copy, so that its values may change meanwhile.

    ``parts``: the pickle and the buffers (``sizes``), joined where they are small.
    """

    parts: Sequence[memoryview]
    sizes: list[int]
    size: int
    is_large: bool


class Outgoing:
    """The large messages of one router that are still being sent."""

    def __init__(self, address: int, config: Config, pool: BlockPool, ids: Iterator[int]) -> None:
        """``address`` is the sender's own; transfer ids come from ``ids``."""
        self._address, self._config, self._pool, self._ids = address, config, pool, ids
        self._sending: dict[int, tuple[Outbound, Connection]] = {}
        self._offered: dict[int, tuple[int, Parcel, Connection]] = {}
        self._offer: Offer | None = None
        #: Whether the processes of a host run on this machine; set by whoever knows.
        self.is_near: Callable[[int], bool] = lambda host: False
        self._far: set[int] = set()  # hosts whose receivers cannot read here, though they are near

    def parcel(self, encoded: Encoded) -> Parcel:
        """Make a payload ready to be sent. Copies it. May be called on any thread."""
        skeleton, buffers = encoded
        sizes = [len(skeleton), *map(len, buffers)]
        size = sum(sizes)
        parts = [memoryview(skeleton), *buffers]
        if size > self._config.large:
            return Parcel([self._copy(part) for part in parts], sizes, size, True)
        return Parcel([memoryview(b"".join(parts))], sizes, size, False)

    def _copy(self, part: memoryview) -> memoryview:
        copy = self._pool.take(len(part))
        copy[:] = part
        return copy

    def pack(
        self,
        kind: int,
        flags: int,
        dst: int,
        target: int,
        call: int,
        fields: Fields,
        parcel: Parcel,
        connection: Connection,
    ) -> Callable[[], None]:
        """Return how to send a message with buffers."""
        if not parcel.is_large:
            control = _pack_fields(fields._replace(sizes=parcel.sizes))
            frame = pack_frame(kind, flags | BUFFERS, dst, self._address, target, call, control, parcel.parts[0])
            return lambda: connection.send(frame)
        transfer = next(self._ids)
        memory = self._memory(dst, parcel)
        control = _pack_fields(fields._replace(sizes=parcel.sizes, transfer=transfer, memory=memory))
        frame = pack_frame(kind, flags | CHUNKED, dst, self._address, target, call, control)

        def send() -> None:
            connection.send(frame)
            if memory is None:
                self._send_chunks(dst, transfer, parcel, connection)
            else:
                self._offered[transfer] = (dst, parcel, connection)

        return send

    def _memory(self, dst: int, parcel: Parcel) -> list[object] | None:
        host = host_of(dst)
        if not self._config.same_host_reads or host in self._far or not self.is_near(host) or not can_offer():
            return None
        if self._offer is None:
            self._offer = Offer()
        return self._offer.of(parcel.parts)

    def _send_chunks(self, dst: int, transfer: int, parcel: Parcel, connection: Connection) -> None:
        source = Outbound(transfer, dst, self._address, parcel.parts, self._config.chunk)
        self._sending[transfer] = (source, connection)
        connection.bulk(source)

    def received(self, transfer: int, count: int) -> None:
        """The receiver has so many bytes."""
        if self._offered.pop(transfer, None) is not None:
            return
        found = self._sending.get(transfer)
        if found is not None:
            source, connection = found
            source.allow(count)
            if source.is_done:
                del self._sending[transfer]
            connection.resume_bulk()

    def refused(self, transfer: int) -> None:
        """The receiver cannot read here: send chunks, to it now and to its host from now on."""
        offered = self._offered.pop(transfer, None)
        if offered is not None:
            dst, parcel, connection = offered
            self._far.add(host_of(dst))
            self._send_chunks(dst, transfer, parcel, connection)

    def lose(self, gone: Callable[[int], bool]) -> None:
        """Receivers are gone: send nothing more to them."""
        for transfer, (source, _) in list(self._sending.items()):
            if gone(source.dst):
                source.abandon()
                del self._sending[transfer]
        for transfer, (dst, _, _) in list(self._offered.items()):
            if gone(dst):
                del self._offered[transfer]

    def close(self) -> None:
        """Forget everything."""
        self._sending.clear()
        self._offered.clear()


def _pack_fields(fields: Fields) -> bytes:
    return pack_call_fields(fields) if isinstance(fields, CallFields) else pack_reply_fields(fields)
