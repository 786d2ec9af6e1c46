"""What arrives on a bulk connection: bytes in any split go where they belong. Pure.

The socket asks where to put what comes (`buffer`) and says how much came (`took`). Headers come into a block of a few
KiB, together with what little follows them, so that a small transfer takes one read; the rest of a chunk is received
right into the memory it is for, 256 KiB at a time, and its checksum is computed while those are still in the cache.

I1. Memory is touched only while its `Place` says that it may be; what comes for it afterwards goes nowhere.
I2. Whether a chunk is good is known when it is there: a bad one has been written already, and is asked for again.
"""

from collections.abc import Sequence
from typing import Protocol

from monarch_async.bulk.pieces import are_small
from monarch_async.wire.chunk import CHUNK, HEADER_SIZE, Header, new_checksum, parse_header

_SCRATCH = 16 << 10
#: Bytes received at once. More leave the cache before their checksum is computed.
_READ = 256 << 10


class Place(Protocol):
    """Where the chunks of a transfer go."""

    def is_open(self) -> bool:
        """Whether its memory may be touched."""
        ...

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        """Return the memory of these bytes of it, which it has said it takes."""
        ...


class Frames(Protocol):
    """Who takes what arrived."""

    def take_message(self, header: Header, body: bytes) -> None:
        """Take a frame that is no chunk."""
        ...

    def place(self, header: Header) -> Place | None:
        """Say where a chunk goes that begins to arrive; None: nowhere."""
        ...

    def take_chunk(self, header: Header, is_good: bool) -> None:
        """A chunk that has a place is there; its checksum is right, or not."""
        ...


class Intake:
    """Walks the frames of one connection."""

    __slots__ = (
        "_block", "_checksum", "_filled", "_frames", "_header", "_is_scattered", "_max_body", "_missing", "_place",
        "_scratch", "_views",
    )  # fmt: skip

    def __init__(self, frames: Frames, max_body: int) -> None:
        """Hand what comes to ``frames``; messages have bodies of at most ``max_body`` bytes."""
        self._frames, self._max_body = frames, max_body
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._filled = 0  # bytes of the scratch block that wait for more: less than a header
        self._header: Header | None = None  # of the frame whose body is arriving
        self._missing = 0  # bytes of that body
        self._views: list[memoryview] = []  # where those go, last first; none: nowhere
        self._place: Place | None = None  # whose memory that is
        self._block = memoryview(b"")  # where a message's body is gathered, and chunks that go to many small places
        self._is_scattered = False  # whether the chunk that arrives is such a one
        self._checksum = new_checksum()

    def buffer(self) -> memoryview:
        """Return where the next bytes are to be put: at least one byte."""
        if self._header is None:
            return self._scratch[self._filled :]
        if not self._is_wanted():
            return self._scratch[: self._missing]
        return self._views[-1][:_READ]

    def took(self, count: int) -> None:
        """``count`` bytes have been put where `buffer` said. Raises WireError where they break the rules."""
        if self._header is None:
            self._walk(self._filled + count)
            return
        if self._views:
            self._advance(count)
        self._missing -= count
        if not self._missing:
            self._end()

    def feed(self, data: bytes) -> None:
        """Take bytes that came otherwise."""
        at = 0
        while at < len(data):
            into = self.buffer()[: len(data) - at]
            into[:] = data[at : at + len(into)]
            at += len(into)
            self.took(len(into))

    def _walk(self, filled: int) -> None:
        """Take the frames in the first ``filled`` bytes of the scratch block."""
        at, scratch = 0, self._scratch
        while filled - at >= HEADER_SIZE:
            header = parse_header(scratch[at : at + HEADER_SIZE], self._max_body)
            at += HEADER_SIZE
            here = scratch[at : min(at + header.length, filled)]
            at += len(here)
            if header.kind != CHUNK and len(here) == header.length:
                self._frames.take_message(header, bytes(here))
                continue
            self._begin(header)
            self._missing = header.length - len(here)
            while len(here) and self._is_wanted():
                into = self._views[-1][: len(here)]
                into[:] = here[: len(into)]
                self._advance(len(into))
                here = here[len(into) :]
            if not self._missing:
                self._end()
        if at and filled > at:
            scratch[: filled - at] = bytes(scratch[at:filled])
        self._filled = filled - at

    def _begin(self, header: Header) -> None:
        self._header = header
        if header.kind != CHUNK:
            self._views = [self._gather(header.length)]
            return
        self._place = place = self._frames.place(header)
        if place is None:
            return
        views = place.views(header.start, header.start + header.length)
        self._is_scattered = are_small(views, header.length)
        self._views = [self._gather(header.length)] if self._is_scattered else list(reversed(views))
        self._checksum = new_checksum()

    def _gather(self, length: int) -> memoryview:
        if len(self._block) < length:
            self._block = memoryview(bytearray(length))
        return self._block[:length]

    def _is_wanted(self) -> bool:
        """Whether what arrives goes anywhere (I1)."""
        if self._place is not None and not self._place.is_open():
            self._place = None
            self._views.clear()
        return bool(self._views)

    def _advance(self, count: int) -> None:
        """So many bytes are where the first of the views begins, all of them in it."""
        view = self._views[-1]
        if self._place is not None:
            self._checksum.update(view[:count])
        if count == len(view):
            self._views.pop()
        else:
            self._views[-1] = view[count:]

    def _end(self) -> None:
        """The whole body is there."""
        header, place, is_scattered = self._header, self._place, self._is_scattered
        assert header is not None
        self._header, self._place, self._is_scattered = None, None, False
        if header.kind != CHUNK:
            body = bytes(self._block[: header.length])
            self._block = memoryview(b"")  # seldom needed again
            self._frames.take_message(header, body)
        elif place is not None and place.is_open():
            is_good = self._checksum.intdigest() == header.checksum
            if is_good and is_scattered:
                at = 0
                for view in place.views(header.start, header.start + header.length):
                    view[:] = self._block[at : at + len(view)]
                    at += len(view)
            self._frames.take_chunk(header, is_good)
