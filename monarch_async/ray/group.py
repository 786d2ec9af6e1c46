"""One placement group at the hub: a native placement, or several where hosts were lost since.

    PENDING ── placed ──► CREATED ── a host of it is lost ──► RESCHEDULING ── placed ──► CREATED
                             any ── removed ──► REMOVED

One that fits nowhere waits for a host on which it would. What was placed in a group ends when the group is removed,
before what the group holds is given back.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch_async.control.host import Host
from monarch_async.errors import Error, Unschedulable
from monarch_async.mesh.cluster import cluster
from monarch_async.mesh.guardian import Guardian, guarding
from monarch_async.mesh.placement import Placement
from monarch_async.ray.amounts import Amounts
from monarch_async.ray.living import LivingHosts, node_id_of
from monarch_async.ray.seat import Seat
from monarch_async.scheduler.demand import Demand

log = logging.getLogger("monarch_async")


class GroupRemoved(Exception):
    """What waits for a group that was removed. Never leaves the hub."""


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """What is asked for; ``specs`` in Ray's names. ``labels``: only hosts that have these."""

    id: bytes
    specs: tuple[dict[str, float], ...]
    strategy: str = "PACK"
    name: str = ""
    namespace: str = ""
    prefers: str = ""  #: the node id of a host that is better than others
    labels: dict[str, str] = field(default_factory=dict)


