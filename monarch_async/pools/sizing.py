"""How many replicas a pool is to have. Rules without state."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a pool was told when it was made.

    ``least`` and ``most`` replicas; ``concurrency`` leases on one at once; seconds: ``scale_up_after`` somebody waits
    another is started, ``idle`` without a lease one is ended; ``failures`` in a row after which it gives up, and the
    pause after the first, ``backoff``, which doubles.
    """

    least: int = 1
    most: int = 8
    concurrency: int = 8
    scale_up_after: float = 0.5
    idle: float = 30.0
    failures: int = 5
    backoff: float = 0.1

    def missing(self, there: int) -> int:
        """Return how many are to be started to have ``least``. ``there``: up, or on the way."""
        return max(self.least - there, 0)

    def wanted_by(self, waiting: int, coming: int, all: int) -> int:
        """Return how many more those that wait need.

        ``coming``: replicas that are on the way; ``all``: those that take up room, whether up, coming or ending.
        """
        needed = -(-waiting // self.concurrency)
        return max(min(needed - coming, self.most - all), 0)

    def spare(self, there: int) -> int:
        """Return how many may be ended for being idle."""
        return max(there - self.least, 0)

    def pause(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row."""
        return min(self.backoff * 2 ** (failures - 1), LONGEST_PAUSE)


LONGEST_PAUSE = 30.0
