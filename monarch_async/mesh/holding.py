"""One shared object as one process holds it: what keeps it, what keeps its memory. `holdings` has the invariants."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from monarch_async.bulk.arena import Token
from monarch_async.bulk.region import RemoteRegion

#: Where an object's memory is: of this machine, or behind the data plane.
Grant = Token | RemoteRegion


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What a reference says of its object; ``where`` is the name of the host it was put on."""

    id: bytes
    home: int  #: address of that host's agent
    nbytes: int
    where: str

    def __str__(self) -> str:
        return f"shared object {self.id.hex()[:8]} ({self.nbytes:,} bytes, put on {self.where})"


class Hole(NamedTuple):
    """A part of an object that somebody else writes: called with its memory, ``fill`` does."""

    run: tuple[int, int]  #: offset and bytes
    fill: Callable[[memoryview], Awaitable[None]]


class Keeper:
    """Whoever refers to it keeps the object (H1), and the objects to which the value itself has references."""

    __slots__ = ("__weakref__", "holding", "inner")

    def __init__(self, holding: "Holding", inner: "Sequence[Keeper]") -> None:
        """``inner``: see the class."""
        self.holding, self.inner = holding, tuple(inner)

    @property
    def is_held(self) -> bool:
        """Whether all of them are known to their agents."""
        return all(keeper.holding.is_settled.is_set() for keeper in self.reach())

    async def wait_held(self) -> None:
        """Wait for that, or until it has failed."""
        for keeper in self.reach():
            await keeper.holding.is_settled.wait()

    def reach(self) -> "list[Keeper]":
        """Return all that it keeps, itself too: each once, after those in it. (They may be very deep in each other.)"""
        if not self.inner:
            return [self]
        found: dict[Keeper, None] = {}
        left: list[tuple[Keeper, bool]] = [(self, False)]
        while left:
            keeper, is_after = left.pop()
            if is_after:
                found[keeper] = None
            elif keeper not in found:
                left.append((keeper, True))
                left += [(inner, False) for inner in keeper.inner]
        return list(found)


class Pin:
    """Whoever refers to it keeps the memory where it is (H2)."""

    __slots__ = ("__weakref__", "grant", "keeper")

    def __init__(self, keeper: Keeper, grant: Grant) -> None:
        """``grant`` says where."""
        self.keeper, self.grant = keeper, grant

    def release(self) -> None:
        """Called when a mapping ends: as what it belongs to, it has kept the pin until then."""


class Holding:
    """One object, as this process deals with it. Changed on the loop only."""

    __slots__ = ("agent", "facts", "fetching", "grant", "is_settled", "keeper", "opening", "pin")

    def __init__(self, facts: ObjectFacts, agent: int) -> None:
        """``agent``: whom this process asks about it."""
        self.facts, self.agent = facts, agent  # 0: that one was lost
        self.is_settled = asyncio.Event()  #: the hold has been answered
        self.keeper: weakref.ref[Keeper] | None = None
        self.pin: weakref.ref[Pin] | None = None
        self.grant: Grant | None = None  #: as long as the agent has pinned it for us
        self.opening: asyncio.Task[Pin] | None = None
        self.fetching: asyncio.Task[None] | None = None

    def live_keeper(self) -> Keeper | None:
        """Return what keeps it, if anything does."""
        return self.keeper and self.keeper()

    def live_pin(self) -> Pin | None:
        """Return its pin, if something is mapped."""
        return self.pin and self.pin()
