"""What an agent and its clients tell each other about hosts: where they are, who is gone, who has come back empty.

    where [host id]              asked of clients: answered with [name, URL], or [name, "", why not]
    host_lost [host id]          a client has given it up, or it has left; not answered
    renewed [host id, epoch]     it is back: answered once what is sent there from here reaches its new life
    settle []                    a client is back: answered once nothing is left of its former life here, and those to
                                 whom this agent has sessions are sure to know them
    emptied []                   answered once no proc of a client runs here
    ending []                    to clients: this agent is about to end: nothing new should go here; not answered
    ended []                     to clients and agents: this agent ends, in order; not answered
    stop_all [reason, grace]     ends all procs of a client, in order; answered when they are gone
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import msgpack

from monarch_async.control.guests import Guests
from monarch_async.control.inquiries import Inquiries
from monarch_async.control.peers import ENDED, Peers
from monarch_async.control.worker import Worker
from monarch_async.control.workers import Workers
from monarch_async.errors import Error, HostLost
from monarch_async.ids import host_of
from monarch_async.wire.frame import CONTROL, pack_frame

Reply = Callable[[int, int, object], None]


class HostNews:
    """One agent's."""

    def __init__(
        self,
        guests: Guests,
        inquiries: Inquiries,
        workers: Workers,
        answer: Reply,
        start_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """``peers`` is set before anything is asked."""
        self.peers: Peers
        self._guests, self._inquiries, self._workers = guests, inquiries, workers
        self._answer, self._start_task = answer, start_task
        #: Where a host is that no client here knows.
        self.remembered: Callable[[int], tuple[str, str] | None] = lambda host: None
        self._epoch = 0
        self.operations: dict[str, Callable[..., None]] = {
            "ended": lambda src, call: self.peers.lose(host_of(src), ENDED),
            "host_lost": lambda src, call, host: self.peers.forget(host),
            "renewed": lambda src, call, host, epoch: self._when(src, call, self.peers.renew(host, epoch)),
            "settle": lambda src, call: self._when(src, call, self._settle(self._procs_of(src))),
            "emptied": lambda src, call: self._when(src, call, self._empty(src)),
            "stop_all": lambda src, call, *how: self._when(src, call, self._stop_all(src, *how)),
        }

    async def where(self, host: int) -> tuple[str, str]:
        """Return name and URL of a host that a client here knows. Raises HostLost where none does."""
        clients = [guest.connection.address for guest in self._guests if guest.role == "client"]
        name, why = f"{host:08x}", "no program that uses this host knows of it"
        asked = [self._inquiries.ask(client, "where", host) for client in clients]
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    known, url, *reasons = await answer
                except Error:
                    continue  # that client is gone, or ends
                if url:
                    return known, url
                name, why = known, *reasons
        finally:
            for answer in asked:  # nobody looks at what the others say
                answer.cancel()
        if (found := self.remembered(host)) is not None:
            return found
        raise HostLost(name, why)

    def say_end(self, own: int) -> None:
        """Tell who is here that this agent, of that address, ends: they need not wait for it to come back."""
        self._tell(own, "ended", ("client", "observer", "agent"))

    def say_ending(self, own: int) -> None:
        """Tell the clients that this agent is about to end: nothing new should go here."""
        self._tell(own, "ending", ("client", "observer"))

    def _tell(self, own: int, operation: str, roles: Collection[str]) -> None:
        for guest in self._guests:
            there = guest.connection
            if guest.role in roles:
                there.send(pack_frame(CONTROL, 0, there.address, own, 0, 0, b"", msgpack.packb([operation])))

    def was_frozen(self, why: str) -> None:
        """This agent was frozen for so long that everybody has given it up: it begins anew."""
        self._epoch += 1
        self._guests.introduction["epoch"] = self._epoch
        self.peers.lose_all(why)

    def _when(self, src: int, call: int, done: Coroutine[Any, Any, None]) -> None:
        async def answer() -> None:
            await done
            self._answer(src, call, None)

        self._start_task(answer())

    def _procs_of(self, client: int) -> list[Worker]:
        return [worker for worker in self._workers.living() if worker.root == client]

    async def _settle(self, former: list[Worker]) -> None:
        """``former`` are killed already: a client's new session ends its old one."""
        if former:
            await asyncio.wait([worker.gone for worker in former])
        await self.peers.wait_calm()

    async def _empty(self, client: int) -> None:
        while left := self._procs_of(client):
            await asyncio.wait([worker.gone for worker in left])

    async def _stop_all(self, client: int, reason: str, grace: float) -> None:
        await self._workers.stop([worker.id for worker in self._procs_of(client)], reason, grace)
