"""A guardian: an owner that looks after what it spawned by itself, such as a pool of workers that are replaced.

Deaths there are no failures of the program, nor of whoever caused them to be spawned: calls in flight carry them, and
the guardian is told.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from monarch_async.control.supervision import Failure


class Guardian:
    """Owns what is spawned inside of `guarding`."""

    __slots__ = ("lost",)

    def __init__(self, lost: Callable[[Failure], None]) -> None:
        """``lost`` is called on the loop with each failure of what it owns."""
        self.lost = lost


_guardian: ContextVar[Guardian | None] = ContextVar("monarch_async_guardian", default=None)


@contextmanager
def guarding(guardian: Guardian) -> Iterator[None]:
    """What is spawned in this block belongs to ``guardian``."""
    token = _guardian.set(guardian)
    try:
        yield
    finally:
        _guardian.reset(token)


def current_guardian() -> Guardian | None:
    """Return the guardian of what is spawned now."""
    return _guardian.get()
