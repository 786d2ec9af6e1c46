"""Where a demand fits: one book for each of its bundles, and what it holds there; or nowhere.

- One bundle: found by bisection in `Books` (pack: where least is left; spread: where most is).
- Bundles that are all alike: ``alike.py``. Ranks follow the order of hosts, so that those of one host are neighbours.
- Bundles that differ: ``search.py``.

Nothing is written in any book.
"""

from collections.abc import Sequence

from monarch_async.scheduler.alike import Fit, fit_alike, fit_one
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.books import Books
from monarch_async.scheduler.search import groups, search
from monarch_async.scheduler.shape import Shape


def fit(shape: Shape, books: Books, among: Sequence[Book] | None) -> Fit | None:
    """Return where a demand fits, or None. ``among``: only these books; None: any open host."""
    needs = shape.needs
    if len(needs) == 1:
        book = fit_one(needs[0], shape.strategy, books, among)
        return None if book is None else [(book, book.pick(needs[0]))]
    if shape.is_uniform:
        return fit_alike(needs[0], len(needs), shape.strategy, books, among)
    if among is None and not all(books.has_room_for(need, len(bundles)) for need, bundles in groups(shape)):
        return None
    return search(shape, books.opened() if among is None else list(among))
