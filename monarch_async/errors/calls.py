"""Calls that cannot be made, or of which several members failed."""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from monarch_async.errors.error import Error


class WouldDeadlock(Error):
    """A call would wait for itself. ``chain`` lists the calls, outermost first."""

    def __init__(self, actor: str, chain: Sequence[str], max_concurrency: int = 1) -> None:
        chain = tuple(chain)
        super().__init__(actor, chain, max_concurrency)
        self.actor, self.chain, self.max_concurrency = actor, chain, max_concurrency

    def __str__(self) -> str:
        path = " -> ".join(self.chain)
        count = "1 call" if self.max_concurrency == 1 else f"{self.max_concurrency} calls"
        return (
            f"{self.actor} would wait for itself: {path}; it runs {count} at a time: "
            "raise its max_concurrency, or do not await this there"
        )


class Backpressure(Error):
    """A bounded queue is full."""

    def __init__(self, what: str, limit: str, hint: str) -> None:
        super().__init__(what, limit, hint)
        self.what, self.limit, self.hint = what, limit, hint

    def __str__(self) -> str:
        return f"{self.what} is full ({self.limit}): {self.hint}"


class Closed(Error):
    """Something was used after it was stopped, closed or left."""

    def __init__(self, what: str, why: str = "") -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what} is closed" + (f": {self.why}" if self.why else "")


class PicklingError(Error, pickle.PicklingError):
    """A value cannot travel. ``where`` is the path to the culprit: ``args[1]['lock']``."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return f"cannot pickle {self.where}: {self.why}"


class BadCall(Error, TypeError):
    """Arguments do not fit the endpoint's signature; found at the caller, nothing was sent."""

    def __init__(self, endpoint: str, why: str) -> None:
        super().__init__(endpoint, why)
        self.endpoint, self.why = endpoint, why

    def __str__(self) -> str:
        return f"bad call of {self.endpoint}: {self.why}"


class NotAnEndpoint(Error, AttributeError):
    """The actor class has no endpoint of that name."""

    def __init__(self, mesh: str, name: str, endpoints: Sequence[str] = (), is_plain_method: bool = False) -> None:
        endpoints = tuple(endpoints)
        super().__init__(mesh, name, endpoints, is_plain_method)
        self.mesh, self.endpoints, self.is_plain_method = mesh, endpoints, is_plain_method
        self.name = name  # AttributeError has a field of that name; ours says the same

    def __str__(self) -> str:
        if self.is_plain_method:
            return f"{self.mesh}.{self.name} is a method but no endpoint: decorate it with @ma.endpoint"
        known = ", ".join(self.endpoints) or "none"
        return f"{self.mesh} has no endpoint {self.name!r}; its endpoints: {known}"


class BadEndpoint(Error, TypeError):
    """A class or function that cannot be an actor or an endpoint."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class MeshError(Error, ExceptionGroup):
    """Several members (or one of several) failed in one call.

    ``by_rank`` maps the rank in the called mesh to its exception; ``results`` maps the other ranks to their results.
    It is an ExceptionGroup, so ``except*`` works.
    """

    by_rank: dict[int, Exception]
    results: dict[int, Any]

    def __new__(cls, message: str, by_rank: Mapping[int, Exception], results: Mapping[int, Any] | None = None) -> Any:
        """Take the failures by rank; the group's exceptions are those, in rank order."""
        ordered = dict(sorted(by_rank.items()))
        self = ExceptionGroup.__new__(cls, message, list(ordered.values()))
        self.by_rank = ordered
        self.results = dict(results or {})
        return self

    def __init__(
        self, message: str, by_rank: Mapping[int, Exception], results: Mapping[int, Any] | None = None
    ) -> None:
        super().__init__(message, list(self.by_rank.values()))

    def __str__(self) -> str:
        first = next(iter(self.by_rank.values()), None)
        head = str(first).split("\n", 1)[0] if first is not None else ""
        return f"{self.message}; first: {head}"

    def derive(self, excs: Sequence[Exception]) -> "MeshError":  # type: ignore[override]
        """Keep the ranks when ``except*`` splits the group."""
        keep = {id(e) for e in excs}
        return MeshError(self.message, {r: e for r, e in self.by_rank.items() if id(e) in keep}, self.results)

    def __reduce__(self) -> tuple[Any, ...]:
        return MeshError, (self.message, self.by_rank, self.results)
