"""What a host has to place on, and who holds what of it: the part of the status that its agent's books give."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monarch_async.control.placement_messages import unpack_held
from monarch_async.scheduler.amounts import UNIT, custom_units, number, size, summed, total, units, words
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.resources import Resources

#: How many reservations of a host are shown; the others are counted.
_SHOWN = 16


@dataclass(frozen=True, slots=True)
class ReservationStatus:
    """What one placement holds on a host: ``holder`` is a client, or the name of a detached lease.

    ``held`` is in units of 1/10,000 (memory: bytes). One that ``is_lent`` lets others have its cpus for now.
    """

    name: str
    placement: int
    holder: str
    held: Held
    is_lent: bool

    def __str__(self) -> str:
        held = words(total(self.held))
        if self.held.gpus:
            held += f" ({', '.join(_device(id, amount) for id, amount in self.held.gpus)})"
        whose = self.name if self.name.endswith(self.holder) else f"{self.name} of {self.holder}"
        return f"{whose}: {held}{', its cpus lent' if self.is_lent else ''}"


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """What there is on a host, and who holds it, oldest first. Procs that were not placed hold nothing."""

    resources: Resources
    reservations: tuple[ReservationStatus, ...]

    @property
    def held(self) -> Held:
        """What is held, in all."""
        return summed(
            [
                Held(0 if entry.is_lent else entry.held.cpus, entry.held.gpus, entry.held.memory, entry.held.custom)
                for entry in self.reservations
            ]
        )

    def __str__(self) -> str:
        there, held = self.resources, self.held
        parts = [f"{number(max(units(there.cpus) - held.cpus, 0))} of {number(units(there.cpus))} cpus"]
        if there.gpus:
            free = len(there.gpus) * UNIT - sum(amount for _, amount in held.gpus)
            parts.append(f"{number(max(free, 0))} of {len(there.gpus)} gpus")
        if there.memory:
            parts.append(f"{size(max(there.memory - held.memory, 0))} of {size(there.memory)}")
        taken = dict(held.custom)
        for name, amount in custom_units(there.custom):
            parts.append(f"{number(max(amount - taken.get(name, 0), 0))} of {number(amount)} {name}")
        labels = "".join(f"  {name}={value}" for name, value in there.labels.items())
        lines = [f"free {', '.join(parts)}{labels}", *[f"  {entry}" for entry in self.reservations[:_SHOWN]]]
        if len(self.reservations) > _SHOWN:
            lines.append(f"  and {len(self.reservations) - _SHOWN} more")
        return "\n".join(lines)


def _device(id: str, amount: int) -> str:
    return id if amount == UNIT else f"{number(amount)} of {id}"


def parse_resources(answer: Mapping[str, Any]) -> ResourceStatus:
    """Return what an agent's answer says of this."""
    reservations = [
        ReservationStatus(name, placement, holder, unpack_held(held), is_lent)
        for name, placement, holder, held, is_lent in answer["reservations"]
    ]
    return ResourceStatus(Resources.unpack(answer["resources"]), tuple(reservations))
