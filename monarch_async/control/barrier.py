"""Barriers: so many parties wait for each other, again and again. Pure.

    waiting --- the last party arrives ---> waiting, all answered with their index
    waiting --- a party dies or is cancelled ---> broken, all refused
    any --- reset ---> waiting, who waited is refused

    B1. Nobody passes before as many have arrived as there are parties; then all of them pass, each with another index.
    B2. It breaks when a process ends, or who asked is cancelled, while it waits here. Also when a process ends that has
        passed it the last time: the others would wait for it for ever.
    B3. While it is broken, all who come are refused, with what broke it.
    B4. Who has passed has passed: what is cancelled or ends later breaks no passage, only the next (B2).
"""

from typing import ClassVar

from monarch_async.control.coordination_asks import Answer, Ask, Command, Facts, Refuse, Waiting
from monarch_async.errors import BarrierBroken, Error


class BarrierState:
    """See the module."""

    operations: ClassVar[frozenset[str]] = frozenset({"arrive", "reset", "abort"})
    __slots__ = ("_broken", "_members", "_name", "_parties", "_waiting")
    is_over, failure = False, None  #: it has no end of its own

    def __init__(self, name: str, parties: int) -> None:
        """Nobody has arrived. ``name`` is what errors call it."""
        self._name, self._parties = name, parties
        self._waiting: Waiting[None] = Waiting()
        self._members: dict[int, str] = {}  # who passed last: address, and what tables call it
        self._broken = ""

    @property
    def params(self) -> tuple[int, ...]:
        """How many parties."""
        return (self._parties,)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits, and nobody's end would break it."""
        return not self._waiting and not self._members and not self._broken

    def arrive(self, ask: Ask) -> list[Command]:
        """Answered with the index of the arrival, once all have arrived."""
        if self._broken:
            return [Refuse(ask, BarrierBroken(self._name, self._broken))]
        self._waiting.add(ask, None)
        if len(self._waiting) < self._parties:
            return []
        arrived = [waiting for waiting, _ in self._waiting.take_all()]
        self._members = {waiting.address: waiting.who for waiting in arrived}
        return [Answer(waiting, index) for index, waiting in enumerate(arrived)]

    def reset(self, ask: Ask) -> list[Command]:
        """Answered with None: whole again, and empty."""
        refused = self._break(f"it was reset by {ask.who}")
        self._broken = ""
        self._members = {}
        return [Answer(ask, None), *refused]

    def abort(self, ask: Ask, why: str) -> list[Command]:
        """Answered with None: broken, by who asks."""
        return [Answer(ask, None), *self._break(f"{ask.who} aborted it" + (f": {why}" if why else ""))]

    def withdraw(self, address: int, call: int) -> list[Command]:
        """B2, B4."""
        entry = self._waiting.take(address, call)
        return [] if entry is None else self._break(f"{entry[0].who} stopped waiting: it was cancelled")

    def gone(self, address: int, why: Error) -> list[Command]:
        """B2."""
        waited = [ask.who for ask, _ in self._waiting.take_all(address)]
        passed = self._members.get(address)
        who = waited[0] if waited else passed
        return [] if who is None else self._break(f"{who} is gone: {why}")

    def end(self) -> list[Command]:
        """Nothing is left."""
        return []

    def facts(self) -> Facts:
        """Return who waits."""
        state = f"broken: {self._broken}" if self._broken else f"{len(self._waiting)} of {self._parties} have arrived"
        return Facts(state, [], self._waiting.rows(lambda _: ""))

    def _break(self, why: str) -> list[Command]:
        self._broken = self._broken or why
        self._members = {}
        return [Refuse(ask, BarrierBroken(self._name, why)) for ask, _ in self._waiting.take_all()]
