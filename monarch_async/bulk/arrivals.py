"""What of a stretch of bytes is there already. Pure.

A1. What is there is a set of ranges that neither overlap nor touch, in order.
A2. A range that is there never goes again; `add` of one that is there already changes nothing.
"""

from bisect import bisect_left, bisect_right


class Arrivals:
    """Which of ``size`` bytes have arrived."""

    __slots__ = ("_starts", "_stops", "count", "size")

    def __init__(self, size: int) -> None:
        """Nothing has."""
        self.size = size
        self.count = 0  #: bytes that are there
        self._starts: list[int] = []
        self._stops: list[int] = []

    @property
    def is_complete(self) -> bool:
        """Whether all is there."""
        return self.count == self.size

    def add(self, start: int, stop: int) -> int:
        """Bytes ``start`` to ``stop`` are there; return how many of them were not before."""
        if not 0 <= start <= stop <= self.size:
            raise ValueError(f"bytes {start} to {stop} of {self.size}")
        if start == stop:
            return 0
        first = bisect_left(self._stops, start)  # the first range that ends at or behind ``start``
        last = bisect_right(self._starts, stop)  # the first range that begins behind ``stop``
        before = sum(self._stops[i] - self._starts[i] for i in range(first, last))
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        more = stop - start - before
        self.count += more
        return more

    def missing(self, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        """Return what is not there of bytes ``start`` to ``stop``, as (start, stop) in order."""
        stop = self.size if stop is None else stop
        found = []
        index = max(bisect_right(self._starts, start) - 1, 0)
        for begin, end in zip(self._starts[index:], self._stops[index:], strict=True):
            if begin >= stop:
                break
            if begin > start:
                found.append((start, begin))
            start = max(start, end)
        if start < stop:
            found.append((start, stop))
        return found
