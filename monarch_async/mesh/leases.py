"""Detached leases as a program sees them: what there is on its hosts, and how it takes one over.

    trainers = await hosts.spawn_procs({"gpus": 8}, detached="train")      # and the program ends, or dies

    async with ma.attach("tcp://host-07:7700", token_file="cluster.token"):
        lease = await ma.cluster().adopt("train")                          # in another one
        await lease.actors["trainers"].step.call()
        await lease.release()
"""

import asyncio
import contextlib
import logging
from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import msgpack

from monarch_async.control.host import Host
from monarch_async.control.supervision import Failure
from monarch_async.control.worker import Exit
from monarch_async.errors import BadCall, Error, HostLost, LeaseHeld, Lost, NoSuchLease
from monarch_async.ids import AGENT, address
from monarch_async.mesh.actor_mesh import ActorGroup, ActorMesh
from monarch_async.mesh.detached_status import DetachedStatus, merge_leases
from monarch_async.mesh.detachment import Detachment, unpack_actors
from monarch_async.mesh.guardian import Guardian
from monarch_async.mesh.proc_mesh import Allocation, ProcMesh
from monarch_async.mesh.proc_recipe import ProcRecipe
from monarch_async.mesh.scope import Scope
from monarch_async.ranks import Extent, Region
from monarch_async.runtime.report import load_report
from monarch_async.wire.payload import Encoded

if TYPE_CHECKING:
    from monarch_async.mesh.domain import Domain
    from monarch_async.mesh.program import Program

log = logging.getLogger("monarch_async")

#: How often an owner that is not connected is looked at again, by who waits for its lease to run out.
_PAUSE = 0.2


class DetachedLease:
    """A detached lease of this program, got by `Cluster.adopt`: the program is its owner for as long as it runs.

    Attributes:
        name: its name.
        procs: all its procs, dead ones included: those can be restarted.
        actors: its actor meshes by name, as their spawner had them; of several with one name the latest.
        failures: what went wrong while nobody was there: procs and actors that are dead. The policies around the
            adopting code have been asked about each; one that nobody handled fails nothing.
    """

    def __init__(
        self, name: str, procs: ProcMesh, actors: Mapping[str, ActorMesh], failures: Sequence[Failure]
    ) -> None:
        """Made by `adopt`."""
        self.name, self.procs, self.actors = name, procs, MappingProxyType(dict(actors))
        self.failures = tuple(failures)

    def __repr__(self) -> str:
        return f"<detached lease {self.name}: {self.procs!r}, actors {', '.join(self.actors) or 'none'}>"

    async def release(self) -> None:
        """End it for good: its procs in order, with what they spawned. Waits until they are gone. Twice is fine."""
        allocation = self.procs.allocation
        if allocation is not None and not allocation.is_stopped:
            await allocation.stop(allocation.addresses, f"detached lease {self.name} was released")


# -- what there is -----------------------------------------------------------------------------------------------------


async def _fetch(domain: "Domain") -> dict[int, dict[str, Any]]:
    """Return what each host says of its leases, by host id; those that are lost meanwhile say nothing."""
    hosts = list(await domain.roster.fetch())
    asked = [domain.requests.ask(address(host.id, AGENT), "leases") for host in hosts]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found: dict[int, dict[str, Any]] = {}
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, BaseException):
            if not isinstance(answer, Lost):
                raise answer
            continue
        found[host.id] = {row["id"]: row for row in answer}
    return found


async def fetch_detached(domain: "Domain") -> list[DetachedStatus]:
    """See `Cluster.detached`."""
    by_host = await _fetch(domain)
    ids = dict.fromkeys(id for rows in by_host.values() for id in rows)
    return [merge_leases([rows[id] for rows in by_host.values() if id in rows]) for id in ids]


async def announce(domain: "Domain") -> None:
    """Log which leases wait for somebody to adopt them."""
    with contextlib.suppress(Error):
        for lease in await fetch_detached(domain):
            if not lease.owner:
                log.info("detached %s; `await ma.cluster().adopt(%r)` takes it over", lease, lease.name)


# -- taking one over ---------------------------------------------------------------------------------------------------


async def adopt(domain: "Domain", name: str, wait: float) -> DetachedLease:
    """See `Cluster.adopt`."""
    if why := domain.why_not_detached([]):
        raise BadCall("adopt", why)
    program = cast("Program", domain)  # as nothing else has a reason
    until = program.router.loop.time() + wait
    while True:
        id, hosts = await _find(program, name)
        try:
            answers = await _take(program, id)
            break
        except LeaseHeld as error:
            if not error.why or program.router.loop.time() + _PAUSE > until:
                raise
        await asyncio.sleep(_PAUSE)
    if not answers:
        raise NoSuchLease(name)
    try:  # their classes may not be here
        kept = [(its_name, *unpack_actors(data)) for _, its_name, data in next(iter(answers.values()))["actors"]]
    except BaseException:
        _disown(program, id)
        raise
    return await _enter(program, name, id, hosts, answers, kept)


