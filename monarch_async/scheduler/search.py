"""Where bundles that differ fit together: a search, since putting the largest first does not always find what exists.

Largest first, each where it fits most tightly (``pack``: hosts that already have one first; ``spread``: those that
have fewest), and back where the rest does not fit. Bundles and hosts that are alike are tried once. The search gives up
after `STEPS`; then a demand that just so fits may wait until there is more room. ``pack`` finds few hosts here, not
always the fewest.
"""

from collections.abc import Sequence

from monarch_async.scheduler.amounts import UNIT, Need, together
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.shape import Shape

STEPS = 2000


class Exhausted(Exception):
    """The search has taken its steps. Never leaves this file."""


def search(shape: Shape, books: Sequence[Book]) -> list[tuple[Book, Held]] | None:
    """Return where a demand whose bundles differ fits, or None. Nothing is written in any book."""
    order = sorted(range(len(shape.needs)), key=lambda bundle: _size(shape.needs[bundle]), reverse=True)
    if shape.strategy in ("pack", "strict_pack"):
        for book in sorted(books, key=lambda book: (book.whole, book.cpus, book.rank)):
            if _fits_summed(shape, book) and (found := _Search(shape, order, [book]).run()):
                return found
        if shape.strategy == "strict_pack":
            return None
    if shape.strategy == "strict_spread" and len(books) < len(order):
        return None
    return _Search(shape, order, books).run()


def _size(need: Need) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    return (need.gpus, need.cpus, need.memory, need.custom)


def _fits_summed(shape: Shape, book: Book) -> bool:
    """Return whether all bundles together ask for no more than is left on one host."""
    need = together(shape.needs)
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
        self.steps = STEPS

    def run(self) -> list[tuple[Book, Held]] | None:
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

    def _ordered(self, found: list[tuple[Book, Held]]) -> list[tuple[Book, Held]]:
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
