"""Proc meshes: worker processes, addressed as an n-d array."""

import asyncio
import logging
import os
import signal as signals
from array import array
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from monarch_async.control.controller import lose
from monarch_async.control.host import Host
from monarch_async.control.worker import Exit
from monarch_async.errors import Closed, Error, HostLost, Lost, SpawnFailed
from monarch_async.ids import agent_of, host_of, proc_of
from monarch_async.mesh.detachment import Detachment, lease_marks
from monarch_async.mesh.domain import Domain, active_domain, find_domain
from monarch_async.mesh.proc_recipe import ProcRecipe, check_mesh_name
from monarch_async.mesh.sliced import Sliced
from monarch_async.ranks import Extent, Region
from monarch_async.runtime.call import Unseen

if TYPE_CHECKING:
    from monarch_async.mesh.actor_mesh import ActorGroup

P = ParamSpec("P")
A = TypeVar("A")

log = logging.getLogger("monarch_async")


class Allocation:
    """The procs of one `spawn_procs`, all slices of the mesh share it. Known only where it was spawned."""

    def __init__(
        self,
        domain: Domain,
        name: str,
        extent: Extent,
        hosts: Sequence[Host],
        recipe: ProcRecipe,
        placement: int = 0,
        detachment: Detachment | None = None,
        addresses: "array[int] | None" = None,
    ) -> None:
        """One proc per point of ``extent``; ``hosts`` gives the host of each, in rank order.

        Args:
            placement: the id of the one that they hang on; 0: none.
            detachment: the lease that they are of, if they outlive this program.
            addresses: of procs that are there already; where not given they are spawned.
        """
        self.domain, self.name, self.extent, self.recipe = domain, name, extent, recipe
        self.hosts, self.placement = list(hosts), placement
        self.detachment = detachment
        if is_new := addresses is None:
            addresses = array("Q", [host.id << 32 | domain.proc_ids.take() for host in hosts])
        self.addresses = addresses
        self.owner, self.owner_actor = domain.owner(), domain.owner_actor()
        self.groups: list[ActorGroup] = []  #: what was spawned here, oldest first
        self.dead: set[int] = set()
        self.unreachable: set[int] = set()  #: that never started, or went with their hosts: nothing is to stop
        self.restarting: dict[int, asyncio.Task[None]] = {}  #: by address
        self.exits: dict[int, Exit] = {}  #: the last death of each, by address
        self._ending: set[int] = set()  # asked to stop: they are not to come back
        self.is_stopped = False
        self.mesh = ProcMesh(name, self.addresses, {h.id: h.name for h in hosts}, Region.full(extent), self)
        specs = [self._spec(rank) for rank in range(extent.size)] if is_new else []
        for address in self.addresses:
            domain.allocations[address] = self
        opening = detachment.open(self, specs) if detachment is not None and is_new else _nothing()
        spawning = self._spawn(range(len(specs)), specs)
        self.ready = domain.start_task(_in_turn(opening, spawning))
        self.ready.add_done_callback(self._check_ready)
        self._is_awaited = False
        self._giving_up: asyncio.Task[None] | None = None

    def _spec(self, rank: int) -> dict[str, Any]:
        """Return what the agent is told about one proc."""
        recipe = self.recipe
        return {
            "id": proc_of(self.addresses[rank]),
            "mesh": self.name,
            "rank": rank,
            "extent": dict(self.extent),
            "env": recipe.env_of(self.extent.point(rank)),
            "cwd": recipe.cwd or os.getcwd(),
            "start": recipe.start,
            "python": recipe.python,
            "title": f"{self.name}[{rank}]",
            "entry": "monarch_async.mesh.worker:main",
            "owner_actor": self.owner_actor,
            "root": self.domain.root,
            "placement": self.placement,
            **(self.detachment.marks if self.detachment is not None else lease_marks(*self.domain.lease)),
            "home": self.domain.home,
        }

    def _check_ready(self, ready: "asyncio.Task[None]") -> None:
        """A start that nobody awaits is still seen."""
        if not ready.cancelled() and ready.exception() is not None and not self._is_awaited:
            error = ready.exception()
            assert error is not None
            self.domain.router.loop.call_later(1.0, self._report_if_unseen, error)

    def _report_if_unseen(self, error: BaseException) -> None:
        if not self._is_awaited:
            self.domain.router.failures.report(Unseen(error, f"spawn of {self.name}"))

    async def wait_ready(self) -> None:
        """Wait until every proc is up. Raises SpawnFailed or Lost, once the others, which have started, are ended."""
        self._is_awaited = True
        try:
            await asyncio.shield(self.ready)
        except (SpawnFailed, Lost) as error:
            for group in self.groups:  # their actors fail for the same reason, and that has been told now
                group.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
            if self._giving_up is None:
                self._giving_up = self.domain.start_task(self._give_up(str(error).split("\n", 1)[0]))
            await asyncio.wait([self._giving_up])
            raise

    async def _give_up(self, why: str) -> None:
        """It did not come up whole: whoever waits for it may have no other way to end the rest of it."""
        try:
            await self.stop(self.addresses, f"others of its mesh did not start: {why}")
        except Error as error:  # where it ends with its program, or its lease
            log.warning("%s did not start, and was not stopped either: %s", self.name, error)

    def _spawn(self, ranks: Sequence[int], specs: Sequence[dict[str, Any]]) -> Any:
        """Send the requests now, one per host; return what waits for the answers."""
        by_agent: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for rank, spec in zip(ranks, specs, strict=True):
            by_agent[agent_of(self.addresses[rank])].append(spec)
        recipe = self.recipe
        asked = [
            self.domain.requests.send(agent, "spawn", batch, list(recipe.preload), list(recipe.sys_path))
            for agent, batch in by_agent.items()
        ]

        async def answers() -> None:
            failures: dict[int, str] = {}
            for answer in await asyncio.gather(*asked):  # that of each host is looked at, though another has failed
                failures.update(answer)
            failed = [rank for rank in ranks if proc_of(self.addresses[rank]) in failures]
            never_started = [self.addresses[rank] for rank in failed]
            self.dead.update(never_started)
            self.unreachable.update(never_started)
            for rank in failed:
                reason = failures[proc_of(self.addresses[rank])]
                raise SpawnFailed(f"{self.name}[{rank}]", self.hosts[rank].name, reason)

        return answers()

    async def restart(self, rank: int) -> None:
        """End the proc if it lives, and make it and its actors anew, under the same address.

        Who asks while that is under way waits for the same. What fails meanwhile is this one's failure to report.
        """
        address = self.addresses[rank]
        if self.is_stopped or address in self._ending:
            raise Closed(f"proc mesh {self.name}", "it was stopped")
        if self.detachment is not None:
            self.detachment.check()
        if address not in self.restarting:
            self.restarting[address] = task = self.domain.start_task(self._restart(rank, address))
            task.add_done_callback(lambda _: self.restarting.pop(address, None))
        await asyncio.shield(self.restarting[address])

    async def _restart(self, rank: int, address: int) -> None:
        self.dead.add(address)
        self.unreachable.discard(address)  # its host may have come back
        await self.domain.requests.ask(agent_of(address), "stop", [proc_of(address)], "it is restarted", 0.2)
        self.domain.router.direct.settle(address)  # it would fail what is sent to the new one
        if (exit := self.exits.get(address)) is not None:  # what was sent after it: its answer is old news soon
            lose(self.domain.router, exit)
        spec = self._spec(rank)
        waiting = self._spawn([rank], [spec])
        self.dead.discard(address)
        self.groups = [group for group in self.groups if not group.is_stopped]
        actors = [group.respawn(address) for group in self.groups if address in group.members]
        await asyncio.gather(waiting, *actors)

    def has_outlived(self, exit: Exit) -> bool:
        """Whether a proc died so, and has been made anew since."""
        known = self.exits.get(exit.address)
        return known is not None and known.pid == exit.pid != 0 and exit.address not in self.dead

    @property
    def is_ending(self) -> bool:
        """Whether all procs are to end, or have."""
        return len(self._ending) == len(self.addresses)

    def excuse(self) -> None:
        """All procs are about to end: their deaths are no failures, and they do not come back."""
        self._ending.update(self.addresses)
        self.dead.update(self.addresses)

    async def stop(self, addresses: Sequence[int], reason: str) -> None:
        """End procs in order: teardown hooks, TERM, KILL. Waits until all are gone."""
        if self.detachment is not None:
            self.detachment.check()
        self._ending.update(addresses)
        restarts = [self.restarting[address] for address in addresses if address in self.restarting]
        for restart in restarts:  # else what is stopped now would come back
            restart.cancel()
        if restarts:
            await asyncio.wait(restarts)
        self.dead.update(addresses)
        for group in self.groups:
            group.excuse()
        by_agent: dict[int, list[int]] = defaultdict(list)
        for address in addresses:
            if address not in self.unreachable:
                by_agent[agent_of(address)].append(proc_of(address))
        grace = self.domain.router.config.stop_grace
        outcomes = await asyncio.gather(
            *[
                self.domain.requests.ask(agent, "stop", ids, reason, grace)
                for agent, ids in by_agent.items()
            ],
            return_exceptions=True,
        )
        for outcome in outcomes:  # on a host that is lost there is nothing left to stop
            if isinstance(outcome, BaseException) and not isinstance(outcome, HostLost):
                raise outcome
        if self.is_ending:  # one that has crashed may still be made anew
            self.is_stopped = True
            for address in self.addresses:
                self.domain.allocations.pop(address, None)
            self.domain.router.retire(self.addresses)
            for group in self.groups:
                group.forget()
            if self.detachment is not None:
                await self.detachment.end(reason)


