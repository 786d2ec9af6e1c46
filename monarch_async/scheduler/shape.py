"""What two demands have in common that are placed alike: everything but who asks and what it is called."""

from typing import NamedTuple

from monarch_async.scheduler.amounts import Need, need_of, words
from monarch_async.scheduler.demand import Demand


class Shape(NamedTuple):
    """A demand in units. Demands of one shape queue up behind one another: where the first does not fit, none does."""

    needs: tuple[Need, ...]
    strategy: str
    labels: tuple[tuple[str, str], ...]
    hosts: tuple[str, ...]
    near: int | None
    apart: int | None
    within: tuple[int, int] | None
    priority: int
    preempts: bool
    preemptible: bool
    is_spare: bool
    kind: str

    @property
    def is_uniform(self) -> bool:
        """Whether all bundles are alike."""
        return self.needs.count(self.needs[0]) == len(self.needs)

    @property
    def refers(self) -> bool:
        """Whether other placements say where it may go."""
        return self.near is not None or self.apart is not None or self.within is not None


def shape_of(demand: Demand) -> Shape:
    """Return the shape of a demand."""
    first = demand.bundles[0]
    need = need_of(first)
    needs = tuple(need if bundle is first else need_of(bundle) for bundle in demand.bundles)
    return Shape(
        needs,
        demand.strategy,
        tuple(sorted(demand.labels.items())) if demand.labels else (),
        tuple(demand.hosts),
        demand.near,
        demand.apart,
        demand.within,
        demand.priority,
        demand.preempts,
        demand.preemptible,
        demand.is_spare,
        demand.kind,
    )


class Shapes:
    """The shapes of demands, kept, since the same demand is asked for again and again."""

    LIMIT = 1024

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Demand, Shape]] = {}

    def of(self, demand: Demand) -> Shape:
        """Return the shape of a demand."""
        kept = self._kept.get(id(demand))
        if kept is not None and kept[0] is demand:
            return kept[1]
        if len(self._kept) >= self.LIMIT:
            self._kept.clear()
        shape = shape_of(demand)
        self._kept[id(demand)] = (demand, shape)
        return shape


def called(name: str, id: int) -> str:
    """Return what a placement is called: its name, and of its id, which no other process may use, the last digits."""
    return f"{name} #{id % 10_000}"


def described(demand: Demand) -> str:
    """Return a demand in words: ``trainer (4 bundles of 1 cpus, 2 gpus; pack; labels zone=a)``."""
    shape = shape_of(demand)
    counts: dict[Need, int] = {}
    for need in shape.needs:
        counts[need] = counts.get(need, 0) + 1
    parts = [" + ".join(_bundles(need, count) for need, count in counts.items())]
    if len(shape.needs) > 1:
        parts.append(shape.strategy)
    if shape.labels:
        parts.append("labels " + ", ".join(f"{name}={value}" for name, value in shape.labels))
    if shape.hosts:
        parts.append("hosts " + ", ".join(shape.hosts))
    if shape.near is not None:
        parts.append(f"near {called('placement', shape.near)}")
    if shape.apart is not None:
        parts.append(f"apart from {called('placement', shape.apart)}")
    if shape.within is not None:
        parts.append(f"within bundle {shape.within[1]} of {called('placement', shape.within[0])}")
    if shape.priority:
        parts.append(f"priority {shape.priority}")
    return f"{demand.name} ({'; '.join(parts)})"


def _bundles(need: Need, count: int) -> str:
    return words(need) if count == 1 else f"{count} bundles of {words(need)}"
