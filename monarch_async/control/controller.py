"""The client's side of the control plane: its hosts, requests to their agents, what they report.

The controller is on no message's path: calls go from the router to the agents directly. It keeps a session to every
agent, hands out proc ids, and passes on deaths, failures and log lines.
"""

import asyncio
import itertools
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

import msgpack

from monarch_async.bulk.endpoint import cluster_id
from monarch_async.config import Config
from monarch_async.control.directory import Directory
from monarch_async.control.host import Host
from monarch_async.control.host_links import HostLink, HostLinks
from monarch_async.control.refusal import as_refusal, pack_refusal
from monarch_async.control.worker import Exit
from monarch_async.errors import Closed, Error, HostLost, Lost
from monarch_async.ids import AGENT, address, format_address, host_of, random_id32
from monarch_async.runtime.call import Call
from monarch_async.runtime.router import Router
from monarch_async.transport.tls import Tls
from monarch_async.wire.frame import CONTROL, EXITED, FAILURE, LOG, MSGPACK, REPLY, pack_frame

log = logging.getLogger("monarch_async")


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
        return Answer(self.call(dst, operation, *arguments))

    def post(self, dst: int, operation: str, *arguments: object) -> None:
        """Send a request whose answer nobody needs."""
        payload = msgpack.packb([operation, *arguments])
        self._router.uplink(dst).send(pack_frame(CONTROL, 0, dst, self._router.address, 0, 0, b"", payload))

    async def ask(self, dst: int, operation: str, *arguments: object) -> Any:
        """Send one request and wait for its answer."""
        return await self.send(dst, operation, *arguments)


