"""The client's side of the control plane: its hosts, requests to their agents, what they report.

The controller is on no message's path: calls go from the router to the agents directly. It keeps a session to every
agent, hands out proc ids, and passes on deaths, failures and log lines.
"""

import asyncio
import itertools
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from monarch_async.bulk.endpoint import cluster_id
from monarch_async.config import Config
from monarch_async.control.refusal import as_refusal, pack_refusal
from monarch_async.control.worker import Exit
from monarch_async.errors import Closed, Error, HostLost, Lost, WireError
from monarch_async.ids import address, host_of, random_id32
from monarch_async.runtime.call import Call
from monarch_async.runtime.router import Router
from monarch_async.scheduler.resources import Resources
from monarch_async.transport.connection import Connection
from monarch_async.transport.session import Session
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url
from monarch_async.wire.frame import CONTROL, EXITED, FAILURE, LOG, MSGPACK, REPLY, pack_frame

#: How long the news of an agent's exit may take after its connection has closed.
_OBITUARY = 0.1


@dataclass(frozen=True, slots=True)
class Host:
    """One host as every proc knows it: its id, its name, where its agent listens, what it has to place on."""

    id: int
    name: str
    url: str
    resources: Resources = field(default=Resources(), compare=False)


class ProcIds:
    """Counts proc ids from a random start, so that two spawners on one host do not meet."""

    def __init__(self) -> None:
        """Start anywhere in the low 31 bits."""
        self._next = itertools.count(random_id32())

    def take(self) -> int:
        """Return an id no proc of ours has; never 0, which is the agent."""
        return next(self._next) & 0x7FFF_FFFF or self.take()


class Requests:
    """Msgpack requests to agents and procs, over a router. What a worker and a client have in common."""

    def __init__(self, router: Router) -> None:
        """Send through ``router``."""
        self._router, self.own = router, router.address

    def call(self, dst: int, operation: str, *arguments: object) -> "Call[bytes]":
        """Send one request now; return the future of its answer, for `read_answer`."""
        router = self._router
        call: Call[bytes] = Call(router, f"request {operation}", router.path(dst, 0))
        call.id = router.control(dst, msgpack.packb([operation, *arguments]), call)
        return call

    def send(self, dst: int, operation: str, *arguments: object) -> Awaitable[Any]:
        """Send one request now; await the answer. Raises Lost where the asked one is gone, Error where it refuses."""
        return _answer(self.call(dst, operation, *arguments))

    def post(self, dst: int, operation: str, *arguments: object) -> None:
        """Send a request whose answer nobody needs."""
        payload = msgpack.packb([operation, *arguments])
        self._router.uplink(dst).send(pack_frame(CONTROL, 0, dst, self._router.address, 0, 0, b"", payload))

    async def ask(self, dst: int, operation: str, *arguments: object) -> Any:
        """Send one request and wait for its answer."""
        return await self.send(dst, operation, *arguments)


async def _answer(call: "Call[bytes]") -> Any:
    return read_answer(await call)


def read_answer(data: bytes) -> Any:
    """Return what an answer says. Raises the Error that it is."""
    answer = msgpack.unpackb(data, strict_map_key=False)
    if (error := as_refusal(answer)) is not None:
        raise error
    return answer


