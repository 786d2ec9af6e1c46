"""Who holds what, as it is shown."""

from dataclasses import dataclass

from monarch_async.scheduler.accounts import Accounts
from monarch_async.scheduler.amounts import summed
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.placement_record import PlacementRecord
from monarch_async.scheduler.shape import called
from monarch_async.scheduler.table import table

WAITERS = 16  #: how many that wait are shown


@dataclass(frozen=True, slots=True)
class Holding:
    """What one placement holds on one host; ``bundles`` says which of its bundles, of how many."""

    id: int
    name: str
    holder: int
    bundles: tuple[int, ...]
    of: int
    held: Held
    is_recalled: bool = False
    is_lent: bool = False
    within: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class HostHoldings:
    """One host: what it has, what is free (never below zero), what others took, and who holds the rest. In units."""

    host: int
    name: str
    is_open: bool
    total: Held
    free: Held
    elsewhere: Held
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class Waiter:
    """A placement that waits, for how many seconds, and the hosts on which something is kept for it.

    ``passed``: how many that came later were granted first.
    """

    id: int
    name: str
    holder: int
    waited: float
    passed: int
    kept_on: tuple[str, ...]

    def __str__(self) -> str:
        kept = f", for which what frees is kept on {', '.join(self.kept_on)}" if self.kept_on else ""
        return f"{called(self.name, self.id)} for {self.waited:.0f} s{kept}"


@dataclass(frozen=True, slots=True)
class Holdings:
    """All hosts by rank, and who waits, in order; ``print`` shows a table."""

    hosts: tuple[HostHoldings, ...]
    waiting: tuple[Waiter, ...]
    others: int = 0  #: hosts that are left out

    def table(self) -> str:
        """Return for each host what is free of what, and who holds the rest."""
        return table(self.hosts, self.others)

    def __str__(self) -> str:
        waiting = [f"waits: {waiter}" for waiter in self.waiting[:WAITERS]]
        rest = len(self.waiting) - WAITERS
        return "\n".join([self.table(), *waiting, *([f"and {rest} more wait"] if rest > 0 else [])])


def free(book: Book) -> Held:
    """Return what is left on a host, nothing where it is over-committed."""
    gpus = tuple((device, left) for device, left in book.devices.items() if left > 0)
    custom = tuple((name, left) for name, left in sorted(book.custom.items()) if left > 0)
    return Held(max(book.cpus, 0), gpus, max(book.memory, 0), custom)


class Rows:
    """What is held on hosts: each placement is looked through once, however many hosts are asked for."""

    def __init__(self, accounts: Accounts) -> None:
        """Nothing may be kept for anybody while this is used."""
        self._accounts = accounts
        self._by_host: dict[int, dict[int, list[tuple[int, Held]]]] = {}  #: id -> host -> bundles, and what they hold

    def of(self, book: Book) -> HostHoldings:
        """Return what is held on one host."""
        ids = self._accounts.on_host[book.host]
        holdings = tuple([self._holding(self._accounts.placements[id], book.host) for id in ids])
        return HostHoldings(book.host, book.name, book.is_open, book.total, free(book), book.elsewhere, holdings)

    def _holding(self, record: PlacementRecord, host: int) -> Holding:
        by_host = self._by_host.get(record.id)
        if by_host is None:
            by_host = self._by_host[record.id] = {}
            for bundle, (place, held) in enumerate(record.places):
                if bundle not in record.lost:
                    by_host.setdefault(place.host, []).append((bundle, held))
        here = by_host[host]
        return Holding(
            record.id,
            record.demand.name,
            record.holder,
            tuple([bundle for bundle, _ in here]),
            len(record.places),
            summed([held for _, held in here]),
            record.id in self._accounts.recalled,
            bool(record.lent),
            record.shape.within,
        )