class Answer:
    """That of one request, to be awaited. Who sent it may end before he does so: then nobody looks at it."""

    __slots__ = ("_call",)

    def __init__(self, call: "Call[bytes]") -> None:
        self._call = call

    def __await__(self) -> Generator[Any, None, Any]:
        return read_answer((yield from self._call.__await__()))


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
        info = {"role": role, "address": self.address, "name": name}
        self.links = HostLinks(config, self.router, info, self.tls)
        self.links.on_lost, self.links.make_ready = self._lost, self._make_ready
        self.links.say_goodbye = lambda host: self.requests.post(address(host.id, AGENT), "leave")
        self.directory = Directory(self.links.members, lambda agent, *news: self.requests.post(agent, *news))
        self.links.listeners.append(self.directory.take)
        self.on_exit: Callable[[Exit, int, int], None] = lambda *_: None
        #: Whether a death was told before, and what died has been made anew since: see `Domain.is_old`.
        self.is_old: Callable[[Exit], bool] = lambda _: False
        self.on_host_lost: Callable[[Host], None] = lambda _: None
        #: Of an actor that was spawned from here: (its id, its rank, whether callers know, report).
        self.on_failure: Callable[[int, int, bool, bytes], None] = lambda *_: None
        self.on_lines: Callable[[str, int, int, bytes], None] = lambda *_: None
        #: What agents and procs may ask of the client, by operation: called with (src, call, *arguments). See `answer`.
        self.operations: dict[str, Callable[..., None]] = {
            "where": self._where,
            "ending": self._ending,
            "ended": self._ended,
        }
        #: Told the exit of every proc and host that concerns this client, before its owners are.
        self.on_gone: list[Callable[[Exit], None]] = []
        self.router.direct.ask = lambda dst: self.requests.ask(dst, "direct")
        self.router.direct.is_here = self.router.outgoing.is_near = self._is_here
        self.router.on_other = self._take
        self._is_identified = False
        self.router.on_down = self.links.went_down

    @property
    def hosts(self) -> dict[int, Host]:
        """The hosts that live, by id."""
        return self.links.hosts

    async def join(self, url: str, token: bytes) -> Host:
        """Open a session to the agent at ``url``; wait until it is up. Raises as `join_all`."""
        (host,) = await self.join_all([url], token)
        return host

    async def join_all(self, urls: Sequence[str], token: bytes) -> list[Host]:
        """Open sessions to the agents at ``urls``; return them in this order, once all are up.

        Raises LinkBroken, HandshakeRefused, ValueError, or HostLost where one is lost before; then none has joined.
        """
        links = await self.links.join_all(urls, token)
        if not self._is_identified:
            self._is_identified = True
            self.router.plane.identify(cluster_id(token), self.address, self.name, links[0].session.local_host)
        return [link.host for link in links]

    @property
    def own_address(self) -> str:
        """By what other machines reach this one, as far as its sockets show; empty where they show nothing."""
        return next((link.own_address for link in self.links if link.own_address), "")

    def _is_here(self, host: int) -> bool:
        """A host that is reached through a unix socket is this machine."""
        found = self.hosts.get(host)
        return found is not None and found.url.startswith("unix:")

    async def leave(self, host: Host, why: str = "it has left this program") -> None:
        """Close the session to a host; its procs of ours end."""
        await self.links.leave(host, why)

    async def _make_ready(self, link: HostLink, had_life: bool) -> None:
        """A host that comes back is ready when nothing of the old life is left there, or on the way there."""
        if had_life:
            id = link.host.id
            renewals = [
                self.requests.ask(agent, "renewed", id, link.epoch) for agent in self.directory.askers(id)
            ]
            settled = self.requests.ask(address(id, AGENT), "settle")
            outcomes = await asyncio.gather(settled, *renewals, return_exceptions=True)
            if isinstance(outcomes[0], BaseException):
                raise outcomes[0]

    async def aclose(self) -> None:
        """Leave every host. Closing twice is fine."""
        await self.router.direct.aclose()
        self.router.close(Closed(self.name, "it has left its hosts"))
        await self.router.plane.aclose()
        await self.links.aclose()

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
        take = self.operations.get(operation)
        if take is None:
            self.answer(src, call, {"error": f"{self.name} knows no request {operation!r}"})
            return
        try:
            take(src, call, *arguments)
        except Error as error:
            self.answer(src, call, pack_refusal(error))
        except (ValueError, TypeError, LookupError) as error:  # else it is what breaks the connection, again and again
            log.warning("bad request from %s: %r", format_address(src), error, exc_info=True)
            self.answer(src, call, {"error": f"bad request: {error!r}"})

    def answer(self, dst: int, call: int, value: object) -> None:
        """Answer a request of an agent or proc; ``value`` as msgpack (an Error: by `pack_refusal`)."""
        if call and not self.router.is_closed:
            frame = pack_frame(REPLY, MSGPACK, dst, self.address, call, 0, b"", msgpack.packb(value))
            self.router.uplink(dst).send(frame)

    def _exited(self, exit: Exit, owner_actor: int) -> None:
        if self.is_old(exit):
            return
        for told in self.on_gone:
            told(exit)
        count = lose(self.router, exit)
        self.on_exit(exit, owner_actor, count)

    def _where(self, src: int, call: int, host: int) -> None:
        self.answer(src, call, self.directory.where(src, host))

    def _ending(self, src: int, call: int) -> None:
        self.links.suspect(host_of(src), "its agent is ending")

    def _ended(self, src: int, call: int) -> None:
        link = self.links.link(host_of(src))
        if link is not None:
            self.links.declare_lost(link.host, "its agent has ended")

    def _lost(self, host: Host, error: HostLost) -> None:
        self.on_host_lost(host)
        exit = Exit.host_lost(address(host.id, AGENT), host.name, error.reason)
        for told in self.on_gone:
            told(exit)
        self.on_exit(exit, 0, self.router.lose_host(host.id, exit.as_error()))


def lose(router: Router, exit: Exit) -> int:
    """Fail every pending call to a proc, or to a whole host, that has ended; return how many."""
    error: Lost = exit.as_error()
    host = host_of(exit.address)
    if isinstance(error, HostLost):
        return router.lose(host, lambda dst: dst >> 32 == host, error)
    return router.lose(host, lambda dst: dst == exit.address, error)


def default_name() -> str:
    """Return what a client calls itself: program and pid."""
    return f"client {os.getpid()}"
