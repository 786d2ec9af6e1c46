"""All books, and who holds what in them."""

from collections.abc import Iterable, Sequence

from monarch_async.scheduler.alike import Fit
from monarch_async.scheduler.amounts import UNIT, plural, together, words
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.books import Books
from monarch_async.scheduler.events import Held, HostUp
from monarch_async.scheduler.feasibility import Kinds, candidates, is_meant, shortfall, shortfall_on
from monarch_async.scheduler.placement_record import PlacementRecord
from monarch_async.scheduler.shape import Shape, called
from monarch_async.scheduler.takeable import Takeable

NOWHERE: list[Book] = []


class Accounts:
    """The books of hosts, every placement, and what hosts could be had."""

    def __init__(self) -> None:
        self.books = Books()
        self.kinds: Kinds = ()
        self.placements: dict[int, PlacementRecord] = {}  #: waiting and granted
        self.takeable = Takeable()
        self.changes = 0  #: goes up with what may make recalls useful that were not
        self.recalled: dict[int, PlacementRecord] = {}  #: granted ones that were, and are still there
        self.on_host: dict[int, dict[int, None]] = {}  #: host -> ids of placements there
        self._meant: dict[tuple[object, object], tuple[int, list[Book]]] = {}
        self._shortfalls: dict[Shape, str] = {}
        self._shortfalls_of: tuple[int, Kinds] = (0, ())

    # -- hosts

    def open_book(self, event: HostUp) -> None:
        """Take a host in, empty."""
        rank = self.books.rank(event.host)
        self.books.add(Book.of(event.host, rank, event.name, event.resources))
        self.on_host[event.host] = {}
        self.changes += 1

    def close_book(self, host: int) -> list[tuple[PlacementRecord, list[int]]]:
        """Take a host out. Returns the placements that had bundles there, and which."""
        if (book := self.books.remove(host)) is None:
            return []
        hit: list[tuple[PlacementRecord, list[int]]] = []
        for id in self.on_host.pop(host):
            record = self.placements[id]
            is_takeable = record in self.takeable
            self.takeable.discard(record)
            bundles = [
                bundle for bundle, (held_of, _) in enumerate(record.places)
                if held_of.host == book.host and bundle not in record.lost
            ]  # fmt: skip
            record.lost.update(bundles)
            for bundle in bundles:
                record.lent.pop(bundle, None)
            if is_takeable:
                self.takeable.add(record)
            hit.append((record, bundles))
        self.changes += 1
        return hit

    # -- writing

    def take(self, book: Book, held: Held) -> None:
        """Write down that this is held."""
        book.take(held)
        self.books.file(book)

    def give(self, book: Book, held: Held) -> None:
        """Write down that this is held no longer."""
        book.give(held)
        self.books.file(book)

    def grant(self, record: PlacementRecord, places: Fit) -> None:
        """Give a placement its places."""
        record.places = places
        for book, held in places:
            book.take(held)
            self.books.file(book)
            self.on_host[book.host][record.id] = None
        if record.shape.within is not None:
            self.placements[record.shape.within[0]].guests[record.id] = None
        if record.shape.is_spare or record.shape.preemptible:
            self.takeable.add(record)
            self.changes += 1

    def end(self, record: PlacementRecord) -> set[int]:
        """Take back all that a placement has. Returns its hosts that are still there."""
        self.reclaim(record)
        self.takeable.discard(record)
        if self.recalled.pop(record.id, None) is None:
            self.changes += 1
        elif (waiter := record.recalled_for) is not None:
            record.recalled_for = None
            waiter.awaited -= 1
        freed: set[int] = set()
        for book, held in record.living():
            book.give(held)
            self.books.file(book)
            self.on_host[book.host].pop(record.id, None)
            freed.add(book.host)
        record.places, record.lost, record.rooms = [], set(), {}
        if record.shape.within is not None and record.shape.within[0] in self.placements:
            self.placements[record.shape.within[0]].guests.pop(record.id, None)
        return freed

    def mark_recalled(self, record: PlacementRecord) -> None:
        """Write down that a placement's holder is asked to give it back."""
        self.takeable.discard(record)
        self.recalled[record.id] = record

    def held_now(self, record: PlacementRecord) -> list[tuple[Book, Held]]:
        """Return what ending a placement would give back."""
        if not record.lost and not record.lent:
            return record.places
        held: list[tuple[Book, Held]] = []
        for bundle, (book, has) in enumerate(record.places):
            if bundle not in record.lost:
                cpus = has.cpus - record.lent.get(bundle, 0)
                held.append((book, Held(cpus, has.gpus, has.memory, has.custom)))
        return held

    def lend(self, record: PlacementRecord) -> set[int]:
        """Let others use a placement's cpus, but for those that placements within it have. Returns the hosts."""
        hosts: set[int] = set()
        if record.lent:
            return hosts
        self.changes += 1
        for bundle, (book, held) in enumerate(record.places):
            room = record.rooms.get(bundle)
            cpus = held.cpus if room is None else max(room.cpus, 0)
            if bundle not in record.lost and cpus:
                record.lent[bundle] = cpus
                self.give(book, Held(cpus))
                if room is not None:
                    room.take(Held(cpus))
                hosts.add(book.host)
        return hosts

    def reclaim(self, record: PlacementRecord) -> None:
        """Give a placement its cpus again, whoever has them now."""
        for bundle, cpus in record.lent.items():
            self.take(record.places[bundle][0], Held(cpus))
            if bundle in record.rooms:
                record.rooms[bundle].give(Held(cpus))
        record.lent = {}

    def set_elsewhere(self, book: Book, held: Held) -> None:
        """Write down what others hold on a host, in all."""
        book.give(book.elsewhere)
        book.elsewhere = held
        self.changes += 1
        self.take(book, held)

    # -- where a demand may go

    def among(self, record: PlacementRecord, freed: Iterable[int] | None, now: float) -> list[Book] | None:
        """Return the books a placement may go to now; None where that is any open host.

        ``freed``: only these hosts have more left than when it was last tried; where none of them is allowed, the list
        is empty.
        """
        shape = record.shape
        if shape.within is not None:
            return self._within(shape)
        refused = {host for host, until in record.refused_until.items() if until > now} if record.refused_until else ()
        is_anywhere = not (shape.labels or shape.hosts or shape.refers or refused)
        if is_anywhere and freed is None:
            return None
        if freed is not None and (len(shape.needs) == 1 or not any(self._is_allowed(shape, h, refused) for h in freed)):
            return [self.books.by_host[host] for host in freed if self._is_allowed(shape, host, refused)]
        if is_anywhere:
            return None
        books = self._meant_books(shape)
        if not shape.refers and not refused:
            return books
        return [book for book in books if self._is_allowed(shape, book.host, refused)]

    def preferred(self, names: Sequence[str], among: Sequence[Book] | None) -> list[Book]:
        """Return those of the hosts that have these names and may be used."""
        if among is not None:
            return [book for book in among if book.name in names]
        return [book for name in names for book in self.books.named(name) if book.is_open]

    def _within(self, shape: Shape) -> list[Book]:
        assert shape.within is not None
        record = self.placements.get(shape.within[0])
        if record is None or not 0 <= shape.within[1] < len(record.places) or shape.within[1] in record.lost:
            return NOWHERE
        host = self.books.by_host[record.places[shape.within[1]][0].host]
        return [record.room(shape.within[1])] if host.is_open else NOWHERE

    def _is_allowed(self, shape: Shape, host: int, refused: Iterable[int]) -> bool:
        book = self.books.by_host.get(host)
        if book is None or not book.is_open or host in refused or not is_meant(shape, book):
            return False
        if shape.near is not None and not self._has_bundles(shape.near, host):
            return False
        return shape.apart is None or not self._has_bundles(shape.apart, host)

    def _has_bundles(self, id: int, host: int) -> bool:
        return id in self.on_host[host]

    def _meant_books(self, shape: Shape) -> list[Book]:
        key = (shape.labels, shape.hosts)
        version, books = self._meant.get(key, (-1, NOWHERE))
        if version != self.books.version:
            if len(self._meant) > 1024:
                self._meant.clear()
            books = [book for book in self.books.opened() if is_meant(shape, book)]
            self._meant[key] = (self.books.version, books)
        return books

    # -- whether it could ever be

    def shortfall(self, shape: Shape, also: Iterable[Book] = ()) -> str:
        """Return why a demand can never be placed, on hosts there are, on those declared and on ``also``."""
        also = list(also)
        if shape.refers and (why := self._missing(shape)) is not None:
            return why
        if also:
            return shortfall(shape, [*self.books, *also], self.kinds)
        if self._shortfalls_of != (self.books.version, self.kinds) or len(self._shortfalls) > 1024:
            self._shortfalls, self._shortfalls_of = {}, (self.books.version, self.kinds)
        if shape not in self._shortfalls:
            self._shortfalls[shape] = shortfall(shape, list(self.books), self.kinds)
        return self._shortfalls[shape]

    def _missing(self, shape: Shape) -> str | None:
        """Return what another placement has to do with it: why never, "" if it fits there, None if it says nothing."""
        for relation, id in (("near", shape.near), ("within", shape.within and shape.within[0])):
            if id is not None and id not in self.placements:
                return f"{called('placement', id)}, {relation} which it is to be, is not there (or no longer)"
        if shape.within is not None:
            return self._missing_within(shape, *shape.within)
        if shape.near is not None and self.placements[shape.near].is_granted:
            record = self.placements[shape.near]
            hosts = set(record.hosts())
            near = [book for book in candidates(shape, list(self.books), ()) if book.host in hosts]
            if not near:
                return f"{called(record.demand.name, record.id)} is on no host that it may go to"
            return shortfall_on(shape, near)
        return None

    def _missing_within(self, shape: Shape, id: int, bundle: int) -> str:
        record = self.placements[id]
        name = called(record.demand.name, id)
        if not 0 <= bundle < len(record.shape.needs):
            return f"{name} has {plural(len(record.shape.needs) * UNIT, 'bundle')}; there is no bundle {bundle}"
        if bundle in record.lost:
            return f"bundle {bundle} of {name}, within which it is to be, was on a host that is lost"
        if not record.is_granted or not shortfall_on(shape, [record.room(bundle).empty]):
            return ""
        has, needed = words(record.shape.needs[bundle]), words(together(shape.needs))
        return f"bundle {bundle} of {name} has {has}; it needs {needed}"
