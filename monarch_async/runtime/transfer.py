"""Large payloads in chunks, so that they hold up no other message.

The control frame of a chunked message goes out at once and takes its place in the order; the pickle and the buffers
follow as CHUNK frames, sent between other frames and never further ahead of the receiver than `WINDOW` bytes. The
offset in a chunk counts over the pickle and the buffers, end to end.

Both ends copy once. The sender copies when it is called, so that a caller may change its tensors as soon as `call` has
returned; the receiver copies from the socket's buffers into memory the value then owns.
"""

from collections.abc import Callable, Sequence

from monarch_async.bulk.blocks import BlockPool
from monarch_async.errors import BadFrame
from monarch_async.wire.frame import CHUNK, HEADER, HEADER_SIZE

#: Bytes a sender may be ahead of its receiver's acknowledgements, per transfer.
WINDOW = 8 << 20

#: A receiver acknowledges each time so many more bytes have come, and the end.
ACK_EVERY = 2 << 20


class Outbound:
    """A payload on its way out: a source for `Connection.bulk`."""

    __slots__ = ("_allowed", "_chunk", "_id", "_parts", "_sent", "_size", "_src", "dst")

    def __init__(self, transfer: int, dst: int, src: int, parts: Sequence[memoryview], chunk: int) -> None:
        """Send ``parts``, end to end, to ``dst`` in chunks of ``chunk`` bytes."""
        self._id, self.dst, self._src, self._chunk = transfer, dst, src, chunk
        self._parts = [part for part in parts if len(part)]
        self._parts.reverse()
        self._size = sum(len(part) for part in parts)
        self._sent = 0
        self._allowed = WINDOW

    @property
    def is_done(self) -> bool:
        """Whether every chunk was handed out."""
        return self._sent >= self._size

    def next_chunk(self) -> tuple[bytes, memoryview] | None:
        """Return the next CHUNK frame, or None while the receiver is too far behind."""
        if self._sent >= min(self._allowed, self._size):
            return None
        part = self._parts.pop()
        body = part[: self._chunk]
        if len(body) < len(part):
            self._parts.append(part[len(body) :])
        head = HEADER.pack(HEADER_SIZE + len(body), CHUNK, 0, 0, self.dst, self._src, self._id, self._sent)
        self._sent += len(body)
        return head, body

    def allow(self, received: int) -> None:
        """The receiver has so many bytes: go on to a window past them."""
        self._allowed = max(self._allowed, received + WINDOW)

    def abandon(self) -> None:
        """The receiver is gone: nothing more will be sent."""
        self._parts.clear()
        self._sent = self._size


class Inbound:
    """A payload on its way in. ``on_complete(skeleton, buffers)`` is called with the last byte."""

    __slots__ = ("_acked", "_index", "_on_complete", "_pool", "_start", "_views", "received", "size", "sizes", "src")

    def __init__(
        self,
        src: int,
        sizes: Sequence[int],
        pool: BlockPool,
        on_complete: Callable[[memoryview, list[memoryview]], None],
    ) -> None:
        """Expect ``sizes``: the pickle's length, then each buffer's."""
        self.src = src
        self.sizes = sizes
        self.size = sum(sizes)
        self._pool = pool
        self._views: list[memoryview] = []  # none before the first chunk: most payloads come another way
        self._on_complete = on_complete
        self.received = 0
        self._acked = 0
        self._index = self._start = 0  # where the next chunk goes: the buffer, and how much of it there is

    def take(self, offset: int, pieces: Sequence[memoryview | bytes]) -> bool:
        """Copy one chunk to its place; return whether the sender is due an acknowledgement."""
        if offset != self.received:
            raise BadFrame(f"chunk at {offset}, expected {self.received}")
        if not self._views:
            self._views = [self._pool.take(size) if size else memoryview(b"") for size in self.sizes]
        index, start = self._index, self._start
        while index < len(self.sizes) and start >= self.sizes[index]:
            start -= self.sizes[index]
            index += 1
        for piece in pieces:
            size = len(piece)
            if index >= len(self.sizes) or start + size > self.sizes[index]:
                raise BadFrame(f"chunk at {offset} runs over the end of its buffer")
            self._views[index][start : start + size] = piece
            start += size
            self.received += size
        self._index, self._start = index, start
        if self.received - self._acked >= ACK_EVERY or self.received == self.size:
            self._acked = self.received
            return True
        return False

    def finish(self, views: list[memoryview] | None = None) -> None:
        """Hand the payload over; all of it is there: in ``views``, where it did not come in chunks."""
        skeleton, *buffers = views or self._views
        self._views = []
        self._on_complete(skeleton, buffers)
