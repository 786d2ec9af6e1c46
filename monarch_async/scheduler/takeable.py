"""Placements that may be recalled, by where they are: spares and preemptible ones whose holders were not asked yet."""

from collections.abc import Iterator

from monarch_async.scheduler.amounts import UNIT, Need
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.placement_record import PlacementRecord

Where = int | tuple[int, int]  #: a host, or the bundle that others are placed within


class Group:
    """Those of one place, and what they hold there in all."""

    __slots__ = ("cpus", "gpus", "memory", "records")

    def __init__(self) -> None:
        self.records: dict[int, PlacementRecord] = {}
        self.cpus = self.gpus = self.memory = 0


NOBODY = Group()


class Takeable:
    """All that may be recalled."""

    def __init__(self) -> None:
        self._records: dict[int, PlacementRecord] = {}
        self._groups: dict[Where, Group] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    def __contains__(self, record: PlacementRecord) -> bool:
        return record.id in self._records

    def __iter__(self) -> Iterator[PlacementRecord]:
        return iter(self._records.values())

    def add(self, record: PlacementRecord) -> None:
        """Take in one that was granted."""
        self._records[record.id] = record
        self._sum(record, 1)

    def discard(self, record: PlacementRecord) -> None:
        """Leave out one that was recalled, has ended, or is to be added again with less."""
        if self._records.pop(record.id, None) is not None:
            self._sum(record, -1)

    def there(self, book: Book, within: tuple[int, int] | None) -> Group:
        """Return those that hold something in a book."""
        return self._groups.get(book.host if within is None else within, NOBODY)

    def room_for(self, need: Need, most: int, book: Book, within: tuple[int, int] | None) -> int:
        """Return how many bundles might fit in a book, ``most`` at most, if all of those were gone; not fewer."""
        group = self.there(book, within)
        if need.cpus:
            most = min(most, (book.cpus + group.cpus) // need.cpus)
        if need.memory:
            most = min(most, (book.memory + group.memory) // need.memory)
        if need.gpus:
            gpus = group.gpus + sum(book.devices.values())
            most = min(most, gpus // need.gpus if need.gpus >= UNIT else most if gpus >= need.gpus else 0)
        return max(most, 0)

    def _sum(self, record: PlacementRecord, sign: int) -> None:
        for book, held in record.living():
            where = book.host if record.shape.within is None else record.shape.within
            group = self._groups.setdefault(where, Group())
            if sign > 0:
                group.records[record.id] = record
            else:
                group.records.pop(record.id, None)
            group.cpus += sign * held.cpus
            group.memory += sign * held.memory
            group.gpus += sign * sum(amount for _, amount in held.gpus)
        if sign < 0:
            for book, _ in record.living():
                where = book.host if record.shape.within is None else record.shape.within
                if where in self._groups and not self._groups[where].records:
                    del self._groups[where]
