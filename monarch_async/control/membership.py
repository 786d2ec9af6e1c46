"""Which hosts a program has, and what may become of each. Pure: its owner says what it has seen.

    joining    its agent has answered; it is being made ready
    up         it is there
    suspect    its socket is gone, it was not heard for three heartbeats, or says that it is about to end: nothing new
               should go there
    draining   it is to leave: nothing new goes there. It is not suspected as well, as that would change nothing
    lost       given up: what was there is gone, what is sent there fails. It is dialled again, and may come back empty
    left       gone for good, and no longer known

    state       join      ready    doubt     hear   drain      reopen   lose   leave
    (unknown)   joining   -        -         -      -          -        -      -
    joining     -         up       -         -      draining   -        lost   left
    up          -         -        suspect   -      draining   -        lost   left
    suspect     -         -        -         up     draining   -        lost   left
    draining    -         -        -         -      -          up       lost   left
    lost        joining   -        -         -      -          -        -      left

What the table does not name changes nothing. Each change is an event, and every subscriber has a `Backlog` of them.

M1. Versions of events count up by one, over all hosts; where nothing changes there is no event.
M2. The events of one host are a way through the table: the first is joining, and after left it is unknown again.
M3. Who takes the events of a backlog in order knows, once it is empty, exactly the hosts there are and their states.
M4. A backlog holds at most one event per host and its limit of further ones. A reader that is more behind is brought up
    to date by one event per host that has changed since it read (of which ``was`` is not known): it misses what lay
    between.
M5. Between suspect and up nothing was lost: no message, no proc.

Why a host that comes back keeps its id: the id names the agent's process, and what this client has given up another
one, whose link was not cut, may be using. So what is fenced is not the host but this client's life there: its session.
Old references cannot reach what is new, as the address of a proc is never given twice by one client.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from monarch_async.control.host import Host

State = Literal["joining", "up", "suspect", "draining", "lost", "left"]
Action = Literal["ready", "doubt", "hear", "drain", "reopen", "lose", "leave"]

_TABLE: Final[dict[tuple[State, Action], State]] = {
    ("joining", "ready"): "up",
    ("joining", "drain"): "draining",
    ("up", "doubt"): "suspect",
    ("up", "drain"): "draining",
    ("suspect", "hear"): "up",
    ("suspect", "drain"): "draining",
    ("draining", "reopen"): "up",
    **{(state, "lose"): "lost" for state in ("joining", "up", "suspect", "draining")},
    **{(state, "leave"): "left" for state in ("joining", "up", "suspect", "draining", "lost")},
}

#: How many events a subscriber may be behind before it is brought up to date by what there is (M4).
MOST_BEHIND = 1024


@dataclass(frozen=True, slots=True)
class HostEvent:
    """A change of one host, or at the start of a subscription that it is there.

    ``kind`` is what it is now: joining, up, suspect, draining, lost or left. ``was`` is what it was before, empty where
    that is not known here: an ``up`` that was ``suspect`` has lost nothing, one that was ``joining`` is empty.
    ``version`` counts the changes of all hosts; ``why`` is for people.
    """

    version: int
    kind: State
    host: Host
    why: str = ""
    was: State | Literal[""] = ""


class Membership:
    """The table of one program. Its events are returned, in order, by what made them."""

    def __init__(self) -> None:
        """No host."""
        self.version = 0
        self._latest: dict[int, HostEvent] = {}  # of each host, in the order in which they first joined

    def __iter__(self) -> Iterator[HostEvent]:
        """The latest event of each known host, in the order in which they joined."""
        return iter(list(self._latest.values()))

    def __len__(self) -> int:
        return len(self._latest)

    def living(self) -> list[Host]:
        """Return the hosts that are up, suspect or draining, in that order."""
        return [event.host for event in self._latest.values() if event.kind in ("up", "suspect", "draining")]

    def latest(self, id: int) -> HostEvent | None:
        """Return the latest event of a host; None where it is not known, or has left."""
        return self._latest.get(id)

    def state(self, id: int) -> State:
        """Return what a host is; ``left`` where it is not known."""
        event = self._latest.get(id)
        return "left" if event is None else event.kind

    def join(self, host: Host, why: str = "") -> HostEvent | None:
        """An agent has answered, for the first time or again after it was lost."""
        return self._enter(host, "joining", why) if self.state(host.id) in ("lost", "left") else None

    def change(self, id: int, action: Action, why: str = "") -> HostEvent | None:
        """Something else was seen or asked for. Returns the event, or None where it changes nothing."""
        latest = self._latest.get(id)
        state = None if latest is None else _TABLE.get((latest.kind, action))
        if latest is None or state is None:
            return None
        return self._enter(latest.host, state, why)

    def apply(self, event: HostEvent) -> None:
        """Take an event of another table, of which this is a copy."""
        self.version = event.version
        if event.kind == "left":
            self._latest.pop(event.host.id, None)
        else:
            self._latest[event.host.id] = event

    def _enter(self, host: Host, state: State, why: str) -> HostEvent:
        latest = self._latest.get(host.id)
        event = HostEvent(self.version + 1, state, host, why, "" if latest is None else latest.kind)
        self.apply(event)
        return event


class Backlog:
    """What one subscriber has not read yet: first what there is, then every change (M3, M4)."""

    def __init__(self, members: Membership, limit: int = MOST_BEHIND) -> None:
        """Begin with the hosts of ``members`` as they are now."""
        self._members, self._limit = members, limit
        self._most = limit
        self._seen: dict[int, HostEvent] = {}  # of each host that its reader takes to be there
        self._events: deque[HostEvent] = deque()
        self._catch_up()

    def __len__(self) -> int:
        return len(self._events)

    def push(self, event: HostEvent) -> None:
        """A change, of which ``members`` knows already."""
        self._events.append(event)
        if len(self._events) > self._most:
            self._catch_up()

    def pop(self) -> HostEvent:
        """Return the next event. Raises IndexError where there is none."""
        event = self._events.popleft()
        if event.kind == "left":
            self._seen.pop(event.host.id, None)
        else:
            self._seen[event.host.id] = event
        return event

    def _catch_up(self) -> None:
        """Replace what waits by what leads from what was read to what there is."""
        last = {event.host.id: event for event in self._events}
        gone = [last[id] for id in self._seen if self._members.latest(id) is None]  # their leaving waits to be read
        there = [event for event in self._members if self._version_seen(event.host.id) != event.version]
        events = [HostEvent(event.version, event.kind, event.host, event.why) for event in (*gone, *there)]
        self._events = deque(sorted(events, key=lambda event: event.version))
        self._most = len(self._events) + self._limit

    def _version_seen(self, id: int) -> int:
        seen = self._seen.get(id)
        return 0 if seen is None else seen.version
