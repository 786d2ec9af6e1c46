"""The locks, semaphores, events, barriers and queues that have their home on one host. Pure.

Each is found by a *key*, made by whoever names it: ``lock checkpoints``, or ``lock #`` and 32 random digits where it
has no name. It comes into being with the first thing that is asked of it and is forgotten as soon as a new one would be
the same, so what nobody holds, waits for or has set takes no memory.

    C1. Every ask is answered once: Answer, Refuse, or, where its process has ended, nothing.
    C2. When a process ends, it holds nothing and waits for nothing, anywhere, and others are served at once.
    C3. What is not idle lasts while any process that has used it lives, or a client of one; then it is gone, with what
        it had. So it outlives neither a program nor what that has detached.
    C4. What has come to an end for good (a queue, by `close` or a failure) is not made anew while its clients live.
    C5. A key means the same to all: who asks with other sizes is refused.
    C6. Each client has a limit to how many it has at once that are not idle.
    C7. Fencing tokens grow, over all keys, and from one home to the next on the same host.

What each of them keeps to stands in its module: `permits` (P), `flag` (E), `barrier` (B), `item_queue` (Q).
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from monarch_async.control.barrier import BarrierState
from monarch_async.control.coordination_asks import Answer, Ask, Command, Facts, Failure, Primitive, Refuse, Stamps
from monarch_async.control.flag import Flag
from monarch_async.control.item_queue import ItemQueue, after_end
from monarch_async.control.permits import Permits
from monarch_async.errors import Backpressure, BadCall, Error

#: How many that are not idle one client may have at once (C6).
MOST = 65_536

#: So many queues that have failed can say of what, after all that was in them has been taken.
MOST_REPORTS = 1024

#: Random digits that a name is shown with where nobody gave one.
_DIGITS = 8


class Coordination:
    """See the module."""

    def __init__(self, first_token: int, most: int = MOST) -> None:
        """Nothing yet. ``first_token`` is as of `Stamps`."""
        self._stamps = Stamps(first_token)
        self._most = most
        self._live: dict[str, Primitive] = {}
        self._users: dict[str, set[int]] = {}  # processes that have used it, and their clients
        self._of: dict[int, set[str]] = {}  # the same, by process
        self._clients: dict[str, list[int]] = {}  # it counts for the first of them (C6)
        self._counts: dict[int, int] = {}
        self._ended: dict[int, dict[str, Failure]] = {}  # by client (C4)
        self._reports: deque[tuple[int, str]] = deque()  # of those, the ones with a report, oldest first

    def request(
        self, ask: Ask, client: int, key: str, params: Sequence[int], operation: str, arguments: Sequence[Any]
    ) -> list[Command]:
        """A process asks something. Raises ValueError or TypeError where that makes no sense whoever asks it."""
        self._stamps.now = ask.since
        ended = self._ended.get(client, {})
        if key in ended:
            return [after_end(name_of(key), ended[key], ask, operation)]
        primitive = self._live.get(key)
        try:
            if primitive is None:
                primitive = self._make(client, key, params)
            elif tuple(params) != primitive.params:
                raise BadCall(name_of(key), f"it was made with {primitive.params}, and is used with {tuple(params)}")
        except Error as error:
            return [Refuse(ask, error)]
        self._note(key, ask.address, client)
        try:
            if operation not in primitive.operations:
                raise ValueError(f"{name_of(key)} has no operation {operation!r}")
            perform: Callable[..., list[Command]] = getattr(primitive, operation)
            return perform(ask, *arguments)
        finally:
            self._settle(key, primitive)

    def cancel(self, address: int, call: int, key: str, now: float) -> list[Command]:
        """Who asked by this call was cancelled: what it waited for, or was granted, it does not have."""
        self._stamps.now = now
        primitive = self._live.get(key)
        if primitive is None:
            return []
        done = primitive.withdraw(address, call)
        self._settle(key, primitive)
        return done

    def gone(self, address: int, why: Error, now: float) -> list[Command]:
        """A process or client has ended (C2, C3)."""
        self._stamps.now = now
        done: list[Command] = []
        for key in sorted(self._of.pop(address, ())):
            primitive = self._live[key]
            users = self._users[key]
            users.discard(address)
            done += primitive.gone(address, why)
            if not users:
                done += primitive.end()
                self._forget(key)
            else:
                self._settle(key, primitive)
        self._ended.pop(address, None)
        return [command for command in done if not (isinstance(command, Answer | Refuse) and _is_of(command, address))]

    def facts(self) -> list[tuple[str, Facts]]:
        """Return name and facts of each that is not idle, those first that most wait for."""
        found = [(name_of(key), primitive.facts()) for key, primitive in self._live.items()]
        return sorted(found, key=lambda one: (-len(one[1].waiting), one[0]))

    def is_known(self, address: int) -> bool:
        """Return whether a process has used anything that is not idle."""
        return address in self._of

    # -- inside ----------------------------------------------------------------------------------------------------

    def _make(self, client: int, key: str, params: Sequence[int]) -> Primitive:
        if self._counts.get(client, 0) >= self._most:
            hint = "release or close some: what is not in use takes no place"
            raise Backpressure("what one program may have in use", f"{self._most:,} locks, queues and the like", hint)
        primitive = make(key, params, self._stamps)
        self._live[key] = primitive
        self._users[key] = set()
        self._clients[key] = [client]
        self._counts[client] = self._counts.get(client, 0) + 1
        return primitive

    def _note(self, key: str, process: int, client: int) -> None:
        known = self._users[key]
        if client not in self._clients[key]:
            self._clients[key].append(client)
        for address in (process, client):
            if address not in known:
                known.add(address)
                self._of.setdefault(address, set()).add(key)

    def _settle(self, key: str, primitive: Primitive) -> None:
        """Forget what is as new; remember what has ended."""
        if self._live.get(key) is not primitive:
            return
        if primitive.is_idle:
            self._forget(key)
        elif primitive.is_over:
            for client in self._clients[key]:
                self._ended.setdefault(client, {})[key] = primitive.failure
                if primitive.failure is not None:
                    self._note_report(client, key)
            self._forget(key)

    def _note_report(self, client: int, key: str) -> None:
        """A report may be long: only so many are kept."""
        self._reports.append((client, key))
        if len(self._reports) > MOST_REPORTS:
            client, key = self._reports.popleft()
            if key in self._ended.get(client, {}):
                self._ended[client][key] = Error(f"{name_of(key)} has failed; it is too long ago to say of what")

    def _forget(self, key: str) -> None:
        del self._live[key]
        for address in self._users.pop(key):
            keys = self._of.get(address)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._of[address]
        client = self._clients.pop(key)[0]
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]


def _is_of(command: Answer | Refuse, address: int) -> bool:
    return command.ask.address == address


def make(key: str, params: Sequence[int], stamps: Stamps) -> Primitive:
    """Return a new one. Raises ValueError where there is no such kind, or of no such size."""
    kind, name = key.partition(" ")[0], name_of(key)
    if not all(isinstance(param, int) and 0 <= param < 1 << 63 for param in params):
        raise ValueError(f"sizes {params!r} of {name}")
    match kind, tuple(params):
        case "lock", (1,):
            return Permits(name, 1, stamps)
        case "semaphore", (total,) if total:
            return Permits(name, total, stamps)
        case "event", ():
            return Flag()
        case "barrier", (parties,) if parties:
            return BarrierState(name, parties)
        case "queue", (items, nbytes, producers) if items and nbytes:
            return ItemQueue(name, items, nbytes, producers)
        case _:
            raise ValueError(f"no kind {kind!r} with sizes {params!r}")


def name_of(key: str) -> str:
    """Return how errors and tables call it."""
    kind, _, name = key.partition(" ")
    return f"{kind} {name[: 1 + _DIGITS]}" if name.startswith("#") else key
