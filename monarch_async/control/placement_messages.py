"""How demands, and what is held, travel between clients, agents and workers: as msgpack. Pure."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.holdings import Holding, Holdings, HostHoldings, Waiter

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


def pack_demand(demand: Demand) -> dict[str, Any]:
    """Return it for msgpack."""
    return {
        "bundles": [[b.cpus, b.gpus, b.memory, dict(b.custom)] for b in demand.bundles],
        "labels": dict(demand.labels),
        "hosts": list(demand.hosts),
        "prefers": list(demand.prefers),
        "within": None if demand.within is None else list(demand.within),
        **{name: getattr(demand, name) for name in _AS_THEY_ARE},
    }


_AS_THEY_ARE = (
    "strategy", "axis", "near", "apart", "priority", "preempts", "preemptible", "is_spare", "kind", "name",
)  # fmt: skip


def unpack_demand(packed: dict[str, Any]) -> Demand:
    """Return what `pack_demand` made. Raises BadDemand."""
    within = packed["within"]
    return Demand(
        bundles=[Bundle(*bundle) for bundle in packed["bundles"]],
        labels=packed["labels"],
        hosts=packed["hosts"],
        prefers=packed["prefers"],
        within=None if within is None else (within[0], within[1]),
        **{name: packed[name] for name in _AS_THEY_ARE},
    )


def pack_holdings(holdings: Holdings) -> dict[str, Any]:
    """Return them for msgpack."""
    return asdict(holdings)


def unpack_holdings(packed: dict[str, Any]) -> Holdings:
    """Return what `pack_holdings` made."""
    return Holdings(
        tuple(map(_host_holdings, packed["hosts"])),
        tuple(Waiter(**{**waiter, "kept_on": tuple(waiter["kept_on"])}) for waiter in packed["waiting"]),
    )


def _host_holdings(packed: dict[str, Any]) -> HostHoldings:
    sums = {name: _held(packed[name]) for name in ("total", "free", "elsewhere")}
    return HostHoldings(**{**packed, **sums, "holdings": tuple(map(_holding, packed["holdings"]))})


def _holding(packed: dict[str, Any]) -> Holding:
    within = packed["within"]
    found = {
        "bundles": tuple(packed["bundles"]),
        "held": _held(packed["held"]),
        "within": None if within is None else (within[0], within[1]),
    }
    return Holding(**{**packed, **found})


def _held(packed: dict[str, Any]) -> Held:
    return Held(packed["cpus"], _pairs(packed["gpus"]), packed["memory"], _pairs(packed["custom"]))
