"""Where the leases of one process are: those that its pools give, to itself and others, and those that it waits for.

pool [id, name, "lease", number, key]     answered with the pickled mesh of the replica, or refused
pool [id, name, "return", number]         not answered
pool [id, name, "drain", actor]           answered when it is gone, or refused
pool [id, name, "status"]                 answered
pool_watch []                       never answered: it fails when who is asked has ended, and so have its leases
"""

import asyncio
import itertools
import pickle
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch_async.control.controller import read_answer
from monarch_async.control.refusal import pack_refusal
from monarch_async.errors import Closed, Error
from monarch_async.mesh.actor_mesh import ActorMesh
from monarch_async.mesh.domain import Domain
from monarch_async.pools.events import Asked, CallerGone, Key, LeaseId, Returned
from monarch_async.runtime.call import Call

if TYPE_CHECKING:
    from monarch_async.pools.replica import Replica
    from monarch_async.pools.shell import PoolShell


class PoolDesk:
    """One per process: a `mesh.domain.Annex`."""

    def __init__(self, domain: Domain) -> None:
        """No pools yet."""
        self.domain = domain
        self.address = domain.router.address
        self.pools: dict[int, PoolShell] = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[LeaseId, asyncio.Future[ActorMesh]] = {}  #: of this process, for its own pools
        self._calls: dict[LeaseId, int] = {}  #: of others, that wait for an answer
        self._watched: set[int] = set()
        domain.operations["pool"] = self._take
        domain.operations["pool_watch"] = lambda src, call: None

    @classmethod
    def of(cls, domain: Domain) -> "PoolDesk":
        """Return this process's."""
        found = domain.annexes.get(cls)
        if not isinstance(found, cls):
            found = domain.annexes[cls] = cls(domain)
        return found

    # -- leases of this process ------------------------------------------------------------------------------------

    def take_number(self) -> int:
        """Return the number of a new lease."""
        return next(self._numbers)

    async def lease(self, pool: "PoolShell", number: int, key: Key | None) -> ActorMesh:
        """Wait for a replica of a pool of this process."""
        lease = (self.address, number)
        waiting = self._waiting[lease] = self.domain.router.loop.create_future()
        pool.feed(Asked(lease, key))
        return await waiting

    async def lease_of(self, owner: int, pool: tuple[int, str], number: int, key: Key | None) -> ActorMesh:
        """Wait for a replica of a pool of another process. ``pool``: its id and name."""
        waiting: asyncio.Future[bytes] = self.domain.router.loop.create_future()
        call = self.domain.requests.call(owner, "pool", *pool, "lease", number, key)
        call.add_done_callback(partial(_pass_on, waiting))
        return pickle.loads(read_answer(await waiting))

    # -- what pools say --------------------------------------------------------------------------------------------

    def give(self, pool: "PoolShell", lease: LeaseId, replica: "Replica") -> None:
        """A lease is had."""
        if lease[0] != self.address:
            self.domain.answer(lease[0], self._calls.pop(lease), replica.packed())
            return
        waiting = self._waiting.pop(lease)
        assert replica.mesh is not None
        if not waiting.done():  # else it has been cancelled, and is about to be returned
            waiting.set_result(replica.mesh)

    def fail(self, lease: LeaseId, error: Exception) -> None:
        """A lease will not be had."""
        if lease[0] != self.address:
            self.domain.answer(lease[0], self._calls.pop(lease), pack_refusal(error))
        elif not (waiting := self._waiting.pop(lease)).done():
            waiting.set_exception(error)

    def returned(self, pool: "PoolShell", lease: LeaseId) -> None:
        """A lease has ended, or nobody waits for it any more."""
        self._waiting.pop(lease, None)
        if (call := self._calls.pop(lease, None)) is not None:  # nobody waits, but the call is to end there
            self.domain.answer(lease[0], call, None)
        pool.feed(Returned(lease))

    # -- what other processes ask ----------------------------------------------------------------------------------

    def _take(self, src: int, call: int, id: int, name: str, what: str, *arguments: Any) -> None:
        pool = self.pools.get(id)
        if pool is None:
            if call:
                self.domain.answer(src, call, pack_refusal(Closed(f"pool {name}", "its block has ended")))
            return
        match what:
            case "lease":
                number, key = arguments
                self._watch(src)
                self._calls[src, number] = call
                pool.feed(Asked((src, number), key))
            case "return":
                self.returned(pool, (src, arguments[0]))
            case "drain":
                self.domain.start_task(self._drain(pool, src, call, arguments[0]))
            case "status":
                self.domain.answer(src, call, pool.status().pack())
            case _:
                self.domain.answer(src, call, pack_refusal(Error(f"pool {pool.name} knows no request {what!r}")))

    async def _drain(self, pool: "PoolShell", src: int, call: int, actor: int) -> None:
        try:
            await pool.drain(actor)
        except Error as error:
            self.domain.answer(src, call, pack_refusal(error))
        else:
            self.domain.answer(src, call, None)

    def _watch(self, caller: int) -> None:
        """Learn of the end of a process that has leases."""
        if caller not in self._watched:
            self._watched.add(caller)
            self.domain.requests.call(caller, "pool_watch").add_done_callback(partial(self._caller_gone, caller))

    def _caller_gone(self, caller: int, call: "Call[bytes]") -> None:
        if not call.cancelled():
            call.exception()
        self._watched.discard(caller)
        for lease in [lease for lease in self._calls if lease[0] == caller]:
            del self._calls[lease]
        for pool in list(self.pools.values()):
            pool.feed(CallerGone(caller))

    async def aclose(self) -> None:
        """The process leaves its hosts (`mesh.domain.Annex`)."""
        await asyncio.gather(*[pool.aclose("its program has left its hosts") for pool in list(self.pools.values())])


def _pass_on(waiting: "asyncio.Future[bytes]", call: "Call[bytes]") -> None:
    """Who waits may have been cancelled: the request itself is not, so that its answer finds somebody."""
    error = call.exception()
    if waiting.done():
        return
    if error is not None:
        waiting.set_exception(error)
    else:
        waiting.set_result(call.result())
