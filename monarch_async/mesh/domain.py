"""The domain: what this process has spawned, and who is told when that fails.

There is one per process, in the client and in every worker. It knows the meshes spawned from here, so that the death of
a proc finds the mesh and rank it was; who is told differs: in the client the scope, in a worker the actor that spawned.
"""

import asyncio
import weakref
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from monarch_async.control.controller import Host, ProcIds, Requests
from monarch_async.control.supervision import Failure
from monarch_async.control.worker import Exit
from monarch_async.errors import Closed
from monarch_async.ids import host_of
from monarch_async.runtime.report import load_report
from monarch_async.runtime.router import Router, activate

if TYPE_CHECKING:
    from monarch_async.mesh.actor_mesh import ActorGroup
    from monarch_async.mesh.proc_mesh import Allocation


class Domain:
    """One process's part in the cluster. Subclassed by the client's program and the worker."""

    def __init__(self, router: Router, hosts: list[Host]) -> None:
        """``hosts``: those this process can spawn procs on."""
        self.router, self.hosts = router, hosts
        self.root = router.address  #: the client at the root of the tree of who spawned whom
        self.requests = Requests(router)
        self.proc_ids = ProcIds()
        self.allocations: dict[int, Allocation] = {}  #: by proc address
        self.groups: weakref.WeakValueDictionary[int, ActorGroup] = weakref.WeakValueDictionary()
        self.lost_hosts: set[int] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- what differs ----------------------------------------------------------------------------------------------

    def owner_actor(self) -> int:
        """Return the id of the actor that spawns now; 0 in the client."""
        raise NotImplementedError

    def owner(self) -> object:
        """Return who is told about failures of what is spawned now."""
        raise NotImplementedError

    def tell(self, owner: object, failure: Failure, is_delivered: bool) -> None:
        """Tell ``owner``; ``is_delivered``: pending calls have carried the error to somebody already (V2)."""
        raise NotImplementedError

    # -- what is the same ------------------------------------------------------------------------------------------

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` in a task that ends with the domain."""
        task = self.router.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel_tasks(self) -> None:
        """Cancel what `start_task` started, and wait for it."""
        mine = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in mine:
            task.cancel()
        if mine:
            await asyncio.wait(mine)

    def exited(self, exit: Exit, is_delivered: bool) -> None:
        """A proc or a host has ended: tell the owners of what was there."""
        if exit.is_host:
            self.lost_hosts.add(host_of(exit.address))
            gone = [a for a in self.allocations if host_of(a) == host_of(exit.address)]
        else:
            gone = [exit.address] if exit.address in self.allocations else []
        told: set[int] = set()
        for address in gone:
            allocation = self.allocations[address]
            if address in allocation.dead or allocation.is_stopped or not exit.was_up:
                continue
            allocation.dead.add(address)
            if id(allocation) not in told:
                told.add(id(allocation))
                rank = allocation.addresses.index(address)
                self.tell(allocation.owner, Failure(exit.as_error(), allocation.mesh, rank), is_delivered)
        for group in list(self.groups.values()):
            self._lose_members(group, exit, is_delivered)

    def _lose_members(self, group: "ActorGroup", exit: Exit, is_delivered: bool) -> None:
        """Actors spawned from here on procs that are not ours: their owner is told too."""
        for rank, address in enumerate(group.members):
            is_there = host_of(address) == host_of(exit.address) if exit.is_host else address == exit.address
            if is_there and address not in self.allocations and exit.was_up:
                self.tell(group.owner, Failure(exit.as_error(), group.mesh, rank), is_delivered)

    def failed(self, actor_id: int, rank: int, report: bytes) -> None:
        """An actor spawned from here failed outside any call that could carry the error."""
        group = self.groups.get(actor_id)
        if group is not None:
            self.tell(group.owner, Failure(load_report(report), group.mesh, rank), False)


_domain: Domain | None = None


def activate_domain(domain: Domain | None) -> None:
    """Make ``domain`` this process's, or none."""
    global _domain
    _domain = domain
    activate(domain.router if domain is not None else None)


def active_domain() -> Domain:
    """Return this process's domain. Raises `Closed` where there is none."""
    if _domain is None:
        raise Closed("this program", "it is not inside `async with ma.local_hosts()` or `ma.attach(...)`")
    return _domain
