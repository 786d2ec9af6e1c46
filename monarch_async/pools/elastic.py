"""An elastic pool: who has which replica, and how many there are. Pure: events in, commands out.

    replica    placing -> starting -> up -> draining -> ending -> (gone)
    lease      waiting -> given -> (ended)

    event       placing, starting         up                      draining            ending
    Placed      starting
    Up          up
    Unplaced    ending
    Died        ending; retry later       ending; retry later     ending              ending
    Drain       ending                    draining, or ending     draining            ending
    Returned                              idle where the last     ending where last
    Tick        ending where not needed   ending where idle
    Gone                                                                              (gone)

Invariants:

    E1. A replica has at most ``concurrency`` leases, and gets them only while it is up.
    E2. Leases are given in the order of asking, to the replica that had their key last where that has room, else to the
        one with fewest leases.
    E3. Up, coming and ending replicas together are never more than ``most``; fewer than ``least`` are up or coming only
        during a pause after a failure, while ending ones take the room, or after giving up.
    E4. While somebody waits, replicas are on the way, or all are busy and there may be no more, or it has not waited
        for ``scale_up_after`` yet, or there is a pause. Otherwise it is told why not.
    E5. A replica that is draining ends when its last lease has; one that is idle for ``idle`` seconds ends, unless
        there are only ``least``.
    E6. After ``failures`` in a row none is started any more. A lease that ends on a replica that lives begins the count
        anew. Leases of replicas that are up go on; who waits when none is up or coming is told the last failure.
    E7. When all leases have ended and all replicas are gone, nothing is kept but keys.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import assert_never

from monarch_async.pools.affinity import Affinity
from monarch_async.pools.events import (
    Asked,
    CallerGone,
    Closing,
    Command,
    Died,
    Drain,
    End,
    Event,
    Fail,
    Give,
    GiveUp,
    Gone,
    Key,
    LeaseId,
    Opened,
    Placed,
    Retried,
    Returned,
    Start,
    Tick,
    Unplaced,
    Up,
)
from monarch_async.pools.sizing import Sizes

NO_ROOM_PAUSE = 5.0  #: seconds after which it is asked again for room that there was none of


class Stage(Enum):
    """How far a replica has come."""

    PLACING = "waiting for room"
    STARTING = "starting"
    UP = "up"
    DRAINING = "draining"
    ENDING = "ending"


_COMING = (Stage.PLACING, Stage.STARTING)


class Member:
    """One replica as the pool sees it."""

    __slots__ = ("id", "leases", "served", "since", "stage")

    def __init__(self, id: int, now: float) -> None:
        self.id, self.stage, self.since = id, Stage.PLACING, now
        self.leases: set[LeaseId] = set()
        self.served = 0  #: leases that have ended on it

    def go(self, stage: Stage, now: float) -> None:
        """Be in another stage, or idle, from now on."""
        self.stage, self.since = stage, now


class Elastic:
    """See the module."""

    def __init__(self, sizes: Sizes, broken: Callable[[int, Exception], Exception]) -> None:
        """``broken`` makes the error of who waits for a pool that gave up, of the number of failures and the last."""
        self.sizes, self._broken = sizes, broken
        self.members: dict[int, Member] = {}
        self.waiting: OrderedDict[LeaseId, Key | None] = OrderedDict()
        self.failures = 0  #: in a row
        self.cause: Exception | None = None  #: of the last failure, or why there was no room
        self.has_given_up = False
        self._given: dict[LeaseId, Member | None] = {}  #: None: its replica is gone
        self._by_caller: dict[int, set[LeaseId]] = {}
        self._affinity = Affinity()
        self._ids = itertools.count(1)
        self._closing: Exception | None = None
        self._is_open = False
        self._paused_until = 0.0
        self._waiting_since: float | None = None  #: since when somebody has waited, or another was started for them
        self._commands: list[Command] = []

    def handle(self, event: Event, now: float) -> list[Command]:
        """Return what an event brings about."""
        match event:
            case Asked(lease, key):
                self._ask(lease, key, now)
            case Returned(lease):
                self._return(lease, now)
            case CallerGone(caller):
                mine = self._by_caller.get(caller, set())
                for lease in sorted(mine, key=self._given.__contains__):  # first those that wait, else they get it
                    self._return(lease, now)
            case Placed(id):
                if (member := self.members[id]).stage is Stage.PLACING:
                    member.go(Stage.STARTING, now)
            case Up(id):
                if (member := self.members[id]).stage is Stage.STARTING:
                    member.go(Stage.UP, now)
                    self._serve(now)
            case Unplaced(id, error):
                self._unplaced(self.members[id], error, now)
            case Died(id, error, is_fault):
                self._died(self.members[id], error, is_fault, now)
            case Drain(id):
                if (found := self.members.get(id)) is not None:
                    self._drain(found, now)
            case Gone(id):
                self._forget(self.members.pop(id))
            case Opened():
                self._is_open = True
            case Retried():
                self.has_given_up, self.failures, self._paused_until = False, 0, 0.0
            case Closing(error):
                self._close(error, now)
            case Tick():
                self._end_idle(now)
            case _:
                assert_never(event)
        self._resize(now)
        commands, self._commands = self._commands, []
        return commands

    def count(self, *stages: Stage) -> int:
        """Return how many replicas are in one of these stages."""
        return sum(1 for member in self.members.values() if member.stage in stages)

    # -- leases

    def _ask(self, lease: LeaseId, key: Key | None, now: float) -> None:
        if self._closing is not None:
            self._commands.append(Fail(lease, self._closing))
            return
        self._by_caller.setdefault(lease[0], set()).add(lease)
        self.waiting[lease] = key
        self._serve(now)
        if lease in self.waiting and self._waiting_since is None:
            self._waiting_since = now

    def _serve(self, now: float) -> None:
        """Give those that wait what there is (E2)."""
        while self.waiting:
            lease, key = next(iter(self.waiting.items()))
            member = self._choose(key)
            if member is None:
                return
            del self.waiting[lease]
            member.leases.add(lease)
            self._given[lease] = member
            if key is not None:
                self._affinity.note(key, member.id)
            self._commands.append(Give(lease, member.id))
        self._waiting_since = None

    def _choose(self, key: Key | None) -> Member | None:
        limit = self.sizes.concurrency
        if key is not None and (had := self._affinity.find(key)) is not None:
            member = self.members.get(had)
            if member is not None and member.stage is Stage.UP and len(member.leases) < limit:
                return member
        up = [m for m in self.members.values() if m.stage is Stage.UP and len(m.leases) < limit]
        return min(up, key=lambda m: (len(m.leases), m.served), default=None)

    def _return(self, lease: LeaseId, now: float) -> None:
        if lease in self.waiting:
            del self.waiting[lease]
            if not self.waiting:
                self._waiting_since = None
        elif lease in self._given:
            member = self._given.pop(lease)
            if member is not None:
                member.leases.discard(lease)
                member.served += 1
                self._released(member, now)
        else:
            return
        mine = self._by_caller[lease[0]]
        mine.discard(lease)
        if not mine:
            del self._by_caller[lease[0]]

    def _released(self, member: Member, now: float) -> None:
        if member.stage is Stage.UP:
            self.failures = 0
            if not member.leases:
                member.since = now
            self._serve(now)
        elif member.stage is Stage.DRAINING and not member.leases:
            self._end(member, now)

    # -- replicas

    def _drain(self, member: Member, now: float) -> None:
        if member.stage in _COMING or (member.stage is Stage.UP and not member.leases):
            self._end(member, now)
        elif member.stage is Stage.UP:
            self._affinity.forget(member.id)
            member.go(Stage.DRAINING, now)

    def _end(self, member: Member, now: float) -> None:
        if member.stage is not Stage.ENDING:
            self._affinity.forget(member.id)
            member.go(Stage.ENDING, now)
            self._commands.append(End(member.id))

    def _forget(self, member: Member) -> None:
        for lease in member.leases:
            self._given[lease] = None

    def _unplaced(self, member: Member, error: Exception, now: float) -> None:
        if member.stage is Stage.ENDING:
            return
        self.cause = error
        self._paused_until = max(self._paused_until, now + NO_ROOM_PAUSE)
        self._end(member, now)
        if not self.count(Stage.UP, *_COMING):
            self._fail_waiting(error)

    def _died(self, member: Member, error: Exception, is_fault: bool, now: float) -> None:
        was_wanted = member.stage is not Stage.ENDING
        self._end(member, now)
        if not was_wanted or not is_fault or self._closing is not None:
            return
        self.cause = error
        self.failures += 1
        if self.failures < self.sizes.failures:
            self._paused_until = max(self._paused_until, now + self.sizes.pause(self.failures))
        elif not self.has_given_up:
            self.has_given_up = True
            failure = self._broken(self.failures, error)
            is_delivered = bool(self.waiting) and not self.count(Stage.UP, *_COMING)
            self._commands.append(GiveUp(failure, self.failures, is_delivered))

    def _close(self, error: Exception, now: float) -> None:
        self._closing = error
        self._fail_waiting(error)
        for member in list(self.members.values()):
            self._end(member, now)

    def _fail_waiting(self, error: Exception) -> None:
        for lease in list(self.waiting):
            self._commands.append(Fail(lease, error))
            self._return(lease, 0.0)

    # -- how many

    def _resize(self, now: float) -> None:
        """Start what is missing (E3, E4)."""
        if not self._is_open or self._closing is not None:
            return
        if self.has_given_up:
            if self.waiting and not self.count(Stage.UP, *_COMING) and self.cause is not None:
                self._fail_waiting(self._broken(self.failures, self.cause))
            return
        if now < self._paused_until:
            return
        sizes, coming = self.sizes, self.count(*_COMING)
        there = coming + self.count(Stage.UP)
        count = min(sizes.missing(there), max(sizes.most - len(self.members), 0))
        since = self._waiting_since
        if self.waiting and since is not None and (there == 0 or now >= since + sizes.scale_up_after):
            count = max(count, sizes.wanted_by(len(self.waiting), coming, len(self.members)))
            self._waiting_since = now
        for _ in range(count):
            id = next(self._ids)
            self.members[id] = Member(id, now)
            self._commands.append(Start(id))

    def _end_idle(self, now: float) -> None:
        """End what has not been needed for long (E5), the youngest first: the oldest are warmest."""
        if self.waiting:
            return
        spare = self.sizes.spare(self.count(Stage.UP, *_COMING))
        idle = [m for m in self.members.values() if not m.leases and m.stage in (*_COMING, Stage.UP)]
        long_idle = [member for member in reversed(idle) if now >= member.since + self.sizes.idle]
        for member in long_idle[:spare]:
            self._end(member, now)

    def next_tick(self, now: float) -> float | None:
        """Return when a `Tick` is due, or None."""
        if self._closing is not None or not self._is_open:
            return None
        times: list[float] = []
        there = self.count(Stage.UP, *_COMING)
        is_short = self.sizes.missing(there) > 0 and len(self.members) < self.sizes.most
        if not self.has_given_up and (is_short or self.waiting) and now < self._paused_until:
            times.append(self._paused_until)
        if self.waiting and self._waiting_since is not None and not self.has_given_up:
            coming = self.count(*_COMING)
            if self.sizes.wanted_by(len(self.waiting), coming, len(self.members)):
                times.append(max(self._waiting_since + self.sizes.scale_up_after, self._paused_until))
        if not self.waiting and self.sizes.spare(there):
            idle = [m.since for m in self.members.values() if not m.leases and m.stage in (*_COMING, Stage.UP)]
            if idle:
                times.append(min(idle) + self.sizes.idle)
        return max(min(times), now) if times else None
