"""Cuts what one end of a connection sends into its handshake and its frames, for the fault proxy."""

from collections.abc import Callable

FrameLength = Callable[[bytearray, int], int | None]
Skip = Callable[[bytes], int | None]


class Splitter:
    """Takes the functions that `FaultProxy` describes; ``frame_length`` None for a stream without frames."""

    def __init__(self, frame_length: FrameLength | None, skip: Skip) -> None:
        self._frame_length = frame_length
        self._skip = skip
        self._handshake: bytes | None = b""  # what of it has passed; None once it is over
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bool]]:
        """Return the pieces that can be passed on now, each with whether it is a frame."""
        self._buffer += data
        pieces: list[tuple[bytes, bool]] = []
        if self._handshake is not None:
            seen = self._handshake + self._buffer
            length = self._skip(seen)
            end = len(seen) if length is None else min(length, len(seen))
            pieces.append((seen[len(self._handshake) : end], False))
            del self._buffer[: end - len(self._handshake)]
            self._handshake = None if end == length else seen
        if self._frame_length is None:
            pieces.append((self.rest(), False))
        elif self._handshake is None:
            pieces += self._frames(self._frame_length)
        return pieces

    def rest(self) -> bytes:
        """Return and forget what has arrived of an incomplete frame."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _frames(self, frame_length: FrameLength) -> list[tuple[bytes, bool]]:
        buffer, start, frames = self._buffer, 0, []
        while start < len(buffer):
            length = frame_length(buffer, start)
            if length is None or start + length > len(buffer):
                break
            if length <= 0:
                raise ValueError(f"frame_length says {length} bytes")
            frames.append((bytes(buffer[start : start + length]), True))
            start += length
        del buffer[:start]
        return frames
