"""Whether a demand could ever be placed: on all hosts that have joined or are declared, if nobody held anything."""

from collections.abc import Callable, Sequence

from monarch_async.scheduler.amounts import UNIT, Need, number, plural, size, together, words
from monarch_async.scheduler.book import Book, names
from monarch_async.scheduler.books import Books
from monarch_async.scheduler.fit import fit
from monarch_async.scheduler.resources import Resources
from monarch_async.scheduler.shape import Shape

Kinds = Sequence[tuple[Resources, int]]


def candidates(shape: Shape, books: Sequence[Book], kinds: Kinds) -> list[Book]:
    """Return the hosts a demand may go to, all of them empty, those that are only declared last."""
    hosts = [book.empty for book in books if is_meant(shape, book)]
    rank = max((book.rank for book in books), default=0)
    for resources, count in () if shape.hosts else kinds:
        for _ in range(min(count, len(shape.needs))):
            rank += 1
            hosts.append(Book.of(-rank, rank, "a declared host", resources))
    return [book for book in hosts if has_labels(shape, book)]


def is_meant(shape: Shape, book: Book) -> bool:
    """Return whether a demand's names and labels allow a host."""
    return (not shape.hosts or book.name in shape.hosts) and has_labels(shape, book)


def has_labels(shape: Shape, book: Book) -> bool:
    """Return whether a host has the labels that a demand wants."""
    labels = book.resources.labels
    return all(labels.get(name) == value for name, value in shape.labels)


def shortfall(shape: Shape, books: Sequence[Book], kinds: Kinds) -> str:
    """Return why a demand can never be placed; an empty text if it can."""
    hosts = candidates(shape, books, kinds)
    if not hosts:
        return _none(shape, books, kinds)
    return shortfall_on(shape, hosts)


def shortfall_on(shape: Shape, hosts: Sequence[Book]) -> str:
    """Return why a demand never fits these books, which are empty; an empty text if it does."""
    if fit(shape, Books(), hosts) is not None:
        return ""
    for need in dict.fromkeys(shape.needs):
        if why := _for_one(need, hosts):
            return why
    whole = together(shape.needs)
    if shape.strategy == "strict_pack":
        why = _largest(whole, hosts, "on one host (strict_pack)")
        return why or f"no host has room for all {len(shape.needs)} bundles (strict_pack): {words(whole)}"
    if shape.strategy == "strict_spread" and len(hosts) < len(shape.needs):
        return f"needs {len(shape.needs)} hosts, one for each bundle (strict_spread); there are {len(hosts)}"
    if why := _in_all(whole, hosts):
        return why
    if shape.is_uniform:
        most = 1 if shape.strategy == "strict_spread" else len(shape.needs)
        rooms = sum(book.room_for(shape.needs[0], most) for book in hosts)
        bundles = f"{len(shape.needs)} bundles of {words(shape.needs[0])}"
        where = ", one a host (strict_spread)" if shape.strategy == "strict_spread" else ""
        return f"needs room for {bundles}{where}; {_have(hosts)} room for {rooms}, even when nothing else runs there"
    return f"its {len(shape.needs)} bundles do not fit together on {_hosts(hosts)}, even when nothing else runs there"


def _none(shape: Shape, books: Sequence[Book], kinds: Kinds) -> str:
    if not books and not kinds:
        return "no host has joined and none is declared"
    there = f"there is {names(books)}" if len(books) == 1 else f"there are {names(books)}"
    if shape.hosts and not any(book.name in shape.hosts for book in books):
        wanted = " or ".join(shape.hosts)
        return f"no host is called {wanted}; {there}" if books else f"no host is called {wanted}; none has joined"
    labels = ", ".join(f"{name}={value}" for name, value in shape.labels)
    among = f" of {', '.join(shape.hosts)}" if shape.hosts else ""
    return f"no host{among} has the labels {labels}"


def _for_one(need: Need, hosts: Sequence[Book]) -> str:
    """Return why no host fits even one bundle of this need; an empty text if one does."""
    if any(book.room_for(need, 1) for book in hosts):
        return ""
    return _largest(need, hosts, "on one host") or (f"no host has {words(need)} together; {_best(need, hosts)}")


def _best(need: Need, hosts: Sequence[Book]) -> str:
    book = max(hosts, key=lambda book: (book.whole * UNIT >= need.gpus, book.cpus >= need.cpus, book.memory))
    return f"{book.name} has {words(_of(book))}"


def _of(book: Book) -> Need:
    return Need(book.cpus, sum(book.devices.values()), book.memory, tuple(sorted(book.custom.items())))


def _measures(need: Need) -> list[tuple[Callable[[Book], int], int, Callable[[int], str]]]:
    """Return, for each resource that is needed: how to read it off a book, how much is needed, how to write that."""
    measures: list[tuple[Callable[[Book], int], int, Callable[[int], str]]] = []
    if need.gpus:
        measures.append((lambda book: sum(book.devices.values()), need.gpus, lambda amount: plural(amount, "gpu")))
    for name, amount in need.custom:
        measures.append((lambda book, n=name: book.custom.get(n, 0), amount, lambda a, n=name: f"{number(a)} {n}"))
    if need.cpus:
        measures.append((lambda book: book.cpus, need.cpus, lambda amount: plural(amount, "cpu")))
    if need.memory:
        measures.append((lambda book: book.memory, need.memory, lambda amount: f"{size(amount)} of memory"))
    return measures


def _largest(need: Need, hosts: Sequence[Book], where: str) -> str:
    for read, needed, write in _measures(need):
        largest = max(hosts, key=read)
        if read(largest) < needed:
            has = _amount(write, read(largest))
            return f"needs {write(needed)} {where}; the largest, {largest.name}, has {has}"
    return ""


def _in_all(need: Need, hosts: Sequence[Book]) -> str:
    for read, needed, write in _measures(need):
        there = sum(read(book) for book in hosts)
        if there < needed:
            return f"needs {write(needed)} in all; {_have(hosts)} {_amount(write, there)}"
    return ""


def _amount(write: Callable[[int], str], amount: int) -> str:
    return write(amount) if amount else "none"


def _have(hosts: Sequence[Book]) -> str:
    return f"{_hosts(hosts)} has" if len(hosts) == 1 else f"{_hosts(hosts)} together have"


def _hosts(hosts: Sequence[Book]) -> str:
    declared = sum(1 for book in hosts if book.host < 0)
    if len(hosts) == 1:
        return f"the only host, {hosts[0].name},"
    return f"the {len(hosts)} hosts" + (f" ({declared} of them only declared)" if declared else "")
