"""What the scheduler knows of one placement, from `Ask` to its end."""

from monarch_async.scheduler.book import Book
from monarch_async.scheduler.demand import Demand
from monarch_async.scheduler.events import Held, Spot
from monarch_async.scheduler.shape import Shape


class PlacementRecord:
    """One placement: waiting while ``places`` is empty, granted otherwise."""

    __slots__ = (
        "awaited",
        "considered",
        "demand",
        "expected",
        "guests",
        "holder",
        "id",
        "is_helped",
        "lent",
        "lost",
        "number",
        "passed",
        "places",
        "recalled_for",
        "refusals",
        "refused_until",
        "rooms",
        "shape",
        "since",
    )

    def __init__(self, id: int, demand: Demand, shape: Shape, holder: int, number: int, since: float) -> None:
        """``number``: its arrival, counted. ``since``: when it began to wait."""
        self.id, self.demand, self.shape, self.holder = id, demand, shape, holder
        self.number, self.since = number, since
        self.places: list[tuple[Book, Held]] = []  #: for each bundle
        self.lost: set[int] = set()  #: bundles whose host is gone
        self.rooms: dict[int, Book] = {}  #: books of bundles that others are placed within
        self.guests: dict[int, None] = {}  #: ids of placements within
        self.lent: dict[int, int] = {}  #: bundle -> units of cpus that others may use meanwhile
        self.expected: list[Book] = []  #: for each bundle, where it will go once others, recalled for it, are gone
        self.awaited = 0  #: how many of those are still there
        self.considered = -1  #: `Accounts.changes` when it was last asked whom to recall for it
        self.is_helped = False  #: whether recalls, its own or others', make room for it
        self.recalled_for: PlacementRecord | None = None
        self.passed = 0  #: how many placements that came later were granted first
        self.refusals = 0
        self.refused_until: dict[int, float] = {}  #: host -> when it may be tried again

    @property
    def order(self) -> tuple[int, int]:
        """Its place in the queue: priority, then arrival."""
        return (-self.shape.priority, self.number)

    @property
    def is_granted(self) -> bool:
        """Whether it has its spots."""
        return bool(self.places)

    def hosts(self) -> list[int]:
        """Return its hosts that are still there, in order, each once."""
        return list(dict.fromkeys(book.host for book, _ in self.living()))

    def living(self) -> list[tuple[Book, Held]]:
        """Return the bundles that are not lost."""
        if not self.lost:
            return self.places
        return [place for bundle, place in enumerate(self.places) if bundle not in self.lost]

    def spots(self) -> tuple[Spot, ...]:
        """Return where its bundles are."""
        return tuple([book.spot_of(held) for book, held in self.places])

    def room(self, bundle: int) -> Book:
        """Return the book of one of its bundles, for placements within it."""
        if bundle not in self.rooms:
            book, held = self.places[bundle]
            room = self.rooms[bundle] = Book(book.host, book.rank, book.name, book.resources, held)
            room.is_room = True
        return self.rooms[bundle]
