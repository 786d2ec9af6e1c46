"""Where bundles that are all alike fit, by how many of them each host has room for; which is exact.

``pack`` takes the fewest hosts, ``spread`` as many as there are, evenly. Nothing is written in any book.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from monarch_async.scheduler.amounts import Need
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.books import Books
from monarch_async.scheduler.events import Held

Fit = list[tuple[Book, Held]]  #: for each bundle


def fit_alike(need: Need, count: int, strategy: str, books: Books, among: Sequence[Book] | None) -> Fit | None:
    """Return where ``count`` bundles of one need fit, or None; ranks follow the order of hosts.

    ``among``: only these books; None: any open host.
    """
    match strategy:
        case "pack" | "strict_pack":
            counts = _packed(need, count, books, among, strategy == "strict_pack")
        case "strict_spread":
            counts = [(book, 1) for book in islice(_emptiest(need, books, among), count)]
        case _:
            counts = _spread(need, count, books, among)
    if counts is None or sum(number for _, number in counts) < count:
        return None
    counts.sort(key=lambda entry: entry[0].rank)
    return [pair for book, number in counts for pair in picked(book, need, number)]


def fit_one(need: Need, strategy: str, books: Books, among: Sequence[Book] | None) -> Book | None:
    """Return where one bundle fits: where least is left (pack), or most is (spread)."""
    if strategy == "spread" or strategy == "strict_spread":
        return next(iter(_emptiest(need, books, among)), None)
    return _fullest(need, 1, books, among)


def _fullest(
    need: Need, count: int, books: Books, among: Sequence[Book] | None, but: Collection[int] = ()
) -> Book | None:
    if among is None:
        return books.fullest(need, count, but)
    fitting = [book for book in among if book.rank not in but and book.room_for(need, count) >= count]
    return min(fitting, key=lambda book: _tightness(book, need), default=None)


def _emptiest(need: Need, books: Books, among: Sequence[Book] | None) -> Iterator[Book]:
    if among is None:
        return books.emptiest(need)
    fitting = [book for book in among if book.room_for(need, 1)]
    return iter(sorted(fitting, key=lambda book: (-book.cpus, book.rank)))


def _tightness(book: Book, need: Need) -> tuple[int, int, int, int]:
    """Return what orders books from the fullest to the emptiest, as seen by a need; of equals, by rank."""
    left = 0
    if need.is_share:
        left = min((left for left in book.devices.values() if left >= need.gpus), default=0)
    return (left, book.whole, book.cpus, book.rank)


def _packed(
    need: Need, count: int, books: Books, among: Sequence[Book] | None, is_strict: bool
) -> list[tuple[Book, int]] | None:
    book = _fullest(need, count, books, among)
    if book is not None:
        return [(book, count)]
    if is_strict:
        return None
    rooms = _roomiest(need, count, books, among)
    chosen: list[tuple[Book, int]] = []
    missing = count
    for room, book in rooms:
        if room >= missing:
            break
        chosen.append((book, room))
        missing -= room
    taken = {book.rank for book, _ in chosen}
    last = _fullest(need, missing, books, among, taken)
    return None if last is None else [*chosen, (last, missing)]


def _roomiest(need: Need, count: int, books: Books, among: Sequence[Book] | None) -> list[tuple[int, Book]]:
    """Return how many fit on each host, most first: at least for as many hosts as together have room for all."""
    rooms: list[tuple[int, Book]] = []
    if among is None and (need.cpus or need.devices) and not need.is_share:
        found, most = 0, count + 1
        for bound, book in books.roomiest(need):
            if bound < most:  # none of those to come has room for more than this
                found, most = sum(room for room, _ in rooms if room >= bound), bound
                if found >= count:
                    break
            if room := book.room_for(need, count):
                rooms.append((room, book))
                found += room if room >= most else 0
                if found >= count:
                    break
    else:
        rooms = [(book.room_for(need, count), book) for book in (books.opened() if among is None else among)]
    return sorted((entry for entry in rooms if entry[0]), key=lambda entry: (-entry[0], entry[1].rank))


def _spread(need: Need, count: int, books: Books, among: Sequence[Book] | None) -> list[tuple[Book, int]] | None:
    order = list(islice(_emptiest(need, books, among), count))
    if len(order) == count:
        return [(book, 1) for book in order]
    rooms = [book.room_for(need, count) for book in order]
    counts = [0] * len(order)
    missing = count
    while missing:
        growing = [place for place in range(len(order)) if counts[place] < rooms[place]][:missing]
        if not growing:
            return None
        for place in growing:
            counts[place] += 1
        missing -= len(growing)
    return list(zip(order, counts, strict=True))


def picked(book: Book, need: Need, number: int) -> Fit:
    """Return what so many bundles of one need hold on one host."""
    if number == 1 or not need.gpus:
        held = book.pick(need)
        return [(book, held)] * number
    pairs: Fit = []
    for _ in range(number):
        held = book.pick(need)
        book.take(held)
        pairs.append((book, held))
    for _, held in pairs:
        book.give(held)
    return pairs
