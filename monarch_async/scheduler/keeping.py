"""What is kept for a demand that was passed often enough: where it will go once that is free.

Kept resources are taken in the books although others still hold some of them, so that what remains for those that come
later is what they may have without delaying it. Chosen are the hosts that are short of least, so the shortage never
grows: nothing new makes it larger, and each end of a placement there makes it smaller.
"""

from collections.abc import Sequence

from monarch_async.scheduler.amounts import Need
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.search import search
from monarch_async.scheduler.shape import Shape


def target(shape: Shape, books: Sequence[Book]) -> list[tuple[Book, Need]]:
    """Return, for each bundle, which of these books to keep room in; nothing if it would not fit if all were free."""
    if not shape.is_uniform:
        return _searched(shape, books)
    need, count = shape.needs[0], len(shape.needs)
    most = 1 if shape.strategy == "strict_spread" else count
    rooms = [(book.room_for(need, most), book.empty.room_for(need, most), book) for book in books]
    if shape.strategy == "strict_pack":
        rooms = [entry for entry in rooms if entry[1] >= count]
    rooms.sort(key=lambda entry: (-entry[0], -entry[2].whole, -entry[2].cpus, entry[2].rank))
    if shape.strategy == "strict_pack":
        return [(rooms[0][2], need)] * count if rooms else []
    chosen = [(book, need) for now, _, book in rooms for _ in range(now)][:count]
    for now, then, book in rooms:
        chosen += [(book, need)] * min(max(then - now, 0), count - len(chosen))
    return chosen if len(chosen) == count else []


def _searched(shape: Shape, books: Sequence[Book]) -> list[tuple[Book, Need]]:
    by_rank = {book.rank: book for book in books}
    found = search(shape, [book.empty for book in books])
    if found is None:
        return []
    return [(by_rank[book.rank], need) for (book, _), need in zip(found, shape.needs, strict=True)]
