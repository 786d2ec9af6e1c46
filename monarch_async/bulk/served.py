"""Reads and writes over a bulk connection, at the end that has the memory.

Either uses a region (`region.Region.enter`) from its request until it is over and the socket refers to none of the
memory any more. It is valid as long as its handle is: that is looked at after each chunk was read, so that what went
out is of its epoch, before each chunk and each 256 KiB are written, and every 0.1 s where nothing moves.
"""

from collections.abc import Sequence
from typing import Protocol

from monarch_async.bulk.bulk_connection import BulkConnection
from monarch_async.bulk.pieces import Pieces
from monarch_async.bulk.receiving import TRIES, Receiving
from monarch_async.bulk.region import Region, Regions
from monarch_async.bulk.request import TransferRequest
from monarch_async.bulk.sending import Sending, chunk_frame
from monarch_async.errors import BadFrame, Error, StaleHandle, TransferBroken, TransferError
from monarch_async.wire.chunk import AGAIN, DONE, FROM_COPY, MAX_CHUNK, TAKEN, Header


class Serving(Protocol):
    """The connection's end that keeps them."""

    regions: Regions
    connection: BulkConnection
    bulk_chunk: int
    bulk_window: int

    def refuse(self, id: int, error: Error) -> None:
        """Answer with an error."""
        ...

    def forget(self, id: int) -> None:
        """It is over."""
        ...


class _Served:
    """What both share: the region, and its end."""

    def __init__(self, serving: Serving, header: Header, request: TransferRequest) -> None:
        """Raises StaleHandle where the region may not be used, BadFrame for what the request does not add up to."""
        self._serving, self._request, self.id = serving, request, header.transfer
        self.region: Region = serving.regions.find(request.region, request.stamp)
        self.pieces = Pieces(self.region.cut(request.runs))
        if self.pieces.size != header.total:
            raise BadFrame(f"runs of {self.pieces.size} bytes, said to be {header.total}")
        self.ranges = request.checked_ranges(self.pieces.size)
        self._is_over = False

    def is_open(self) -> bool:
        """Whether its memory may be touched."""
        return not self._is_over and self._why_not() is None

    def _why_not(self) -> StaleHandle | None:
        try:
            self._serving.regions.find(self._request.region, self._request.stamp)
        except StaleHandle as error:
            return error
        return None

    def check(self) -> bool:
        """Return whether it may go on; end it where it may not."""
        error = self._why_not()
        if error is None:
            return True
        self.fail(error)
        self._hurry()
        return False

    def _hurry(self) -> None:
        """Its memory is wanted back."""

    def fail(self, error: Error) -> None:
        """End it, and say why."""
        if not self._is_over:
            self._serving.refuse(self.id, error)
            self.end()

    def end(self) -> None:
        """End it: the memory is not touched any more."""
        if not self._is_over:
            self._is_over = True
            self._leave()

    def _leave(self) -> None:
        self.region.leave()
        self._serving.forget(self.id)


class ServedRead(_Served):
    """A `bulk_connection.Sender` of what was asked for."""

    def __init__(self, serving: Serving, header: Header, request: TransferRequest) -> None:
        """See the base."""
        super().__init__(serving, header, request)
        chunk = min(request.chunk, serving.bulk_chunk, MAX_CHUNK)
        window = min(request.window, serving.bulk_window)
        self._sending = Sending(self.ranges, chunk, window, bool(header.flags & FROM_COPY))
        self.region.enter()

    def start(self) -> None:
        """Send what is wanted."""
        if self._sending.is_done:
            self._serving.connection.send(DONE, self.id)
            self.end()
        else:
            self._serving.connection.offer(self, is_new=True)

    def next_frame(self) -> Sequence[bytes | memoryview] | None:
        """Return the next chunk."""
        found = None if self._is_over else self._sending.next()
        if found is None:
            return None
        start, stop, is_copied = found
        frame = chunk_frame(self.id, self.pieces, start, stop, is_copied)
        if not self.check():
            return None
        self._sending.did_send(start, stop)
        return frame

    def did_write(self) -> bool:
        """Return whether there is more right now; forget it with the last chunk."""
        if self._sending.is_done:
            self.end()
            return False
        return self._sending.next() is not None

    def taken(self, header: Header) -> None:
        """The reader says so."""
        self._sending.taken(header.total - header.start)
        self._serving.connection.offer(self, is_new=False)

    def _hurry(self) -> None:
        self._serving.connection.hurry(self)

    def _leave(self) -> None:
        """The socket may still refer to its last chunk."""
        self._serving.connection.withdraw(self)
        self._serving.connection.when_released(self, super()._leave)


class ServedWrite(_Served):
    """A `intake.Place` for what comes."""

    def __init__(self, serving: Serving, header: Header, request: TransferRequest) -> None:
        """See the base. Raises TransferError where the region is read-only."""
        super().__init__(serving, header, request)
        if not self.region.is_writable:
            raise TransferError("registered memory", "it was registered as read-only")
        self._receiving = Receiving(self.pieces.size, request.window, self.ranges)
        self.region.enter()

    def start(self) -> None:
        """Wait for chunks, unless all is there."""
        if self._receiving.is_complete:
            self._complete()

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return the memory of these bytes."""
        return self.pieces.cut(start, stop)

    def takes(self, header: Header) -> bool:
        """Return whether a chunk is expected, and may be taken."""
        if header.total != self.pieces.size:
            raise BadFrame(f"a chunk of {header.total} bytes, for a write of {self.pieces.size}")
        expected = self._receiving.is_expected(header.start, header.start + header.length)
        return expected and not self._is_over and self.check()

    def take_chunk(self, header: Header, is_good: bool) -> None:
        """A chunk is there."""
        start, stop = header.start, header.start + header.length
        connection = self._serving.connection
        if not is_good:
            if self._receiving.garbled(start):
                connection.send(AGAIN, self.id, start=start, total=stop)
            else:
                why = f"bytes {start} to {stop} arrived garbled {TRIES} times"
                self.fail(TransferBroken("registered memory", why))
            return
        taken = self._receiving.good(start, stop)
        if self._receiving.is_complete:
            self._complete()
        for first, last in taken if not self._is_over else ():
            connection.send(TAKEN, self.id, start=first, total=last)

    def _complete(self) -> None:
        if self.check():
            self._serving.connection.send(DONE, self.id)
            self.end()
