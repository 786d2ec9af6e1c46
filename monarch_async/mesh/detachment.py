"""What makes procs outlive the program that spawned them: the records that their hosts' agents keep of them.

An agent keeps bytes and does not look at them. What the procs are is msgpack; a mesh of actors, and what makes its
members anew, is pickled: it is read by the next owner alone, which could have got it from the actors as well.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from monarch_async.control.host import Host
from monarch_async.errors import BadCall, Lost, NotHolder
from monarch_async.ids import AGENT, address, random_id64
from monarch_async.ranks import Region
from monarch_async.wire.payload import Encoded, dumps, loads

if TYPE_CHECKING:
    from monarch_async.mesh.actor_mesh import ActorMesh
    from monarch_async.mesh.domain import Domain
    from monarch_async.mesh.proc_mesh import Allocation

log = logging.getLogger("monarch_async")

#: Of the pickled arguments of all spawns of a lease so much is kept, as it is told in one frame. Of a spawn whose are
#: not, the next owner has the actors, and cannot make them anew.
MOST_KEPT = 4 << 20


def lease_marks(id: int, name: str) -> dict[str, Any]:
    """Return what the spec of a proc says of its lease."""
    return {"lease": id, "lease_name": name} if id else {}


class Detachment:
    """The lease of one allocation, at its owner."""

    def __init__(self, domain: "Domain", name: str, id: int) -> None:
        """Nothing is asked for yet."""
        self._domain, self.name, self.id = domain, name, id
        self.marks = lease_marks(id, name)
        self._hosts: set[int] = set()
        self._kept: dict[int, int] = {}  # by actor id: bytes of its spawn's arguments
        self._is_over = False
        self._fate: NotHolder | None = None

    def _agents(self) -> list[int]:
        """Return all agents that may know it: procs of it may have spawned others anywhere."""
        return [address(host, AGENT) for host in self._hosts | {host.id for host in self._domain.hosts}]

    def open(self, allocation: "Allocation", specs: Sequence[dict[str, Any]]) -> Awaitable[None]:
        """Send the requests now, before those that spawn; return what waits for the answers. That raises LeaseHeld."""
        ranks: dict[Host, list[int]] = defaultdict(list)
        for rank, host in enumerate(allocation.hosts):
            ranks[host].append(rank)
        self._hosts = {host.id for host in ranks}
        hosts = [[host.id, host.name, host.url, there] for host, there in ranks.items()]
        shape = _pack_shape(allocation, specs)
        ask = self._domain.requests.send
        asked = [ask(address(host.id, AGENT), "lease_open", self.id, self.name, hosts, shape) for host in ranks]
        others = [host.id for host in self._domain.hosts if host.id not in self._hosts]
        asked += [ask(address(host, AGENT), "lease_check", self.name, self.id) for host in others]

        async def answers() -> None:
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            needed = len(outcomes) - len(others)
            refused = [
                outcome for index, outcome in enumerate(outcomes)
                if isinstance(outcome, BaseException) and not (index >= needed and isinstance(outcome, Lost))
            ]  # fmt: skip
            if refused and not all(isinstance(error, Lost) for error in refused):
                await self.end(f"the name {self.name!r} is taken")
            if refused:
                raise next((error for error in refused if not isinstance(error, Lost)), refused[0])

        return answers()

    def note(self, mesh: "ActorMesh", procs: Region, order: Encoded) -> None:
        """Actors are about to be spawned there, on these of its procs; ``order`` makes them."""
        size = _size(order)
        is_kept = size <= MOST_KEPT - sum(self._kept.values())
        if is_kept:
            self._kept[mesh.identity] = size
        self._tell("lease_actors", self.id, mesh.identity, mesh.name, _pack_actors(mesh, procs, order, is_kept))

    def drop(self, actor: int) -> None:
        """They were stopped, and will not be made anew."""
        self._kept.pop(actor, None)
        self._tell("lease_actors", self.id, actor, "", None)

    def _tell(self, operation: str, *arguments: object) -> None:
        if not self._is_over and not self._domain.router.is_closed:
            for host in self._hosts & {host.id for host in self._domain.hosts}:
                self._domain.requests.post(address(host, AGENT), operation, *arguments)

    def check(self) -> None:
        """Raise NotHolder where this program is known to be the owner no longer."""
        if self._fate is not None:
            raise self._fate

    async def host_returned(self, host: int) -> None:
        """A host of it was lost, and is back: there the lease has had no owner since, or another one."""
        if host not in self._hosts or self._is_over:
            return
        try:
            rows = await self._domain.requests.ask(address(host, AGENT), "leases")
        except Lost:  # again
            return
        row = next((row for row in rows if row["id"] == self.id), None)
        if row is not None and row["owner"] != self._domain.router.address:
            now = f"{row['owner_name']} has adopted it" if row["owner"] else "nobody is: adopt it"
            what = f"detached lease {self.name!r}"
            self._fate = NotHolder(what, f"this program was cut off, and is its owner no longer; {now}")
            log.warning("%s", self._fate)

    def taken(self, hosts: Sequence[int], kept: Mapping[int, Encoded]) -> None:
        """It was adopted; its procs are on these hosts, and these spawns are kept, by actor id."""
        self._hosts = set(hosts)
        self._kept = {actor: _size(order) for actor, order in kept.items()}

    async def end(self, reason: str) -> None:
        """End its procs, and what they spawned, in order; forget it everywhere. Waits for that. Twice is fine.

        Raises LeaseHeld or NotHolder where this program is its owner no longer. What is on a host that is lost may live
        on there, and is logged.
        """
        self.check()
        if self._is_over:
            return
        self._is_over = True
        grace = self._domain.router.config.stop_grace
        asked = [self._domain.requests.ask(agent, "lease_end", self.id, reason, grace) for agent in self._agents()]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Lost):
                log.warning("detached lease %s may live on where it cannot be ended: %s", self.name, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome


def detach(domain: "Domain", name: str | None, hosts: Sequence[Host]) -> Detachment | None:
    """Return the detachment that ``detached=name`` asks for; None: none. Raises BadCall."""
    if name is None:
        return None
    if not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise BadCall("spawn_procs", f"detached={name!r}: expected a text of one line")
    why = domain.why_not_detached(hosts)
    if why:
        raise BadCall("spawn_procs", f"detached={name!r}: {why}")
    return Detachment(domain, name, random_id64())


def _pack_shape(allocation: "Allocation", specs: Sequence[dict[str, Any]]) -> bytes:
    """Return all that is needed to have the procs again, or make them anew."""
    recipe = allocation.recipe
    return msgpack.packb({
        "name": allocation.name,
        "extent": dict(allocation.extent),
        "addresses": list(allocation.addresses),
        "placement": allocation.placement,
        "envs": [spec["env"] for spec in specs],
        "cwd": specs[0]["cwd"],
        "preload": list(recipe.preload),
        "start": recipe.start,
        "python": recipe.python,
        "sys_path": list(recipe.sys_path),
    })  # fmt: skip


def _size(order: Encoded) -> int:
    return len(order.skeleton) + sum(map(len, order.buffers))


def _pack_actors(mesh: "ActorMesh", procs: Region, order: Encoded, is_kept: bool) -> bytes:
    kept = [bytes(part) for part in (order.skeleton, *order.buffers)] if is_kept else []
    skeleton, buffers = dumps((mesh, procs))
    assert not buffers
    return msgpack.packb([skeleton, kept])


def unpack_actors(data: bytes) -> "tuple[ActorMesh, Region, Encoded | None]":
    """Return a mesh of actors, on which procs it is, and what makes its members anew; None: that was not kept."""
    pickled, kept = msgpack.unpackb(data)
    pair: Any = loads(pickled)
    order = Encoded(kept[0], [memoryview(part) for part in kept[1:]]) if kept else None
    return *pair, order
