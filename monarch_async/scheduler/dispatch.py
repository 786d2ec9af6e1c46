"""Who waits is granted in turn, and what is kept for whom (P1, P5, P6 of the scheduler)."""

import heapq
from collections.abc import Collection

from monarch_async.scheduler.accounts import Accounts
from monarch_async.scheduler.alike import Fit
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.fit import fit
from monarch_async.scheduler.keeping import target
from monarch_async.scheduler.placement_record import PlacementRecord
from monarch_async.scheduler.waiting import Line, Waiting

KEEPS = 16  #: for how many lines something is kept at once; the others have their turn after these


class Dispatch:
    """The queue over the books."""

    def __init__(self, accounts: Accounts, passes: int, patience: float) -> None:
        self.accounts = accounts
        self.waiting = Waiting()
        self.passes, self.patience = passes, patience
        self.keeps = 0
        self.wants_keeps = False  #: somebody has been passed too often since the last turn

    def ask(self, record: PlacementRecord, now: float) -> list[PlacementRecord]:
        """Take in one that asks, and place it if it may be. Returns who is granted."""
        line = self.waiting.lines.get(record.shape)
        if line is not None and line.head.order < record.order:
            self.waiting.add(record, now)
            return []
        if self.keeps and any(line.kept and line.head.order > record.order for line in self.waiting.lines.values()):
            self.waiting.add(record, now).is_settled = False
            return self.turn(set(), now)
        places = self.fit(record, None, now)
        if places is None:
            self.waiting.add(record, now).is_settled = True
            return []
        self._grant(record, places)
        return [record]

    def leave(self, record: PlacementRecord) -> set[int]:
        """Take one out that waits. Returns the hosts on which something was kept for it."""
        line = self.waiting.lines[record.shape]
        freed = self._drop(line) if line.head is record else set[int]()
        self.waiting.remove(record)
        return freed

    def turn(self, freed: Collection[int] | None, now: float) -> list[PlacementRecord]:
        """Grant all that fits. ``freed``: the hosts that have more left than at the last turn; None: any may have."""
        if not self.waiting:
            return []
        self.wants_keeps = False
        more = self.drop_all()
        if freed is None:
            for line in self.waiting.lines.values():
                line.is_settled = False
        hosts = more.union(freed or ())
        granted: list[PlacementRecord] = []
        queue = [(line.head.order, line) for line in self.waiting.lines.values()]
        heapq.heapify(queue)
        while queue:
            _, line = heapq.heappop(queue)
            head = line.head
            if (places := self._fit_head(line, head, hosts, now)) is not None:
                self.waiting.remove(head)
                line.stalled_since, line.warnings = now, 0
                self._grant(head, places)
                granted.append(head)
                if line.members:
                    heapq.heappush(queue, (line.head.order, line))
            else:
                if head.expected and not head.awaited:
                    head.expected = []  # all is gone that was asked back for it, and still it does not fit
                    self.accounts.changes += 1
                line.is_settled = not head.refused_until
                self._keep(line, head, now)
        return granted

    def fit(self, record: PlacementRecord, freed: Collection[int] | None, now: float) -> Fit | None:
        """Return where one fits now."""
        among = self.accounts.among(record, freed, now)
        if among is not None and not among:
            return None
        books = self.accounts.books
        if prefers := record.demand.prefers:
            near = self.accounts.preferred(prefers, among)
            if near and (places := fit(record.shape, books, near)) is not None:
                return places
        return fit(record.shape, books, among)

    def is_due(self, record: PlacementRecord, now: float) -> bool:
        """Return whether one has been passed often or long enough."""
        return bool(record.expected) or record.passed >= self.passes or now >= record.since + self.patience

    def drop_all(self) -> set[int]:
        """Keep nothing, for now. Returns the hosts where something was kept."""
        hosts: set[int] = set()
        if self.keeps:
            for line in self.waiting.lines.values():
                hosts |= self._drop(line)
        return hosts

    def kept(self) -> list[tuple[Line, list[tuple[Book, Held]]]]:
        """Return what is kept for which line."""
        return [(line, line.kept) for line in self.waiting.lines.values() if line.kept]

    def restore(self, kept: list[tuple[Line, list[tuple[Book, Held]]]]) -> None:
        """Keep again what `kept` returned, after `drop_all`."""
        for line, places in kept:
            line.kept = places
            for book, held in places:
                self.accounts.take(book, held)
        self.keeps = len(kept)

    def keep_all(self, now: float) -> None:
        """Keep anew what is to be kept."""
        self.drop_all()
        for line in self.waiting.in_order():
            self._keep(line, line.head, now)

    def _fit_head(self, line: Line, head: PlacementRecord, freed: set[int], now: float) -> Fit | None:
        return self.fit(head, freed if line.is_settled and not line.shape.refers else None, now)

    def _grant(self, record: PlacementRecord, places: Fit) -> None:
        self.accounts.grant(record, places)
        for line in self.waiting.lines.values():
            head = line.head
            if head.order < record.order:
                head.passed += 1
                if head.passed == self.passes:
                    self.wants_keeps = True

    def _keep(self, line: Line, head: PlacementRecord, now: float) -> None:
        if self.keeps >= KEEPS or not self.is_due(head, now):
            return
        accounts = self.accounts
        if head.expected and all(book.is_open for book in head.expected):
            places = list(zip(head.expected, line.shape.needs, strict=True))
        else:
            among = accounts.among(head, None, now)
            places = target(line.shape, accounts.books.opened() if among is None else among)
        for book, need in places:
            held = book.pick(need)
            accounts.take(book, held)
            line.kept.append((book, held))
        self.keeps += bool(line.kept)

    def _drop(self, line: Line) -> set[int]:
        """Keep nothing for a line. Returns the hosts."""
        hosts = {book.host for book, _ in line.kept}
        for book, held in line.kept:
            self.accounts.give(book, held)
        self.keeps -= bool(line.kept)
        line.kept = []
        return hosts
