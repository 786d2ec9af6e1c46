"""The domain: what this process has spawned, and who is told when that fails.

There is one per process, in the client and in every worker. It knows the meshes spawned from here, so that the death of
a proc finds the mesh and rank it was; who is told differs: in the client the scope, in a worker the actor that spawned.

An *owner* is a `Scope`, an `Instance`, or a `Guardian`. It is told of a failure of what it spawned; where it does not
handle that it fails itself (a guardian always does). When an owner ends, what it spawned ends with it.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from monarch_async.control.controller import ProcIds, Requests
from monarch_async.control.holder import Places
from monarch_async.control.host import Host
from monarch_async.control.supervision import Failure
from monarch_async.control.worker import Exit
from monarch_async.errors import Closed, Error, Lost, MeshError
from monarch_async.ids import agent_of, host_of, random_id64
from monarch_async.mesh.guardian import Guardian
from monarch_async.mesh.holdings import Holdings
from monarch_async.runtime.call import Unseen
from monarch_async.runtime.report import load_report
from monarch_async.runtime.router import Router, activate

if TYPE_CHECKING:
    from monarch_async.mesh.actor_mesh import ActorGroup
    from monarch_async.mesh.proc_mesh import Allocation
    from monarch_async.mesh.registration import Registration
    from monarch_async.mesh.roster import Roster


#: How many deaths are remembered. A call that reports one has been told of it by then, or nobody looks for so long.
_MOST_DEATHS = 1024


class Outcome:
    """What became of a failure: whether callers carry it, and whether somebody handled it (None: not decided yet).

    ``of``: whose death it is, of procs spawned from here.
    """

    __slots__ = ("is_delivered", "is_handled", "of")

    def __init__(self, is_delivered: bool, of: "Allocation | None") -> None:
        self.is_delivered, self.of = is_delivered, of
        self.is_handled: bool | None = None


class Belonging(Protocol):
    """What else ends with who made it. ``owner`` is as of `Domain.owner`."""

    owner: object

    def end(self) -> Awaitable[None] | None:
        """The owner has ended; what is returned is waited for."""
        ...


class Annex(Protocol):
    """Something of a floor above that there is one of per process, made when it is first used."""

    async def aclose(self) -> None:
        """The process leaves its hosts: end what was started. Waits for that."""
        ...


class Domain:
    """One process's part in the cluster. Subclassed by the client's program and the worker."""

    def __init__(self, router: Router) -> None:
        """Nothing is spawned yet."""
        self.router = router
        self.root = router.address  #: the client at the root of the tree of who spawned whom
        self.lease = (0, "")  #: id and name of the detached lease that this process is of
        self.home = 0  #: the agent of that client's first host, lost or not: where what has a name is found
        self.requests = Requests(router)
        self.proc_ids = ProcIds()
        self._placement_ids = itertools.count(random_id64() >> 1)  # no two processes' meet
        self.allocations: dict[int, Allocation] = {}  #: by proc address
        self.groups: dict[int, ActorGroup] = {}  #: by actor id
        self.registrations: dict[int, Registration] = {}  #: by the id of the region
        self.belongings: set[Belonging] = set()
        self.annexes: dict[type, Annex] = {}  #: what floors above this one keep here, by class
        self.holdings = Holdings(router, self.requests, self.store_agent)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._deaths: dict[tuple[object, ...], Outcome] = {}  # by the facts of the death
        router.failures.on_unseen = self.unseen

    # -- what differs ----------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> list[Host]:
        """The hosts of the program that live, as far as this process knows them."""
        raise NotImplementedError

    def why_no_host(self) -> Error:
        """Return what to raise where there is none: HostLost where they were lost, else Closed."""
        return Closed("this program", "it has no host")

    def owner_actor(self) -> int:
        """Return the id of the actor that spawns now; 0 in the client."""
        raise NotImplementedError

    def owner(self) -> object:
        """Return who is told about failures of what is spawned now."""
        raise NotImplementedError

    def may_handle(self, owner: object) -> bool:
        """Return whether there is anybody to ask before ``owner`` fails."""
        raise NotImplementedError

    async def handle(self, owner: object, failure: Failure) -> bool:
        """Ask ``owner``; return whether it has handled the failure. What this raises is no handling, and a cause."""
        raise NotImplementedError

    def fail(self, owner: object, failure: Failure, raised: Exception | None = None) -> None:
        """Nobody handled it: ``owner`` fails. ``raised``: by who was asked, while it handled the failure."""
        raise NotImplementedError

    def fail_caller(self, unseen: Unseen) -> None:
        """A call of actors that were not spawned from here failed and nobody looked: who called fails."""
        raise NotImplementedError

    def why_not_detached(self, hosts: Sequence[Host]) -> str:
        """Return why procs on these hosts cannot outlive the client; empty: they can."""
        return "only the client's program can do that, not an actor"

    def store_agent(self, home: int) -> int:
        """Return the agent to ask about shared objects of this home; 0: about new ones. May raise Closed."""
        return agent_of(self.router.address)

    @property
    def operations(self) -> dict[str, Callable[..., None]]:
        """Further requests to this process, by operation: called with (src, call, *arguments). See `answer`."""
        raise NotImplementedError

    @property
    def on_gone(self) -> list[Callable[[Exit], None]]:
        """Told the exit of every proc and host that this process has to do with, before owners are."""
        raise NotImplementedError

    def answer(self, dst: int, call: int, value: object) -> None:
        """Answer a request, as msgpack."""
        raise NotImplementedError

    @property
    def roster(self) -> "Roster":
        """Where to ask for other hosts."""
        raise NotImplementedError

    @property
    def placer(self) -> Places:
        """Where to ask for placements."""
        raise NotImplementedError

    # -- what is the same ------------------------------------------------------------------------------------------

    def name_of(self, agent: int) -> str:
        """Return the name of the host of an agent."""
        return next((host.name for host in self.hosts if host.id == host_of(agent)), f"{host_of(agent):08x}")

    def take_placement_id(self) -> int:
        """Return an id that no placement of any process has."""
        return next(self._placement_ids)

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` in a task that ends with the domain."""
        task = self.router.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close_annexes(self) -> None:
        """Close what floors above keep here."""
        annexes = list(self.annexes.values())
        self.annexes.clear()
        await asyncio.gather(*[annex.aclose() for annex in annexes], return_exceptions=True)

    async def cancel_tasks(self) -> None:
        """Cancel what `start_task` started, and wait for it; leases of memory start nothing any more."""
        for registration in self.registrations.values():
            registration.renew(None)
        mine = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in mine:
            task.cancel()
        if mine:
            await asyncio.wait(mine)

    # -- failures --------------------------------------------------------------------------------------------------

    def tell(self, owner: object, failure: Failure, is_delivered: bool, of: "Allocation | None" = None) -> None:
        """Tell ``owner``; ``is_delivered``: pending calls have carried the error to somebody already (V2)."""
        if isinstance(owner, Guardian):
            owner.lost(failure)
            return
        outcome = Outcome(is_delivered, of)
        if isinstance(failure.error, Lost):
            self._deaths[failure.error.args] = outcome
            if len(self._deaths) > _MOST_DEATHS:
                del self._deaths[next(iter(self._deaths))]
        if self.may_handle(owner):
            self.start_task(self._ask(owner, failure, outcome))
        else:
            self._settle(owner, failure, outcome, False)

    async def _ask(self, owner: object, failure: Failure, outcome: Outcome) -> None:
        try:
            is_handled = bool(await self.handle(owner, failure))
        except Exception as raised:
            raised.__cause__ = raised.__cause__ or (failure.error if raised is not failure.error else None)
            outcome.is_handled = True  # what is shown from now on is what was raised
            self.fail(owner, failure, raised)
        else:
            self._settle(owner, failure, outcome, is_handled)

    def _settle(self, owner: object, failure: Failure, outcome: Outcome, is_handled: bool) -> None:
        if outcome.of is not None and outcome.of.is_ending:  # meanwhile: it was to end, and cannot come back
            is_handled = True
        outcome.is_handled = is_handled
        if not is_handled and not outcome.is_delivered:
            self.fail(owner, failure)

    def unseen(self, unseen: Unseen) -> None:
        """A call failed and nobody looked. A death is its owner's business; it is open again where that declines."""
        error = unseen.error
        group = self.groups.get(unseen.actor)
        outcome = self._deaths.get(error.args) if isinstance(error, Lost) else None
        if outcome is not None and outcome.is_handled is None:
            outcome.is_delivered = False
        elif outcome is not None and outcome.is_handled:
            return
        elif group is None or not isinstance(error, Exception):
            self.fail_caller(unseen)
        elif outcome is None:
            self.tell(group.owner, Failure(error, group.mesh, _rank_of(error)), False)
        else:
            self.fail(group.owner, Failure(error, group.mesh, _rank_of(error)))

    def is_old(self, exit: Exit) -> bool:
        """Whether it is of a proc of ours that has been made anew since: the answer to what was sent to the former one.

        Pending calls are of the new one then: `Allocation` has failed those of the former.
        """
        allocation = self.allocations.get(exit.address)
        return allocation is not None and allocation.has_outlived(exit)

    def exited(self, exit: Exit, is_delivered: bool) -> None:
        """A proc or a host has ended: tell the owners of what was there."""
        if exit.is_host:
            host = host_of(exit.address)
            gone = [address for address in self.allocations if address >> 32 == host]
        else:
            gone = [exit.address] if exit.address in self.allocations else []
        told: set[int] = set()
        for address in gone:
            allocation = self.allocations[address]
            if exit.is_host:
                allocation.unreachable.add(address)
            else:
                allocation.exits[address] = exit
            if address in allocation.dead or allocation.is_stopped or not exit.was_up:
                continue
            allocation.dead.add(address)
            if address in allocation.restarting:
                continue
            if id(allocation) not in told:
                told.add(id(allocation))
                rank = allocation.addresses.index(address)
                self.tell(allocation.owner, Failure(exit.as_error(), allocation.mesh, rank), is_delivered, allocation)
        for group in list(self.groups.values()):
            self._lose_members(group, exit, is_delivered)

    def _lose_members(self, group: "ActorGroup", exit: Exit, is_delivered: bool) -> None:
        """Actors spawned from here on procs that are not ours: their owner is told too."""
        if group.procs.allocation is not None:
            return
        for rank, address in enumerate(group.members):
            is_there = host_of(address) == host_of(exit.address) if exit.is_host else address == exit.address
            if is_there and address not in self.allocations and exit.was_up:
                self.tell(group.owner, Failure(exit.as_error(), group.mesh, rank), is_delivered)

    def failed(self, actor_id: int, rank: int, is_delivered: bool, report: bytes) -> None:
        """An actor spawned from here failed outside any call; ``is_delivered``: calls that wait for it are told too."""
        group = self.groups.get(actor_id)
        if group is not None:
            self.tell(group.owner, Failure(load_report(report), group.mesh, rank), is_delivered)

    def owns(self, owner: object) -> bool:
        """Return whether there is anything that `end` would end. On any thread."""
        belong = [*self.belongings, *self.allocations.values(), *self.groups.values(), *self.registrations.values()]
        return any(each.owner is owner for each in belong)

    async def end(self, owner: object, reason: str) -> None:
        """End what ``owner`` has spawned, as it ends itself, but what is detached. Waits until all is gone."""
        endings = [belonging.end() for belonging in list(self.belongings) if belonging.owner is owner]
        allocations = {id(a): a for a in self.allocations.values() if a.owner is owner}
        groups = [g for g in self.groups.values() if g.owner is owner and id(g.procs.allocation) not in allocations]
        allocations = {key: allocation for key, allocation in allocations.items() if allocation.detachment is None}
        for allocation in allocations.values():  # now, not when its turn comes: what dies meanwhile was to end
            allocation.excuse()
        stops = [group.stop(group.members) for group in groups]
        stops += [allocation.stop(allocation.addresses, reason) for allocation in allocations.values()]
        stops += [ending for ending in endings if ending is not None]
        stops += [registered.close() for registered in list(self.registrations.values()) if registered.owner is owner]
        await asyncio.gather(*stops, return_exceptions=True)  # where a host is gone, so is what was there


def _rank_of(error: BaseException) -> int:
    if isinstance(error, MeshError):
        return next(iter(error.by_rank))
    rank = getattr(error, "rank", 0)
    return rank if isinstance(rank, int) else 0


_domain: Domain | None = None


def activate_domain(domain: Domain | None) -> None:
    """Make ``domain`` this process's, or none."""
    global _domain
    _domain = domain
    activate(domain.router if domain is not None else None)


def find_domain() -> Domain | None:
    """Return this process's domain, if there is one."""
    return _domain


def active_domain() -> Domain:
    """Return this process's domain. Raises `Closed` where there is none, BadCall on a thread other than its loop's."""
    if _domain is None:
        raise Closed("this program", "it is not inside `async with ma.local_hosts()` or `ma.attach(...)`")
    _domain.router.check_thread()
    return _domain
