"""One object on many hosts.

    ref = await ma.broadcast(model.state_dict(), procs)  # or a reference, or a handle of memory elsewhere
    weights = await ref                                  # on any of these hosts: a mapping, nothing is sent any more

The hosts form a chain, in which each reads from the one before while that is still getting it itself: the time is that
of one copy, and a little for each host. One that is lost is passed over.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar, overload

from monarch_async.errors import BadCall, Lost, NotEverywhere, TransferError
from monarch_async.ids import AGENT, address, agent_of
from monarch_async.mesh.actor_mesh import ActorMesh
from monarch_async.mesh.buffer import Handle
from monarch_async.mesh.domain import Domain, active_domain
from monarch_async.mesh.holding import Hole, ObjectFacts
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.mesh.proc_mesh import ProcMesh
from monarch_async.mesh.progress import Watched, watch
from monarch_async.mesh.ref import Ref, put
from monarch_async.runtime.actor import Actor
from monarch_async.wire.array import array_over
from monarch_async.wire.exchange import Pair
from monarch_async.wire.layout import condensed
from monarch_async.wire.object_layout import lay_out
from monarch_async.wire.packed import pack_layout
from monarch_async.wire.payload import dumps

T = TypeVar("T")

#: An actor mesh looks like its class.
Mesh = HostMesh | ProcMesh | ActorMesh | Actor

#: The content of a handle with less is fetched and put like any other value.
_SMALL = 64 << 10
_ALIGNMENT = 64

#: Seconds between two looks at a host that has nothing yet, where somebody watches.
_LOOK = 0.1


@overload
async def broadcast(what: Ref[T], mesh: Mesh) -> Ref[T]: ...
@overload
async def broadcast(what: Handle[T], mesh: Mesh) -> Ref[T]: ...
@overload
async def broadcast(what: T, mesh: Mesh) -> Ref[T]: ...
async def broadcast(what: Any, mesh: Mesh) -> Ref[Any]:
    """Bring one copy of an object to every host of ``mesh``; return the reference to it when all have it.

    Args:
        what: a reference; a handle, of which the content is read into a new shared object of this host; or any other
            value, which is put first.
        mesh: hosts, procs or actors: each host they are on gets one copy, however many of them it has.

    The copies last as long as the object, or until their hosts need the room. Cancelling it leaves the hosts to it.

    Raises NotEverywhere, which names the hosts that failed or were lost meanwhile and why: all others have it (put the
    value first to go on with those). Raises besides what `put` and `Handle.fetch` raise, and BadCall where ``mesh`` is
    none.
    """
    domain = active_domain()
    names = _hosts_of(mesh, domain)
    if isinstance(what, Ref):
        ref = what
    elif isinstance(what, Handle):
        ref = await _put_content(domain, what)
    else:
        ref = await put(what)
    keeper = ref.keep(domain)
    await keeper.wait_held()
    facts = keeper.holding.facts
    watched = watch(f"broadcast {facts.id.hex()[:8]}", facts.nbytes * len(names.keys() - {facts.home}))
    try:
        if watched is not None:
            for agent in names.keys() - {facts.home}:
                domain.start_task(_follow(domain, facts, agent, watched))
        failed = await spread(domain, facts, list(names))
        if watched is not None and not failed:
            watched.advance(watched.size - watched.done)
    finally:
        if watched is not None:
            watched.end()
    if failed:
        raise NotEverywhere(str(facts), {names[agent]: why for agent, why in failed.items()})
    return ref


def _hosts_of(mesh: object, domain: Domain) -> dict[int, str]:
    """Return the names of a mesh's hosts by the addresses of their agents."""
    match mesh:
        case HostMesh():
            return {address(host.id, AGENT): host.name for host in mesh.hosts}
        case ProcMesh():
            return {agent_of(proc): mesh.host_name(proc) for proc in mesh.addresses}
        case ActorMesh():
            return {agent_of(path.dst): domain.name_of(agent_of(path.dst)) for path in mesh.cast.paths}
    raise BadCall("broadcast", f"{mesh!r} is no mesh of hosts, procs or actors")


async def spread(domain: Domain, facts: ObjectFacts, agents: Sequence[int]) -> dict[int, str]:
    """Have an object copied to the hosts of these agents; return which failed, and why. Does not hold the object."""
    spreading = domain.start_task(_spread(domain, facts, agents))
    spreading.add_done_callback(lambda task: task.cancelled() or task.exception())
    return await asyncio.shield(spreading)  # agents are not asked to stop in the middle of it


async def _spread(domain: Domain, facts: ObjectFacts, agents: Sequence[int]) -> dict[int, str]:
    chain = sorted(agents, key=lambda agent: agent != facts.home)
    failed: dict[int, str] = {}
    while chain:
        asked = domain.requests.send(chain[0], "store", "spread", facts.id, facts.home, facts.nbytes, chain)
        try:
            return {**failed, **await asked}
        except Lost as error:
            failed[chain.pop(0)] = str(error)
    return failed


async def _follow(domain: Domain, facts: ObjectFacts, agent: int, watched: Watched) -> None:
    """Tell of what arrives on one host, until it has ended."""
    there = 0
    while there < facts.nbytes and not watched.has_ended:
        try:
            now = await domain.requests.ask(agent, "store", "arrived", facts.id, there)
        except TransferError:  # it has not begun yet
            await asyncio.sleep(_LOOK)
        except Lost:
            return
        else:
            watched.advance(now - there)
            there = now


async def _put_content(domain: Domain, handle: Handle[Any]) -> Ref[Any]:
    """Put what is in the memory of a handle: read it to where it stays."""
    layout, places, size = condensed(handle.layout, _ALIGNMENT)
    if size < _SMALL:
        return await put(await handle.fetch())

    async def fill(memory: memoryview) -> None:
        pairs = []
        for leaf, place in places.items():
            view = memory[place.offset : place.offset + place.nbytes]
            pairs.append(Pair(leaf.place, array_over(leaf.library, leaf.dtype, place.moved(-place.offset), view)))
        await handle.read(domain, pairs)

    laid = lay_out(dumps(pack_layout(layout, domain.router.pool.take(size))))
    hole = Hole(laid.runs.pop(), fill)
    laid.parts.pop()
    keeper = await domain.holdings.put(laid, domain.name_of, [], hole)
    return Ref(keeper.holding.facts, domain.router.plane.cluster, keeper)
