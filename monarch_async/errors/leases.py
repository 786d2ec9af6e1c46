"""Detached leases that somebody else has, or that are not there."""

from monarch_async.errors.error import Error


class LeaseHeld(Error):
    """A detached lease of that name is there already, or another client is its owner: ``by``; ``why`` says more."""

    def __init__(self, name: str, by: str, why: str = "") -> None:
        super().__init__(name, by, why)
        self.name, self.by, self.why = name, by, why

    def __str__(self) -> str:
        return f"detached lease {self.name!r} is held by {self.by}{f': {self.why}' if self.why else ''}"


class NoSuchLease(Error):
    """No host that was asked has a detached lease of that name. ``known``: those that there are."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        known = tuple(known)
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        there = f"there are: {', '.join(self.known)}" if self.known else "there is none at all"
        return f"no detached lease {self.name!r} on these hosts; {there}"
