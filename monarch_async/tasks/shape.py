"""The shape of a task: all that decides which workers can run it. Tasks of one shape share workers."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from monarch_async.errors import BadDemand
from monarch_async.scheduler.demand import Bundle, Demand


@dataclass(frozen=True, slots=True)
class Shape:
    """Amounts as in `Bundle`, affinity as in `Demand`; ``env`` and ``cwd`` are those of the worker's process.

    Hashable: mappings are kept as sorted pairs.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    custom: tuple[tuple[str, float], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    hosts: tuple[str, ...] = ()
    within: tuple[int, int] | None = None
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None

    def __post_init__(self) -> None:
        """Check amounts. Raises BadDemand."""
        self.bundle()

    @property
    def is_free(self) -> bool:
        """Whether it takes nothing of a host, so that nothing but good sense limits how many there are."""
        return not (self.cpus or self.gpus or self.memory or any(amount for _, amount in self.custom))

    @property
    def kind(self) -> str:
        """What tells workers apart that take the same of a host; empty for those of no environment of their own."""
        if not self.env and self.cwd is None:
            return ""
        return hashlib.blake2b(repr((self.env, self.cwd)).encode(), digest_size=8).hexdigest()  # no secrets of theirs

    def bundle(self) -> Bundle:
        """Return what one worker takes."""
        return Bundle(self.cpus, self.gpus, self.memory, dict(self.custom))

    def demand(self, name: str, depth: int = 0, home: str = "") -> Demand:
        """Return the demand for one worker; ``depth`` is its priority, ``home`` the host that is best."""
        return Demand(
            [self.bundle()],
            labels=dict(self.labels),
            hosts=self.hosts,
            within=self.within,
            prefers=(home,) if home else (),
            priority=depth,
            is_spare=True,
            kind=self.kind,
            name=name,
        )


def as_pairs(what: str, given: Mapping[str, object] | None) -> tuple[tuple[str, object], ...]:
    """Return a mapping as sorted pairs. Raises BadDemand where it is none, or has other keys than texts."""
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise BadDemand(f"{what}={given!r} of a task: expected a mapping with texts as keys")
    return tuple(sorted(given.items()))
