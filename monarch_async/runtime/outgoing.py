"""Messages with buffers, on their way out: in one frame where they are small, else beside the other messages.

A large payload is copied when the message is made, so that its sender may change it at once. What goes out in order is
a frame that says where that copy is; the receiver takes it from there over the data plane and says when it has done so,
or that it cannot: then it is sent in chunks. What it is offered depends on where it is:

- A receiver on this machine is described the memory, and reads it with no help from here.
- Several on this machine, or whoever wants to share pages, are handed a segment of memory: one copy for all of them,
  of which each sees pages of its own as soon as it writes to them.
- A receiver elsewhere is described the memory and how this process's data plane is reached. Several of one host fetch
  it once, into a segment that their agent keeps (`control.uploads`).
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from monarch_async.bulk.arena import Segment
from monarch_async.bulk.blocks import BlockPool
from monarch_async.bulk.memory import copy, offsets_of
from monarch_async.bulk.plane import DataPlane
from monarch_async.bulk.region import Region
from monarch_async.config import Config
from monarch_async.errors import TransferError
from monarch_async.ids import host_of
from monarch_async.runtime.transfer import Outbound
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import BUFFERS, CHUNKED, pack_frame
from monarch_async.wire.message import CallFields, ReplyFields, pack_call_fields, pack_reply_fields
from monarch_async.wire.payload import Encoded

Fields = CallFields | ReplyFields

log = logging.getLogger("monarch_async.bulk")

#: The two kinds of offer, in a message's ``memory`` field: ``[SEGMENT, token]``, and ``[REGION, packed RemoteRegion,
#: upload, fellows]``, where ``upload`` names what so many receivers of a host fetch once (nothing: each by itself).
REGION, SEGMENT = "region", "segment"

#: What was refused is not offered again for so long: it may have been a passing fault of the network.
_FAR, _SULK = "far", 60.0

#: A smaller payload takes less time to copy for each receiver than a segment takes to open.
_WORTH_SHARING = 1 << 20

#: Segments kept, in bytes and number, for receivers that still look at them: to be used again when they do no longer.
_MOST_LENT, _MOST_SEGMENTS = 1 << 30, 256


class Parcel:
    """A payload ready to be sent, to one receiver or several: a copy, so that its values may change meanwhile.

    Whoever still has to send it, or whose receiver has it to look at, refers to it; with the last one it goes.
    """

    __slots__ = ("id", "is_given_away", "is_large", "parts", "plane", "region", "segment", "size", "sizes")

    def __init__(self, parts: Sequence[memoryview], sizes: list[int], is_large: bool) -> None:
        """``parts``: the pickle and the buffers (``sizes``), joined where they are small."""
        self.parts: Sequence[memoryview] = parts
        self.sizes, self.size, self.is_large = sizes, sum(sizes), is_large
        self.id = 0  #: where it is fetched once by a host
        self.plane: DataPlane | None = None  #: where it is registered, or lies in a segment
        self.region: Region | None = None  #: as it is registered
        self.segment: Segment | None = None  #: what it lies in, parts aligned (`memory.offsets_of`)
        self.is_given_away = False  #: others may look at the segment for ever: it is not used again

    def __del__(self) -> None:
        """On any thread."""
        if self.plane is None:
            return
        if self.region is not None:
            self.plane.regions.remove(self.region)
        if self.segment is not None and not self.is_given_away:
            self.parts = ()
            self.plane.arena.give_back(self.segment)


class Outgoing:
    """The large messages of one router that are still being sent."""

    def __init__(
        self, address: int, config: Config, pool: BlockPool, plane: DataPlane, ids: Iterator[int]
    ) -> None:
        """``address`` is the sender's own; transfer ids come from ``ids``."""
        self._address, self._config, self._pool, self._plane, self._ids = address, config, pool, plane, ids
        self._sending: dict[int, tuple[Outbound, Parcel, Connection]] = {}
        self._offered: dict[int, tuple[int, Parcel, Connection, bool]] = {}  # is it to be mapped?
        self._lent: OrderedDict[int, tuple[int, Parcel]] = OrderedDict()
        self._lent_bytes = 0
        #: Whether the processes of a host run on this machine; set by whoever knows.
        self.is_near: Callable[[int], bool] = lambda host: False
        self._refused: dict[tuple[str, int], float] = {}  # until when which kind of offer is not made to a host
        self._may_offer = bool(set(config.allowed_transports) - {"local"})
        self._may_share = "memfd" in config.allowed_transports

    # -- making parcels --------------------------------------------------------------------------------------------

    def parcel(self, encoded: Encoded, near: int = 0, shares: bool = False) -> Parcel:
        """Make a payload ready to be sent. Copies it. May be called on any thread.

        ``near``: how many receivers there are on this machine; ``shares``: they want to share pages, be it one.
        """
        skeleton, buffers = encoded
        sizes = [len(skeleton), *map(len, buffers)]
        parts = [memoryview(skeleton), *buffers]
        size = sum(sizes)
        if size <= self._config.large:
            return Parcel([memoryview(b"".join(parts))], sizes, False)
        if self._may_share and size >= _WORTH_SHARING and (shares or near > 1):
            try:
                return self._shared(parts, sizes)
            except TransferError as error:
                log.info("cannot share a payload, copying it for each: %s", error)
        return Parcel([self._copy(part) for part in parts], sizes, True)

    def _copy(self, part: memoryview) -> memoryview:
        block = self._pool.take(len(part))
        copy(block, part)
        return block

    def _shared(self, parts: Sequence[memoryview], sizes: list[int]) -> Parcel:
        offsets, end = offsets_of(sizes)
        segment = self._plane.arena.take(end)
        copies = [segment.view[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
        for block, part in zip(copies, parts, strict=True):
            copy(block, part)
        parcel = Parcel(copies, sizes, True)
        parcel.plane, parcel.segment = self._plane, segment
        return parcel

    # -- sending ---------------------------------------------------------------------------------------------------

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
        fellows: int = 1,
    ) -> Callable[[], None]:
        """Return how to send a message with buffers. ``fellows``: how many receivers it has on the host of ``dst``."""
        if not parcel.is_large:
            control = _pack_fields(fields._replace(sizes=parcel.sizes))
            frame = pack_frame(kind, flags | BUFFERS, dst, self._address, target, call, control, parcel.parts[0])
            return lambda: connection.send(frame)

        def send() -> None:
            transfer = next(self._ids)
            memory = self._offer(dst, parcel, fellows)
            control = _pack_fields(fields._replace(sizes=parcel.sizes, transfer=transfer, memory=memory))
            connection.send(pack_frame(kind, flags | CHUNKED, dst, self._address, target, call, control))
            if memory is None:
                self._send_chunks(dst, transfer, parcel, connection)
            else:
                self._offered[transfer] = (dst, parcel, connection, memory[0] == SEGMENT)

        return send

    def _offer(self, dst: int, parcel: Parcel, fellows: int) -> list[object] | None:
        host = host_of(dst)
        if not self._may_offer:
            return None
        if not self.is_near(host):
            may_describe = self._plane.can_listen and not self._is_refused(_FAR, host)
            return self._describe(parcel, True, fellows) if may_describe else None
        if parcel.segment is not None and not self._is_refused(SEGMENT, host):
            return [SEGMENT, parcel.segment.token]
        if self._is_refused(REGION, host):  # not with no help from here; perhaps by some
            return None if self._is_refused(_FAR, host) else self._describe(parcel, True, 1)
        return self._describe(parcel, False, 1)

    def _is_refused(self, kind: str, host: int) -> bool:
        return bool(self._refused) and self._refused.get((kind, host), 0.0) > time.monotonic()

    def _describe(self, parcel: Parcel, is_served: bool, fellows: int) -> list[object] | None:
        plane = self._plane
        try:
            endpoint = plane.endpoint if is_served else plane.silent
        except OSError:  # it cannot listen
            return None
        if parcel.region is None:
            parcel.plane, parcel.region = plane, plane.regions.add(parcel.parts, False)
        if fellows > 1 and not parcel.id:
            parcel.id = next(self._ids)
        upload = f"{self._address:x}.{parcel.id:x}".encode() if fellows > 1 else b""
        return [REGION, plane.describe(parcel.region, "an argument or result", endpoint).pack(), upload, fellows]

    def _send_chunks(self, dst: int, transfer: int, parcel: Parcel, connection: Connection) -> None:
        parcel.is_given_away = True  # sockets may refer to chunks for longer than anybody else refers to the parcel
        source = Outbound(transfer, dst, self._address, parcel.parts, self._config.chunk)
        self._sending[transfer] = (source, parcel, connection)
        connection.bulk(source)

    # -- what receivers say ----------------------------------------------------------------------------------------

    def received(self, transfer: int, count: int) -> None:
        """The receiver has so many bytes; all of them, where it was offered memory."""
        found = self._offered.pop(transfer, None)
        if found is not None:
            dst, parcel, _, is_mapped = found
            if is_mapped:
                self._lend(transfer, dst, parcel)
            return
        sending = self._sending.get(transfer)
        if sending is not None:
            source, _, connection = sending
            source.allow(count)
            if source.is_done:
                del self._sending[transfer]
            connection.resume_bulk()

    def _lend(self, transfer: int, dst: int, parcel: Parcel) -> None:
        """The receiver has mapped the segment. One that is looked at for long is the receivers' for good."""
        self._lent[transfer] = dst, parcel
        self._lent_bytes += parcel.size
        while self._lent_bytes > _MOST_LENT or len(self._lent) > _MOST_SEGMENTS:
            _, (_, oldest) = self._lent.popitem(last=False)
            self._lent_bytes -= oldest.size
            oldest.is_given_away = True

    def released(self, transfer: int) -> None:
        """The receiver looks at a segment no longer."""
        found = self._lent.pop(transfer, None)
        if found is not None:
            self._lent_bytes -= found[1].size
        else:  # this overtook the acknowledgement, which goes the way the message came
            self._offered.pop(transfer, None)

    def refused(self, transfer: int) -> None:
        """The receiver cannot take what it was offered: send chunks, and offer its host something else from now on."""
        offered = self._offered.pop(transfer, None)
        if offered is not None:
            dst, parcel, connection, _ = offered
            host = host_of(dst)
            if not self.is_near(host):
                kind = _FAR
            elif parcel.segment is not None and not self._is_refused(SEGMENT, host):
                kind = SEGMENT
            else:
                kind = _FAR if self._is_refused(REGION, host) else REGION
            self._refused[kind, host] = time.monotonic() + _SULK
            self._send_chunks(dst, transfer, parcel, connection)

    def lose(self, gone: Callable[[int], bool]) -> None:
        """Receivers are gone: send nothing more to them."""
        for transfer, (source, _, _) in list(self._sending.items()):
            if gone(source.dst):
                source.abandon()
                del self._sending[transfer]
        for transfer, (dst, *_) in list(self._offered.items()):
            if gone(dst):
                del self._offered[transfer]
        for transfer, (dst, _) in list(self._lent.items()):
            if gone(dst):
                self.released(transfer)

    def close(self) -> None:
        """Forget everything. Others may look at what was lent or offered: it is not used again, nor taken away."""
        for _, parcel, *_ in [*self._lent.values(), *self._offered.values()]:
            parcel.is_given_away = True
        self._sending.clear()
        self._offered.clear()
        self._lent.clear()


def _pack_fields(fields: Fields) -> bytes:
    return pack_call_fields(fields) if isinstance(fields, CallFields) else pack_reply_fields(fields)
