"""Events: set or not; who waits is answered once it is set. Pure.

    E1. Who waits while it is set, or is set later, is answered; clearing it takes back no answer.
"""

from typing import ClassVar

from monarch_async.control.coordination_asks import Answer, Ask, Command, Facts, Waiting
from monarch_async.errors import Error


class Flag:
    """See the module."""

    operations: ClassVar[frozenset[str]] = frozenset({"set", "clear", "is_set", "wait"})
    __slots__ = ("_is_set", "_waiting")
    is_over, failure = False, None  #: it has no end of its own

    def __init__(self) -> None:
        """Not set."""
        self._is_set = False
        self._waiting: Waiting[None] = Waiting()

    @property
    def params(self) -> tuple[int, ...]:
        """None."""
        return ()

    @property
    def is_idle(self) -> bool:
        """Whether it is not set, and nobody waits."""
        return not self._is_set and not self._waiting

    def set(self, ask: Ask) -> list[Command]:
        """Answered with None; so are all who wait."""
        self._is_set = True
        return [Answer(ask, None), *(Answer(waiting, None) for waiting, _ in self._waiting.take_all())]

    def clear(self, ask: Ask) -> list[Command]:
        """Answered with None."""
        self._is_set = False
        return [Answer(ask, None)]

    def is_set(self, ask: Ask) -> list[Command]:
        """Answered with whether it is."""
        return [Answer(ask, self._is_set)]

    def wait(self, ask: Ask) -> list[Command]:
        """Answered with None once it is set."""
        if self._is_set:
            return [Answer(ask, None)]
        self._waiting.add(ask, None)
        return []

    def withdraw(self, address: int, call: int) -> list[Command]:
        """It waits no longer."""
        self._waiting.take(address, call)
        return []

    def gone(self, address: int, why: Error) -> list[Command]:
        """It waits no longer."""
        self._waiting.take_all(address)
        return []

    def end(self) -> list[Command]:
        """Nothing is left."""
        return []

    def facts(self) -> Facts:
        """Return who waits."""
        return Facts("set" if self._is_set else "not set", [], self._waiting.rows(lambda _: ""))
