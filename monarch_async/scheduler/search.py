"""Where bundles that differ fit together: a search, since putting the largest first does not always find what exists.

Largest first, each where it fits most tightly (``pack``: hosts that already have one first; ``spread``: those that
have fewest), and back where the rest does not fit. Bundles and hosts that are alike are tried once. The search gives up
after `STEPS`, or `LOOKS` at books; what is too large for it is placed in groups of bundles that are alike, the largest
first, without going back. So a demand that just so fits may wait until there is more room. ``pack`` finds few hosts
here, not always the fewest.
"""

from collections.abc import Sequence

from monarch_async.scheduler.alike import Fit, fit_alike, picked
from monarch_async.scheduler.amounts import UNIT, Need, together
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.books import Books
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.shape import Shape

STEPS = 2000
LOOKS = 50_000
LARGEST = 128  #: bundles that are searched for one by one

Groups = list[tuple[Need, list[int]]]


class Exhausted(Exception):
    """The search has taken its steps. Never leaves this file."""


def groups(shape: Shape) -> Groups:
    """Return the bundles of a demand by what they need, those that need most first."""
    found: dict[Need, list[int]] = {}
    for bundle, need in enumerate(shape.needs):
        found.setdefault(need, []).append(bundle)
    return sorted(found.items(), key=lambda group: _size(group[0]), reverse=True)


def search(shape: Shape, books: Sequence[Book]) -> Fit | None:
    """Return where a demand whose bundles differ fits, or None. Nothing is written in any book."""
    parts = groups(shape)
    most = 1 if shape.strategy == "strict_spread" else len(shape.needs)
    if shape.strategy == "strict_spread" and len(books) < len(shape.needs):
        return None
    if any(sum(book.room_for(need, most) for book in books) < len(bundles) for need, bundles in parts):
        return None
    if shape.strategy in ("pack", "strict_pack"):
        whole = together(shape.needs)
        for book in sorted(books, key=lambda book: (book.whole, book.cpus, book.rank)):
            if _has_summed(book, whole) and (found := _place(shape, parts, [book])):
                return found
        if shape.strategy == "strict_pack":
            return None
    return _place(shape, parts, books)


def _place(shape: Shape, parts: Groups, books: Sequence[Book]) -> Fit | None:
    count = len(shape.needs)
    if count <= LARGEST and count * len(books) <= LOOKS:
        order = [bundle for _, bundles in parts for bundle in bundles]
        if (found := _Search(shape, order, books).run()) is not None or len(books) == 1:
            return found
    return _in_groups(shape, parts, books)


def _in_groups(shape: Shape, parts: Groups, books: Sequence[Book]) -> Fit | None:
    """Place all that are alike at once, the largest first; ``pack``: rather on hosts that already have some."""
    found: dict[int, tuple[Book, Held]] = {}
    used: dict[int, Book] = {}
    try:
        for need, bundles in parts:
            places: Fit = []
            others = [book for book in books if book.rank not in used]
            if shape.strategy in ("pack", "strict_pack"):
                for book in used.values():
                    places += picked(book, need, book.room_for(need, len(bundles) - len(places)))
            elif shape.strategy == "spread":
                others = list(books)
            if missing := len(bundles) - len(places):
                more = fit_alike(need, missing, shape.strategy, Books(), others)
                if more is None:
                    return None
                places += more
            places.sort(key=lambda entry: entry[0].rank)
            for bundle, (book, held) in zip(bundles, places, strict=True):
                book.take(held)
                used[book.rank] = book
                found[bundle] = (book, held)
        return [found[bundle] for bundle in range(len(shape.needs))]
    finally:
        for book, held in found.values():
            book.give(held)


def _size(need: Need) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    return (need.gpus, need.cpus, need.memory, need.custom)


def _has_summed(book: Book, need: Need) -> bool:
    """Return whether so much is left on one host in all, on whichever devices."""
    return (
        (not need.cpus or need.cpus <= book.cpus)
        and (not need.memory or need.memory <= book.memory)
        and (not need.gpus or need.gpus <= sum(left for left in book.devices.values() if left > 0))
    )


class _Search:
    def __init__(self, shape: Shape, order: Sequence[int], books: Sequence[Book]) -> None:
        self.needs, self.strategy, self.order = shape.needs, shape.strategy, order
        self.books = list(books)
        self.counts: dict[int, int] = {}  #: rank -> bundles of this gang there
        self.found: list[tuple[Book, Held] | None] = [None] * len(order)
        self.steps = min(STEPS, LOOKS // max(len(self.books), 1))

    def run(self) -> Fit | None:
        """Search. All books are left as they were."""
        try:
            is_found = self._place(0)
        except Exhausted:
            return None
        finally:
            for entry in self.found:
                if entry is not None:
                    entry[0].give(entry[1])
        if not is_found:
            return None
        return self._ordered([entry for entry in self.found if entry is not None])

    def _place(self, depth: int) -> bool:
        if depth == len(self.order):
            return True
        bundle = self.order[depth]
        need = self.needs[bundle]
        for book, held in self._options(need):
            if self.steps == 0:
                raise Exhausted
            self.steps -= 1
            book.take(held)
            self.counts[book.rank] = self.counts.get(book.rank, 0) + 1
            self.found[bundle] = (book, held)
            if self._place(depth + 1):
                return True
            book.give(held)
            self.counts[book.rank] -= 1
            self.found[bundle] = None
        return False

    def _options(self, need: Need) -> list[tuple[Book, Held]]:
        """Return the ways to place one bundle, best first, each of those that come to the same once."""
        fitting = [book for book in self.books if book.room_for(need, 1)]
        counts = self.counts
        match self.strategy:
            case "strict_spread":
                fitting = [book for book in fitting if not counts.get(book.rank)]
                fitting.sort(key=lambda book: (-book.cpus, book.rank))
            case "spread":
                fitting.sort(key=lambda book: (counts.get(book.rank, 0), -book.cpus, book.rank))
            case _:
                fitting.sort(key=lambda book: (not counts.get(book.rank), book.whole, book.cpus, book.rank))
        options: list[tuple[Book, Held]] = []
        seen: set[object] = set()
        for book in fitting:
            lefts = tuple(sorted(book.devices.values()))
            alike = (bool(counts.get(book.rank)), book.cpus, book.memory, lefts, tuple(book.custom.items()))
            if alike not in seen:
                seen.add(alike)
                options += _on(book, need)
        return options

    def _ordered(self, found: Fit) -> Fit:
        """Return what was found so that bundles that are alike follow the order of hosts."""
        groups: dict[Need, list[int]] = {}
        for bundle, need in enumerate(self.needs):
            groups.setdefault(need, []).append(bundle)
        ordered = list(found)
        for bundles in groups.values():
            entries = sorted((found[bundle] for bundle in bundles), key=lambda entry: entry[0].rank)
            for bundle, entry in zip(bundles, entries, strict=True):
                ordered[bundle] = entry
        return ordered


def _on(book: Book, need: Need) -> list[tuple[Book, Held]]:
    """Return the ways to place one bundle on one host: for a share of a device, one for each amount that is left."""
    if not 0 < need.gpus < UNIT:
        return [(book, book.pick(need))]
    by_left: dict[int, str] = {}
    for device, left in book.devices.items():
        if left >= need.gpus:
            by_left.setdefault(left, device)
    return [(book, book.pick_on(need, by_left[left])) for left in sorted(by_left)]
