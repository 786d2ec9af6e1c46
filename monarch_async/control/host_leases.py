"""An agent's detached leases: its `detached`, opened to clients, and the procs that live on without one.

    lease_check [name, id]                       is the name free here? Answered, or refused with LeaseHeld
    lease_open [id, name, hosts, shape]          the procs are about to be spawned; answered, or refused
    lease_actors [id, actor, name, recipe]       actors are about to be spawned there; no recipe: they were stopped; not
                                                 answered
    leases []                                    answered with the facts of each
    lease_adopt [id, home]                       answered with what it takes to go on, and the news since its last owner
    lease_disown [id]                            not answered
    lease_end [id, reason, grace]                answered once its procs are gone
    lease_release [name, reason, grace]          the same by its name: for those who hold nothing here

A proc's spec names the lease (``lease``) where it is a member or was spawned by one, however deep; the root of those is
whoever owns the lease now, 0 while nobody does. Owners change without a word to the actors: their proc is told.
"""

import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import msgpack

from monarch_async.control.detached import ActorFailure, Lease, Leases, Lines, Where, facts
from monarch_async.control.guests import Guest, Guests
from monarch_async.control.refusal import pack_refusal
from monarch_async.control.reservations import Reservations
from monarch_async.control.worker import Exit, Worker
from monarch_async.control.workers import Workers
from monarch_async.errors import Error, LeaseHeld, NoSuchLease, NotHolder
from monarch_async.ids import host_of, proc_of
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import FAILURE, pack_frame

log = logging.getLogger("monarch_async.agent")

Reply = Callable[[int, int, object], None]


