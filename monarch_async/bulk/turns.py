"""Whose turn it is to send. Pure.

T1. Those that have had a turn take the next ones in a circle, a chunk each.
T2. Who has had none waits for one chunk at most of those, and for who came before: a small transfer, which is through
    after its first turn, does not wait for every large one.
T3. Of two turns one belongs to the circle, so that any number of newcomers does not stop it.
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Senders that have something to send."""

    __slots__ = ("_circle", "_is_circles", "_members", "_new")

    def __init__(self) -> None:
        """Nobody."""
        self._new: deque[T] = deque()
        self._circle: deque[T] = deque()
        self._members: set[T] = set()
        self._is_circles = False  # whose turn it is, where both wait

    def __len__(self) -> int:
        return len(self._members)

    def join(self, sender: T, is_new: bool) -> None:
        """``sender`` has something to send; once is enough."""
        if sender not in self._members:
            self._members.add(sender)
            (self._new if is_new else self._circle).append(sender)

    def leave(self, sender: T) -> None:
        """``sender`` has nothing to send any more."""
        if sender in self._members:
            self._members.discard(sender)
            for line in (self._new, self._circle):
                if sender in line:
                    line.remove(sender)

    def next(self) -> T | None:
        """Return who sends a chunk now, and take it out: who has more joins again."""
        if self._new and not (self._is_circles and self._circle):
            line, self._is_circles = self._new, True
        elif self._circle:
            line, self._is_circles = self._circle, False
        else:
            return None
        sender = line.popleft()
        self._members.discard(sender)
        return sender
