"""What cannot be placed, was taken back, or is set aside."""

from collections.abc import Sequence

from monarch_async.errors.error import Error


class BadDemand(Error, ValueError):
    """A demand that makes no sense whatever the hosts have: half a bundle of three GPUs, an unknown strategy."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return self.why


class Unschedulable(Error):
    """No host that has joined or is declared could ever fit a demand.

    ``demand`` says what was asked, ``why`` what is short by how much, ``table`` what exists and who holds it.
    """

    def __init__(self, demand: str, why: str, table: str = "") -> None:
        super().__init__(demand, why, table)
        self.demand, self.why, self.table = demand, why, table

    def __str__(self) -> str:
        text = f"{self.demand} can never be placed: {self.why}"
        return f"{text}\n{self.table.rstrip()}" if self.table else text


class Preempted(Error):
    """A placement was taken back for another of higher priority: ``by``."""

    def __init__(self, placement: str, by: str) -> None:
        super().__init__(placement, by)
        self.placement, self.by = placement, by

    def __str__(self) -> str:
        return f"{self.placement} was preempted by {self.by}"


class Poisoned(Error):
    """A task has ended every process that tried it. ``deaths`` is the evidence: how each of them died, oldest first.

    ``arguments``: their (shortened) repr.
    """

    def __init__(self, task: str, deaths: Sequence[Exception], arguments: str = "") -> None:
        deaths = tuple(deaths)
        super().__init__(task, deaths, arguments)
        self.task, self.deaths, self.arguments = task, deaths, arguments

    def __str__(self) -> str:
        lines = "".join(f"\n  {number}. {death}" for number, death in enumerate(self.deaths, 1))
        return f"task {self.task}{self.arguments} is quarantined: it ended {len(self.deaths)} workers{lines}"


class NotHolder(Error):
    """What is to be released or used is not held by who says so, or no longer: its fencing token is out of date."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"
