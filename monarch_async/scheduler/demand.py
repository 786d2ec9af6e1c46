"""What is asked for: bundles of resources, and how they may be spread over hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monarch_async.errors import BadDemand
from monarch_async.scheduler.resources import check_amounts, check_labels

STRATEGIES = ("pack", "spread", "strict_pack", "strict_spread")


@dataclass(frozen=True, slots=True)
class Bundle:
    """What one member gets, all of it on one host.

    ``cpus`` and ``custom`` are amounts, to a ten-thousandth; ``gpus`` whole devices, or a fraction of one (0.5 shares
    it with another); ``memory`` bytes. Amounts are accounted, not enforced.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check amounts. Raises BadDemand."""
        check_amounts({"cpus": self.cpus, "gpus": self.gpus, "memory": self.memory}, self.custom, "a bundle")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise BadDemand(f"gpus={self.gpus:g} of a bundle: whole devices, or a fraction of one")


@dataclass(frozen=True, slots=True)
class Demand:
    """A gang: all of its bundles are placed at once, or none.

    Args:
        bundles: what each member gets. Their order is that of the ranks.
        strategy: ``pack`` (few hosts), ``spread`` (many), ``strict_pack`` (one host, or not at all), ``strict_spread``
            (no two on one host, or not at all).
        axis: what the axis of bundles is called in meshes made of the placement.
        labels: only hosts that have these.
        hosts: only hosts of these names; any where empty.
        prefers: rather on these hosts, where there is room on them.
        near: only hosts on which the placement of this id has bundles.
        apart: only hosts on which it has none.
        within: (placement id, bundle index): take from what that bundle holds, instead of from a host.
        priority: a higher one is placed first.
        preempts: where it does not fit, take back preemptible placements of lower priority.
        preemptible: may be taken back by those: its block is ended with `monarch_async.Preempted`.
        is_spare: a cache, such as an idle warm worker: asked back, without any priority, as soon as something else
            waits for what it holds.
        kind: what a spare is good for: one of another kind is asked back for this, also of the same holder.
        name: in tables and errors.

    Raises BadDemand.
    """

    bundles: Sequence[Bundle]
    strategy: str = "pack"
    axis: str = "bundles"
    labels: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[str] = ()
    prefers: Sequence[str] = ()
    near: int | None = None
    apart: int | None = None
    within: tuple[int, int] | None = None
    priority: int = 0
    preempts: bool = False
    preemptible: bool = False
    is_spare: bool = False
    kind: str = ""
    name: str = "placement"

    def __post_init__(self) -> None:
        """Check what does not depend on hosts."""
        bundles = tuple(self.bundles) if isinstance(self.bundles, Sequence) else ()
        if not bundles or not all(isinstance(bundle, Bundle) for bundle in bundles):
            raise BadDemand(f"bundles={self.bundles!r}: expected a list of one monarch_async.Bundle or more")
        object.__setattr__(self, "bundles", bundles)
        for name in ("hosts", "prefers"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        check_labels(self.labels)
        if self.strategy not in STRATEGIES:
            raise BadDemand(f"strategy={self.strategy!r}: expected one of {', '.join(STRATEGIES)}")
        for name in ("near", "apart"):
            if getattr(self, name) is not None and not _is_whole(getattr(self, name)):
                raise BadDemand(f"{name}={getattr(self, name)!r}: expected the id of a placement (its .id)")
        within = self.within
        if within is not None and not (isinstance(within, tuple) and len(within) == 2 and all(map(_is_whole, within))):
            raise BadDemand(f"within={within!r}: expected (the id of a placement, the index of one of its bundles)")
        if not _is_whole(self.priority):
            raise BadDemand(f"priority={self.priority!r}: expected a whole number")
        for name in ("axis", "name"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise BadDemand(f"{name}={getattr(self, name)!r}: expected a text")


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise BadDemand(f"{what}={names!r}: expected a list of names of hosts")
    return tuple(names)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
