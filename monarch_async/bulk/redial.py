"""When a broken connection is dialled again, and when no more. Pure.

D1. The first attempt after a break is made at once, further ones after pauses that double.
D2. It gives up when nothing has moved for ``patience`` seconds.
D3. It gives up when nobody listened twice in a row: a socket that was listened to is refused only once its process has
    ended, and that process's memory is gone with it. Twice, as one that is just being set up is refused as well.
D4. It gives up at once where somebody else listens there: the process it belonged to is gone.
"""

from enum import Enum, auto

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.5


class Break(Enum):
    """What happened to a connection, or to the attempt at one."""

    BROKEN = auto()  #: it was there, or began to be
    REFUSED = auto()  #: nobody listens
    OTHERS = auto()  #: somebody else listens
    UNREACHABLE = auto()  #: no answer, no route, no descriptors: may pass


class Redial:
    """The history of one connection."""

    __slots__ = ("_attempts", "_patience", "_refusals", "_since")

    def __init__(self, patience: float) -> None:
        """Nothing has happened."""
        self._patience = patience
        self.progressed()

    def progressed(self) -> None:
        """Bytes have moved: what was before is forgotten."""
        self._since: float | None = None
        self._attempts = self._refusals = 0

    def failed(self, how: Break, now: float) -> float | None:
        """Return the seconds until it may be dialled again; None: it is given up (what was before is forgotten)."""
        if self._since is None:
            self._since = now
        self._refusals = self._refusals + 1 if how is Break.REFUSED else 0
        left = self._since + self._patience - now
        if how is Break.OTHERS or self._refusals == 2 or left <= 0:
            self.progressed()
            return None
        self._attempts += 1
        if self._attempts == 1 and how is Break.BROKEN:
            return 0.0
        return min(_FIRST_PAUSE * 2 ** min(self._attempts - 1, 10), _LONGEST_PAUSE, left)
