"""Amounts in Ray's names (``{"CPU": 1, "GPU": 0.5, "memory": 1024, "tokens": 2}``) and in those of native bundles."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from monarch_async.scheduler.demand import Bundle
from monarch_async.scheduler.resources import Resources

#: How resources begin that every node has one of, and of which nodes therefore are chosen: ``node:10.0.0.1``.
NODE = "node:"


class Asked(Protocol):
    """What options of tasks and actors say of resources; None where nothing was said."""

    @property
    def num_cpus(self) -> float | None: ...

    @property
    def num_gpus(self) -> float | None: ...

    @property
    def memory(self) -> float | None: ...

    @property
    def resources(self) -> Mapping[str, float] | None: ...


@dataclass(frozen=True, slots=True)
class Amounts:
    """What one task, actor or bundle takes.

    ``custom`` is sorted by name. ``nodes``: the ``node:`` resources among what was asked, which say where, and are not
    accounted.
    """

    cpus: float = 0.0
    gpus: float = 0.0
    memory: int = 0
    custom: tuple[tuple[str, float], ...] = ()
    nodes: tuple[str, ...] = ()

    @classmethod
    def of(cls, cpus: float, gpus: float, memory: float, resources: Mapping[str, float]) -> "Amounts":
        """Return them; those of zero are left out."""
        asked = sorted((name, float(amount)) for name, amount in resources.items() if amount)
        custom = tuple([pair for pair in asked if not pair[0].startswith(NODE)])
        nodes = tuple([name for name, _ in asked if name.startswith(NODE)])
        return cls(float(cpus), float(gpus), int(memory), custom, nodes)

    @classmethod
    def of_spec(cls, spec: Mapping[str, float]) -> "Amounts":
        """Return those of a bundle of a placement group."""
        rest = {name: amount for name, amount in spec.items() if name not in ("CPU", "GPU", "memory")}
        return cls.of(spec.get("CPU", 0), spec.get("GPU", 0), spec.get("memory", 0), rest)

    @property
    def is_free(self) -> bool:
        """Whether nothing of a host is taken."""
        return not (self.cpus or self.gpus or self.memory or self.custom)

    def bundle(self) -> Bundle:
        """Return the same as the scheduler takes it."""
        return Bundle(self.cpus, self.gpus, self.memory, dict(self.custom))

    def fits(self, resources: Resources) -> bool:
        """Return whether a host that has these could ever give them."""
        custom = resources.custom
        has_plain = self.cpus <= resources.cpus and self.gpus <= len(resources.gpus) and self.memory <= resources.memory
        return has_plain and all(amount <= custom.get(name, 0) for name, amount in self.custom)

    def fits_within(self, other: "Amounts") -> bool:
        """Return whether a bundle of ``other`` is large enough."""
        custom = dict(other.custom)
        has_plain = self.cpus <= other.cpus and self.gpus <= other.gpus and self.memory <= other.memory
        return has_plain and all(amount <= custom.get(name, 0) for name, amount in self.custom)

    def minus(self, other: "Amounts") -> "Amounts":
        """Return what is left where ``other`` is taken away; to a ten-thousandth, as the scheduler counts."""
        taken = dict(other.custom)
        custom = tuple([(name, round(amount - taken.get(name, 0), 4)) for name, amount in self.custom])
        cpus, gpus = round(self.cpus - other.cpus, 4), round(self.gpus - other.gpus, 4)
        return Amounts(cpus, gpus, self.memory - other.memory, custom, self.nodes)

    def as_ray(self) -> dict[str, float]:
        """Return them in Ray's names, those of zero left out."""
        plain = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory)}
        return {name: amount for name, amount in [*plain.items(), *self.custom] if amount}


def of_task(options: Asked) -> Amounts:
    """Return what a task takes: one cpu where nothing is said of cpus."""
    cpus = options.num_cpus
    return _cached(1.0 if cpus is None else cpus, options.num_gpus or 0, options.memory or 0, _pairs(options.resources))


def of_actor(options: Asked) -> Amounts:
    """Return what an actor holds for as long as it lives: nothing, where nothing was asked.

    One cpu as well where it says something of gpus or ``resources``, but nothing of cpus.
    """
    cpus = options.num_cpus
    if cpus is None:
        cpus = 1.0 if options.num_gpus is not None or options.resources else 0.0
    return _cached(cpus, options.num_gpus or 0, options.memory or 0, _pairs(options.resources))


def _pairs(resources: Mapping[str, float] | None) -> tuple[tuple[str, float], ...]:
    return tuple(resources.items()) if resources else ()


@lru_cache(maxsize=256)
def _cached(cpus: float, gpus: float, memory: float, resources: tuple[tuple[str, float], ...]) -> Amounts:
    return Amounts.of(cpus, gpus, memory, dict(resources))
