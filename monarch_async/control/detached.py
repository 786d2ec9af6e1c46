"""Detached leases, as one agent knows them: procs that outlive their client until another one adopts them. Pure.

    Held         has an owner, a client            `open`, `adopt`
    Unowned      its owner is gone for good        `left`, `disown`
    Ended        forgotten                         `end`

    Held(a)  --left(a), disown(a)-->  Unowned  --adopt(b)-->  Held(b)       either  --end-->  Ended

D1. A lease has at most one owner. It is adopted only while it has none, or by its owner again.
D2. A name is that of one lease.
D3. Only its owner ends a lease, or whoever asks while it has none; only the owner commands its procs.
D4. What its procs print, and how their actors fail, is kept also while the owner is merely not heard: an adopter gets
    what happened since the last owner was last heard. Of both only the latest are kept, and it is counted what is not.
D5. How a member that is dead ended is kept until it is made anew.

The procs' shape, and what it takes to make them and their actors anew, is bytes here: only clients read it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from monarch_async.errors import LeaseHeld, NoSuchLease, NotHolder

#: What is kept of each lease on each host: lines, their bytes; failures, the bytes of their reports.
MOST_LINES, MOST_LINE_BYTES = 500, 128 << 10
MOST_FAILURES, MOST_REPORT_BYTES = 100, 1 << 20


@dataclass(frozen=True, slots=True)
class Where:
    """A host of a lease, and which of its ranks are there."""

    host: int
    name: str
    url: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that a proc has printed together; ``stream`` is 1 for stdout, 2 for stderr."""

    at: float
    mesh: str
    rank: int
    stream: int
    text: bytes

    @property
    def count(self) -> int:
        """How many."""
        return self.text.count(b"\n") + 1

    @property
    def nbytes(self) -> int:
        """Their length."""
        return len(self.text)


@dataclass(frozen=True, slots=True)
class ActorFailure:
    """An actor that failed outside of any call of its owner."""

    at: float
    actor: int
    rank: int
    report: bytes
    count: ClassVar[int] = 1

    @property
    def nbytes(self) -> int:
        """The report's length."""
        return len(self.report)


T = TypeVar("T", Lines, ActorFailure)


class Tail(Generic[T]):
    """The latest of something: at most ``most`` of them, of ``most_bytes`` together, but always the last one."""

    __slots__ = ("_count", "_kept", "_most", "_most_bytes", "_nbytes", "dropped")

    def __init__(self, most: int, most_bytes: int) -> None:
        """Nothing has come."""
        self._most, self._most_bytes = most, most_bytes
        self._kept: deque[T] = deque()
        self._count = self._nbytes = 0
        self.dropped = 0  #: how many are not kept

    def add(self, item: T) -> None:
        """One more."""
        self._kept.append(item)
        self._count += item.count
        self._nbytes += item.nbytes
        while len(self._kept) > 1 and (self._count > self._most or self._nbytes > self._most_bytes):
            oldest = self._kept.popleft()
            self._count -= oldest.count
            self._nbytes -= oldest.nbytes
            self.dropped += oldest.count

    def since(self, at: float) -> list[T]:
        """Return those of that time and later."""
        return [kept for kept in self._kept if kept.at >= at]


@dataclass(slots=True)
class Lease:
    """One of them. Times are seconds of the agent's clock; ``owner`` is the address of a client, 0: none."""

    id: int
    name: str
    made_by: str
    made_at: float
    hosts: tuple[Where, ...]
    shape: bytes
    owner: int
    owner_name: str
    previous_owner: str = ""
    left_at: float = 0.0
    left_why: str = ""
    actors: dict[int, tuple[str, bytes]] = field(default_factory=dict)  #: name and recipe of each actor mesh, by id
    members: dict[int, int] = field(default_factory=dict)  #: rank by proc id, of those that live here
    exits: dict[int, bytes] = field(default_factory=dict)  #: of those here that are dead, by rank (D5)
    lines: Tail[Lines] = field(default_factory=lambda: Tail(MOST_LINES, MOST_LINE_BYTES))
    failures: Tail[ActorFailure] = field(default_factory=lambda: Tail(MOST_FAILURES, MOST_REPORT_BYTES))
    _since: float = 0.0  # what an adopter is to be told begins here

    def news(self) -> tuple[list[Lines], list[ActorFailure]]:
        """Return what was printed, and how actors have failed, since the last owner was last heard."""
        return self.lines.since(self._since), self.failures.since(self._since)

    def _begin(self, client: int, name: str) -> None:
        self.owner, self.owner_name = client, name

    def _leave(self, heard_at: float, now: float, why: str) -> None:
        self.lines.dropped = self.failures.dropped = 0
        self.previous_owner, self.owner, self.owner_name = self.owner_name, 0, ""
        self.left_at, self.left_why, self._since = now, why, heard_at