class HostLeases:
    """See the module. ``operations`` are the agent's to take."""

    def __init__(
        self,
        workers: Workers,
        guests: Guests,
        reservations: Reservations,
        answer: Reply,
        start_task: Callable[[Coroutine[Any, Any, None]], object],
        clock: Callable[[], float],
        is_lifelined: bool,
    ) -> None:
        """``clock`` is that of ``guests``."""
        self._workers, self._guests, self._reservations = workers, guests, reservations
        self._answer, self._start_task, self._clock, self._is_lifelined = answer, start_task, clock, is_lifelined
        self._leases = Leases()
        self.operations: dict[str, Callable[..., None]] = {
            "lease_check": self._refusing(lambda src, name, id: self._leases.check_name(name, id)),
            "lease_open": self._refusing(self._open),
            "lease_actors": self._actors,
            "leases": lambda src, call: self._answer(src, call, self.facts()),
            "lease_adopt": self._refusing(self._adopt),
            "lease_disown": self._disown,
            "lease_end": self._end,
            "lease_release": self._release,
        }
        reservations.keeper = self._keeper
        workers.on_lines, workers.on_ended = self._printed, self._ended

    def facts(self) -> list[dict[str, Any]]:
        """Return what is told of every lease here."""
        return [facts(lease, self._clock()) | {"away": self._silence(lease)} for lease in self._leases]

    def _silence(self, lease: Lease) -> float:
        """Return how long its owner has not been connected; 0: it is, or there is none."""
        guest = self._guest(lease.owner)
        away = guest is not None and guest.connection.wire is None
        return self._clock() - guest.heard_at if guest is not None and away else 0.0

    def _guest(self, address: int) -> Guest | None:
        return next((guest for guest in self._guests if address and guest.connection.address == address), None)

    def _name(self, client: int) -> str:
        guest = self._guest(client)
        return guest.connection.name if guest is not None else f"{host_of(client):08x}"

    # -- requests --------------------------------------------------------------------------------------------------

    def _refusing(self, perform: Callable[..., object]) -> Callable[..., None]:
        def take(src: int, call: int, *arguments: Any) -> None:
            try:
                value = perform(src, *arguments)
            except LeaseHeld as error:
                self._answer(src, call, pack_refusal(self._explained(error)))
            except Error as error:
                self._answer(src, call, pack_refusal(error))
            else:
                self._answer(src, call, value)

        return take

    def _explained(self, error: LeaseHeld) -> LeaseHeld:
        """Say of an owner that is not connected how long it has not been."""
        lease = self._leases.named(error.name)
        silence = self._silence(lease) if lease is not None else 0.0
        if not silence:
            return error
        window = self._guests.window
        why = f"not heard for {silence:.1f} s, it is gone after {window:g} s (adopt can wait for that: wait={window:g})"
        return LeaseHeld(error.name, error.by, why)

    def _open(self, src: int, id: int, name: str, hosts: list[Any], shape: bytes) -> None:
        if self._is_lifelined:
            raise NotHolder(f"detached lease {name!r}", "this host ends with the program that started it")
        where = [Where(host, host_name, url, tuple(ranks)) for host, host_name, url, ranks in hosts]
        self._leases.open(id, name, where, shape, src, self._name(src), self._clock())
        log.info("detached lease %s: opened by %s", name, self._name(src))

    def _actors(self, src: int, call: int, id: int, actor: int, name: str, recipe: bytes | None) -> None:
        lease = self._leases.find(id)
        if lease is not None and lease.owner == src:
            if recipe is None:
                lease.actors.pop(actor, None)
            else:
                lease.actors[actor] = name, recipe

    def _adopt(self, src: int, id: int, home: int) -> dict[str, Any]:
        lease = self._leases.adopt(id, src, self._name(src))
        lines, failures = lease.news()
        log.info("detached lease %s: adopted by %s", lease.name, lease.owner_name)
        connection = self._guest(src)
        is_near = connection is not None and connection.connection.link is None
        for worker in self._procs_of(id):
            worker.owner, worker.root = worker.owner or src, src
            self._workers.ask(worker, 0, "owned_by", src, home, is_near)
        return {
            "shape": lease.shape,
            "actors": [[actor, name, recipe] for actor, (name, recipe) in lease.actors.items()],
            "living": sorted(lease.members.values()),
            "exits": list(lease.exits.items()),
            "failures": [[kept.actor, kept.rank, kept.report] for kept in failures],
            "lines": [[kept.mesh, kept.rank, kept.stream, kept.text] for kept in lines],
            "dropped": [lease.lines.dropped, lease.failures.dropped],
            "made_by": lease.made_by,
        }

    def _disown(self, src: int, call: int, id: int) -> None:
        self._leases.disown(id, src, self._clock())
        self._leave(self._procs_of(id), src)

    def _end(self, src: int, call: int, id: int, reason: str, grace: float) -> None:
        try:
            lease = self._leases.end(id, src)
        except LeaseHeld as error:
            self._answer(src, call, pack_refusal(self._explained(error)))
            return
        if lease is None:
            self._answer(src, call, None)
        else:
            log.info("detached lease %s: %s", lease.name, reason)
            self._start_task(self._stop(src, call, lease, reason, grace))

    def _release(self, src: int, call: int, name: str, reason: str, grace: float) -> None:
        lease = self._leases.named(name)
        if lease is not None:
            self._end(src, call, lease.id, reason, grace)
        else:
            known = tuple(lease.name for lease in self._leases)
            self._answer(src, call, pack_refusal(NoSuchLease(name, known)))

    async def _stop(self, src: int, call: int, lease: Lease, reason: str, grace: float) -> None:
        await self._workers.stop([worker.id for worker in self._procs_of(lease.id)], reason, grace)
        freed = self._reservations.ledger.release_lease(lease.name, self._keeper)  # others may be in the same placement
        if freed:
            self._reservations.end(freed, reason)
            self._reservations.changed()
        self._answer(src, call, None)

    # -- what the agent tells --------------------------------------------------------------------------------------

    def left(self, guest: Guest, why: str) -> None:
        """A client is gone for good: what it has detached lives on."""
        client = guest.connection.address
        for lease in self._leases.left(client, guest.heard_at, self._clock(), why):
            log.info("detached lease %s: unowned, as %s is gone", lease.name, guest.connection.name)
        self._leave([worker for worker in self._workers.living() if worker.lease], client)

    def _leave(self, workers: list[Worker], client: int) -> None:
        """Of these, a client is owner and root no more."""
        for worker in workers:
            if worker.root == client:
                worker.owner, worker.root = 0 if worker.owner == client else worker.owner, 0

    def fence(self, why: str) -> None:
        """This host was given up by everybody: nothing may live on."""
        for lease in self._leases.fence():
            self._workers.kill(self._procs_of(lease.id), signal.SIGKILL, f"the agent: {why}")
            self._reservations.end(self._reservations.ledger.release_lease(lease.name), f"the agent: {why}")

    def prepare(self, src: int, specs: list[dict[str, Any]]) -> Error | None:
        """Procs are to be spawned: say whose they are; return why they cannot."""
        for spec in specs:
            id = spec.get("lease")
            if not id:
                continue
            lease = self._leases.find(id) or self._shadow(src, spec)
            if lease is None:
                return NotHolder(f"{spec['mesh']}[{spec['rank']}]", "its detached lease is not there, or has ended")
            if self._is_client(src) and (why := self._leases.why_not(id, src)) is not None:
                return why
            spec["root"] = lease.owner
            if src == lease.owner:
                self._leases.started(id, spec["id"], spec["rank"])
        return None

    def _shadow(self, src: int, spec: dict[str, Any]) -> Lease | None:
        """A proc elsewhere spawns one here: let it live on as well."""
        if self._is_lifelined or self._is_client(src):
            return None
        owner = spec["root"] if self._guest(spec["root"]) is not None else 0
        return self._leases.shadow(spec["lease"], spec["lease_name"], owner, self._name(owner), self._clock())

    def why_not(self, src: int, ids: list[int]) -> NotHolder | None:
        """Return why ``src`` may not stop or signal these procs (D3); procs may, as they may be of the lease."""
        if not len(self._leases) or not self._is_client(src):
            return None
        leases = {worker.lease for worker in self._workers.find(ids) if worker.lease}
        return next((why for id in leases if (why := self._leases.why_not(id, src)) is not None), None)

    def _is_client(self, address: int) -> bool:
        guest = self._guest(address)
        return guest is not None and guest.role != "agent"

    def where(self, host: int) -> tuple[str, str] | None:
        """Return name and URL of a host that a lease has procs on."""
        found = (where for lease in self._leases for where in lease.hosts if where.host == host)
        return next(((where.name, where.url) for where in found if where.url), None)

    def take_failure(self, src: int, owner_actor: int, rank: int, about: bytes, report: bytes) -> None:
        """An actor that the owner has spawned has failed: keep that, and pass it on (D4)."""
        worker = next(iter(self._workers.find([proc_of(src)])), None)
        lease = self._leases.find(worker.lease) if worker is not None else None
        if lease is None:
            return
        actor, _ = msgpack.unpackb(about)
        lease.failures.add(ActorFailure(self._clock(), actor, rank, report))
        route = self._route(lease)
        if route is not None:
            route.send(pack_frame(FAILURE, 0, lease.owner, src, owner_actor, rank, about, report))

    def _route(self, lease: Lease) -> Connection | None:
        guest = self._guest(lease.owner)
        return guest.connection if guest is not None else None

    # -- what procs do ---------------------------------------------------------------------------------------------

    def _procs_of(self, id: int) -> list[Worker]:
        return [worker for worker in self._workers.living() if worker.lease == id]

    def _printed(self, worker: Worker, stream: int, text: bytes) -> None:
        lease = self._leases.find(worker.lease)
        if lease is not None:
            spec = worker.spec
            lease.lines.add(Lines(self._clock(), spec["mesh"], spec["rank"], stream, text))

    def _ended(self, worker: Worker, exit: Exit) -> None:
        self._leases.exited(worker.lease, worker.id, exit.pack())

    def _keeper(self, placement: int) -> str:
        """Return the name of the lease that procs in a placement are of; empty: none."""
        found = (worker.lease for worker in self._workers.living() if worker.spec.get("placement") == placement)
        return next((lease.name for id in found if id and (lease := self._leases.find(id)) is not None), "")
