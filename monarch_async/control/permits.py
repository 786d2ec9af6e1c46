"""Locks and semaphores: permits, who holds how many, who waits for some. Pure. A lock is a semaphore of one.

    P1. The permits held and the free ones are together as many as there are: of a lock there is one holder at most.
    P2. First come, first served: who waits for many is not passed by who wants few.
    P3. Every grant has a token larger than all before it, here and for any other lock or semaphore of this home.
    P4. Only the process that was granted them gives permits back, once; they go to who waits, at once.
    P5. When a process ends, what it held is free and what it waited for is forgotten.
    P6. Who is cancelled has nothing, whether the grant was on its way or not: no permit is lost.
"""

from dataclasses import dataclass
from typing import ClassVar

from monarch_async.control.coordination_asks import (
    Answer,
    Ask,
    Command,
    Facts,
    Refuse,
    Row,
    Stamps,
    Waiting,
)
from monarch_async.errors import BadCall, Error, NotHolder


@dataclass(frozen=True, slots=True)
class Held:
    """A grant."""

    ask: Ask
    count: int
    token: int
    since: float


class Permits:
    """See the module."""

    operations: ClassVar[frozenset[str]] = frozenset({"acquire", "release", "check", "holders"})
    __slots__ = ("_by_ask", "_held", "_name", "_stamps", "_waiting", "free", "total")
    is_over, failure = False, None  #: it has no end of its own

    def __init__(self, name: str, total: int, stamps: Stamps) -> None:
        """All free. ``name`` is what errors call it."""
        self._name, self.total, self.free, self._stamps = name, total, total, stamps
        self._held: dict[int, Held] = {}  # by token
        self._by_ask: dict[int, dict[int, int]] = {}  # tokens by process and call
        self._waiting: Waiting[int] = Waiting()

    @property
    def params(self) -> tuple[int, ...]:
        """How many there are."""
        return (self.total,)

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds any or waits."""
        return not self._held and not self._waiting

    # -- operations ------------------------------------------------------------------------------------------------

    def acquire(self, ask: Ask, count: int) -> list[Command]:
        """Answered with the token, once there are so many."""
        if not 1 <= count <= self.total:
            return [Refuse(ask, BadCall(f"{self._name}.acquire", f"{count} of {self.total} permits"))]
        self._waiting.add(ask, count)
        return self._grant()

    def release(self, ask: Ask, token: int) -> list[Command]:
        """Answered with None."""
        held = self._held.get(token)
        if held is None or held.ask.address != ask.address:
            return [Refuse(ask, NotHolder(self._name, self._why_not(token)))]
        self._free(held)
        return [Answer(ask, None), *self._grant()]

    def check(self, ask: Ask, token: int) -> list[Command]:
        """Answered with None where the token is that of a holder, whoever asks."""
        if token in self._held:
            return [Answer(ask, None)]
        return [Refuse(ask, NotHolder(self._name, self._why_not(token)))]

    def holders(self, ask: Ask) -> list[Command]:
        """Answered with [who, seconds, token, count] of each."""
        return [Answer(ask, [[h.ask.who, self._stamps.now - h.since, h.token, h.count] for h in self._held.values()])]

    # -- events ----------------------------------------------------------------------------------------------------

    def withdraw(self, address: int, call: int) -> list[Command]:
        """P6."""
        token = self._by_ask.get(address, {}).get(call)
        if token is not None:
            self._free(self._held[token])
        else:
            self._waiting.take(address, call)
        return self._grant()

    def gone(self, address: int, why: Error) -> list[Command]:
        """P5."""
        self._waiting.take_all(address)
        for token in list(self._by_ask.get(address, {}).values()):
            self._free(self._held[token])
        return self._grant()

    def end(self) -> list[Command]:
        """Nothing is left: who held some has ended."""
        return []

    def facts(self) -> Facts:
        """Return holders and who waits."""
        holders = [Row(h.ask.who, h.ask.address, h.since, self._describe(h.count)) for h in self._held.values()]
        return Facts(f"{self.free} of {self.total} free", holders, self._waiting.rows(self._describe))

    # -- inside ----------------------------------------------------------------------------------------------------

    def _grant(self) -> list[Command]:
        granted: list[Command] = []
        while (first := self._waiting.first()) is not None and first[1] <= self.free:
            ask, count = self._waiting.take_first()
            held = Held(ask, count, self._stamps.next_token(), self._stamps.now)
            self.free -= count
            self._held[held.token] = held
            self._by_ask.setdefault(ask.address, {})[ask.call] = held.token
            granted.append(Answer(ask, held.token))
        return granted

    def _free(self, held: Held) -> None:
        del self._held[held.token]
        self.free += held.count
        tokens = self._by_ask[held.ask.address]
        del tokens[held.ask.call]
        if not tokens:
            del self._by_ask[held.ask.address]

    def _why_not(self, token: int) -> str:
        now = ", ".join(f"{held.ask.who} (token {held.token})" for held in self._held.values()) or "nobody"
        return f"token {token} holds nothing of it, or no longer; {now} does"

    def _describe(self, count: int) -> str:
        return "" if self.total == 1 else f"{count} of {self.total}"