async def _find(program: "Program", name: str) -> tuple[int, list[Host]]:
    """Return a lease's id, and its hosts by rank; those that this program has not joined yet it joins, if it can."""
    rows = [row for by_id in (await _fetch(program)).values() for row in by_id.values()]
    found = {row["id"]: row for row in rows if row["name"] == name and row["hosts"]}
    if not found:
        raise NoSuchLease(name, tuple(sorted({row["name"] for row in rows})))
    if len(found) > 1:
        places = "; ".join(", ".join(where[1] for where in row["hosts"]) for row in found.values())
        raise Error(f"two detached leases are called {name!r}: on {places}. attach to the hosts of one of them only")
    [(id, row)] = found.items()
    joined = {host.id for host in program.hosts}
    by_rank: dict[int, Host] = {}
    for host, host_name, url, ranks in row["hosts"]:
        if host not in joined:
            await _join(program, host, host_name, url, name)
        by_rank |= dict.fromkeys(ranks, Host(host, host_name, url))
    return id, [by_rank[rank] for rank in sorted(by_rank)]


async def _join(program: "Program", host: int, host_name: str, url: str, name: str) -> None:
    """Join a host of the lease. One that is not there any more is left out: so are its ranks."""
    try:
        await program.roster.join(url)
    except (Error, ValueError) as error:
        log.warning("detached lease %s: its procs on %s are left out: %s", name, host_name or f"{host:08x}", error)


async def _take(program: "Program", id: int) -> dict[int, dict[str, Any]]:
    """Become the owner, host by host, always in the same order, so that of two programs one has all of it.

    Returns what each says. Raises LeaseHeld, owning nothing then; nor does it where it is cancelled.
    """
    answers: dict[int, dict[str, Any]] = {}
    for host in sorted(host.id for host in program.hosts):
        try:
            answers[host] = await program.requests.ask(address(host, AGENT), "lease_adopt", id, program.home)
        except (Lost, NoSuchLease):
            continue
        except BaseException:
            _disown(program, id)  # where the answer is still on its way too
            raise
    return {host: answer for host, answer in answers.items() if answer["shape"]}


def _disown(program: "Program", id: int) -> None:
    if not program.router.is_closed:
        for host in program.hosts:
            program.requests.post(address(host.id, AGENT), "lease_disown", id)


async def _enter(
    program: "Program",
    name: str,
    id: int,
    hosts: Sequence[Host],
    answers: Mapping[int, Mapping[str, Any]],
    kept: Sequence[tuple[str, ActorMesh, Region, Encoded | None]],
) -> DetachedLease:
    """Have the meshes here, show what was printed, and ask the policies about what went wrong."""
    shape = next(iter(answers.values()))["shape"]
    detachment = Detachment(program, name, id)
    orders = {mesh.identity: order for _, mesh, _, order in kept if order is not None}
    detachment.taken([host.id for host in hosts], orders)
    allocation = _rebuild(program, shape, hosts, detachment)
    actors = {}
    for actor_name, mesh, region, order in kept:
        actors[actor_name] = ActorGroup.adopted(program, allocation.mesh.seen_through(region), mesh, order).mesh
    failures = _bury(program, allocation, answers)
    for answer in answers.values():
        dropped_lines, dropped_failures = answer["dropped"]
        if dropped_lines or dropped_failures:
            what = f"{dropped_lines} lines and {dropped_failures} failures"
            log.warning("detached lease %s: of what came while nobody was there, %s were not kept", name, what)
        for mesh, rank, stream, text in answer["lines"]:
            program.console.show(mesh, rank, stream, text)
        for actor, rank, report in answer["failures"]:
            group = program.groups.get(actor)
            if group is not None:
                failures.append(Failure(load_report(report), group.mesh, rank))
    lease = DetachedLease(name, allocation.mesh, actors, failures)
    await _put_to_policies(program, failures)
    return lease


def _rebuild(program: "Program", shape: bytes, hosts: Sequence[Host], detachment: Detachment) -> Allocation:
    """Return the allocation of procs that are there already."""
    said = msgpack.unpackb(shape)
    extent = Extent.of(said["extent"])
    envs = said["envs"]
    recipe = ProcRecipe(
        lambda point: envs[extent.rank(**point)],
        said["preload"],
        said["start"],
        said["python"],
        said["cwd"],
        tuple(said["sys_path"]),
    )
    addresses = array("Q", said["addresses"])
    for former in {id(a): a for member in addresses if (a := program.allocations.get(member)) is not None}.values():
        former.is_stopped = True  # it was this program's before, and was lost
    known = {host.id: host for host in program.hosts}
    living = [known.get(host.id, host) for host in hosts]
    return Allocation(program, said["name"], extent, living, recipe, said["placement"], detachment, addresses)


def _bury(
    program: "Program", allocation: Allocation, answers: Mapping[int, Mapping[str, Any]]
) -> list[Failure]:
    """Note which procs are dead; return how each ended."""
    failures = []
    exits = {rank: Exit.unpack(exit) for answer in answers.values() for rank, exit in answer["exits"]}
    living = {rank for answer in answers.values() for rank in answer["living"]}
    for rank, host in enumerate(allocation.hosts):
        if rank in living:
            continue
        member = allocation.addresses[rank]
        allocation.dead.add(member)
        if host.id not in answers:
            allocation.unreachable.add(member)
            error: Lost = HostLost(host.name, "it was lost while the lease had no owner")
        elif rank in exits:
            error = exits[rank].as_error()
        else:
            error = Exit.unknown(member, host.name).as_error()
        failures.append(Failure(error, allocation.mesh, rank))
    return failures


async def _put_to_policies(program: "Program", failures: Sequence[Failure]) -> None:
    owner = program.owner()
    for failure in failures:
        if isinstance(owner, Guardian):
            owner.lost(failure)
        elif isinstance(owner, Scope) and owner.has_policy:
            await owner.handle(failure)
