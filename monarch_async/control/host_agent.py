"""The host agent: one process per machine. Starts, watches and ends worker procs; routes; keeps each client's lease.

It never unpickles and never runs user code. What it is asked to do comes as msgpack requests:

    spawn [specs, preload, sys_path]   fork procs; answered when all are up, or with what went wrong
    stop [proc ids, reason, grace]     orderly: teardown hooks, then TERM, then KILL; answered when all are gone
    kill [proc ids, signal, by]        at once
    peers [{host id: url}]             where the other agents are
    status []                          this host, its procs, their actors and calls in flight

A1. A client that is not heard for longer than ``resume_window`` loses its procs: its lease has run out. An agent that was
    frozen for so long finds out by its own clock when it thaws, before it reads anything.
A2. A proc's death is told after everything it sent, and after everything it printed.
A3. When the agent ends, however it ends, its procs and everything they started end too (see `zygote`).
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from monarch_async.config import Config
from monarch_async.control.nursery import Nursery
from monarch_async.control.output import Output
from monarch_async.control.relay import Relay
from monarch_async.control.worker import Exit, Worker, oom_kills
from monarch_async.errors import Closed, HandshakeRefused, LinkBroken, SpawnFailed
from monarch_async.ids import address, host_of, proc_of, random_id32
from monarch_async.runtime.proc import boot_time
from monarch_async.transport.connection import Connection
from monarch_async.transport.dial import Url
from monarch_async.transport.session import Session
from monarch_async.wire.auth import Agreed
from monarch_async.wire.frame import (
    CALL,
    CANCEL,
    CHUNK,
    CONTROL,
    CREDIT,
    EXITED,
    LEASE,
    LOG,
    MSGPACK,
    REPLY,
    pack_frame,
)
from monarch_async.wire.link import Link

log = logging.getLogger("monarch_async.agent")


class Guest:
    """A client or another agent that dialled in: its session, and when it was last heard."""

    __slots__ = ("connection", "heard_at", "is_client", "session")

    def __init__(self, session: bytes, connection: Connection, is_client: bool, now: float) -> None:
        """It has just been heard."""
        self.session, self.connection, self.is_client, self.heard_at = session, connection, is_client, now


class HostAgent:
    """See the module. ``is_lifelined``: it was started by a client and shares its machine's clock and fate."""

    def __init__(self, name: str, token: bytes, config: Config, is_lifelined: bool = False) -> None:
        """Nothing runs before `accept` and `start`."""
        self.name, self.token, self.config, self.is_lifelined = name, token, config, is_lifelined
        self.host = random_id32()
        self.address = address(self.host, 0)
        self.relay = Relay(self.host, self, self._find_peer)
        self.workers: dict[int, Worker] = {}
        self.url = ""
        self._loop = asyncio.get_running_loop()
        self._clock = time.monotonic if is_lifelined else boot_time
        self._nursery = Nursery(self._started, self._refused, self._exited, config.stop_grace, name)
        self._exits: dict[int, Exit] = {}
        self._guests: dict[bytes, Guest] = {}
        self._admitted: tuple[dict[str, Any], Guest | None] | None = None
        self._peer_urls: dict[int, str] = {}
        self._peers: dict[int, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._status_waits: dict[int, asyncio.Future[Any]] = {}
        self._next_call = 1
        self._oom_kills = oom_kills()
        self._tick_handle = self._loop.call_later(config.heartbeat / 2, self._tick)
        self._is_closing = False

    async def start(self, preload: Sequence[str] = ()) -> None:
        """Warm the zygote for ``preload``. Raises SpawnFailed."""
        await self._nursery.start_zygote(tuple(preload))

    # -- who dials in ----------------------------------------------------------------------------------------------

    def admit(self, info: bytes) -> bytes:
        """Answer an authenticated dialer's introduction; raises HandshakeRefused."""
        try:
            who = msgpack.unpackb(info)
            session, received = bytes(who["session"]), who.get("received")
            who = {"role": str(who["role"]), "address": int(who["address"]), "name": str(who["name"]), "session": session}
        except (KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise HandshakeRefused(f"unreadable introduction: {error!r}") from error
        guest = self._guests.get(session)
        if received is not None and guest is None:
            raise HandshakeRefused("no such session: its lease has run out, or this agent was restarted")
        answer = {"role": "agent", "name": self.name, "address": self.address, "pid": os.getpid()}
        if guest is not None:
            assert guest.connection.link is not None
            guest.connection.drop()
            guest.connection.link.down(self._clock())
            answer["received"] = guest.connection.link.received_count
        who["received"] = received
        self._admitted = who, guest
        return msgpack.packb(answer)

    def agreed(self, wire: asyncio.Transport, agreed: Agreed) -> None:
        """Take over a socket whose handshake `admit` has just passed."""
        assert self._admitted is not None
        (who, guest), self._admitted = self._admitted, None
        now = self._clock()
        if guest is not None:
            link = guest.connection.link
            assert link is not None
            try:
                replay = link.resume(who["received"], now)
            except LinkBroken as error:
                log.warning("%s", error)
                wire.abort()
                return
            guest.heard_at = now
            guest.connection.attach(wire, agreed.leftover, replay)
            return
        sock = wire.get_extra_info("socket")
        link = None if sock is not None and sock.family == socket.AF_UNIX else Link(peer=who["name"])
        connection = Connection(self.relay, who["name"], who["address"], link, self.config.max_frame)
        self._guests[who["session"]] = Guest(who["session"], connection, who["role"] == "client", now)
        self.relay.routes[who["address"]] = connection
        log.info("%s %s joined", who["role"], who["name"])
        connection.attach(wire, agreed.leftover)

    def refused(self, who: str, error: HandshakeRefused) -> None:
        """Log who was not let in, and why."""
        log.warning("refused a connection from %s: %s", who, error.reason)

    def connection_down(self, connection: Connection, error: Exception | None) -> None:
        """A socket broke: a worker's (its exit follows), a client's or a peer's (it may resume)."""
        if error is not None and not isinstance(error, OSError):
            log.warning("closed the connection to %s: %s", connection.name, error)
        for session in self._peers.values():
            if session.connection is connection:
                session.went_down(error)
                return
        for guest in list(self._guests.values()):
            if guest.connection is connection:
                if connection.link is None or connection.is_closed:
                    self._expire(guest, "its connection closed")
                else:
                    connection.link.down(self._clock())
                return
        worker = self.workers.get(proc_of(connection.address)) if host_of(connection.address) == self.host else None
        if worker is not None and worker.connection is connection:
            worker.is_connected = False
            self._finish_if_gone(worker)

    # -- leases ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Twice a heartbeat: who was heard, whose lease has run out, and word to all that this end lives."""
        self._tick_handle = self._loop.call_later(self.config.heartbeat / 2, self._tick)
        now = self._clock()
        for guest in list(self._guests.values()):
            # The order matters (A1): after a freeze the bytes that wait in the socket are newer than the lease.
            if now - guest.heard_at > self.config.resume_window:
                self._expire(guest, f"not heard for {now - guest.heard_at:.1f} s")
            elif guest.connection.was_heard:
                guest.connection.was_heard = False
                guest.heard_at = now
            if guest.connection.wire is not None:
                guest.connection.ping()
        for session in list(self._peers.values()):
            session.tick()
        lease = pack_frame(LEASE, 0, 0, self.address, 0, 0)
        for worker in self.workers.values():
            worker.connection.send(lease)

    def _expire(self, guest: Guest, why: str) -> None:
        """A client or peer is gone for good: its procs go with it."""
        del self._guests[guest.session]
        connection = guest.connection
        connection.close()
        mine = [w for w in self.workers.values() if w.root == connection.address]
        log.info("%s left (%s): ending %d procs", connection.name, why, len(mine))
        self._kill(mine, signal.SIGKILL, f"the agent: client {connection.name} is gone, {why}")
        self.relay.forget(connection.address)
        self.relay.forget_connection(connection)

    # -- requests --------------------------------------------------------------------------------------------------

    def take_control(self, connection: Connection, src: int, call: int, payload: bytes) -> None:
        """Take one request (`relay.Desk`)."""
        try:
            operation, *arguments = msgpack.unpackb(payload, strict_map_key=False)
            match operation:
                case "up":
                    self._up(proc_of(src))
                case "spawn":
                    self._spawn(src, call, *arguments)
                case "warm":
                    self._start_task(self._warm(*arguments))
                case "stop":
                    self._start_task(self._stop(src, call, *arguments))
                case "kill":
                    self._kill([self.workers[p] for p in arguments[0] if p in self.workers], *arguments[1:])
                    self._answer(src, call, None)
                case "peers":
                    self._peer_urls.update({host: url for host, url in arguments[0].items() if host != self.host})
                    self._answer(src, call, None)
                case "status":
                    self._start_task(self._status(src, call))
                case _:
                    self._answer_failed(src, call, f"unknown request {operation!r}")
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            log.warning("bad request from %s: %r", connection.name, error)
            self._answer_failed(src, call, f"bad request: {error!r}")

    def _answer(self, dst: int, call: int, value: object) -> None:
        route = self.relay.routes.get(dst) or self._find_peer(host_of(dst))
        if route is not None and call:
            route.send(pack_frame(REPLY, MSGPACK, dst, self.address, call, 0, b"", msgpack.packb(value)))

    def _answer_failed(self, dst: int, call: int, why: str) -> None:
        self._answer(dst, call, {"error": why})

    def _start_task(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _warm(self, preload: list[str], sys_path: list[str]) -> None:
        with contextlib.suppress(SpawnFailed, Closed):  # who spawns is told
            await self._nursery.start_zygote(tuple(preload), sys_path)

    # -- spawning --------------------------------------------------------------------------------------------------

    def _spawn(self, src: int, call: int, specs: list[dict[str, Any]], preload: list[str], sys_path: list[str]) -> None:
        """Fork all; the answer is sent by `_settle` once each is up, refused or gone."""
        taken = [spec["id"] for spec in specs if spec["id"] in self.workers]
        if taken:
            self._answer_failed(src, call, f"proc ids {taken} are taken on {self.name}")
            return
        batch = Batch(len(specs), lambda failures: self._answer(src, call, failures))
        for spec in specs:
            self._fork(src, spec, tuple(preload), sys_path, batch)

    def _fork(self, src: int, spec: dict[str, Any], preload: tuple[str, ...], sys_path: list[str], batch: "Batch") -> None:
        root = self._root_of(src)
        spec = {
            **spec,
            "address": address(self.host, spec["id"]),
            "host": self.name,
            "config": {name: getattr(self.config, name) for name in Config.__slots__},
            "is_lifelined": self.is_lifelined,
            "sys_path": sys_path,
            "root": root,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        connection = Connection(self.relay, f"{spec['mesh']}[{spec['rank']}]", spec["address"], None, self.config.max_frame)
        worker = Worker(spec, connection, src, root, batch)
        worker.output = Output(
            out_read,
            err_read,
            lambda stream, lines: self._forward_lines(worker, stream, lines),
            lambda: self._may_log(root),
            self.config.stderr_lines,
        )
        self.workers[spec["id"]] = worker
        self._exits.pop(spec["id"], None)
        self.relay.routes[worker.address] = connection
        self._start_task(self._connect(connection, ours))
        self._nursery.fork(spec, (theirs.detach(), out_write, err_write), preload, sys_path if preload else ())

    async def _connect(self, connection: Connection, ours: socket.socket) -> None:
        await self._loop.create_unix_connection(lambda: connection, sock=ours)

    def _root_of(self, src: int) -> int:
        """Return the client at the root of the tree of who spawned whom."""
        worker = self.workers.get(proc_of(src)) if host_of(src) == self.host else None
        return worker.root if worker is not None else src

    def _started(self, id: int, pid: int) -> None:
        worker = self.workers.get(id)
        if worker is not None:
            worker.pid = pid

    def _up(self, id: int) -> None:
        worker = self.workers.get(id)
        if worker is not None:
            worker.is_up = True
            worker.settle(None)

    def _refused(self, id: int, reason: str) -> None:
        worker = self.workers.pop(id, None)
        if worker is None:
            return
        self.relay.routes.pop(worker.address, None)
        assert worker.output is not None
        worker.output.drain()
        worker.connection.close()
        worker.settle(reason)
        self._tell_exit(worker, Exit.refused(worker, self.name, reason))

    # -- ending ----------------------------------------------------------------------------------------------------

    def _exited(self, id: int, pid: int, status: int) -> None:
        worker = self.workers.get(id)
        if worker is None:
            return
        worker.wait_status = status
        self._finish_if_gone(worker)
        if id in self.workers:  # its socket still has something to say; nobody else can hold it open for long
            self._loop.call_later(0.05, self._finish, worker)

    def _finish_if_gone(self, worker: Worker) -> None:
        if worker.wait_status is not None and not worker.is_connected:
            self._finish(worker)

    def _finish(self, worker: Worker) -> None:
        """A2: everything it sent was forwarded; take what it printed, then tell."""
        if self.workers.get(worker.id) is not worker:
            return
        assert worker.output is not None
        worker.output.drain()
        del self.workers[worker.id]
        worker.connection.close()
        kills, self._oom_kills = self._oom_kills, oom_kills()
        exit = Exit.of(worker, self.name, self._oom_kills > kills)
        worker.settle(f"{exit.why}" + "".join(f"\n  | {line}" for line in exit.stderr))
        worker.gone.set_result(None)
        self._tell_exit(worker, exit)

    def _tell_exit(self, worker: Worker, exit: Exit) -> None:
        self._exits[worker.id] = exit
        listeners = self.relay.forget(worker.address)
        for address_ in (worker.owner, worker.root):
            route = self.relay.routes.get(address_)
            if route is not None and route not in listeners:
                listeners.append(route)
        for connection in listeners:
            self._send_exit(connection, exit, worker.owner_actor if connection.address == worker.owner else 0)

    def _send_exit(self, connection: Connection, exit: Exit, owner_actor: int) -> None:
        frame = pack_frame(EXITED, 0, connection.address, self.address, owner_actor, exit.address, b"", exit.pack())
        connection.send(frame)

    def take_exit(self, payload: bytes, proc: int) -> None:
        """A peer tells that a proc of its own ended: pass it to those here who sent to it."""
        for connection in self.relay.forget(proc):
            connection.send(pack_frame(EXITED, 0, connection.address, self.address, 0, proc, b"", payload))

    def take_undeliverable(self, connection: Connection, dst: int, kind: int) -> None:
        """R3: answer with the death of ``dst`` (`relay.Desk`)."""
        if kind not in (CALL, CHUNK, CANCEL, CREDIT, CONTROL) or host_of(dst) != self.host:
            return
        exit = self._exits.get(proc_of(dst)) or Exit.unknown(dst, self.name)
        self._send_exit(connection, exit, 0)

    async def _stop(self, src: int, call: int, ids: list[int], reason: str, grace: float) -> None:
        workers = [self.workers[id] for id in ids if id in self.workers]
        for worker in workers:
            worker.killed_by = worker.killed_by or reason
            request = msgpack.packb(["shutdown", reason])
            worker.connection.send(pack_frame(CONTROL, 0, worker.address, self.address, 0, 0, b"", request))
        for signo in (signal.SIGTERM, signal.SIGKILL):
            alive = [worker.gone for worker in workers if not worker.gone.done()]
            if alive:
                await asyncio.wait(alive, timeout=grace)
            self._kill([worker for worker in workers if not worker.gone.done()], signo, reason)
        alive = [worker.gone for worker in workers if not worker.gone.done()]
        if alive:
            await asyncio.wait(alive)
        self._answer(src, call, None)

    def _kill(self, workers: Sequence[Worker], signo: int, by: str) -> None:
        for worker in workers:
            worker.killed_by = worker.killed_by or by
            self._nursery.signal(worker.id, signo)

    # -- output ----------------------------------------------------------------------------------------------------

    def _forward_lines(self, worker: Worker, stream: int, lines: list[bytes]) -> None:
        route = self.relay.routes.get(worker.root) or self._find_peer(host_of(worker.root))
        if route is not None:
            about = msgpack.packb([worker.spec["mesh"], worker.spec["rank"]])
            route.send(pack_frame(LOG, 0, worker.root, worker.address, stream, 0, about, b"\n".join(lines)))

    def _may_log(self, root: int) -> bool:
        route = self.relay.routes.get(root)
        return route is None or route.is_writable

    # -- peers -----------------------------------------------------------------------------------------------------

    def _find_peer(self, host: int) -> Connection | None:
        """Return the connection to another host's agent; the first use dials, and what is sent meanwhile waits."""
        session = self._peers.get(host)
        if session is not None:
            return session.connection
        url = self._peer_urls.get(host)
        if url is None or self._is_closing:
            return None
        info = {"role": "agent", "address": self.address, "name": self.name}
        session = Session(
            self.relay, Url.parse(url), self.token, info, self.config, self._peer_lost, address=address(host, 0)
        )
        self._peers[host] = session
        self._start_task(self._dial_peer(host, session))
        return session.connection

    async def _dial_peer(self, host: int, session: Session) -> None:
        try:
            await session.open()
        except (LinkBroken, HandshakeRefused) as error:
            self._peer_lost(session, f"{self.name} cannot reach it: {error}")

    def _peer_lost(self, session: Session, reason: str) -> None:
        """A host is gone, seen from here: everyone here who sent there must know."""
        host = host_of(session.connection.address)
        self._peers.pop(host, None)
        name = session.peer.get("name", f"{host:08x}")
        log.warning("lost the agent of %s: %s", name, reason)
        exit = Exit.host_lost(session.connection.address, name, reason)
        for connection in list(self.relay.routes.values()):
            if any(host_of(dst) == host for dst in connection.sent_to):
                connection.sent_to = {dst for dst in connection.sent_to if host_of(dst) != host}
                self._send_exit(connection, exit, 0)
        self.relay.forget_connection(session.connection)
        session.connection.close()

    # -- introspection ---------------------------------------------------------------------------------------------

    async def _status(self, src: int, call: int) -> None:
        rows = await asyncio.gather(*[self._status_of(worker) for worker in list(self.workers.values())])
        guests = [[g.connection.name, g.is_client, g.connection.wire is not None] for g in self._guests.values()]
        load = os.getloadavg()[0]
        self._answer(src, call, {
            "name": self.name, "url": self.url, "pid": os.getpid(), "load": load, "cpus": os.cpu_count(),
            "guests": guests, "procs": rows,
        })  # fmt: skip

    async def _status_of(self, worker: Worker) -> dict[str, Any]:
        """Ask the proc itself; one that does not answer within a second has a blocked loop."""
        row: dict[str, Any] = {"mesh": worker.spec["mesh"], "rank": worker.spec["rank"], "pid": worker.pid}
        row["address"] = worker.address
        row["state"] = "up" if worker.is_up else "starting"
        call, self._next_call = self._next_call, self._next_call + 1
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._status_waits[call] = answer
        request = msgpack.packb(["status"])
        worker.connection.send(pack_frame(CONTROL, 0, worker.address, self.address, 0, call, b"", request))
        try:
            async with asyncio.timeout(1.0):
                row.update(await answer)
        except TimeoutError:
            row["state"] = "blocked"
        finally:
            self._status_waits.pop(call, None)
        return row

    def take_reply(self, call: int, payload: bytes) -> None:
        """A proc answers the agent itself (`relay.Desk`)."""
        answer = self._status_waits.get(call)
        if answer is not None and not answer.done():
            answer.set_result(msgpack.unpackb(payload))

    # -- the end ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End every proc, then the connections. Closing twice is fine."""
        self._is_closing = True
        self._tick_handle.cancel()
        await self._nursery.aclose()
        for worker in list(self.workers.values()):
            self._finish(worker)
        for session in list(self._peers.values()):
            await session.aclose()
        for guest in list(self._guests.values()):
            guest.connection.close()
        self._guests.clear()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class Batch:
    """Several procs asked for in one request: answered once, when each is up or has failed."""

    __slots__ = ("_done", "_failures", "_left")

    def __init__(self, count: int, done: Callable[[dict[int, str]], None]) -> None:
        """``done`` gets proc id -> reason of those that failed."""
        self._left, self._done = count, done
        self._failures: dict[int, str] = {}

    def settle(self, id: int, reason: str | None) -> None:
        """One of them is up (None) or has failed."""
        self._left -= 1
        if reason is not None:
            self._failures[id] = reason
        if self._left == 0:
            self._done(self._failures)
