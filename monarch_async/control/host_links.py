"""A client's links to its hosts: dialled, watched, given up, dialled again. What they become is in `membership`.

- One timer ticks all sessions. Of many hosts it takes a part at a time, so that no turn of the loop is long.
- Losses are told one per turn of the loop, whatever the number: each fails what waits for that host.
- A lost host is dialled in the background, with growing pauses, under a new session: its agent ends what is left of our
  former life there before we are told that it is ready. It is not dialled where its agent hung on our lifeline
  (``watched``): that one was killed.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import msgpack

from monarch_async.config import Config
from monarch_async.control.guests import ALREADY
from monarch_async.control.host import Host
from monarch_async.control.host_watch import HostWatch
from monarch_async.control.membership import Action, HostEvent, Membership
from monarch_async.errors import Closed, Error, HandshakeRefused, HostLost, LinkBroken, WireError
from monarch_async.ids import host_of
from monarch_async.runtime.router import Router
from monarch_async.scheduler.resources import Resources
from monarch_async.transport.connection import Connection
from monarch_async.transport.session import Session
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url
from monarch_async.wire.frame import CONTROL, pack_frame

#: Pauses between dials of a lost host.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0

#: How far pauses differ between hosts, so that many that were lost together are not dialled together.
_SPREAD = 0.25

#: How long the news of an agent's exit may take after its connection has closed.
_OBITUARY = 0.1

#: How many hosts are dialled at once.
_DIALS = 64

#: With more hosts than this a tick takes only one of so many parts of them.
_MANY, _PARTS = 128, 8


class HostLink:
    """The session to one host, and what it takes to dial it again."""

    __slots__ = ("host", "session", "token")

    def __init__(self, host: Host, session: Session, token: bytes) -> None:
        """It is open."""
        self.host, self.session, self.token = host, session, token

    @property
    def own_address(self) -> str:
        """By what that machine reaches this one; empty where it is this one, as far as its URL shows."""
        return "" if self.session.url.is_local_only else self.session.local_host

    @property
    def epoch(self) -> int:
        """How often its agent has been frozen for so long that it gave up all its sessions."""
        return int(self.session.peer.get("epoch", 0))


class HostLinks:
    """All hosts of one client. ``info`` introduces it to agents: role, address, name."""

    def __init__(self, config: Config, router: Router, info: dict[str, Any], tls: Tls) -> None:
        """Belong to the running loop."""
        self._config, self._router, self._info, self._tls = config, router, info, tls
        self._loop = asyncio.get_running_loop()
        self.members = Membership()
        self.hosts: dict[int, Host] = {}  #: those that live: up, suspect or draining
        self.watched: set[int] = set()  #: hosts whose agent's exit is told by `declare_lost`, with its cause
        self.listeners: list[Callable[[HostEvent], None]] = []  #: told every change, at once
        self.on_lost: Callable[[Host, HostLost], None] = lambda *_: None
        self.say_goodbye: Callable[[Host], None] = lambda _: None
        #: Awaited between joining and up, with whether this client had a former life there.
        self.make_ready: Callable[[HostLink, bool], Awaitable[None]] = _nothing_to_do
        self._links: dict[int, HostLink] = {}
        self._parts: list[dict[int, HostLink]] = [{} for _ in range(_PARTS)]
        self._next_part = itertools.cycle(range(_PARTS))
        self._dialled: set[str] = set()  # where we have had a session: what is left of it there may be ended
        self._losses: deque[tuple[HostLink, str]] = deque()
        self._is_telling = False
        self._returns: dict[int, asyncio.Task[None]] = {}  # of lost hosts
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: WeakSet[HostWatch] = WeakSet()
        self._is_closed = False
        self._tick_handle = self._loop.call_later(config.heartbeat / 2, self._tick)

    # -- in and out ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[HostLink]:
        return iter(list(self._links.values()))

    def link(self, id: int) -> HostLink | None:
        """Return the link to a host, where there is one now."""
        return self._links.get(id)

    async def join_all(self, urls: Sequence[str], token: bytes) -> list[HostLink]:
        """Open sessions to agents, some at a time; wait until these hosts are up. Returned in the order of ``urls``.

        Raises LinkBroken, HandshakeRefused, ValueError, or HostLost where one is lost meanwhile; then none has joined.
        """
        links: list[HostLink] = []
        sessions: deque[Session] = deque()
        try:
            for start in range(0, len(urls), _DIALS):
                sessions.extend(await self._open_all(urls[start : start + _DIALS], token))
                while sessions:
                    link = HostLink(_host_of(sessions[0]), sessions[0], token)
                    known = self.members.latest(link.host.id)
                    if known is not None and known.kind != "lost":
                        raise ValueError(f"{link.host.url} and {known.host.url} are the same host agent")
                    sessions.popleft()
                    links.append(link)
                    await self._enter(link)
        except BaseException as error:
            for session in sessions:
                await self._abandon(session)
            for link in links:
                await self.leave(link.host, f"not all that were to join did: {error}")
            raise
        return links

    async def _open_all(self, urls: Sequence[str], token: bytes) -> list[Session]:
        """All or none."""
        living = {event.host.url for event in self.members if event.kind != "lost"}
        if taken := living.intersection(urls):
            raise ValueError(f"{taken.pop()} is a host of this program already")
        sessions = [self._session(url, token) for url in urls]
        dials = [self._loop.create_task(session.open()) for session in sessions]
        try:
            await asyncio.gather(*dials)
        except BaseException as error:
            for dial in dials:
                dial.cancel()
            await asyncio.gather(*dials, return_exceptions=True)
            for session in sessions:
                await self._abandon(session)
            if isinstance(error, HandshakeRefused) and ALREADY in error.reason:
                raise ValueError(f"one of {', '.join(urls)} is a host of this program already") from error
            raise
        return sessions

    async def _abandon(self, session: Session) -> None:
        """It is not to be used after all. Where it is open, its agent need not wait for us to come back."""
        if session.peer:
            goodbye = msgpack.packb(["leave"])
            agent = session.connection.address
            session.connection.send(pack_frame(CONTROL, 0, agent, self._router.address, 0, 0, b"", goodbye))
            session.connection.close()
        await session.aclose()

    def _session(self, url: str, token: bytes) -> Session:
        parsed = Url.parse(url)
        self._tls.check(parsed)
        lost, doubt = self._session_lost, self._doubt
        info = {**self._info, "is_first": url not in self._dialled}
        return Session(self._router, parsed, token, info, self._config, lost, self._tls, on_doubt=doubt)

    async def _enter(self, link: HostLink) -> None:
        """A session is open: make use of it. Raises HostLost, or the Error of an agent that refuses."""
        id = link.host.id
        self._stop_dialling(id)
        self._dialled.add(link.host.url)
        self._links[id] = self._parts[id % _PARTS][id] = link
        had_life = self._router.add_uplink(id, link.session.connection)
        self._tell(self.members.join(link.host))
        if link.session.connection.wire is None:  # it broke while others were dialled, and nobody was told
            link.session.went_down(None)
        await self.make_ready(link, had_life)
        if self._links.get(id) is not link:
            raise HostLost(link.host.name, "it was lost again before it was ready")
        self.hosts[id] = link.host
        self._change(id, "ready")
        if link.session.doubt:
            self._change(id, "doubt", link.session.doubt)

    async def leave(self, host: Host, why: str = "it has left this program") -> None:
        """Close the session to a host: its procs of ours end, and what waits for them fails. Twice is fine."""
        self._stop_dialling(host.id)
        link = self._forget(host.id)
        self._change(host.id, "leave", why)
        if link is not None:
            self.say_goodbye(host)
            link.session.connection.close()
            if not self._router.is_closed:
                self._router.lose_host(host.id, HostLost(host.name, why))
            await link.session.aclose()

    def _forget(self, id: int) -> HostLink | None:
        self.hosts.pop(id, None)
        self._parts[id % _PARTS].pop(id, None)
        return self._links.pop(id, None)

    async def aclose(self) -> None:
        """Leave every host, and end what watches them. Closing twice is fine."""
        self._is_closed = True
        self._tick_handle.cancel()
        for id in list(self._returns):
            self._stop_dialling(id)
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        for link in list(self._links.values()):
            await self.leave(link.host, "this program has ended")
        for watch in list(self._watches):
            watch.end()

    # -- what is seen of them --------------------------------------------------------------------------------------

    def watch(self) -> HostWatch:
        """Return a subscription to what becomes of hosts. Raises Closed."""
        if self._is_closed:
            raise Closed("this program", "it has left its hosts")
        watch = HostWatch(self.members)
        self._watches.add(watch)
        return watch

    def drain(self, id: int, why: str) -> None:
        """Nothing new is to go there."""
        self._change(id, "drain", why)

    def suspect(self, id: int, why: str) -> None:
        """It may be lost soon, though its session is sound."""
        self._change(id, "doubt", why)

    def reopen(self, id: int, why: str) -> None:
        """It is not to be drained after all."""
        self._change(id, "reopen", why)

    def declare_lost(self, host: Host, reason: str) -> None:
        """The agent's process is known dead: no need to wait for the window."""
        link = self._links.get(host.id)
        if link is not None:
            link.session.lose(reason)

    def went_down(self, connection: Connection, error: Exception | None) -> None:
        """A socket of ours broke."""
        id = host_of(connection.address)
        link = self._links.get(id)
        if link is None or link.session.connection is not connection:
            return
        if id in self.watched and not isinstance(error, WireError):
            self._loop.call_later(_OBITUARY, link.session.went_down, error)
        else:
            link.session.went_down(error)

    def _change(self, id: int, action: Action, why: str = "") -> None:
        self._tell(self.members.change(id, action, why))

    def _tell(self, event: HostEvent | None) -> None:
        if event is not None:
            for told in self.listeners:
                told(event)
            for watch in list(self._watches):
                watch.push(event)

    def _doubt(self, session: Session, why: str) -> None:
        id = host_of(session.connection.address)
        link = self._links.get(id)
        if link is not None and link.session is session:
            self._change(id, "doubt" if why else "hear", why)

    def _tick(self) -> None:
        is_many = len(self._links) > _MANY
        self._tick_handle = self._loop.call_later(self._config.heartbeat / 2 / (_PARTS if is_many else 1), self._tick)
        for _ in range(1 if is_many else _PARTS):
            for link in list(self._parts[next(self._next_part)].values()):
                link.session.tick()

    # -- losses and returns ----------------------------------------------------------------------------------------

    def _session_lost(self, session: Session, reason: str) -> None:
        id = host_of(session.connection.address)
        link = self._links.get(id)
        if link is None or link.session is not session:
            return
        self._losses.append((link, reason))
        if not self._is_telling:
            self._is_telling = True
            self._tell_loss()

    def _tell_loss(self) -> None:
        """Tell the first of the losses; the next one, though it may come in this turn, in the next."""
        if not self._losses:
            self._is_telling = False
            return
        link, reason = self._losses.popleft()
        self._loop.call_soon(self._tell_loss)
        if self._links.get(link.host.id) is link:
            self._lose(link, reason)

    def _lose(self, link: HostLink, reason: str) -> None:
        host = link.host
        was_draining = self.members.state(host.id) == "draining"
        self._forget(host.id)
        self._change(host.id, "lose", reason)
        self.on_lost(host, HostLost(host.name, reason))
        if host.id in self.watched or was_draining or self._is_closed:
            self._change(host.id, "leave", "its agent is gone for good" if host.id in self.watched else reason)
        else:
            self._dial_again(link)

    def _stop_dialling(self, id: int) -> None:
        task = self._returns.pop(id, None)
        if task is not None:
            task.cancel()

    def _dial_again(self, lost: HostLink) -> None:
        self._returns[lost.host.id] = task = self._loop.create_task(self._return(lost))
        self._tasks.add(task)
        task.add_done_callback(self._returned)

    def _returned(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._loop.call_exception_handler({"message": "a lost host came back", "exception": task.exception()})

    async def _return(self, lost: HostLink) -> None:
        """Dial until somebody answers there."""
        session = await self._reach(lost)
        self._returns.pop(lost.host.id, None)
        link = HostLink(_host_of(session), session, lost.token)
        if link.host.id != lost.host.id:
            self._change(lost.host.id, "leave", f"its agent was started anew, as host {link.host.id:08x}")
        if self.members.state(link.host.id) not in ("lost", "left"):
            await session.aclose()  # that agent is known by another address
            return
        try:
            await self._enter(link)
        except Error as error:
            session.lose(f"it came back and did not get ready: {error}")  # and is dialled again

    async def _reach(self, lost: HostLink) -> Session:
        pause, spread = _FIRST_PAUSE, 1 - _SPREAD * (lost.host.id % 256) / 255
        while True:
            await asyncio.sleep(pause * spread)
            pause = min(2 * pause, _LONGEST_PAUSE)
            session = self._session(lost.host.url, lost.token)
            try:
                await session.open()
            except (LinkBroken, HandshakeRefused):
                await session.aclose()
            except BaseException:
                await session.aclose()
                raise
            else:
                return session


def _host_of(session: Session) -> Host:
    peer = session.peer
    return Host(host_of(peer["address"]), peer["name"], session.url.text, Resources.unpack(peer["resources"]))


async def _nothing_to_do(link: HostLink, had_life: bool) -> None:
    pass