class Controller:
    """A client's connection to its cluster. One per program; meshes find its router by `active_router`."""

    def __init__(self, config: Config, name: str, role: str = "client", tls: ssl.SSLContext | None = None) -> None:
        """Belong to the running loop. ``role`` is client, or observer: one that only looks.

        ``tls`` dials ``tls://`` addresses, instead of what ``config`` says.
        """
        self.config, self.name, self.role = config, name, role
        self._loop = asyncio.get_running_loop()
        self.address = address(random_id32(), 1)
        self.router = Router(self.address, config, name)
        self.tls = self.router.plane.tls = Tls(config, tls)
        self.requests = Requests(self.router)
        self.hosts: dict[int, Host] = {}
        self._sessions: dict[int, Session] = {}
        self._tick_handle = self._loop.call_later(config.heartbeat / 2, self._tick)
        self.on_exit: Callable[[Exit, int, int], None] = lambda *_: None
        self.watched: set[int] = set()  #: hosts whose agent's exit is told by `declare_lost`, with its cause
        self.on_host_lost: Callable[[Host], None] = lambda _: None
        #: Of an actor that was spawned from here: (its id, its rank, whether callers know, report).
        self.on_failure: Callable[[int, int, bool, bytes], None] = lambda *_: None
        self.on_lines: Callable[[str, int, int, bytes], None] = lambda *_: None
        #: What agents and procs may ask of the client, by operation: called with (src, call, *arguments). See `answer`.
        self.operations: dict[str, Callable[..., None]] = {}
        #: Told the exit of every proc and host that concerns this client, before its owners are.
        self.on_gone: list[Callable[[Exit], None]] = []
        self.router.direct.ask = lambda dst: self.requests.ask(dst, "direct")
        self.router.direct.is_here = self.router.outgoing.is_near = self._is_here
        self.router.on_other = self._take
        self.router.on_down = self._down

    async def join(self, url: str, token: bytes) -> Host:
        """Open a session to the agent at ``url``. Raises LinkBroken, HandshakeRefused or ValueError."""
        info = {"role": self.role, "address": self.address, "name": self.name}
        parsed = Url.parse(url)
        self.tls.check(parsed)
        session = Session(self.router, parsed, token, info, self.config, self._lost, self.tls)
        try:
            await session.open()
        except BaseException:
            await session.aclose()
            raise
        resources = Resources.unpack(session.peer["resources"])
        host = Host(host_of(session.peer["address"]), session.peer["name"], url, resources)
        if host.id in self._sessions:
            await session.aclose()
            raise ValueError(f"{url} and {self.hosts[host.id].url} are the same host agent")
        self._sessions[host.id] = session
        if not self.hosts:
            self.router.plane.identify(cluster_id(token), self.address, self.name, session.local_host)
        self.hosts[host.id] = host
        self.router.add_uplink(host.id, session.connection)
        return host

    def _is_here(self, host: int) -> bool:
        """A host that is reached through a unix socket is this machine."""
        found = self.hosts.get(host)
        return found is not None and found.url.startswith("unix:")

    async def introduce(self) -> None:
        """Tell every agent where the others are."""
        known = {host.id: (host.name, host.url) for host in self.hosts.values()}
        await asyncio.gather(*[self.requests.ask(address(id, 0), "peers", known) for id in known])

    async def leave(self, host: Host) -> None:
        """Close the session to a host; its procs of ours end."""
        session = self._sessions.pop(host.id, None)
        if session is not None:
            self.requests.post(address(host.id, 0), "leave")
        self.hosts.pop(host.id, None)
        self.router.remove_uplink(host.id)
        if session is not None:
            await session.aclose()

    def declare_lost(self, host: Host, reason: str) -> None:
        """The agent's process is known dead: no need to wait for the window."""
        session = self._sessions.get(host.id)
        if session is not None:
            session.lose(reason)

    async def aclose(self) -> None:
        """Leave every host. Closing twice is fine."""
        self._tick_handle.cancel()
        await self.router.direct.aclose()
        self.router.close(Closed(self.name, "it has left its hosts"))
        await self.router.plane.aclose()
        for host in list(self.hosts.values()):
            await self.leave(host)

    # -- what agents report ----------------------------------------------------------------------------------------

    def _take(self, kind: int, flags: int, src: int, target: int, call: int, control: bytes, payload: bytes) -> None:
        if kind == LOG:
            mesh, rank = msgpack.unpackb(control)
            self.on_lines(mesh, rank, target, payload)
        elif kind == EXITED:
            exit = Exit.unpack(payload)
            self.router.direct.when_drained(exit.address, lambda: self._exited(exit, target))
        elif kind == FAILURE:
            actor, is_delivered = msgpack.unpackb(control)
            self.on_failure(actor, call, is_delivered, payload)
        elif kind == CONTROL:
            self._take_request(src, call, payload)

    def _take_request(self, src: int, call: int, payload: bytes) -> None:
        operation, *arguments = msgpack.unpackb(payload, strict_map_key=False)
        try:
            self.operations[operation](src, call, *arguments)
        except Error as error:
            self.answer(src, call, pack_refusal(error))
        except KeyError:
            self.answer(src, call, {"error": f"{self.name} knows no request {operation!r}"})

    def answer(self, dst: int, call: int, value: object) -> None:
        """Answer a request of an agent or proc; ``value`` as msgpack (an Error: by `pack_refusal`)."""
        if call and not self.router.is_closed:
            frame = pack_frame(REPLY, MSGPACK, dst, self.address, call, 0, b"", msgpack.packb(value))
            self.router.uplink(dst).send(frame)

    def _exited(self, exit: Exit, owner_actor: int) -> None:
        for told in self.on_gone:
            told(exit)
        count = lose(self.router, exit)
        self.on_exit(exit, owner_actor, count)

    def _down(self, connection: Connection, error: Exception | None) -> None:
        for host, session in list(self._sessions.items()):
            if session.connection is connection:
                if host in self.watched and not isinstance(error, WireError):
                    self._loop.call_later(_OBITUARY, session.went_down, error)
                else:
                    session.went_down(error)

    def _lost(self, session: Session, reason: str) -> None:
        host = next((h for h in self.hosts.values() if self._sessions.get(h.id) is session), None)
        if host is not None:
            del self._sessions[host.id]
            del self.hosts[host.id]
            self.on_host_lost(host)
            exit = Exit.host_lost(address(host.id, 0), host.name, reason)
            for told in self.on_gone:
                told(exit)
            self.on_exit(exit, 0, self.router.lose_host(host.id, exit.as_error()))

    def _tick(self) -> None:
        self._tick_handle = self._loop.call_later(self.config.heartbeat / 2, self._tick)
        for session in list(self._sessions.values()):
            session.tick()


def lose(router: Router, exit: Exit) -> int:
    """Fail every pending call to a proc, or to a whole host, that has ended; return how many."""
    error: Lost = exit.as_error()
    if isinstance(error, HostLost):
        host = host_of(exit.address)
        return router.lose(lambda dst: host_of(dst) == host, error)
    return router.lose(lambda dst: dst == exit.address, error)


def default_name() -> str:
    """Return what a client calls itself: program and pid."""
    return f"client {os.getpid()}"
