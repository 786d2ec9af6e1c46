"""The receiving half of a transfer: what is there, what is asked for again, when it gives up. Pure.

V1. A range that is there is never overwritten: what comes for it again is not taken.
V2. What is taken is said in steps of a quarter of the window, so the sender never stops for want of credit.
V3. A range may be garbled `TRIES` times; then the transfer fails.
"""

from collections.abc import Sequence

from monarch_async.bulk.arrivals import Arrivals

#: How often a range may arrive garbled. Wires do that once in a blue moon; several times in a row it is a fault.
TRIES = 5


class Receiving:
    """What has arrived of a transfer of ``total`` bytes."""

    __slots__ = ("_garbled", "_pending", "_step", "arrivals")

    def __init__(self, total: int, window: int, ranges: Sequence[tuple[int, int]] | None = None) -> None:
        """``ranges``: what is expected, as (start, stop) in order; None: all of it. Raises ValueError for bad ones."""
        self.arrivals = Arrivals(total)
        if ranges is not None:
            at = 0
            for start, stop in [*ranges, (total, total)]:
                self.arrivals.add(at, start)
                at = stop
        self._step = window // 4
        self._pending = (0, 0)  # taken, and not said
        self._garbled: dict[int, int] = {}  # how often, by start

    @property
    def is_complete(self) -> bool:
        """Whether all is there."""
        return self.arrivals.is_complete

    def is_expected(self, start: int, stop: int) -> bool:
        """Return whether nothing of a range is there (V1)."""
        arrivals = self.arrivals
        return stop <= arrivals.size and (not arrivals.count or arrivals.missing(start, stop) == [(start, stop)])

    def restart(self) -> None:
        """Another sender goes on, which has sent nothing yet."""
        self._pending = (0, 0)

    def good(self, start: int, stop: int) -> Sequence[tuple[int, int]]:
        """A range that was expected is there; return the ranges to say are taken, if any."""
        self.arrivals.add(start, stop)
        self._garbled.pop(start, None)
        first, last = self._pending
        said = []
        if start != last:
            if first < last:
                said.append((first, last))
            first = start
        if stop - first >= self._step:
            said.append((first, stop))
            first = stop
        self._pending = first, stop
        return said

    def garbled(self, start: int) -> bool:
        """The range that begins there was garbled; return whether to ask for it again (V3)."""
        self._garbled[start] = times = self._garbled.get(start, 0) + 1
        return times < TRIES
