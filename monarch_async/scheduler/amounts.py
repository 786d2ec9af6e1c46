"""Amounts as whole numbers: ten-thousandths of cpus, gpus and custom resources, bytes of memory.

Books of floats do not return to zero: three times 0.1 is not 0.3. All of the scheduler below `Demand` and `Resources`
counts in these units.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from monarch_async.scheduler.demand import Bundle
from monarch_async.scheduler.events import Held

UNIT = 10_000  #: one cpu, one gpu, one of a custom resource


def units(amount: float) -> int:
    """Return an amount in units."""
    return round(amount * UNIT)


def custom_units(custom: Mapping[str, float]) -> tuple[tuple[str, int], ...]:
    """Return amounts of custom resources in units, sorted by name; those of zero left out."""
    return tuple((name, units(custom[name])) for name in sorted(custom) if units(custom[name]))


class Need(NamedTuple):
    """What one bundle needs, in units. ``gpus`` is a multiple of `UNIT`, or less than one: a share of a device."""

    cpus: int
    gpus: int
    memory: int
    custom: tuple[tuple[str, int], ...]

    @property
    def devices(self) -> int:
        """How many devices it has to itself."""
        return self.gpus // UNIT

    @property
    def is_share(self) -> bool:
        """Whether it shares a device with others."""
        return 0 < self.gpus < UNIT


def need_of(bundle: Bundle) -> Need:
    """Return what a bundle needs, in units."""
    custom = custom_units(bundle.custom) if bundle.custom else ()
    return Need(units(bundle.cpus), units(bundle.gpus), int(bundle.memory), custom)


def together(needs: Iterable[Need]) -> Need:
    """Return the sum of needs."""
    cpus = gpus = memory = 0
    custom: dict[str, int] = {}
    for need in needs:
        cpus, gpus, memory = cpus + need.cpus, gpus + need.gpus, memory + need.memory
        for name, amount in need.custom:
            custom[name] = custom.get(name, 0) + amount
    return Need(cpus, gpus, memory, tuple(sorted(custom.items())))


def summed(parts: Sequence[Held]) -> Held:
    """Return what is held in all."""
    if len(parts) == 1:
        return parts[0]
    gpus: dict[str, int] = {}
    custom: dict[str, int] = {}
    for held in parts:
        for device, amount in held.gpus:
            gpus[device] = gpus.get(device, 0) + amount
        for name, amount in held.custom:
            custom[name] = custom.get(name, 0) + amount
    cpus, memory = sum(held.cpus for held in parts), sum(held.memory for held in parts)
    return Held(cpus, tuple(gpus.items()), memory, tuple(sorted(custom.items())))


def total(held: Held) -> Need:
    """Return what is held, whichever devices it is."""
    return Need(held.cpus, sum(amount for _, amount in held.gpus), held.memory, held.custom)


def number(amount: int) -> str:
    """Return an amount as people write it: ``2``, ``0.25``."""
    return f"{amount / UNIT:.4f}".rstrip("0").rstrip(".")


def size(count: int) -> str:
    """Return a number of bytes as people write it: ``64 GiB``."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def plural(amount: int, name: str) -> str:
    """Return units of something in words: ``1 cpu``, ``2 cpus``."""
    return f"{number(amount)} {name}" if number(amount) == "1" else f"{number(amount)} {name}s"


def words(need: Need) -> str:
    """Return what is needed in words: ``2 cpus, 0.5 gpus, 8 GiB of memory``."""
    parts = [plural(need.cpus, "cpu")] if need.cpus else []
    if need.gpus:
        parts.append(plural(need.gpus, "gpu"))
    if need.memory:
        parts.append(f"{size(need.memory)} of memory")
    parts += [f"{number(amount)} {name}" for name, amount in need.custom]
    return ", ".join(parts) or "nothing"
