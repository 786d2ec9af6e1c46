"""The scheduler: who asks is granted, waits, or is told at once that it can never be.

States of a placement::

    waiting    in line; what it holds: nothing (something may be kept for it)
    granted    holds its spots
    recalled   granted, and its holder was asked to give it back
    (ended)    forgotten

    state      event                                  next       commands
    ---------  -------------------------------------  ---------  ----------------------------------
    (none)     Ask, fits                              granted    Grant
    (none)     Ask, does not fit now                  waiting    (Recall of others)
    (none)     Ask, can never fit                     (ended)    Reject
    waiting    something is freed, and it fits        granted    Grant
    waiting    long enough, at Tick                   waiting    Warn
    waiting    could not fit even if all were free    (ended)    Reject (after ``grace``)
    waiting    Withdraw, HolderGone                   (ended)
    granted    Refused                                waiting    Release at its other hosts (or Reject first)
    granted    HostGone                               granted    Lost
    granted    another needs it, and it may be taken  recalled   Recall
    granted,   Withdraw, HolderGone                   (ended)    Release; of placements within it too
    recalled

Invariants:

    P1. All of a demand is granted in one command, or nothing.
    P2. What is held on a host is at most what it has, except by `TakenElsewhere` and `Reclaim`.
    P3. When every placement has ended, every book is as it was when its host came.
    P4. Each Ask ends in one Grant or one Reject, unless it is withdrawn; or it waits.
    P5. What waits is granted in order of priority, then arrival. Who comes later may pass one that does not fit at
        most ``passes`` times and for ``patience`` seconds; from then on what frees is kept for it (``keeping.py``).
        Later ones still have what it does not need.
    P6. Nothing is kept for what does not fit on the hosts that are there, if nobody held anything.
    P7. Only as many are recalled as make room for who waits; what they give back is kept for that one.
    P8. What no joined or declared host could fit is rejected at once. What could when it was asked for, and no longer
        can, since hosts left, is rejected ``grace`` seconds later, unless they have come back.
    P9. A host that refused is not granted again to the same placement before it says what others hold there, or a
        pause, which doubles, is over. Those behind it in its line wait with it.
"""

from collections.abc import Sequence
from typing import assert_never

from monarch_async.scheduler.accounts import Accounts
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.demand import Demand
from monarch_async.scheduler.dispatch import Dispatch
from monarch_async.scheduler.events import (
    Ask,
    Command,
    Declared,
    Event,
    Grant,
    HolderGone,
    HostClosed,
    HostGone,
    HostOpened,
    HostUp,
    Lend,
    Lost,
    Recall,
    Reclaim,
    Refused,
    Reject,
    Release,
    TakenElsewhere,
    Tick,
    Warn,
    Withdraw,
)
from monarch_async.scheduler.explanation import explanation
from monarch_async.scheduler.feasibility import is_meant
from monarch_async.scheduler.holdings import Holdings, Rows, Waiter
from monarch_async.scheduler.placement_record import PlacementRecord
from monarch_async.scheduler.recall import Recalls
from monarch_async.scheduler.shape import Shape, Shapes, called, described
from monarch_async.scheduler.table import ROWS

REFUSAL_PAUSE = 0.05  #: seconds; doubles with each refusal of one placement, up to `LONGEST_PAUSE`
LONGEST_PAUSE = 5.0


