"""The sending half of a transfer: what goes next. Pure.

S1. A byte range is sent once, and once more each time it is asked for again.
S2. What was sent and is not yet taken is less than the window when a chunk begins: at most window + chunk in all.
S3. What is asked for again goes first, from a copy: memory that its owner keeps changing cannot fail for ever.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from monarch_async.bulk.pieces import Pieces, are_small
from monarch_async.errors import BadFrame
from monarch_async.wire.chunk import CHUNK, checksum, pack_header

#: A chunk of up to this size is joined with its header: a write of one piece, and nothing to wait for.
_JOINED = 64 << 10


class Sending:
    """What is left to send of ``ranges`` of the transfer's space, as (start, stop)."""

    __slots__ = ("_again", "_chunk", "_is_copied", "_todo", "_window", "in_flight", "sent")

    def __init__(self, ranges: Iterable[tuple[int, int]], chunk: int, window: int, is_copied: bool = False) -> None:
        """``is_copied``: all of it is asked for again."""
        self._todo = deque(ranges)
        self._again: deque[tuple[int, int]] = deque()
        self._chunk, self._window, self._is_copied = chunk, window, is_copied
        self.in_flight = 0  #: bytes sent that are not taken
        self.sent = 0  #: bytes sent in all

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to send, unless something is asked for again."""
        return not self._todo and not self._again

    def next(self) -> tuple[int, int, bool] | None:
        """Return the next chunk as (start, stop, from a copy), or None: nothing is left, or the window is full."""
        waiting = self._again or self._todo
        if not waiting or self.in_flight >= self._window:
            return None
        start, stop = waiting[0]
        return start, min(stop, start + self._chunk), self._is_copied or waiting is self._again

    def did_send(self, start: int, stop: int) -> None:
        """What `next` said is on its way."""
        waiting = self._again or self._todo
        first, last = waiting.popleft()
        assert first == start and stop <= last
        if stop < last:
            waiting.appendleft((stop, last))
        self.in_flight += stop - start
        self.sent += stop - start

    def taken(self, count: int) -> None:
        """So many bytes are taken. Raises BadFrame where they were not on their way."""
        if not 0 <= count <= self.in_flight:
            raise BadFrame(f"{count} bytes are said to be taken, of {self.in_flight}")
        self.in_flight -= count

    def again(self, start: int, stop: int) -> None:
        """Bytes that were sent are asked for again."""
        self.taken(stop - start)
        self._again.append((start, stop))


def chunk_frame(
    transfer: int, pieces: Pieces, start: int, stop: int, is_copied: bool
) -> Sequence[bytes | memoryview]:
    """Return the CHUNK of these bytes, in pieces; a frame in one piece holds no memory of the transfer."""
    length, views = stop - start, pieces.cut(start, stop)
    if is_copied or length <= _JOINED or are_small(views, length):
        body = b"".join(views)
        header = pack_header(CHUNK, transfer, start, length, pieces.size, checksum((body,)))
        return (header + body,) if length <= _JOINED else (header, body)
    return pack_header(CHUNK, transfer, start, length, pieces.size, checksum(views)), *views


def holds_memory(frame: Sequence[bytes | memoryview]) -> bool:
    """Return whether a frame of `chunk_frame` refers to the memory of its transfer."""
    return len(frame) > 1 and not isinstance(frame[1], bytes)
