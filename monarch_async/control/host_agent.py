"""The host agent: one process per machine. Starts, watches and ends worker procs; routes; keeps each client's lease.

It never unpickles and never runs user code. What it is asked to do comes as msgpack requests:

    spawn [specs, preload, sys_path]   fork procs; answered when all are up, with what went wrong
    warm [preload, sys_path]           have a zygote ready; not answered
    stop [proc ids, reason, grace]     orderly; answered when all are gone
    kill [proc ids, signal, by]        at once
    host_lost, renewed, settle, ...    what becomes of hosts: see `host_news`
    leave []                           a client or observer says goodbye; not answered
    status []                          this host, its procs, their actors and calls in flight
    store [operation, id, ...]         shared objects: see `host_store`
    sync [operation, ...]              locks, queues and the like: see `host_coordination`
    upload [name, sizes, region, n]    a payload for n procs here, fetched once; answered with a segment: see `uploads`
    uploaded [name]                    the asker looks at it no longer; not answered
    reserve, free, lend, port          what placements hold here: see `reservations`
    lease_...                          procs that outlive their client: see `host_leases`

It is made of parts that know nothing of each other: `relay.Relay` (routes), `guests.Guests` (who dialled in),
`peers.Peers` (whom it dials), `workers.Workers`. When the agent ends, however it ends, its procs and everything they
started end too (see `zygote`).
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import msgpack

from monarch_async.bulk.endpoint import cluster_id
from monarch_async.bulk.plane import DataPlane
from monarch_async.config import Config
from monarch_async.control.guests import Guest, Guests
from monarch_async.control.host_coordination import HostCoordination
from monarch_async.control.host_leases import HostLeases
from monarch_async.control.host_news import HostNews
from monarch_async.control.host_store import HostStore
from monarch_async.control.inquiries import Inquiries
from monarch_async.control.peers import Peers
from monarch_async.control.refusal import pack_refusal
from monarch_async.control.relay import Relay
from monarch_async.control.reservations import Reservations
from monarch_async.control.uploads import Uploads
from monarch_async.control.worker import Exit, Worker
from monarch_async.control.workers import Workers
from monarch_async.errors import Closed, Error, HostLost, SpawnFailed
from monarch_async.ids import AGENT, address, agent_of, format_address, host_of, proc_of, random_id32
from monarch_async.runtime.proc import boot_time, resident_bytes
from monarch_async.scheduler.resources import Resources
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import CALL, CANCEL, CAST, CHUNK, CONTROL, CREDIT, EXITED, MSGPACK, REPLY, pack_frame

log = logging.getLogger("monarch_async.agent")

#: How long a proc may take to answer a request for its status before it is shown as blocked.
_STATUS_PATIENCE = 1.0


class HostAgent:
    """See the module. ``is_lifelined``: it was started by a client and shares its machine's clock and fate."""

    def __init__(
        self,
        name: str,
        token: bytes,
        config: Config,
        is_lifelined: bool = False,
        resources: Resources = Resources(),  # noqa: B008
    ) -> None:
        """Take guests through ``guests`` (see `transport.dial.listening`); nothing runs before.

        ``resources``: what there is to place on (see `inventory`).
        """
        self.name, self.config = name, config
        self.host = random_id32()
        self.address = address(self.host, 0)
        self.url = ""
        self._loop = asyncio.get_running_loop()
        clock = time.monotonic if is_lifelined else boot_time
        self.relay = Relay(self.host, self)
        cluster = cluster_id(token)
        self.plane = DataPlane(config)
        self.tls = self.plane.tls
        self.plane.identify(cluster, self.address, f"the agent of {name}", "")
        self.workers = Workers(self.relay, name, cluster, config, is_lifelined)
        self.guests = Guests(self.relay, name, self.address, config, clock, self._joined, self._expired, self._frozen)
        self.guests.introduction["resources"] = resources.pack()
        self._tasks: set[asyncio.Task[None]] = set()
        self.inquiries = Inquiries(self.address, self._find)
        self.news = HostNews(self.guests, self.inquiries, self.workers, self.answer, self._start_task)
        where, lost = self.news.where, self._peer_lost
        self._peers = self.news.peers = Peers(self.relay, name, self.address, token, config, lost, where, self.tls)
        self.relay.find_peer, self.relay.seek_peer = self._find_peer, self._peers.seek
        self.store = HostStore(self.address, self, self.inquiries, self.plane, config)
        self.uploads = Uploads(self.plane)
        self.coordination = HostCoordination(self.relay, self.workers, self.answer, self.inquiries, self.store)
        self.reservations = Reservations(resources, self.workers, self.answer, self.inquiries.post)
        self.leases = HostLeases(
            self.workers, self.guests, self.reservations, self.answer, self._start_task, clock, is_lifelined
        )
        self.news.remembered = self.leases.where
        #: Requests to the agent's parts, by operation: called with (src, call, *arguments). See `answer`.
        self.operations: dict[str, Callable[..., None]] = {
            "store": self.store.take,
            "sync": self.coordination.take,
            **self.reservations.operations,
            **self.news.operations,
            **self.leases.operations,
        }
        #: Told the address of every proc and client that has ended, here and on other hosts, and of lost hosts' agents.
        self.on_gone: list[Callable[[int], None]] = [self.coordination.gone]
        self.workers.on_gone = self._worker_gone
        self._tick_handle = self._loop.call_later(config.heartbeat / 2, self._tick)

    def _tick(self) -> None:
        """Twice a heartbeat: who was heard, whose lease has run out, and word to all that this end lives."""
        self._tick_handle = self._loop.call_later(self.config.heartbeat / 2, self._tick)
        self.guests.tick()
        self._peers.tick()
        self.workers.renew_leases()

    def _find(self, dst: int) -> Connection | None:
        """Return the way of this agent's own requests: always the same one to one host, so that they come in order."""
        if host_of(dst) != self.host and proc_of(dst) == AGENT:
            return self._peers.seek(host_of(dst))
        return self.relay.find(dst)

    def _find_peer(self, host: int) -> Connection | None:
        """An agent that has dialled us is answered on our own session to it, so that each way is one path (R1)."""
        is_guest = address(host, AGENT) in self.relay.routes
        return self._peers.seek(host) if is_guest else self._peers.find(host)

    def is_near(self, address: int) -> bool:
        """Return whether a proc or client is on this machine, as far as its connection shows."""
        route = self.relay.routes.get(address)
        return route is not None and route.address == address and route.link is None

    # -- guests ----------------------------------------------------------------------------------------------------

    def _joined(self, guest: Guest) -> None:
        if guest.came_to:
            self.workers.bulk_host = guest.came_to
            self.plane.reach_by(guest.came_to)
        self.relay.routes[guest.connection.address] = guest.connection
        if guest.role == "client":
            self.reservations.joined(guest.connection.address)

    def _expired(self, guest: Guest, why: str) -> None:
        """A client or peer is gone for good: its procs go with it."""
        client = guest.connection
        self.leases.left(guest, why)
        mine = [worker for worker in self.workers.living() if worker.root == client.address]
        log.info("%s left (%s): ending %d procs", client.name, why, len(mine))
        self.workers.kill(mine, signal.SIGKILL, f"the agent: {client.name} is gone, {why}")
        self.workers.forget_client(client.address, guest.may_return(why))
        self.reservations.left(client.address)
        gone = Exit.host_lost(client.address, client.name, why)
        for other in self.relay.forget(client.address):
            self.workers.send_exit(other, gone)
        self.relay.forget_connection(client)
        self.store.gone(client.address, may_live=True)
        self._tell_gone(client.address)
        self._peers.lose(host_of(client.address), f"its agent, our guest, is gone: {why}")
        error = HostLost(client.name, why)
        if guest.role == "agent":
            self._host_lost(client.address, error)
        else:
            self.inquiries.lose(agent_of(client.address), error)

    def _frozen(self, why: str) -> None:
        self.leases.fence(why)
        self.news.was_frozen(why)

    def connection_down(self, connection: Connection, error: Exception | None) -> None:
        """A socket broke (`relay.Desk`)."""
        if error is not None and not isinstance(error, OSError):
            log.warning("closed the connection to %s: %s", connection.name, error)
        _ = (
            self._peers.connection_down(connection, error)
            or self.guests.connection_down(connection)
            or self.workers.connection_down(connection)
        )

    def _peer_lost(self, connection: Connection, name: str, reason: str) -> None:
        """A host is gone, seen from here: everyone here who sent there must know.

        So must the other side, as what it waits for from here may be lost: its session to us is given up too.
        """
        host = host_of(connection.address)
        exit = Exit.host_lost(connection.address, name, reason)
        for other in {id(c): c for c in self.relay.routes.values()}.values():
            there = {dst for dst in other.sent_to if host_of(dst) == host}
            if there:
                other.sent_to -= there
                self.workers.send_exit(other, exit)
        self.relay.forget_connection(connection)
        self.guests.leave(connection.address, f"its host was given up: {reason}")
        self._host_lost(address(host, AGENT), HostLost(name, reason))

    def _host_lost(self, agent: int, error: HostLost) -> None:
        self.inquiries.lose(agent, error)
        self.workers.kill_owned_from(host_of(agent))
        self.store.host_lost(agent)
        self._tell_gone(agent)

    # -- requests --------------------------------------------------------------------------------------------------

    def take_control(self, connection: Connection, src: int, call: int, payload: bytes) -> None:
        """Take one request (`relay.Desk`)."""
        try:
            operation, *arguments = msgpack.unpackb(payload, strict_map_key=False)
            self._perform(src, call, operation, arguments)
        except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
            log.warning("bad request from %s: %r", connection.name, error)
            self.answer(src, call, {"error": f"bad request: {error!r}"})

    def _perform(self, src: int, call: int, operation: str, arguments: list[Any]) -> None:
        match operation:
            case "up":
                self.workers.up(proc_of(src))
            case "leave":
                self.guests.leave(src)
            case "spawn":
                specs, preload, sys_path = arguments
                if ended := self.reservations.find_ended(specs):
                    self.answer(src, call, ended)
                    return
                if refused := self.leases.prepare(src, specs):
                    self.answer(src, call, pack_refusal(refused))
                    return
                self.workers.spawn(src, specs, tuple(preload), sys_path, lambda value: self.answer(src, call, value))
            case "warm":
                self._start_task(self._warm(*arguments))
            case "stop" | "kill" if refused := self.leases.why_not(src, arguments[0]):
                self.answer(src, call, pack_refusal(refused))
            case "stop":
                self._start_task(self._stop(src, call, *arguments))
            case "kill":
                ids, signo, by = arguments
                self.workers.kill(self.workers.find(ids), signo, by)
                self.answer(src, call, None)
            case "upload":
                self._start_task(self._upload(src, call, *arguments))
            case "uploaded":
                self.uploads.release(src, *arguments)
            case "status":
                self._start_task(self._status(src, call))
            case _ if operation in self.operations:
                self.operations[operation](src, call, *arguments)
            case _:
                self.answer(src, call, {"error": f"unknown request {operation!r}"})

    async def _upload(self, src: int, call: int, *upload: Any) -> None:
        try:
            self.answer(src, call, await self.uploads.open(src, *upload))
        except Error as error:
            self.answer(src, call, {"error": str(error)})

    def _worker_gone(self, proc: int) -> None:
        self.store.gone(proc)
        self.uploads.forget(proc)
        self._tell_gone(proc)

    def _tell_gone(self, address: int) -> None:
        for told in self.on_gone:
            told(address)

    async def _warm(self, preload: list[str], sys_path: list[str]) -> None:
        with contextlib.suppress(SpawnFailed, Closed):  # who spawns is told
            await self.workers.nursery.start_zygote(tuple(preload), sys_path)

    async def _stop(self, src: int, call: int, ids: list[int], reason: str, grace: float) -> None:
        await self.workers.stop(ids, reason, grace)
        self.answer(src, call, None)

    def answer(self, dst: int, call: int, value: object) -> None:
        """Answer a request, where one is wanted and who asked is still to be found."""
        route = self.relay.find(dst)
        if route is not None and call:
            route.send(pack_frame(REPLY, MSGPACK, dst, self.address, call, 0, b"", msgpack.packb(value)))

    def _start_task(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the rest of relay.Desk ------------------------------------------------------------------------------------

    def take_failure(self, src: int, owner_actor: int, rank: int, about: bytes, report: bytes) -> None:
        """An actor of a detached proc has failed."""
        self.leases.take_failure(src, owner_actor, rank, about, report)

    def take_exit(self, payload: bytes, proc: int) -> None:
        """A peer tells that a proc of its own ended: pass it to those here who sent to it; end what it spawned here."""
        for connection in self.relay.forget(proc):
            connection.send_run([pack_frame(EXITED, 0, connection.address, self.address, 0, proc, b"", payload)])
        self.workers.kill_owned_by(proc)
        self._tell_gone(proc)

    def take_undeliverable(self, connection: Connection, dst: int, kind: int) -> None:
        """Nobody here has that address: answer with its death."""
        if kind not in (CALL, CAST, CHUNK, CANCEL, CREDIT, CONTROL):
            return
        if host_of(dst) == self.host:
            exit = self.workers.exit_of(dst)
        else:
            name = f"{host_of(dst):08x}"
            exit = Exit.host_lost(agent_of(dst), name, f"{self.name} knows no such host or program: it may have ended")
        self.workers.send_exit(connection, exit)

    def take_reply(self, call: int, payload: bytes) -> None:
        """A proc answers the agent itself."""
        self.inquiries.take(call, payload)

    # -- introspection ---------------------------------------------------------------------------------------------

    async def _status(self, src: int, call: int) -> None:
        rows = await asyncio.gather(*[self._status_of(worker) for worker in self.workers.living()])
        self.answer(
            src,
            call,
            {
                "name": self.name,
                "url": self.url,
                "pid": os.getpid(),
                "load": os.getloadavg()[0],
                "cpus": os.cpu_count(),
                "guests": self.guests.facts(),
                "window": self.guests.window,
                "procs": rows,
                **self.reservations.facts(self._name_of),
                "store": self.store.facts(),
                "leases": self.leases.facts(),
                "holders": [(self._name_of(who), who, *share) for who, *share in self.store.holders()],
            },
        )

    def _name_of(self, address: int) -> str:
        """Return the name of a proc or client; that of another host for its agent."""
        route = self.relay.routes.get(address)
        return route.name if route is not None else format_address(address)

    async def _status_of(self, worker: Worker) -> dict[str, Any]:
        """Ask the proc itself; one that does not answer in time has a blocked loop."""
        row: dict[str, Any] = {
            "mesh": worker.spec["mesh"],
            "rank": worker.spec["rank"],
            "pid": worker.pid,
            "address": worker.address,
            "state": "up" if worker.is_up else "starting",
            "rss": resident_bytes(worker.pid) if worker.pid else 0,
        }
        asked = self.inquiries.ask(worker.address, "status")
        try:
            async with asyncio.timeout(_STATUS_PATIENCE):
                row.update(await asked)
        except (TimeoutError, Error):
            row["state"] = "blocked" if worker.is_up else "starting"
        return row

    # -- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End every proc, then the connections. Closing twice is fine."""
        self._tick_handle.cancel()
        self.news.say_ending(self.address)
        await self.workers.aclose()
        self.news.say_end(self.address)
        await self._peers.aclose()
        self.guests.close()
        await self.coordination.aclose()
        await self.store.aclose()
        self.uploads.close()
        await self.plane.aclose()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
