"""The books of all hosts, filed so that a host with enough left is found without looking at every one.

Open hosts lie in a sorted list for each number of free devices, by the cpus that are left. So what needs few cpus and
no device finds the fullest host that still fits it by bisection, without breaking into hosts whose devices are free.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence

from monarch_async.scheduler.amounts import UNIT, Need
from monarch_async.scheduler.book import Book


class Books:
    """All hosts that have joined, by id, in the order of their ranks."""

    def __init__(self) -> None:
        self.by_host: dict[int, Book] = {}
        self.version = 0  #: goes up when a host comes, goes, opens or closes
        self._named: dict[str, list[Book]] = {}
        self._ranked: dict[int, Book] = {}
        self._ranks: dict[int, int] = {}
        self._shelves: dict[int, list[tuple[int, int]]] = {}  #: free devices -> sorted (cpus left, rank)
        self._labels: list[int] = []  #: the keys of the shelves, sorted
        self._shared: dict[int, None] = {}  #: ranks of open hosts with a device of which only a part is left

    def __iter__(self) -> Iterator[Book]:
        """Yield every book, by rank."""
        return (self._ranked[rank] for rank in sorted(self._ranked))

    def named(self, name: str) -> Sequence[Book]:
        """Return the books of the hosts of a name: one, as a rule."""
        return self._named.get(name, ())

    def opened(self) -> list[Book]:
        """Return the books of hosts that new placements may go to, by rank."""
        return [book for book in self if book.is_open]

    def __len__(self) -> int:
        return len(self.by_host)

    def rank(self, host: int) -> int:
        """Return the rank of a host; a host that comes back has the one it had."""
        return self._ranks.setdefault(host, len(self._ranks))

    def add(self, book: Book) -> None:
        """Take a host in."""
        self.by_host[book.host] = self._ranked[book.rank] = book
        self._named.setdefault(book.name, []).append(book)
        self.version += 1
        self.file(book)

    def remove(self, host: int) -> Book | None:
        """Take a host out. Returns its book, which counts no longer."""
        if (book := self.by_host.pop(host, None)) is None:
            return None
        del self._ranked[book.rank]
        self._named[book.name].remove(book)
        if not self._named[book.name]:
            del self._named[book.name]
        book.is_open, book.is_gone = False, True
        self.version += 1
        self.file(book)
        return book

    def open(self, host: int, is_open: bool) -> None:
        """Let new placements go to a host, or keep them away from it."""
        if (book := self.by_host.get(host)) is not None and book.is_open != is_open:
            book.is_open = is_open
            self.version += 1
            self.file(book)

    def file(self, book: Book) -> None:
        """File a book anew after something was written in it."""
        if book.is_room:
            return
        key = (book.whole, book.cpus) if book.is_open else None
        if (filed := book.filed) != key:
            if filed is not None:
                shelf = self._shelves[filed[0]]
                del shelf[bisect_left(shelf, (filed[1], book.rank))]
                if not shelf:
                    del self._shelves[filed[0]]
                    self._labels.remove(filed[0])
            if key is not None:
                if key[0] not in self._shelves:
                    self._shelves[key[0]] = []
                    insort(self._labels, key[0])
                insort(self._shelves[key[0]], (key[1], book.rank))
            book.filed = key
        if book.devices:
            if book.partial and book.is_open:
                self._shared[book.rank] = None
            else:
                self._shared.pop(book.rank, None)

    def fullest(self, need: Need, count: int, but: Collection[int] = ()) -> Book | None:
        """Return the open host with least left, devices first, on which ``count`` of this need fit.

        ``but``: not the hosts of these ranks.
        """
        cpus, gpus, _, _ = need
        if 0 < gpus < UNIT:
            return self._fullest_shared(need, count, but)
        enough = (cpus * count, -1)
        is_plain = not need.memory and not need.custom
        for label in self._labels:
            if label * UNIT < gpus * count:
                continue
            shelf = self._shelves[label]
            for place in range(bisect_left(shelf, enough) if cpus else 0, len(shelf)):
                book = self._ranked[shelf[place][1]]
                if (is_plain or book.room_for(need, count) >= count) and book.rank not in but:
                    return book
        return None

    def _fullest_shared(self, need: Need, count: int, but: Collection[int]) -> Book | None:
        found = None
        for rank in self._shared:
            book = self._ranked[rank]
            if rank not in but and book.room_for(need, count) >= count:
                left = min(left for left in book.devices.values() if left >= need.gpus)
                key = (left, book.whole, book.cpus, rank)
                if found is None or key < found[0]:
                    found = (key, book)
        if found is not None:
            return found[1]
        for label in self._labels:
            for _, rank in self._shelves[label] if label else ():
                if rank not in but and self._ranked[rank].room_for(need, count) >= count:
                    return self._ranked[rank]
        return None

    def roomiest(self, need: Need) -> Iterator[tuple[int, Book]]:
        """Yield open hosts and how many of this need fit there at most, by that number, the largest first.

        By one resource only: whole devices, or else cpus. It may be less for others that are short.
        """
        if need.devices:
            for label in reversed(self._labels):
                bound = label // need.devices
                if not bound:
                    return
                for _, rank in self._shelves[label]:
                    yield bound, self._ranked[rank]
        else:
            for book in self.emptiest(need):
                yield book.cpus // need.cpus, book

    def has_room_for(self, need: Need, count: int) -> bool:
        """Return whether ``count`` bundles of this need fit on all open hosts together."""
        for book in self.emptiest(need):
            count -= book.room_for(need, count)
            if count <= 0:
                return True
        return False

    def emptiest(self, need: Need) -> Iterator[Book]:
        """Yield open hosts on which this need fits, those with most cpus left first; of equals, by rank."""
        cpus = need.cpus
        shelves = [self._shelves[label] for label in self._labels if need.gpus < UNIT or label * UNIT >= need.gpus]
        ends = [len(shelf) for shelf in shelves]
        while True:
            most = max((shelf[end - 1][0] for shelf, end in zip(shelves, ends, strict=True) if end), default=None)
            if most is None or (cpus and most < cpus):
                return
            level: list[int] = []
            for number, shelf in enumerate(shelves):
                if ends[number] and shelf[ends[number] - 1][0] == most:
                    start = bisect_left(shelf, (most, -1), 0, ends[number])
                    level += [rank for _, rank in shelf[start : ends[number]]]
                    ends[number] = start
            for rank in sorted(level):
                book = self._ranked[rank]
                if book.room_for(need, 1):
                    yield book
