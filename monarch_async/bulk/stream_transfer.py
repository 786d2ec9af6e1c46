"""Reads and writes over a bulk connection, at the end that asked for them.

Each outlives the connection it runs on: `attempt` goes as far as one connection carries it, and the next one asks for
what is missing.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from monarch_async.bulk.arrivals import Arrivals
from monarch_async.bulk.bulk_connection import BulkConnection
from monarch_async.bulk.pieces import Pieces
from monarch_async.bulk.receiving import TRIES, Receiving
from monarch_async.bulk.request import TransferRequest, unpack_error
from monarch_async.bulk.sending import Sending, chunk_frame
from monarch_async.bulk.transport import Progress
from monarch_async.errors import BadFrame, FrameTooLarge, TransferBroken
from monarch_async.wire.chunk import AGAIN, CANCEL, DONE, FAILED, FROM_COPY, READ, TAKEN, WRITE, Header


class Exchanges(Protocol):
    """What hands frames to whom they are for."""

    name: str  #: of the peer
    max_body: int

    def enter(self, exchange: "StreamRead | StreamWrite") -> int:
        """Return a new id; its frames go to ``exchange``."""
        ...

    def forget(self, ids: Sequence[int]) -> None:
        """Frames of these go nowhere."""
        ...

    def progressed(self) -> None:
        """Bytes have moved."""
        ...


class _Attempt:
    """What reads and writes share: ids of one connection, and an end."""

    def __init__(self, request: TransferRequest, pieces: Pieces, progress: Progress) -> None:
        self.pieces = pieces
        self._request, self._progress = request, progress
        self._ids: list[int] = []
        self._ended: asyncio.Future[bool] | None = None
        self._is_over = True

    def _start(self, exchanges: Exchanges, connection: BulkConnection) -> asyncio.Future[bool]:
        self._exchanges, self._connection = exchanges, connection
        self._ids = []
        self._ended = ended = asyncio.get_running_loop().create_future()
        self._is_over = False
        return ended

    def _ask(self, kind: int, ranges: list[tuple[int, int]], flags: int = 0) -> int:
        """Send a request for these ranges; return its id."""
        id = self._exchanges.enter(self)  # type: ignore[arg-type]  a read or a write
        self._ids.append(id)
        request, size = self._request, self.pieces.size
        body = (request if not size or ranges == [(0, size)] else request._replace(ranges=ranges)).pack()
        if len(body) > self._exchanges.max_body:
            raise FrameTooLarge(len(body), self._exchanges.max_body)
        self._connection.send(kind, id, body, total=self.pieces.size, flags=flags)
        return id

    def _end(self, error: Exception | None = None, is_done: bool = True) -> None:
        self._is_over = True
        assert self._ended is not None
        if self._ended.done():
            return
        if error is not None:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(is_done)

    def _leave(self, is_done: bool) -> None:
        """Say that no more is wanted, unless it is over there as well."""
        self._is_over = True
        self._exchanges.forget(self._ids)
        if not is_done:
            for id in self._ids:
                self._connection.send(CANCEL, id)

    def lost(self, error: Exception | None) -> None:
        """The connection is over; with an error, there will be no other."""
        self._end(error, is_done=False)

    def _garbled(self, start: int, stop: int) -> TransferBroken:
        return TransferBroken(self._exchanges.name, f"bytes {start} to {stop} arrived garbled {TRIES} times")


class StreamRead(_Attempt):
    """A read; a `intake.Place` for its chunks."""

    def __init__(self, request: TransferRequest, pieces: Pieces, progress: Progress) -> None:
        """Read into ``pieces``."""
        super().__init__(request, pieces, progress)
        self._receiving = Receiving(pieces.size, request.window)

    async def attempt(self, exchanges: Exchanges, connection: BulkConnection) -> bool:
        """Go on over a connection; return whether it is complete. Raises what the owner answers."""
        if not connection.is_open:
            return False
        ended = self._start(exchanges, connection)
        is_done = False
        self._receiving.restart()
        try:
            self._ask(READ, self._receiving.arrivals.missing())
            is_done = await ended
            return is_done
        finally:
            self._leave(is_done)

    def is_open(self) -> bool:
        """Whether its memory may be touched."""
        return not self._is_over

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return the memory of these bytes."""
        return self.pieces.cut(start, stop)

    def takes(self, header: Header) -> bool:
        """Return whether a chunk is expected."""
        return not self._is_over and self._receiving.is_expected(header.start, header.start + header.length)

    def take_chunk(self, header: Header, is_good: bool) -> None:
        """A chunk is there."""
        start, stop = header.start, header.start + header.length
        if is_good:
            taken = self._receiving.good(start, stop)
            self._exchanges.progressed()
            self._progress(stop - start)
            if self._receiving.is_complete:
                self._end()
        elif not self._receiving.garbled(start):
            self._end(self._garbled(start, stop))
            return
        else:
            self._ask(READ, [(start, stop)], FROM_COPY)
            taken = [(start, stop)]
        for first, last in taken if not self._is_over else ():
            self._connection.send(TAKEN, header.transfer, start=first, total=last)

    def take_message(self, header: Header, body: bytes) -> None:
        """The owner says something else."""
        if header.kind == FAILED:
            self._end(unpack_error(body))
        elif header.kind == DONE and self._receiving.is_complete:
            self._end()
        else:
            raise BadFrame(f"kind {header.kind} for a read")