class Scheduler:
    """Places demands on hosts. Pure: `handle` is given events and the time, and returns what is to be done."""

    def __init__(
        self, warn_after: float = 30.0, *, passes: int = 64, patience: float = 10.0, grace: float = 10.0
    ) -> None:
        """Start without hosts. Seconds all: ``warn_after`` between a stall and its first warning, ``patience`` and
        ``passes`` as P5 says, ``grace`` as P8.
        """
        self.warn_after, self.grace = warn_after, grace
        self._accounts = Accounts()
        self._dispatch = Dispatch(self._accounts, passes, patience)
        self._waiting = self._dispatch.waiting
        self._recalls = Recalls(self._accounts, self._dispatch)
        self._shapes = Shapes()
        self._by_holder: dict[int, dict[int, None]] = {}
        self._gone: dict[int, tuple[float, Book]] = {}  #: hosts that may come back: until when, and their books
        self._refused_records: dict[int, PlacementRecord] = {}
        self._arrivals = 0
        self._commands: list[Command] = []

    def handle(self, event: Event, now: float) -> list[Command]:
        """Return what an event brings about. ``now``: seconds of a clock that never goes back."""
        match event:
            case Ask():
                self._ask(event, now)
            case Withdraw(id):
                self._withdraw([id], now)
            case HolderGone(holder):
                self._withdraw(list(self._by_holder.get(holder, ())), now)
            case Lend(id):
                if (record := self._accounts.placements.get(id)) is not None:
                    self._turn(self._accounts.lend(record), now)
            case Reclaim(id):
                if (record := self._accounts.placements.get(id)) is not None:
                    self._accounts.reclaim(record)
                    self._turn(set(), now)
            case Refused(id, host):
                self._refused(id, host, now)
            case TakenElsewhere(host, held):
                if (book := self._accounts.books.by_host.get(host)) is not None:
                    self._accounts.set_elsewhere(book, held)
                    self._accept(host)
                    self._turn({host}, now)
            case HostUp(host):
                was_there = self._gone.pop(host, None) is not None or host in self._accounts.books.by_host
                self._lose(host)
                self._accounts.open_book(event)
                if was_there:  # perhaps with less than before
                    self._reject_hopeless(now)
                self._turn({host}, now)
            case HostGone(host):
                self._host_gone(host, now)
            case HostClosed(host):
                self._accounts.books.open(host, False)
                self._recalls.revise()
                self._turn(set(), now)
            case HostOpened(host):
                self._accounts.books.open(host, True)
                self._recalls.revise()
                self._turn({host}, now)
            case Declared(kinds):
                self._accounts.kinds = kinds
                self._reject_hopeless(now)
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        if self._dispatch.wants_keeps:
            self._turn(set(), now)
        for record, waiter in self._recalls.choose(now):
            self._commands.append(Recall(record.id, called(waiter.demand.name, waiter.id)))
        commands, self._commands = self._commands, []
        return commands

    # -- placements

    def _ask(self, event: Ask, now: float) -> None:
        assert event.id not in self._accounts.placements, f"placement {event.id} is there already"
        self._arrivals += 1
        shape = self._shapes.of(event.demand)
        record = PlacementRecord(event.id, event.demand, shape, event.holder, self._arrivals, now)
        self._accounts.placements[event.id] = record
        self._by_holder.setdefault(event.holder, {})[event.id] = None
        self._granted(self._dispatch.ask(record, now))
        if record.is_granted:
            return
        if event.id == shape.near or (shape.within is not None and event.id == shape.within[0]):
            self._reject(record, "it is to be near or within itself", now)
        elif why := self._accounts.shortfall(shape):
            self._reject(record, why, now)

    def _granted(self, records: list[PlacementRecord]) -> None:
        for record in records:
            record.expected = []
            self._commands.append(Grant(record.id, record.spots(), tuple([held for _, held in record.places])))

    def _turn(self, freed: set[int] | None, now: float) -> None:
        while granted := self._dispatch.turn(freed, now):
            self._granted(granted)
            freed = set()
            if not any(line.shape.refers for line in self._waiting.lines.values()):
                break

    def _withdraw(self, ids: list[int], now: float) -> None:
        freed: set[int] = set()
        for id in ids:
            if (record := self._accounts.placements.get(id)) is not None:
                freed |= self._end(record, now)
        self._turn(freed, now)

    def _end(self, record: PlacementRecord, now: float) -> set[int]:
        """End a placement, those within it first. Returns the hosts that have more left now."""
        freed: set[int] = set()
        for id in list(record.guests):
            freed |= self._end(self._accounts.placements[id], now)
        self._forget(record)
        if not record.is_granted:
            freed |= self._dispatch.leave(record)
            self._reject_orphans(record.id, now)
            return freed
        hosts = tuple(record.hosts())
        freed |= self._accounts.end(record)
        self._commands.append(Release(record.id, hosts))
        self._reject_orphans(record.id, now)
        return freed

    def _forget(self, record: PlacementRecord) -> None:
        del self._accounts.placements[record.id]
        self._refused_records.pop(record.id, None)
        held = self._by_holder[record.holder]
        del held[record.id]
        if not held:
            del self._by_holder[record.holder]

    def _refused(self, id: int, host: int, now: float) -> None:
        record = self._accounts.placements.get(id)
        if record is None or not record.is_granted:
            return
        freed: set[int] = set()
        for guest in list(record.guests):
            freed |= self._end(self._accounts.placements[guest], now)
        hosts = tuple(other for other in record.hosts() if other != host)
        freed |= self._accounts.end(record)
        record.refused_until[host] = now + min(REFUSAL_PAUSE * 2 ** min(record.refusals, 10), LONGEST_PAUSE)
        record.refusals += 1
        self._refused_records[id] = record
        self._waiting.add(record, now).is_settled = False
        if why := self._accounts.shortfall(record.shape, [book for _, book in self._gone.values()]):
            self._reject(record, why, now)  # hosts have left since it was granted
        if hosts:
            self._commands.append(Release(id, hosts))
        self._turn(freed, now)

    def _accept(self, host: int) -> None:
        """Let placements try a host again that refused them: it has said what others hold there."""
        for id, record in list(self._refused_records.items()):
            record.refused_until.pop(host, None)
            if not record.refused_until or record.is_granted or id not in self._accounts.placements:
                del self._refused_records[id]
            if record.shape in self._waiting.lines:
                self._waiting.lines[record.shape].is_settled = False

    def _reject(self, record: PlacementRecord, why: str, now: float) -> None:
        self._dispatch.leave(record)
        self._forget(record)
        table = self._shown(record.shape, now).table()
        self._commands.append(Reject(record.id, described(record.demand), why, table))
        self._reject_orphans(record.id, now)

    def _reject_orphans(self, id: int, now: float) -> None:
        """Reject those that wait to be near or within a placement that has ended."""
        lines = [line for line in self._waiting.lines.values() if line.shape.refers]
        for record in [record for line in lines for record in line.members.values()]:
            is_orphan = record.shape.near == id or (record.shape.within and record.shape.within[0] == id)
            if is_orphan and self.has(record.id):  # else it was rejected with another
                self._reject(record, self._accounts.shortfall(record.shape), now)

    def _reject_hopeless(self, now: float) -> None:
        """Reject those that can never be placed any more (P8)."""
        also = [book for _, book in self._gone.values()]
        for line in list(self._waiting.lines.values()):
            if why := self._accounts.shortfall(line.shape, also):
                for record in list(line.members.values()):
                    if self.has(record.id):
                        self._reject(record, why, now)

    # -- hosts

    def _lose(self, host: int) -> None:
        self._dispatch.drop_all()
        for record, bundles in self._accounts.close_book(host):
            self._commands.append(Lost(record.id, tuple(bundles)))
        self._recalls.revise()

    def _host_gone(self, host: int, now: float) -> None:
        if (book := self._accounts.books.by_host.get(host)) is None:
            return
        self._gone[host] = (now + self.grace, book)
        self._lose(host)
        self._reject_hopeless(now)
        self._turn(None, now)

    # -- time

    def next_tick(self, now: float) -> float | None:
        """Return when a `Tick` is due, or None."""
        times = [until for until, _ in self._gone.values()]
        for line in self._waiting.lines.values():
            times.append(line.stalled_since + self.warn_after * 2**line.warnings)
            head = line.head
            times += head.refused_until.values()
            if not self._dispatch.is_due(head, now):
                times.append(head.since + self._dispatch.patience)
        return max(min(times), now) if times else None

    def _tick(self, now: float) -> None:
        if any(until <= now for until, _ in self._gone.values()):
            self._gone = {host: entry for host, entry in self._gone.items() if entry[0] > now}
            self._reject_hopeless(now)
        for line in self._waiting.lines.values():
            head = line.head
            head.refused_until = {host: until for host, until in head.refused_until.items() if until > now}
        self._turn(None, now)
        for line in self._waiting.in_order():
            if now >= line.stalled_since + self.warn_after * 2**line.warnings:
                line.warnings += 1
                if not self._has_its_like(line.head):
                    self._commands.append(Warn(line.head.id, self._explained(line.head, now)))

    def _has_its_like(self, waiter: PlacementRecord) -> bool:
        """Return whether this is a cache that would only be larger: its holder goes on with what it has of the kind."""
        held = (self._accounts.placements[id] for id in self._by_holder[waiter.holder])
        return waiter.shape.is_spare and any(other.is_granted and other.shape == waiter.shape for other in held)

    # -- tables

    def has(self, id: int) -> bool:
        """Return whether a placement waits or is granted."""
        return id in self._accounts.placements

    def holdings(self, now: float) -> Holdings:
        """Return who holds what, and who waits."""
        return self._holdings(list(self._accounts.books), now)

    def _shown(self, shape: Shape, now: float) -> Holdings:
        """Return who holds what on as many hosts as a table shows: those first on which a demand might be."""
        books = list(self._accounts.books)
        if len(books) > ROWS:
            books.sort(key=lambda book: not is_meant(shape, book))
        return self._holdings(books, now, ROWS)

    def _holdings(self, books: Sequence[Book], now: float, most: int | None = None) -> Holdings:
        kept = self._dispatch.kept()
        self._dispatch.drop_all()
        rows = Rows(self._accounts)
        hosts = tuple([rows.of(book) for book in books[:most]])
        self._dispatch.restore(kept)
        kept_on = {line.head.id: tuple(dict.fromkeys(book.name for book, _ in line.kept)) for line, _ in kept}
        waiting = tuple([
            Waiter(r.id, r.demand.name, r.holder, now - r.since, r.passed, kept_on.get(r.id, ())) for r in self._waiting
        ])  # fmt: skip
        return Holdings(hosts, waiting, len(books) - len(hosts))

    def explain(self, demand: Demand, now: float) -> str:
        """Return why a demand would wait, fit or be rejected if it were asked for now, and who holds what."""
        record = PlacementRecord(-1, demand, self._shapes.of(demand), 0, self._arrivals + 1, now)
        return self._explained(record, now)

    def _explained(self, record: PlacementRecord, now: float) -> str:
        holdings, kept = self._shown(record.shape, now), self._dispatch.kept()
        self._dispatch.drop_all()
        self._dispatch.restore([entry for entry in kept if entry[0].head.order < record.order])
        text = explanation(record, self._accounts, self._dispatch, holdings, now)
        self._dispatch.drop_all()
        self._dispatch.restore(kept)
        return text
