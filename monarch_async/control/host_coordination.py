"""The locks, queues and the like of one host, as its agent has them: does what `coordination.Coordination` decides.

Requests of processes (CONTROL requests ``["sync", operation, ...]``):

    request [key, params, operation, arguments, about]   answered as that operation says
    cancel  [key, call]                                  whatever the asker asked by this call, it does not want
    facts   []                                           everything that is not idle

``about`` is who asks: [address of its client, pid, its name, its host's name, what tables call it]. Nobody here waits
for anybody's code: a request is decided as it is read.

A process of another host is *watched* from its first request on: its own agent then tells this one of its end, as it
does everybody who has sent there. It is asked for its pid, too: at that address there may be another by now.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from monarch_async.control.coordination import Coordination
from monarch_async.control.coordination_asks import Answer, Ask, Command, Discard, Facts, Refuse
from monarch_async.control.host_store import ID_BYTES, HostStore
from monarch_async.control.inquiries import Inquiries
from monarch_async.control.refusal import pack_refusal
from monarch_async.control.relay import Relay
from monarch_async.control.workers import Workers
from monarch_async.errors import Error, HostLost, Lost, ProcDied
from monarch_async.ids import AGENT, agent_of, host_of, proc_of


@dataclass(slots=True, eq=False)
class Party:
    """A process that has asked something; ``pid`` is 0 where it has only been named as a client."""

    pid: int
    name: str
    host: str
    watch: "asyncio.Future[Any] | None" = None


#: What is asked of one primitive: client, key, params, operation.
_Request = tuple[int, str, Sequence[int], str]


class HostCoordination:
    """See the module."""

    def __init__(
        self,
        relay: Relay,
        workers: Workers,
        answer: Callable[[int, int, object], None],
        inquiries: Inquiries,
        store: HostStore,
    ) -> None:
        """Parts of the agent; ``answer`` answers a request: to whom, which, with what."""
        self._relay, self._workers, self._answer = relay, workers, answer
        self._inquiries, self._store = inquiries, store
        self._loop = asyncio.get_running_loop()
        self._coordination = Coordination(time.time_ns() // 1000)
        self._parties: dict[int, Party] = {}
        self._kept: Counter[bytes] = Counter()  # shared objects of items
        self._holds: dict[bytes, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- requests --------------------------------------------------------------------------------------------------

    def take(self, src: int, call: int, operation: str, *arguments: Any) -> None:
        """Take a request. Raises ValueError, TypeError or KeyError where it is none."""
        match operation:
            case "request":
                self._request(src, call, *arguments)
            case "cancel":
                key, what = arguments
                self._do(self._coordination.cancel(src, what, key, self._loop.time()))
                self._answer(src, call, None)
            case "facts":
                self._answer(src, call, self._facts())
            case _:
                raise ValueError(f"unknown operation {operation!r}")

    def _request(
        self, src: int, call: int, key: str, params: Sequence[int], operation: str, arguments: Sequence[Any],
        about: Sequence[Any],
    ) -> None:  # fmt: skip
        client, pid, name, host, who = about
        if not isinstance(key, str) or not isinstance(client, int) or not isinstance(pid, int):
            raise ValueError(f"a request of {client!r} (pid {pid!r}) about {key!r}")
        party = self._admit(src, pid, name, host)
        if client != src:
            self._admit(client, 0, f"the client of {name}", "")
        ask = Ask(src, call, who, self._loop.time())
        request = client, key, params, operation
        if operation == "fill" and arguments[2]:
            reserved, body, objects = arguments
            held = {id: (home, nbytes) for id, home, nbytes in map(_checked_object, objects)}
            self._start(self._fill(ask, party, request, reserved, body, held))
        else:
            self._do(self._coordination.request(ask, client, key, params, operation, arguments))

    async def _fill(
        self, ask: Ask, party: Party, request: _Request, call: int, body: Any, objects: dict[bytes, tuple[int, int]]
    ) -> None:
        """An item comes with shared objects, by their ids: it is in when they are held for it here."""
        client, key, params, operation = request
        ids = list(objects)
        try:
            for hold in [self._keep(id, home, nbytes) for id, (home, nbytes) in objects.items()]:
                await asyncio.shield(hold)
        except Error as error:
            self._discard(ids)
            self._do(self._coordination.cancel(ask.address, call, key, self._loop.time()))
            self._do([Refuse(ask, error)])
            return
        if self._parties.get(ask.address) is not party:  # it has ended meanwhile, and what it had reserved is free
            self._discard(ids)
            return
        self._do(self._coordination.request(ask, client, key, params, operation, (call, body, ids)))

    def _do(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Answer(ask, value):
                    self._answer(ask.address, ask.call, value)
                case Refuse(ask, error):
                    self._answer(ask.address, ask.call, pack_refusal(error))
                case Discard(objects):
                    self._discard(objects)
                case _:
                    assert_never(command)

    def _facts(self) -> list[Any]:
        now = self._loop.time()

        def rows(facts: Facts) -> list[list[list[Any]]]:
            both = facts.holders, facts.waiting
            return [[[row.who, row.address, now - row.since, row.what] for row in some] for some in both]

        return [[name, facts.state, *rows(facts)] for name, facts in self._coordination.facts()]

    # -- shared objects of items -----------------------------------------------------------------------------------

    def _keep(self, id: bytes, home: int, nbytes: int) -> "asyncio.Future[None]":
        self._kept[id] += 1
        if id not in self._holds:
            self._holds[id] = hold = self._store.hold(id, home, nbytes)
            hold.add_done_callback(lambda done: done.cancelled() or done.exception())  # who waits is told
        return self._holds[id]

    def _discard(self, objects: Sequence[bytes]) -> None:
        for id in objects:
            self._kept[id] -= 1
            if not self._kept[id]:
                del self._kept[id]
                del self._holds[id]
                self._store.drop(id)

    # -- who asks, and who is gone ---------------------------------------------------------------------------------

    def _admit(self, address: int, pid: int, name: str, host: str) -> Party:
        party = self._parties.get(address)
        if party is not None and pid and party.pid not in (0, pid):
            self._end(address, ProcDied(party.name, party.host, killed_by="another process has its place"))
            party = None
        if party is None:
            party = self._parties[address] = Party(pid, name, host)
            route = self._relay.routes.get(address)
            if route is None or route.address != address:  # one of our own connections tells of its end itself
                self._watch(address, party)
        elif pid and not party.pid:
            party.pid, party.name, party.host = pid, name, host
        return party

    def _watch(self, address: int, party: Party) -> None:
        def answered(answer: "asyncio.Future[Any]") -> None:
            if answer.cancelled() or self._parties.get(address) is not party:
                return
            error = answer.exception()
            if isinstance(error, Lost):
                self._end(address, error)
            elif error is None and party.pid and answer.result()["pid"] != party.pid:
                self._end(address, ProcDied(party.name, party.host, killed_by="another process has its place"))

        party.watch = self._inquiries.ask(address, "status")  # a client does not know that word, which is an answer
        party.watch.add_done_callback(answered)

    def gone(self, address: int) -> None:
        """A process has ended; or, where it is an agent's address, all of a host have, as far as this one can know."""
        if proc_of(address) == AGENT:
            for other in [other for other in self._parties if self._is_behind(other, address)]:
                self._end(other, HostLost(self._parties[other].host or self._parties[other].name, "it was given up"))
        elif (party := self._parties.get(address)) is not None:
            if host_of(address) == self._relay.host:
                why: Lost = self._workers.exit_of(address).as_error()
            elif party.host:
                why = ProcDied(party.name, party.host, killed_by="it has ended")
            else:
                why = HostLost(party.name, "it has left, or ended")
            self._end(address, why)

    def _is_behind(self, address: int, agent: int) -> bool:
        """A client of no host of ours is reached through one: with that it is lost."""
        is_other = host_of(address) != self._relay.host
        return agent_of(address) == agent or (is_other and self._relay.find(address) is None)

    def _end(self, address: int, why: Error) -> None:
        party = self._parties.pop(address, None)
        if party is not None and party.watch is not None:
            party.watch.cancel()
        self._do(self._coordination.gone(address, why, self._loop.time()))

    # -- the end ---------------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Stop what is under way. Twice is fine."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for party in self._parties.values():
            if party.watch is not None:
                party.watch.cancel()


def _checked_object(facts: Sequence[Any]) -> tuple[bytes, int, int]:
    id, home, nbytes = facts
    if not isinstance(id, bytes) or len(id) != ID_BYTES or not isinstance(home, int) or not isinstance(nbytes, int):
        raise ValueError(f"a shared object {facts!r}")
    return id, home, max(nbytes, 1)