class StreamWrite(_Attempt):
    """A write; a `bulk_connection.Sender` of its chunks."""

    def __init__(self, request: TransferRequest, pieces: Pieces, progress: Progress) -> None:
        """Write what is in ``pieces``."""
        super().__init__(request, pieces, progress)
        self._taken = Arrivals(pieces.size)
        self._sending = Sending((), request.chunk, request.window)
        self._id = 0

    async def attempt(self, exchanges: Exchanges, connection: BulkConnection) -> bool:
        """Go on over a connection; return whether it is complete. Raises what the owner answers."""
        if not connection.is_open:
            return False
        ended = self._start(exchanges, connection)
        is_done = False
        try:
            missing = self._taken.missing()
            self._sending = Sending(missing, self._request.chunk, self._request.window)
            self._id = self._ask(WRITE, missing)
            if missing:
                self._connection.offer(self, is_new=True)
            is_done = await ended
            return is_done
        finally:
            self._connection.withdraw(self)
            self._leave(is_done)
            await self._wait_released()

    async def _wait_released(self) -> None:
        """Wait until the socket no longer refers to the memory; for a second at most, as it is hurried."""
        released = asyncio.get_running_loop().create_future()
        self._connection.when_released(self, lambda: released.set_result(None))
        if released.done():
            return
        self._connection.hurry(self)
        is_cancelled = False
        while not released.done():
            try:
                await asyncio.wait([released])
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError

    def next_frame(self) -> Sequence[bytes | memoryview] | None:
        """Return the next chunk."""
        found = None if self._is_over else self._sending.next()
        if found is None:
            return None
        start, stop, is_copied = found
        frame = chunk_frame(self._id, self.pieces, start, stop, is_copied)
        self._sending.did_send(start, stop)
        return frame

    def did_write(self) -> bool:
        """Return whether there is more."""
        return self._sending.next() is not None

    def take_message(self, header: Header, body: bytes) -> None:
        """The owner says something."""
        start, stop = header.start, header.total
        if header.kind == FAILED:
            self._end(unpack_error(body))
        elif header.kind == DONE:
            if more := self._taken.add(0, self.pieces.size):
                self._progress(more)
            self._exchanges.progressed()
            self._end()
        elif header.kind in (TAKEN, AGAIN) and start < stop <= self.pieces.size:
            if header.kind == AGAIN:
                self._sending.again(start, stop)
            else:
                self._sending.taken(stop - start)
                self._exchanges.progressed()
                if more := self._taken.add(start, stop):
                    self._progress(more)
            self._connection.offer(self, is_new=False)
        else:
            raise BadFrame(f"kind {header.kind} with bytes {start} to {stop} for a write of {self.pieces.size}")