async def _nothing() -> None:
    pass


async def _in_turn(opening: Awaitable[None], spawning: Awaitable[None]) -> None:
    """Both are under way; where the first fails so does the second, which is not the reason."""
    outcomes = await asyncio.gather(opening, spawning, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


class ProcMesh(Sliced):
    """Worker processes. Made by `HostMesh.spawn_procs`; pickles, and works from any proc.

    ``await procs`` waits until every proc is up; it may be used before. Where some cannot be started it raises
    SpawnFailed or HostLost, and the others are ended: there is a whole mesh, or none.
    """

    def __init__(
        self,
        name: str,
        addresses: "array[int]",
        host_names: dict[int, str],
        region: Region,
        allocation: Allocation | None,
    ) -> None:
        """``addresses`` in rank order of the mesh as spawned."""
        self.name, self.region = name, region
        self._addresses, self._host_names, self._allocation = addresses, host_names, allocation

    def __await__(self) -> Generator[Any, None, "ProcMesh"]:
        allocation = self.allocation
        if allocation is not None:
            yield from allocation.wait_ready().__await__()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return ProcMesh, (self.name, self._addresses, self._host_names, self.region, None)

    def seen_through(self, region: Region) -> "ProcMesh":
        """Return the same procs through another region."""
        return ProcMesh(self.name, self._addresses, self._host_names, region, self._allocation)

    @property
    def addresses(self) -> "array[int]":
        """The proc address of each member, in rank order of this slice."""
        if self.region.is_full:
            return self._addresses
        return array("Q", [self._addresses[rank] for rank in self.region.base_ranks])

    @property
    def allocation(self) -> Allocation | None:
        """The allocation, in the process that spawned it; also for a copy that has come back there."""
        domain = find_domain()
        if self._allocation is None and domain is not None:
            self._allocation = domain.allocations.get(self._addresses[0])
        return self._allocation

    @property
    def identity(self) -> tuple[int, ...]:
        """The addresses of its procs."""
        return tuple(self._addresses)

    def host_name(self, address: int) -> str:
        """Return the name of the host an address is on."""
        return self._host_names.get(host_of(address), f"{host_of(address):08x}")

    def spawn(self, name: str, cls: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Make one actor of class ``cls`` in every proc of this mesh; return the actor mesh.

        The result looks like ``cls`` to an editor: its endpoints have adverbs (``mesh.step.call(...)``). It may be used
        at once; ``await`` it to wait until every ``__init__`` (and ``setup``) has returned, or to get what one raised.

        Raises BadEndpoint (not an actor class), BadCall (arguments that do not fit ``__init__``), PicklingError.
        """
        from monarch_async.mesh.actor_mesh import spawn_actors

        check_mesh_name("spawn", name)
        if self.allocation is not None and self.allocation.is_stopped:
            raise Closed(f"proc mesh {self.name}", "it was stopped")
        return spawn_actors(self, name, cls, args, kwargs)  # type: ignore[arg-type, return-value]

    async def restart(self, rank: int) -> None:
        """End the proc at ``rank`` if it lives, and make it and its actors anew in its place.

        References stay valid. Calls in flight fail with `ActorDied` or `ProcDied`. Waits until the actors are up again.
        """
        await self._owned("restart").restart(self.region.base_rank(rank))

    async def kill(self, signal: int = signals.SIGKILL) -> None:
        """Send a signal to every proc of this (slice of a) mesh and to what it started. For tests and emergencies.

        Returns once the agents have sent it; the death is then reported like any other.
        """
        domain = active_domain()
        by_agent: dict[int, list[int]] = defaultdict(list)
        for address in self.addresses:
            by_agent[agent_of(address)].append(proc_of(address))
        for agent, ids in by_agent.items():
            await domain.requests.ask(agent, "kill", ids, int(signal), f"asked for by {domain.router.name}")

    async def stop(self) -> None:
        """End these procs in order: teardown hooks, then TERM, then KILL; wait until all are gone. Twice is fine."""
        allocation = self._owned("stop")
        if not allocation.is_stopped:
            await allocation.stop(self.addresses, "it was stopped")

    def _owned(self, what: str) -> Allocation:
        allocation = self.allocation
        if allocation is None:
            raise Closed(f"{what} of {self.name}", f"only the process that spawned a mesh can {what} it")
        return allocation