class Group:
    """One group. Its coroutines run on the hub's loop."""

    def __init__(self, request: GroupRequest, living: LivingHosts) -> None:
        """Nothing is asked for before `start`."""
        self.request = request
        self.state = "PENDING"
        self.bundles = [Amounts.of_spec(spec) for spec in request.specs]
        self.spots: list[tuple[Placement, int] | None] = [None] * len(self.bundles)
        self.created_after = 0.0  #: seconds
        self.seats: dict[Seat, int] = {}  #: those placed here, and in which bundle
        self._living = living
        self._since = time.monotonic()
        self._settled = asyncio.Event()
        self._room_freed = asyncio.Event()
        self._turns = itertools.count()
        self._placements: list[Placement] = []
        self._placing: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"placement group {self.request.name or self.request.id.hex()}"

    @property
    def is_removed(self) -> bool:
        """Whether it has ended."""
        return self.state == "REMOVED"

    def start(self) -> None:
        """Ask for what is missing: all, at first."""
        if self._placing is None or self._placing.done():
            self._placing = asyncio.create_task(self._place())

    async def _place(self) -> None:
        while missing := [index for index, spot in enumerate(self.spots) if spot is None]:
            await self._drop_unused()
            version = self._living.version
            try:
                with guarding(Guardian(lambda failure: None)):  # its end is told by who ended it
                    placement = await cluster().place(self._demand(missing))
            except Unschedulable as error:
                log.warning("%s waits for hosts on which it fits: %s", self, error.why)
                if version == self._living.version:
                    await self._living.wait_changed()
                continue
            except Error as error:
                log.warning("%s is not placed: %s", self, error)  # the program ends
                return
            self._placements.append(placement)
            for part, index in enumerate(missing):
                self.spots[index] = None if part in placement.lost else (placement, part)
        self.state = "CREATED"
        self.created_after = self.created_after or time.monotonic() - self._since
        self._settled.set()

    def _demand(self, missing: Sequence[int]) -> Demand:
        request = self.request
        preferred = self._living.by_node_id(request.prefers) if request.prefers else None
        others = next((placement.id for placement in self._placements if not placement.is_released), None)
        return Demand(
            [self.bundles[index].bundle() for index in missing],
            strategy=request.strategy.lower(),
            labels=request.labels,
            prefers=(preferred.name,) if preferred is not None else (),
            apart=others if request.strategy == "STRICT_SPREAD" else None,
            name=str(self),
        )

    def lose(self, host: Host) -> None:
        """A host is gone: place what was there elsewhere."""
        lost = [index for index, spot in enumerate(self.spots) if spot and spot[0].spots[spot[1]].host.id == host.id]
        if not lost or self.is_removed:
            return
        for index in lost:
            self.spots[index] = None
        if self.state == "CREATED":
            self.state = "RESCHEDULING"
            self._settled.clear()
        self.start()

    async def _drop_unused(self) -> None:
        """Give back the placements of which nothing is left."""
        used = [spot[0] for spot in self.spots if spot is not None]
        for placement in [each for each in self._placements if each not in used]:
            self._placements.remove(placement)
            await placement.release()

    # -- who waits, and who is placed in it ------------------------------------------------------------------------

    async def wait_created(self) -> None:
        """Wait until all of it is there. Raises GroupRemoved."""
        while self.state in ("PENDING", "RESCHEDULING"):
            await self._settled.wait()
        if self.is_removed:
            raise GroupRemoved(str(self))

    def spot(self, bundle: int) -> tuple[Placement, int]:
        """Return the placement that has a bundle of a created group, and which of its bundles that is."""
        spot = self.spots[bundle]
        if spot is None:
            raise GroupRemoved(str(self))
        return spot

    def choose(self, amounts: Amounts, bundle: int) -> int:
        """Return a bundle: this one, or where it is -1, in turn, one that has room beside the actors, or else would.

        Raises ValueError where none is large enough.
        """
        fitting = self._fitting(amounts, bundle)
        free = [index for index in fitting if amounts.fits_within(self._left(index))]
        return (free or fitting)[next(self._turns) % len(free or fitting)]

    def _fitting(self, amounts: Amounts, bundle: int) -> list[int]:
        among = range(len(self.bundles)) if bundle < 0 else [bundle]
        fitting = [i for i in among if i < len(self.bundles) and amounts.fits_within(self.bundles[i])]
        if not fitting:
            where = "no bundle" if bundle < 0 else f"no bundle {bundle}"
            raise ValueError(f"{amounts.as_ray()} fits into {where} of {self}: {list(self.request.specs)}")
        return fitting

    async def take(self, seat: Seat, bundle: int) -> int:
        """Return the bundle for an actor, once the group is there; -1: the first that has room beside the others.

        Raises ValueError where none is large enough, and GroupRemoved.
        """
        self._fitting(seat.amounts, bundle)
        await self.wait_created()
        if bundle < 0:
            while (bundle := self._first_free(seat.amounts)) < 0:
                self._room_freed.clear()
                await self._room_freed.wait()
                await self.wait_created()
        self.seats[seat] = bundle
        seat.leave.append(lambda: self._leave(seat))
        return bundle

    def _first_free(self, amounts: Amounts) -> int:
        return next((i for i in range(len(self.bundles)) if amounts.fits_within(self._left(i))), -1)

    def _left(self, index: int) -> Amounts:
        left = self.bundles[index]
        for seat, bundle in self.seats.items():
            if bundle == index:
                left = left.minus(seat.amounts)
        return left

    def _leave(self, seat: Seat) -> None:
        self.seats.pop(seat, None)
        self._room_freed.set()

    # -- its end ---------------------------------------------------------------------------------------------------

    def mark_removed(self) -> None:
        """From now on nothing is placed there."""
        self.state = "REMOVED"
        self._settled.set()
        self._room_freed.set()
        if self._placing is not None:
            self._placing.cancel()

    async def end(self) -> None:
        """End what was placed there, then give back what it holds."""
        why = f"{self} was removed"
        if self.seats:
            await asyncio.gather(*[seat.evict(why) for seat in list(self.seats)], return_exceptions=True)
        placements, self._placements = self._placements, []
        for placement in placements:
            await placement.release()

    # -- as a row --------------------------------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """Return what Ray's table says of a group."""
        nodes = [node_id_of(spot[0].spots[spot[1]].host.id) if spot is not None else "" for spot in self.spots]
        return {
            "placement_group_id": self.request.id.hex(),
            "name": self.request.name,
            "bundles": dict(enumerate(self.request.specs)),
            "bundles_to_node_id": dict(enumerate(nodes)),
            "strategy": self.request.strategy,
            "state": self.state,
            "stats": {
                "end_to_end_creation_latency_ms": self.created_after * 1e3,
                "scheduling_latency_ms": self.created_after * 1e3,
                "scheduling_attempt": 1 if self.created_after else 0,
                "highest_retry_delay_ms": 0.0,
                "scheduling_state": {"CREATED": "FINISHED", "REMOVED": "REMOVED"}.get(self.state, "QUEUED"),
            },
        }
