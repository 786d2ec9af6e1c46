"""Who is asked to give back what it holds, so that who waits fits: spares, and on request preemptible placements.

Spares go first. Of preemptible placements only those of lower priority than the one that waits, the lowest and newest
first. What is given back is found by trying: released in the books one after the other until the demand fits, then all
that turn out not to be needed are taken off the list again. The books are left as they were.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from monarch_async.scheduler.accounts import Accounts
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.dispatch import Dispatch
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.fit import Fit
from monarch_async.scheduler.placement_record import PlacementRecord

AHEAD = 16  #: for how many of those that wait others are recalled at once


class Recalls:
    """Chooses whom to recall."""

    def __init__(self, accounts: Accounts, dispatch: Dispatch) -> None:
        self.accounts, self.dispatch = accounts, dispatch
        self._journal: list[tuple[Book, Held, bool]] = []  #: what is written only for a try; whether it was given

    def choose(self, now: float) -> list[tuple[PlacementRecord, PlacementRecord]]:
        """Return who is recalled, each with the one that waits for it, and mark both."""
        if not self.dispatch.waiting or not self.accounts.takeable:
            return []
        kept = self.dispatch.kept()
        self.dispatch.drop_all()
        for record in self.accounts.recalled.values():
            self._release(record)
        chosen: list[tuple[PlacementRecord, PlacementRecord]] = []
        kept_for = {line.head.id: places for line, places in kept}
        for waiter in list(islice(self.dispatch.waiting, AHEAD)):
            places = self.dispatch.fit(waiter, None, now)
            if places is None:
                victims, places = self._victims(waiter, now)
                for victim in victims:
                    self.accounts.mark_recalled(victim)
                    chosen.append((victim, waiter))
                if victims and places is not None:
                    waiter.expected = [book for book, _ in places]
            for book, held in places or kept_for.get(waiter.id, ()):
                self._write(book, held, False)
        self._roll_back(0)
        self.dispatch.restore(kept)
        if chosen:
            self.dispatch.keep_all(now)
        return chosen

    def _victims(self, waiter: PlacementRecord, now: float) -> tuple[list[PlacementRecord], Fit | None]:
        """Return who must go for one that waits, released in the books; and where that one fits then."""
        victims = [record for record in self.accounts.takeable.values() if _may_be_taken(record, waiter)]
        if not victims:
            return [], None
        victims.sort(key=lambda record: (not record.shape.is_spare, record.shape.priority, -record.number))
        mark = len(self._journal)
        if len(waiter.shape.needs) == 1:
            needed = self._on_one_host(waiter, victims, now)
        else:
            needed = self._on_many(waiter, victims, now)
        self._roll_back(mark)
        for record in needed:
            self._release(record)
        places = self.dispatch.fit(waiter, None, now) if needed else None
        return needed, places

    def _on_one_host(
        self, waiter: PlacementRecord, victims: Sequence[PlacementRecord], now: float
    ) -> list[PlacementRecord]:
        """Return the fewest victims of one host that make room for one bundle there."""
        need = waiter.shape.needs[0]
        among = self.accounts.among(waiter, None, now)
        books = self.accounts.books.opened() if among is None else among
        by_host: dict[int, list[PlacementRecord]] = {}
        for record in victims:
            for host in record.hosts():
                by_host.setdefault(host, []).append(record)
        best: tuple[tuple[int, int, int], list[PlacementRecord]] | None = None
        for book in books:
            there = by_host.get(book.host, ())
            if not there or not book.empty.room_for(need, 1):
                continue
            mark = len(self._journal)
            released: list[PlacementRecord] = []
            for record in there:
                self._release(record)
                released.append(record)
                if book.room_for(need, 1):
                    break
            if book.room_for(need, 1):
                released = self._needed(released, lambda book=book: bool(book.room_for(need, 1)))
                preempted = sum(1 for record in released if not record.shape.is_spare)
                key = (preempted, len(released), book.rank)
                if best is None or key < best[0]:
                    best = (key, released)
            self._roll_back(mark)
        return best[1] if best is not None else []

    def _on_many(
        self, waiter: PlacementRecord, victims: Sequence[PlacementRecord], now: float
    ) -> list[PlacementRecord]:
        """Return victims that make room for a gang, all of them needed."""

        def fits() -> bool:
            return self.dispatch.fit(waiter, None, now) is not None

        batch, start = 1, 0
        while start < len(victims):
            for record in victims[start : start + batch]:
                self._release(record)
            start, batch = start + batch, batch * 2
            if fits():
                return self._needed(list(victims[:start]), fits)
        return []

    def _needed(self, released: list[PlacementRecord], fits: Callable[[], bool]) -> list[PlacementRecord]:
        """Return those of the released without which it does not fit; the dearest are spared first."""
        needed: list[PlacementRecord] = []
        for record in reversed(released):
            mark = len(self._journal)
            for book, held in self.accounts.held_now(record):
                self._write(book, held, False)
            if not fits():
                self._roll_back(mark)
                needed.append(record)
        return needed

    def _release(self, record: PlacementRecord) -> None:
        for book, held in self.accounts.held_now(record):
            self._write(book, held, True)

    def _write(self, book: Book, held: Held, is_given: bool) -> None:
        self._journal.append((book, held, is_given))
        (self.accounts.give if is_given else self.accounts.take)(book, held)

    def _roll_back(self, mark: int) -> None:
        while len(self._journal) > mark:
            book, held, is_given = self._journal.pop()
            (self.accounts.take if is_given else self.accounts.give)(book, held)


def _may_be_taken(record: PlacementRecord, waiter: PlacementRecord) -> bool:
    """Return whether one may be recalled for another: a spare always, a preemptible one by its betters.

    A spare for a spare only where that is no worse, and not for what its holder has already: that gains nothing.
    """
    shape, wanted = record.shape, waiter.shape
    if shape.within != wanted.within:
        return False
    if shape.is_spare and wanted.is_spare:
        return shape.priority <= wanted.priority and not (shape == wanted and record.holder == waiter.holder)
    return shape.is_spare or (wanted.preempts and shape.preemptible and shape.priority < wanted.priority)