class Leases:
    """All of one agent."""

    def __init__(self) -> None:
        """None yet."""
        self._leases: dict[int, Lease] = {}

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._leases.values()))

    def __len__(self) -> int:
        return len(self._leases)

    def find(self, id: int) -> Lease | None:
        """Return a lease."""
        return self._leases.get(id)

    def named(self, name: str) -> Lease | None:
        """Return the lease of that name."""
        return next((lease for lease in self._leases.values() if lease.name == name), None)

    def held_by(self, client: int) -> list[Lease]:
        """Return what a client is the owner of."""
        return [lease for lease in self if lease.owner == client]

    # -- what clients ask ------------------------------------------------------------------------------------------

    def check_name(self, name: str, id: int) -> None:
        """Raise LeaseHeld where a lease other than ``id`` has that name (D2)."""
        lease = self.named(name)
        if lease is not None and lease.id != id:
            raise LeaseHeld(name, *_holder(lease))

    def open(
        self, id: int, name: str, hosts: Sequence[Where], shape: bytes, client: int, client_name: str, now: float
    ) -> Lease:
        """A client is about to spawn the procs. Raises LeaseHeld."""
        self.check_name(name, id)
        if id in self._leases:
            raise LeaseHeld(name, *_holder(self._leases[id]))
        lease = Lease(id, name, client_name, now, tuple(hosts), shape, client, client_name)
        self._leases[id] = lease
        return lease

    def shadow(self, id: int, name: str, owner: int, owner_name: str, now: float) -> Lease:
        """A proc of a lease spawns some here, where it had none before: they live as it does, and are no members."""
        self._leases[id] = lease = Lease(id, name, owner_name, now, (), b"", owner, owner_name)
        return lease

    def adopt(self, id: int, client: int, client_name: str) -> Lease:
        """A client becomes the owner (D1). Raises LeaseHeld, NoSuchLease."""
        lease = self._leases.get(id)
        if lease is None:
            raise NoSuchLease(f"{id:x}", tuple(lease.name for lease in self))
        if lease.owner not in (0, client):
            raise LeaseHeld(lease.name, *_holder(lease))
        lease._begin(client, client_name)
        return lease

    def disown(self, id: int, client: int, now: float) -> None:
        """The owner does not want it after all: it could not have all of it."""
        lease = self._leases.get(id)
        if lease is not None and lease.owner == client:
            lease._leave(min(lease._since, now), now, "it gave it back")

    def end(self, id: int, client: int) -> Lease | None:
        """Forget a lease, for ``client`` (D3); return it: its procs are to be ended. Raises LeaseHeld."""
        lease = self._leases.get(id)
        if lease is not None and lease.owner not in (0, client):
            raise LeaseHeld(lease.name, *_holder(lease))
        return self._leases.pop(id, None)

    def why_not(self, id: int, client: int) -> NotHolder | None:
        """Return why a client may not command procs of a lease (D3); None: it may."""
        lease = self._leases.get(id)
        if lease is None or lease.owner == client:
            return None
        who = f"{lease.owner_name} has adopted it" if lease.owner else "it has no owner now: adopt it"
        return NotHolder(f"detached lease {lease.name!r}", f"this client is its owner no longer, {who}")

    # -- what happens ----------------------------------------------------------------------------------------------

    def left(self, client: int, heard_at: float, now: float, why: str) -> list[Lease]:
        """A client is gone for good, last heard at ``heard_at``: what it held is unowned; return that."""
        held = self.held_by(client)
        for lease in held:
            lease._leave(heard_at, now, why)
        return held

    def started(self, id: int, proc: int, rank: int) -> None:
        """A member is being made, or made anew."""
        lease = self._leases.get(id)
        if lease is not None:
            lease.members[proc] = rank
            lease.exits.pop(rank, None)

    def exited(self, id: int, proc: int, exit: bytes) -> None:
        """A proc of a lease has ended; not every one is a member: they may have spawned others."""
        lease = self._leases.get(id)
        if lease is not None and proc in lease.members:
            lease.exits[lease.members.pop(proc)] = exit

    def fence(self) -> list[Lease]:
        """This host was given up by everybody: forget all; return what there was, to be ended."""
        ended, self._leases = list(self._leases.values()), {}
        return ended


def _holder(lease: Lease) -> tuple[str, str]:
    if lease.owner:
        return lease.owner_name, ""
    return "nobody", f"its client {lease.previous_owner} is gone ({lease.left_why}); adopt it, or release it"


def facts(lease: Lease, now: float) -> dict[str, Any]:
    """Return what is told about a lease, as msgpack has a form for: see `lease_facts.LeaseFacts`."""
    return {
        "id": lease.id,
        "name": lease.name,
        "made_by": lease.made_by,
        "age": now - lease.made_at,
        "hosts": [[where.host, where.name, where.url, list(where.ranks)] for where in lease.hosts],
        "owner": lease.owner,
        "owner_name": lease.owner_name,
        "previous_owner": lease.previous_owner,
        "unowned_for": 0.0 if lease.owner else now - lease.left_at,
        "left_why": lease.left_why,
        "actors": [name for name, _ in lease.actors.values()],
        "living": sorted(lease.members.values()),
        "dead": sorted(lease.exits),
    }
