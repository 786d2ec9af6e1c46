"""Who is asked to give back what it holds, so that who waits fits: spares, and on request preemptible placements.

Spares go first. Of preemptible placements only those of lower priority than the one that waits, the lowest and newest
first. Found by trying: they are released in the books, host by host, until the demand fits; then those that hold
nothing of where it fits are taken off the list again. The books are left as they were.

What was recalled counts as free for those it was recalled for. They are not looked at again before the last of it is
gone, nor is anybody before something has changed: a queue of thousands costs little while it waits.
"""

import heapq
from collections.abc import Callable, Sequence

from monarch_async.scheduler.accounts import Accounts
from monarch_async.scheduler.alike import Fit
from monarch_async.scheduler.amounts import summed
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.dispatch import Dispatch
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.placement_record import PlacementRecord

AHEAD = 16  #: for how many of those that wait others are recalled at once
END = (float("inf"), 0)  #: a place in the queue behind all others
TRIES = 32  #: how many of them are looked at, with those that recalls do not help


class Recalls:
    """Chooses whom to recall."""

    def __init__(self, accounts: Accounts, dispatch: Dispatch) -> None:
        self.accounts, self.dispatch = accounts, dispatch
        self._seen = (-1, -1)  #: changes of accounts, and who had gone, when it was last looked for
        self._reach: tuple[float, int] = END  #: the last place in the queue that was looked at; `END`: all
        self._journal: list[tuple[Book, Held, bool]] = []  #: what is written only for a try; whether it was given

    def choose(self, now: float) -> list[tuple[PlacementRecord, PlacementRecord]]:
        """Return who is recalled, each with the one that waits for it, and mark both."""
        waiting, accounts = self.dispatch.waiting, self.accounts
        if not waiting or not accounts.takeable:
            return []
        seen, new = (accounts.changes, waiting.removals), waiting.first_new
        if seen == self._seen and (new is None or new > self._reach):
            return []
        self._seen, waiting.first_new = seen, None
        if not self._is_anybody_new():
            return []
        kept = self.dispatch.kept()
        kept_for = {line.head.id: places for line, places in kept}
        self.dispatch.drop_all()
        for record in accounts.recalled.values():
            self._release(record)
        chosen: list[tuple[PlacementRecord, PlacementRecord]] = []

        def consider(waiter: PlacementRecord) -> bool:
            places = self.dispatch.fit(waiter, None, now)
            if places is None:
                victims, places = self._victims(waiter, now)
                chosen.extend([(victim, waiter) for victim in victims])
            waiter.considered, waiter.is_helped = accounts.changes, places is not None
            for book, held in places or kept_for.get(waiter.id, ()):
                self._write(book, held, False)
            return waiter.is_helped

        self._walk(consider)
        self._roll_back(0)
        self.dispatch.restore(kept)
        if chosen:
            self.dispatch.keep_all(now)
        return chosen

    def _is_anybody_new(self) -> bool:
        """Return whether there is one that might be helped and was not looked at since something changed."""
        found: list[PlacementRecord] = []

        def look(waiter: PlacementRecord) -> bool:
            if not waiter.expected and waiter.considered != self.accounts.changes:
                found.append(waiter)
            return bool(waiter.expected) or waiter.is_helped

        self._walk(look)
        return bool(found)

    def _walk(self, consider: Callable[[PlacementRecord], bool]) -> None:
        """Look at those that wait, in order; ``consider`` returns whether recalls help one.

        Where they do not, they help none of those behind it in its line: others are looked at instead.
        """
        lines = [iter(line.members.values()) for line in self.dispatch.waiting.lines.values()]
        queue = [(head.order, head, line) for line in lines for head in [next(line)]]
        heapq.heapify(queue)
        helped = 0
        self._reach = END
        for _ in range(TRIES):
            if not queue or helped == AHEAD:
                break
            self._reach, waiter, line = heapq.heappop(queue)
            if is_helped := consider(waiter):
                helped += 1
            if is_helped or waiter.shape.is_spare:  # another holder's spare may be taken for this
                others = (each for each in line if is_helped or each.holder != waiter.holder)
                if (later := next(others, None)) is not None:
                    heapq.heappush(queue, (later.order, later, line))
        if not queue:
            self._reach = END

    def revise(self) -> None:
        """Choose anew for those whose hosts are no longer to be had."""
        for record in self.accounts.recalled.values():
            waiter = record.recalled_for
            if waiter is not None and not all(book.is_open for book in waiter.expected):
                waiter.expected = []
            if waiter is not None and not waiter.expected:
                record.recalled_for, waiter.awaited = None, 0
        self.accounts.changes += 1

    def _victims(self, waiter: PlacementRecord, now: float) -> tuple[list[PlacementRecord], Fit | None]:
        """Return who must go for one that waits, marked and released in the books; and where that one fits then."""
        mark = len(self._journal)
        among = self.accounts.among(waiter, None, now)
        books = self.accounts.books.opened() if among is None else among
        if len(waiter.shape.needs) == 1:
            victims = self._on_one_host(waiter, books)
        else:
            victims = self._on_many(waiter, books, now)
        self._roll_back(mark)
        for record in victims:
            self._release(record)
        places = self.dispatch.fit(waiter, None, now) if victims else None
        if places is None:
            self._roll_back(mark)
            return [], None
        for record in victims:
            self.accounts.mark_recalled(record)
            record.recalled_for = waiter
        waiter.expected = [book for book, _ in places]
        waiter.awaited += len(victims)
        return victims, places

    def _on_one_host(self, waiter: PlacementRecord, books: Sequence[Book]) -> list[PlacementRecord]:
        """Return the fewest victims of one host that make room for one bundle there."""
        need, within = waiter.shape.needs[0], waiter.shape.within
        best: tuple[tuple[int, int, int], list[PlacementRecord]] | None = None
        for book in books:
            if not self.accounts.takeable.room_for(need, 1, book, within):
                continue
            mark = len(self._journal)
            released: list[PlacementRecord] = []
            for record in self._candidates(waiter, book):
                self._release(record)
                released.append(record)
                if book.room_for(need, 1):
                    break
            if released and book.room_for(need, 1):
                needed = self._needed(released, [(book, book.pick(need))])
                key = (sum(1 for record in needed if not record.shape.is_spare), len(needed), book.rank)
                if best is None or key < best[0]:
                    best = (key, needed)
            self._roll_back(mark)
        return best[1] if best is not None else []

    def _on_many(self, waiter: PlacementRecord, books: Sequence[Book], now: float) -> list[PlacementRecord]:
        """Return victims that make room for a gang, all of them needed."""
        if not self._might_fit(waiter, books):
            return []
        needs = waiter.shape.needs
        rooms = {book.rank: book.room_for(needs[0], len(needs)) for book in books}
        order = sorted(books, key=lambda book: (-rooms[book.rank], -book.whole, -book.cpus, book.rank))
        released: dict[int, PlacementRecord] = {}
        batch = start = 0
        while start < len(order):
            batch = max(1, batch * 2)
            for book in order[start : start + batch]:
                for record in self._candidates(waiter, book):
                    if record.id not in released:
                        released[record.id] = record
                        self._release(record)
            start += batch
            if released and (places := self.dispatch.fit(waiter, None, now)) is not None:
                return self._needed(sorted(released.values(), key=_cheapness), places)
        return []

    def _might_fit(self, waiter: PlacementRecord, books: Sequence[Book]) -> bool:
        """Return whether there might be room for a gang if all were gone that may be; False is certain."""
        shape, takeable = waiter.shape, self.accounts.takeable
        if not shape.is_uniform:
            return True
        count = len(shape.needs)
        most = 1 if shape.strategy == "strict_spread" else count
        rooms = [takeable.room_for(shape.needs[0], most, book, shape.within) for book in books]
        return (max(rooms, default=0) if shape.strategy == "strict_pack" else sum(rooms)) >= count

    def _candidates(self, waiter: PlacementRecord, book: Book) -> list[PlacementRecord]:
        """Return those on one host that may be taken, the cheapest first."""
        there = self.accounts.takeable.there(book, waiter.shape.within).records.values()
        return sorted((record for record in there if _may_be_taken(record, waiter)), key=_cheapness)

    def _needed(self, released: Sequence[PlacementRecord], places: Fit) -> list[PlacementRecord]:
        """Return those without which there is no room for these places; the dearest are spared first."""
        for book, held in places:
            self._write(book, held, False)
        needed: list[PlacementRecord] = []
        for record in reversed(released):
            held_now = self.accounts.held_now(record)
            if all(book.has(held) for book, held in _summed(held_now)):
                for book, held in held_now:
                    self._write(book, held, False)
            else:
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


def _cheapness(record: PlacementRecord) -> tuple[bool, int, int]:
    return (not record.shape.is_spare, record.shape.priority, -record.number)


def _summed(held: Fit) -> Fit:
    """Return what is held of each book, in all."""
    if len(held) == 1:
        return held
    by_book: dict[int, tuple[Book, list[Held]]] = {}
    for book, one in held:
        by_book.setdefault(id(book), (book, []))[1].append(one)
    return [(book, summed(parts)) for book, parts in by_book.values()]


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
