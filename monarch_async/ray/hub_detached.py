"""Detached actors that drivers before this one have left on hosts that were joined, as its hub finds them.

Each is a detached lease of its own, named after the actor (`lease_of`): the hosts' agents keep its process, what that
holds, and its name, whoever comes and goes. A driver adopts it when it asks for its name (or calls it by a handle that
it was given), and is its owner from then on, one driver at a time. What the hub has to know of it, its process tells.

One whose process ends while it has no driver is not made anew: its name is free again. Nor does a later driver make one
anew that was given objects: they were of the driver that is gone.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from monarch_async.control.supervision import Failure
from monarch_async.errors import Error, LeaseHeld, NoSuchLease
from monarch_async.mesh.cluster import cluster
from monarch_async.mesh.guardian import Guardian, guarding
from monarch_async.mesh.leases import DetachedLease
from monarch_async.mesh.proc_mesh import ProcMesh
from monarch_async.ray.entry import Entry
from monarch_async.ray.payload import Packed, pack, unpack

if TYPE_CHECKING:
    from monarch_async.ray.hub_actor import Creation
    from monarch_async.ray.hub_actors import HubActors

log = logging.getLogger("monarch_async")

_PREFIX = "ray/"
_NAMELESS = "#"  #: instead of a namespace, in which it would be quoted
_PLAIN = " !$&'()*+,:;=@[]|"  #: what stands for itself

#: Seconds that a driver's hosts may need, after it is lost, to say so; and that a driver waits at its end for those of
#: its detached actors that are still being placed.
PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Adopted:
    """An actor that is there already: its process, what is called in it, and how often it was made."""

    procs: ProcMesh
    mesh: Any
    incarnation: int


def lease_of(creation: "Creation") -> str | None:
    """Return under which name an actor outlives its driver; None: it does not."""
    options = creation.options
    if options.lifetime != "detached":
        return None
    return name_lease(creation.namespace, options.name) if options.name else f"{_PREFIX}{_NAMELESS}/{creation.actor}"


def told_of(creation: "Creation", incarnation: int) -> Packed:
    """Return what the process of a detached actor keeps of its creation; what it is made of is there anyway.

    ``incarnation``: who has called it before goes on counting.
    """
    told = replace(creation, birth=replace(creation.birth, cls=b"", arguments=b""))
    return pack((told, incarnation), "options of an actor")


def name_lease(namespace: str, name: str) -> str:
    """Return what the lease of an actor with a name is called: a text of one line, another one for each."""
    return f"{_PREFIX}{quote(namespace, safe=_PLAIN)}/{quote(name, safe=_PLAIN)}"


def read_lease(lease: str) -> tuple[str, str] | None:
    """Return the namespace and name of the actor whose lease is called so; None: it has none, or it is no actor."""
    parts = lease.removeprefix(_PREFIX).split("/")
    if not lease.startswith(_PREFIX) or len(parts) != 2 or parts[0] == _NAMELESS:
        return None
    return unquote(parts[0]), unquote(parts[1])


class DetachedActors:
    """Those that are not this driver's yet. On the hub's loop."""

    def __init__(self, actors: "HubActors") -> None:
        """``actors`` gets them."""
        self._actors, self._hub = actors, actors.hub
        self._adopting: dict[str, asyncio.Task[None]] = {}  # by lease: who asks again waits for the same

    @property
    def are_possible(self) -> bool:
        """Whether anything outlives this driver: not on hosts of its own."""
        domain = self._hub.domain
        return any(not domain.why_not_detached([host]) for host in domain.hosts)

    async def find(self, namespace: str, name: str) -> None:
        """Have the actor of this name among this driver's, where one was left.

        Where the driver before was lost just now this waits until its hosts have given it up. Raises ValueError where
        another driver, which lives, has it.
        """
        if self.are_possible:
            try:
                await self._adopt_once(name_lease(namespace, name))
            except LeaseHeld as error:
                raise ValueError(
                    f"the actor named {name!r} in namespace {namespace!r} belongs to another driver, {error.by}: it "
                    f"can be got once that has ended"
                ) from None

    async def find_id(self, actor: str) -> None:
        """Have the actor of this id among this driver's, where one was left. Those that are asked first come along."""
        for lease in await self._left():
            try:
                await self._adopt_once(lease)
            except LeaseHeld:
                continue
            if self._actors.knows(actor):
                return

    async def names(self) -> list[tuple[str, str]]:
        """Return the namespaces and names of those that were left."""
        return [said for lease in await self._left() if (said := read_lease(lease)) is not None]

    async def _left(self) -> list[str]:
        if not self.are_possible:
            return []
        rows = await cluster().detached()
        return [row.name for row in rows if row.name.startswith(_PREFIX) and not row.owner and row.living]

    async def _adopt_once(self, name: str) -> None:
        adopting = self._adopting.get(name)
        if adopting is None:
            adopting = self._adopting[name] = self._hub.runtime.start(self._adopt(name))
            adopting.add_done_callback(lambda _: self._adopting.pop(name, None))
        await asyncio.shield(adopting)

    async def _adopt(self, name: str) -> None:
        failures: list[Failure] = []
        guardian = Guardian(failures.append)
        try:
            with guarding(guardian):
                lease = await self._take(name)
        except NoSuchLease:
            return
        try:
            mesh: Any = next(iter(lease.actors.values()))
            told, birth = await mesh.describe.call_one()
            creation: Creation
            creation, incarnation = unpack(told)  # type: ignore[misc]
        except Exception as error:
            why = failures[0].error if failures else error
            log.warning("detached actor %s has died while it had no driver: %s", name.removeprefix(_PREFIX), why)
            with contextlib.suppress(Error):  # else it is left to the next
                await lease.release()
            return
        if birth is not None:
            creation = replace(creation, birth=birth)
        else:
            creation = replace(creation, options=replace(creation.options, max_restarts=0))
        life = Entry(self._hub.runtime, creation.life, "an actor")
        actor = self._actors.create(creation, (), life, Adopted(lease.procs, mesh, incarnation))
        guardian.lost = actor.lost
        for failure in failures:
            actor.lost(failure)

    async def _take(self, name: str) -> DetachedLease:
        try:
            return await cluster().adopt(name)
        except LeaseHeld as error:
            if not error.why:  # its owner is connected
                raise
            log.warning("%s; this waits for that", error)
        return await cluster().adopt(name, wait=self._hub.domain.router.config.resume_window + PATIENCE)
