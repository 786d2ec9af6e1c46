"""How demands, and what is held, travel between clients, agents and workers: as msgpack. Pure."""

from collections.abc import Iterable
from typing import Any

from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import Held

NOTHING = Held()


def pack_held(held: Held) -> list[Any]:
    """Return it for msgpack."""
    return [held.cpus, list(held.gpus), held.memory, list(held.custom)]


def unpack_held(packed: list[Any]) -> Held:
    """Return what `pack_held` made."""
    cpus, gpus, memory, custom = packed
    return Held(int(cpus), _pairs(gpus), int(memory), _pairs(custom))


def _pairs(packed: Iterable[Any]) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(amount)) for name, amount in packed)


def sum_held(parts: Iterable[Held]) -> Held:
    """Return several together."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    return Held(
        sum(part.cpus for part in parts),
        _sum_named(part.gpus for part in parts),
        sum(part.memory for part in parts),
        _sum_named(part.custom for part in parts),
    )


def _sum_named(parts: Iterable[tuple[tuple[str, int], ...]]) -> tuple[tuple[str, int], ...]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part:
            total[name] = total.get(name, 0) + amount
    return tuple(total.items())


def pack_demand(demand: Demand) -> dict[str, Any]:
    """Return it for msgpack."""
    return {
        "bundles": [[b.cpus, b.gpus, b.memory, dict(b.custom)] for b in demand.bundles],
        "labels": dict(demand.labels),
        "hosts": list(demand.hosts),
        "within": None if demand.within is None else list(demand.within),
        **{name: getattr(demand, name) for name in _AS_THEY_ARE},
    }


_AS_THEY_ARE = ("strategy", "axis", "near", "apart", "priority", "preempts", "preemptible", "is_spare", "name")


def unpack_demand(packed: dict[str, Any]) -> Demand:
    """Return what `pack_demand` made. Raises BadDemand."""
    within = packed["within"]
    return Demand(
        bundles=[Bundle(*bundle) for bundle in packed["bundles"]],
        labels=packed["labels"],
        hosts=packed["hosts"],
        within=None if within is None else (within[0], within[1]),
        **{name: packed[name] for name in _AS_THEY_ARE},
    )
