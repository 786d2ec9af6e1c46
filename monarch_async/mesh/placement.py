"""Placements: what a demand was granted, for as long as a block lasts.

    async with ma.cluster().place(ma.Demand([ma.Bundle(gpus=1)] * 8)) as placement:
        procs = await placement.spawn_procs()

All of a demand is had at once, or none of it, so two programs cannot hold half each and wait for the other. What is had
is given back when the block ends, however it ends: its procs are ended first, so who gets it next has it to himself.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from monarch_async.control.controller import read_answer
from monarch_async.control.holder import Granted
from monarch_async.control.host import Host
from monarch_async.control.placer import LOOPBACK
from monarch_async.errors import BadCall, Closed, Error, HostLost
from monarch_async.ids import AGENT, address
from monarch_async.mesh.detachment import detach
from monarch_async.mesh.domain import Domain
from monarch_async.mesh.placed_env import placed_env, shares_of
from monarch_async.mesh.proc_mesh import Allocation, ProcMesh
from monarch_async.mesh.proc_recipe import Env, ProcRecipe, check_mesh_name, extent_of_procs
from monarch_async.ranks import Extent, Point
from monarch_async.runtime.call import Call
from monarch_async.scheduler.demand import Demand
from monarch_async.scheduler.shape import called


class Spot(NamedTuple):
    """Where one bundle is: a host, and the ids of the devices it has there (one, where it has a fraction of it)."""

    host: Host
    gpus: tuple[str, ...]


class Placement:
    """What a demand was granted: got from `Cluster.place`, usable in the process that asked, until it is released.

    Attributes:
        id: for ``near``, ``apart`` and ``within`` of other demands.
        demand: what was asked for.
        spots: a `Spot` for each bundle, in their order.
        lost: the bundles whose host is gone; the others are held still.
        on_recall: called, with the name of what waits for it, when the placement is asked back (see `Demand`). To
            release it soon is up to who has set this; where nobody has, its block is ended with `Preempted`.
    """

    def __init__(
        self, domain: Domain, id: int, demand: Demand, granted: Granted, give_back: Callable[[], None]
    ) -> None:
        """Made by `PlacementRequest`; ``give_back`` frees it."""
        self.id, self.demand = id, demand
        self.spots = tuple(Spot(host, gpus) for host, gpus in granted.spots)
        self.lost: frozenset[int] = frozenset()
        self.on_recall: Callable[[str], None] | None = None
        self.is_released = False  #: it is held no longer, or being given back
        self.procs: list[ProcMesh] = []  #: spawned on it
        self._domain, self._addresses, self._ports = domain, granted.addresses, granted.ports
        self._give_back = give_back

    @property
    def name(self) -> str:
        """The demand's."""
        return self.demand.name

    def __repr__(self) -> str:
        where = ", ".join(f"{host.name}{list(gpus) if gpus else ''}" for host, gpus in self.spots)
        return f"<placement {called(self.name, self.id)}{' (released)' if self.is_released else ''}: {where}>"

    # -- procs -----------------------------------------------------------------------------------------------------

    def spawn_procs(
        self,
        per_bundle: Mapping[str, int] | None = None,
        *,
        bundles: Sequence[int] | None = None,
        name: str = "procs",
        env: Env | None = None,
        preload: Sequence[str] | None = None,
        start: str = "fork",
        python: str | None = None,
        cwd: str | None = None,
        detached: str | None = None,
    ) -> ProcMesh:
        """Start worker processes on the bundles, one on each; return their mesh, in the order of the bundles.

        Its axes are the demand's ``axis`` and those of ``per_bundle``. It may be used at once; ``await`` it to wait
        until all are up (raises SpawnFailed). Before any of your code is imported each has in its environment: RANK,
        WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE (among those on one host), MASTER_ADDR and MASTER_PORT (a free port
        of the host of rank 0), and in CUDA_VISIBLE_DEVICES its devices, an empty text where it has none of its host's.

        Args:
            per_bundle: axes and sizes of the procs on each bundle; its devices are divided evenly among them.
            bundles: the indices of those to start procs on; all where not given.
            name, env, preload, start, python, cwd: as of `HostMesh.spawn_procs`; ``env`` wins over the above.
            detached: as there; what the placement has on the hosts of these procs is then kept for as long as they
                are, whoever releases it.

        Raises BadDemand where devices do not divide; BadCall and ExtentError for other arguments; Closed where the
        placement was released; HostLost where the host of a bundle is gone. Nothing is started then.
        """
        check_mesh_name("spawn_procs", name)
        recipe = ProcRecipe.of(env, preload, start, python, cwd)
        indices = self._check_bundles(bundles)
        extent, count = extent_of_procs(Extent.of({self.demand.axis: len(indices)}), per_bundle)
        shares = [share for index in indices for share in self._shares(index, count)]
        hosts = [self.spots[index].host for index in indices for _ in range(count)]
        placed = placed_env(hosts, shares, self._address(hosts), self._take_port(hosts[0]))

        def env_of(point: Point) -> dict[str, str]:
            return {**placed[extent.rank(**point)], **recipe.env_of(point)}

        detachment = detach(self._domain, detached, hosts)
        allocation = Allocation(self._domain, name, extent, hosts, replace(recipe, env=env_of), self.id, detachment)
        self.procs.append(allocation.mesh)
        return allocation.mesh

    def _check_bundles(self, bundles: Sequence[int] | None) -> list[int]:
        if self.is_released:
            raise Closed(f"placement {self.name}", "it was released")
        indices = list(range(len(self.spots)) if bundles is None else bundles)
        if not indices or any(not isinstance(i, int) or not 0 <= i < len(self.spots) for i in indices):
            raise BadCall("spawn_procs", f"bundles={bundles!r}: {self.name} has bundles 0 to {len(self.spots) - 1}")
        if len(set(indices)) < len(indices):
            raise BadCall("spawn_procs", f"bundles={bundles!r}: one stands there twice; see per_bundle")
        if lost := [index for index in indices if index in self.lost]:
            raise HostLost(self.spots[lost[0]].host.name, f"bundle {lost[0]} of placement {self.name} was there")
        return indices

    def _shares(self, index: int, count: int) -> list[tuple[str, ...]]:
        is_share = 0 < self.demand.bundles[index].gpus < 1
        return shares_of(self.spots[index].gpus, is_share, count, f"bundle {index} of {self.name}")

    def _address(self, hosts: Sequence[Host]) -> str:
        """Return where the others reach rank 0: by loopback, where all are on its host."""
        first = hosts[0].id
        return LOOPBACK if all(host.id == first for host in hosts) else self._addresses[first]

    def _take_port(self, host: Host) -> int:
        """Return a free port of a host, and ask for another in its place.

        Where that has not come yet, as several meshes were spawned at once, it is one below those that kernels give
        out: whether it is free shows when rank 0 listens there.
        """
        ports = self._ports[host.id]
        call = self._domain.requests.call(address(host.id, AGENT), "port")

        def take(call: "Call[bytes]") -> None:
            if call.exception() is None:
                ports.extend(read_answer(call.result()))

        call.add_done_callback(take)
        return ports.pop(0) if ports else random.randrange(20_000, 32_000)

    # -- its end ---------------------------------------------------------------------------------------------------

    async def release(self) -> None:
        """Give it back: end its procs in order, wait until they are gone, then free what it holds. Twice is fine."""
        self.is_released = True
        try:
            mine = [mesh.allocation for mesh in self.procs if mesh.allocation and not mesh.allocation.detachment]
            living = [allocation for allocation in mine if not allocation.is_stopped]
            for allocation in living:  # should this be cancelled before they are asked, their agents end them
                allocation.excuse()
            why = f"its placement {self.name} was released"
            await asyncio.gather(*[a.stop(a.addresses, why) for a in living], return_exceptions=True)
        finally:
            self._give_back()

    def lend(self) -> None:
        """Let others have its cpus while its procs only wait for something else, until `reclaim`."""
        self._domain.placer.lend(self.id)

    def reclaim(self) -> None:
        """Have its cpus again, at once: over-committed, where others have them now."""
        self._domain.placer.reclaim(self.id)

    async def restart(self, rank: int) -> None:
        """What a supervision policy may try: a placement that was taken back does not come again. Raises Error."""
        raise Error(f"placement {self.name} was taken back: it cannot be restarted")
