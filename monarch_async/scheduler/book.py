"""What one host has, and what is left of it.

``cpus``, ``memory``, ``custom`` and ``devices`` say what is left. They may be below zero, where others have what was
given away (`TakenElsewhere`, `Reclaim`) or something is kept for who waits; a need of none of a resource always fits,
also then. A bundle that others are placed within has a book of its own: a host in small.
"""

from collections.abc import Sequence

from monarch_async.scheduler.amounts import UNIT, Need, custom_units, units
from monarch_async.scheduler.events import Held, Spot
from monarch_async.scheduler.resources import Resources

NOTHING = Held()


class Book:
    """The book of one host, or of one bundle that others are placed within."""

    __slots__ = (
        "_empty",
        "cpus",
        "custom",
        "devices",
        "elsewhere",
        "filed",
        "host",
        "is_gone",
        "is_open",
        "is_room",
        "memory",
        "name",
        "partial",
        "rank",
        "resources",
        "spot",
        "total",
        "whole",
    )  # fmt: skip

    def __init__(self, host: int, rank: int, name: str, resources: Resources, total: Held) -> None:
        """Open a book of which all is free. ``rank``: where the host stands in the order of hosts."""
        self.host, self.rank, self.name, self.resources = host, rank, name, resources
        self.is_open, self.is_gone = True, False
        self.is_room = False  #: of a bundle, not a host
        self.total = total
        self.cpus, self.memory, self.custom = total.cpus, total.memory, dict(total.custom)
        self.devices = dict(total.gpus)
        self.whole = sum(1 for left in self.devices.values() if left == UNIT)  #: devices that nobody has a part of
        self.partial = len(self.devices) - self.whole  #: devices of which something is left, but not all
        self.spot = Spot(host)
        self.elsewhere = NOTHING
        self.filed: tuple[int, int] | None = None  #: where `Books` has it
        self._empty: Book | None = None

    @classmethod
    def of(cls, host: int, rank: int, name: str, resources: Resources) -> "Book":
        """Return the book of a host."""
        gpus = tuple((device, UNIT) for device in resources.gpus)
        held = Held(units(resources.cpus), gpus, int(resources.memory), custom_units(resources.custom))
        return cls(host, rank, name, resources, held)

    @property
    def empty(self) -> "Book":
        """The book as it would be if nobody held anything. Write nothing in it."""
        if self._empty is None:
            self._empty = Book(self.host, self.rank, self.name, self.resources, self.total)
        return self._empty

    def room_for(self, need: Need, most: int) -> int:
        """Return how many bundles of this need fit, ``most`` at most."""
        cpus, gpus, memory, custom = need
        if cpus:
            most = min(most, self.cpus // cpus)
        if gpus >= UNIT:
            most = min(most, self.whole // (gpus // UNIT))
        elif gpus:
            most = min(most, sum(left // gpus for left in self.devices.values() if left > 0))
        if memory:
            most = min(most, self.memory // memory)
        for name, amount in custom:
            most = min(most, self.custom.get(name, 0) // amount)
        return most if most > 0 else 0

    def has(self, held: Held) -> bool:
        """Return whether exactly this is left."""
        return (
            (not held.cpus or held.cpus <= self.cpus)
            and (not held.memory or held.memory <= self.memory)
            and all(amount <= self.devices.get(device, 0) for device, amount in held.gpus)
            and all(amount <= self.custom.get(name, 0) for name, amount in held.custom)
        )

    def pick(self, need: Need) -> Held:
        """Return what a need would hold here: which devices.

        A share goes to the device that it fills best; whole ones are the first that are free. Where none is, those of
        which most is left.
        """
        cpus, gpus, memory, custom = need
        if not gpus:
            return Held(cpus, (), memory, custom)
        if gpus >= UNIT:
            free = [device for device, left in self.devices.items() if left == UNIT][: gpus // UNIT]
            if len(free) < gpus // UNIT:
                free = sorted(self.devices, key=lambda device: -self.devices[device])[: gpus // UNIT]
            return Held(cpus, tuple((device, UNIT) for device in free), memory, custom)
        fitting = [(left, device) for device, left in self.devices.items() if left >= gpus]
        if fitting:
            least = min(left for left, _ in fitting)
            device = next(device for left, device in fitting if left == least)
        else:
            device = max(self.devices, key=lambda device: self.devices[device])
        return Held(cpus, ((device, gpus),), memory, custom)

    def pick_on(self, need: Need, device: str) -> Held:
        """Return what a share would hold on this device."""
        return Held(need.cpus, ((device, need.gpus),), need.memory, need.custom)

    def take(self, held: Held) -> None:
        """Write down that this is held, whether or not it is left."""
        self._shift(held, -1)

    def give(self, held: Held) -> None:
        """Write down that this is held no longer."""
        self._shift(held, 1)

    def spot_of(self, held: Held) -> Spot:
        """Return the spot of a bundle that holds this."""
        return Spot(self.host, tuple(device for device, _ in held.gpus)) if held.gpus else self.spot

    def _shift(self, held: Held, sign: int) -> None:
        self.cpus += sign * held.cpus
        self.memory += sign * held.memory
        for device, amount in held.gpus:
            before = self.devices.get(device, 0)
            after = self.devices[device] = before + sign * amount
            self.whole += (after == UNIT) - (before == UNIT)
            self.partial += (0 < after < UNIT) - (0 < before < UNIT)
        for name, amount in held.custom:
            self.custom[name] = self.custom.get(name, 0) + sign * amount


def names(books: Sequence[Book]) -> str:
    """Return the names of hosts, shortened where they are many."""
    shown = [book.name for book in books[:4]]
    return ", ".join(shown) + (f" and {len(books) - 4} more" if len(books) > 4 else "")
