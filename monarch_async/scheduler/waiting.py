"""Who waits, in what order: a line for each shape of demand. Where the first of a line does not fit, none does."""

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from monarch_async.scheduler.book import Book
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.placement_record import PlacementRecord
from monarch_async.scheduler.shape import Shape


class Line:
    """Those that wait with demands of one shape, first come first."""

    __slots__ = ("is_settled", "kept", "members", "shape", "stalled_since", "warnings")

    def __init__(self, shape: Shape, now: float) -> None:
        self.shape = shape
        self.members: OrderedDict[int, PlacementRecord] = OrderedDict()
        self.is_settled = False  #: whether its head was tried on all that is free, but for what was freed since
        self.kept: list[tuple[Book, Held]] = []  #: what is kept for the head
        self.stalled_since = now  #: when one of them was last granted, or the line began
        self.warnings = 0

    @property
    def head(self) -> PlacementRecord:
        """The one that came first."""
        return next(iter(self.members.values()))


class Waiting:
    """All lines."""

    def __init__(self) -> None:
        self.lines: dict[Shape, Line] = {}
        self.removals = 0  #: goes up when somebody goes
        self.first_new: tuple[int, int] | None = None  #: the first place that was taken since somebody reset this

    def __bool__(self) -> bool:
        return bool(self.lines)

    def __len__(self) -> int:
        return sum(len(line.members) for line in self.lines.values())

    def __iter__(self) -> Iterator[PlacementRecord]:
        """Yield everyone, in the order in which they are to be placed."""
        return heapq.merge(*(line.members.values() for line in self.lines.values()), key=lambda member: member.order)

    def add(self, record: PlacementRecord, now: float) -> Line:
        """Put a placement where its priority and arrival say. Returns its line."""
        if self.first_new is None or record.order < self.first_new:
            self.first_new = record.order
        line = self.lines.get(record.shape)
        if line is None:
            line = self.lines[record.shape] = Line(record.shape, now)
        last = next(reversed(line.members.values())) if line.members else None
        line.members[record.id] = record
        if last is not None and record.number < last.number:
            line.members = OrderedDict(sorted(line.members.items(), key=lambda item: item[1].number))
            line.is_settled = line.is_settled and line.head is not record
        return line

    def remove(self, record: PlacementRecord) -> None:
        """Take a placement out of its line."""
        self.removals += 1
        line = self.lines[record.shape]
        del line.members[record.id]
        if not line.members:
            del self.lines[record.shape]

    def in_order(self) -> list[Line]:
        """Return lines in the order of their heads."""
        return sorted(self.lines.values(), key=lambda line: line.head.order)
