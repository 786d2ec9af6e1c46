"""The hosts of a program as its actors see and change them: what workers ask of the client, and what that tells them.

    hosts []                          answered with the latest event of each; from then on told every change
    host_join [URL], host_grow [count, resources]                answered with what has joined
    host_drain [id, deadline], host_leave [id]                   answered when it is done

    host_events [[event, ...]]        to a worker that has asked for hosts

A worker that has not asked is told nothing: most never need it, and there may be many.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from weakref import WeakSet

from monarch_async.control.controller import Controller, Requests
from monarch_async.control.host import Host
from monarch_async.control.host_watch import HostWatch
from monarch_async.control.membership import HostEvent, Membership
from monarch_async.control.refusal import pack_refusal
from monarch_async.control.worker import Exit
from monarch_async.errors import Error
from monarch_async.ids import host_of
from monarch_async.mesh.roster import Roster
from monarch_async.scheduler.resources import Resources

#: To how many workers changes are sent in one turn of the loop.
_AT_ONCE = 64


class RemoteRoster:
    """In a worker: see `roster.Roster`. ``operations`` are the worker's to take."""

    def __init__(self, requests: Requests, root: int) -> None:
        """``root`` is the client."""
        self._requests, self._root = requests, root
        self.members = Membership()
        self._watches: WeakSet[HostWatch] = WeakSet()
        self._fetching: asyncio.Task[None] | None = None
        self._early: list[HostEvent] | None = []  # came before the answer that they follow
        self.operations: dict[str, Callable[..., None]] = {"host_events": self._take}

    @property
    def hosts(self) -> list[Host]:
        """The hosts that live, in the order in which they joined; none before `fetch`."""
        return self.members.living()

    async def watch(self) -> HostWatch:
        """See `Roster`."""
        await self.fetch()
        watch = HostWatch(self.members)
        self._watches.add(watch)
        return watch

    def end(self) -> None:
        """The program of these hosts is another's now: nobody would tell of changes any more."""
        for watch in list(self._watches):
            watch.end()

    async def fetch(self) -> Sequence[Host]:
        """See `Roster`."""
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        try:
            await asyncio.shield(self._fetching)
        except Error:
            self._fetching = None
            raise
        return self.hosts

    async def _fetch(self) -> None:
        for event in await self._requests.ask(self._root, "hosts"):
            self.members.apply(_unpack_event(event))
        early, self._early = self._early or [], None
        for event in early:
            self._apply(event)

    def _take(self, src: int, call: int, events: list[Any]) -> None:
        for event in map(_unpack_event, events):
            if self._early is None:
                self._apply(event)
            else:
                self._early.append(event)

    def _apply(self, event: HostEvent) -> None:
        self.members.apply(event)
        for watch in list(self._watches):
            watch.push(event)

    async def join(self, url: str) -> Host:
        """See `Roster`."""
        return Host.unpack(await self._requests.ask(self._root, "host_join", url))

    async def drain(self, host: int, deadline: float | None) -> None:
        """See `Roster`."""
        await self._requests.ask(self._root, "host_drain", host, deadline)

    async def leave(self, host: int) -> None:
        """See `Roster`."""
        await self._requests.ask(self._root, "host_leave", host)

    async def grow(self, count: int, resources: Resources | None) -> Sequence[Host]:
        """See `Roster`."""
        packed = None if resources is None else resources.pack()
        return [Host.unpack(host) for host in await self._requests.ask(self._root, "host_grow", count, packed)]


class RosterDesk:
    """In the client: does what workers ask, and keeps those informed that want to be."""

    def __init__(
        self,
        controller: Controller,
        roster: Roster,
        start_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Serve from now on."""
        self._controller, self._roster, self._start_task = controller, roster, start_task
        self._followers: dict[int, None] = {}
        self._news: list[Any] = []
        controller.links.listeners.append(self._heard)
        controller.on_gone.append(self._gone)
        controller.operations |= {
            "hosts": self._hosts,
            "host_join": lambda src, call, url: self._serve(src, call, self._join(url)),
            "host_drain": lambda src, call, host, deadline: self._serve(src, call, roster.drain(host, deadline)),
            "host_leave": lambda src, call, host: self._serve(src, call, roster.leave(host)),
            "host_grow": lambda src, call, *wanted: self._serve(src, call, self._grow(*wanted)),
        }

    def _hosts(self, src: int, call: int) -> None:
        self._flush()  # who follows already is told of what this answer contains first
        self._controller.answer(src, call, [_pack_event(event) for event in self._controller.links.members])
        self._followers[src] = None

    async def _join(self, url: str) -> Any:
        return (await self._roster.join(url)).pack()

    async def _grow(self, count: int, resources: list[Any] | None) -> Any:
        wanted = None if resources is None else Resources.unpack(resources)
        return [host.pack() for host in await self._roster.grow(count, wanted)]

    def _serve(self, src: int, call: int, work: Coroutine[Any, Any, Any]) -> None:
        async def serve() -> None:
            try:
                self._controller.answer(src, call, await work)
            except (Error, ValueError) as error:
                self._controller.answer(src, call, pack_refusal(error))
            except Exception as error:  # of whoever gives hosts: who asked waits for an answer all the same
                self._controller.answer(src, call, {"error": f"{type(error).__name__}: {error}"})

        self._start_task(serve())

    def _gone(self, exit: Exit) -> None:
        if exit.is_host:
            for follower in [follower for follower in self._followers if host_of(follower) == host_of(exit.address)]:
                del self._followers[follower]
        else:
            self._followers.pop(exit.address, None)

    def _heard(self, event: HostEvent) -> None:
        if self._followers:
            if not self._news:
                asyncio.get_running_loop().call_soon(self._flush)
            self._news.append(_pack_event(event))

    def _flush(self) -> None:
        """Send what is new to all, some of them in each turn; what is new meanwhile follows in its own time."""
        news, self._news = self._news, []
        if news:
            self._send(news, list(self._followers))

    def _send(self, news: list[Any], followers: list[int]) -> None:
        if self._controller.router.is_closed:
            return
        for follower in followers[:_AT_ONCE]:
            if follower in self._followers:
                self._controller.requests.post(follower, "host_events", news)
        if rest := followers[_AT_ONCE:]:
            asyncio.get_running_loop().call_soon(self._send, news, rest)


def _pack_event(event: HostEvent) -> list[Any]:
    return [event.version, event.kind, event.host.pack(), event.why, event.was]


def _unpack_event(packed: list[Any]) -> HostEvent:
    version, kind, host, why, was = packed
    return HostEvent(version, kind, Host.unpack(host), why, was)
