"""Lines out of what processes print: bytes in, complete lines out, nothing lost, no I/O.

What ends a line:

- ``\\n``, with any ``\\r`` right before it;
- ``\\r`` followed by more text. A progress bar draws itself by ``\\r`` and the new text; each drawing becomes
  a line of its own. A ``\\r`` at the end of what has arrived so far waits to see what follows. A drawing that
  is empty (the ``\\r`` a bar begins with) is no line; an empty line ended by ``\\n`` is one.

A line longer than ``max_line`` bytes is cut into pieces of at most that many, between two UTF-8 characters
where it is UTF-8, and each piece is a line. How the bytes were split over `LineSplitter.feed` never shows in
the lines.
"""

import re
from collections.abc import Iterable

_END = re.compile(rb"(\r*\n|\r+)")
_UTF8_TAIL = range(0x80, 0xC0)


class LineSplitter:
    """Splits one stream; holds at most ``max_line`` bytes (default 64 KiB) of the line not finished yet."""

    __slots__ = ("_max_line", "_partial", "_return")

    def __init__(self, max_line: int = 64 << 10) -> None:
        if max_line < 4:
            raise ValueError(f"max_line is {max_line}: a UTF-8 character may take 4 bytes")
        self._max_line = max_line
        self._partial = b""
        self._return = False  # a \r came last: what it means depends on what follows

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the stream and return the lines they complete, without their ends."""
        if self._return:
            data = b"\r" + data
        text = data.rstrip(b"\r")
        self._return = len(text) < len(data)
        *parts, rest = _END.split(text)
        lines: list[bytes] = []
        for piece, end in zip(parts[::2], parts[1::2], strict=True):
            line = self._cut(self._partial + piece, lines)
            self._partial = b""
            if line or end.endswith(b"\n"):
                lines.append(line)
        if rest:
            self._partial = self._cut(self._partial + rest, lines)
        return lines

    def close(self) -> list[bytes]:
        """Return what the stream ended with after its last line end, as a line, if anything."""
        rest, self._partial, self._return = self._partial, b"", False
        return [rest] if rest else []

    def _cut(self, line: bytes, lines: list[bytes]) -> bytes:
        """Move pieces of an over-long line to ``lines`` and return the rest, which is never nothing."""
        start = 0
        while len(line) - start > self._max_line:
            stop = start + self._max_line
            stop -= next((back for back in range(4) if line[stop - back] not in _UTF8_TAIL), 0)
            lines.append(line[start:stop])
            start = stop
        return line[start:] if start else line


class LineFold:
    """Folds runs of identical lines of one stream: the line, then ``... (repeated N times)`` for N more.

    A line is passed on as soon as it comes; only its repetitions wait, for a line that differs or for
    `flush`. A single repetition is passed on as it is, being no longer than the notice. Lines never change
    places.
    """

    __slots__ = ("_last", "_repeated")

    def __init__(self) -> None:
        self._last: bytes | None = None
        self._repeated = 0

    def feed(self, lines: Iterable[bytes]) -> list[bytes]:
        """Take lines and return those to be shown."""
        shown: list[bytes] = []
        for line in lines:
            if line == self._last:
                self._repeated += 1
            else:
                shown += self.flush()
                shown.append(line)
                self._last = line
        return shown

    def flush(self) -> list[bytes]:
        """Return the notice of the repetitions so far, if any: for the end, and for long runs."""
        count, self._repeated = self._repeated, 0
        if count == 1 and self._last is not None:
            return [self._last]
        return [b"... (repeated %d times)" % count] if count else []
