"""The pure half of a home, driven by hand: asks have numbers, answers are remembered by them."""

from dataclasses import dataclass, field
from typing import Any

from monarch_async.control.coordination import Coordination
from monarch_async.control.coordination_asks import Answer, Ask, Command, Discard, Refuse
from monarch_async.errors import Error, ProcDied

#: The client of everybody, unless a test says otherwise.
CLIENT = 1 << 32 | 1


def process(index: int) -> int:
    return 2 << 32 | index


@dataclass
class Home:
    """``answers`` by call; what is discarded, in order."""

    coordination: Coordination = field(default_factory=lambda: Coordination(100, most=10))
    answers: dict[int, Any] = field(default_factory=dict)
    discarded: list[bytes] = field(default_factory=list)
    now: float = 0.0
    _calls: int = 0

    def ask(
        self, who: int, key: str, params: tuple[int, ...], operation: str, *arguments: Any, client: int = CLIENT
    ) -> int:
        """Ask; return the call."""
        self._calls += 1
        ask = Ask(process(who), self._calls, f"p[{who}]", self.now)
        self._do(self.coordination.request(ask, client, key, params, operation, arguments))
        return ask.call

    def cancel(self, who: int, call: int, key: str) -> None:
        self._do(self.coordination.cancel(process(who), call, key, self.now))

    def gone(self, address: int, why: Error | None = None) -> None:
        self._do(self.coordination.gone(address, why or ProcDied("p", "h", signal=9), self.now))

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Answer(ask, value):
                    assert ask.call not in self.answers, "answered twice (C1)"
                    self.answers[ask.call] = value
                case Refuse(ask, error):
                    assert ask.call not in self.answers, "answered twice (C1)"
                    self.answers[ask.call] = error
                case Discard(objects):
                    self.discarded += objects

    @property
    def is_empty(self) -> bool:
        """Whether nothing is remembered."""
        found = self.coordination
        return not (found._live or found._users or found._of or found._clients or found._counts)
