"""Who holds what, as it is shown."""

from dataclasses import dataclass

from monarch_async.scheduler.accounts import Accounts
from monarch_async.scheduler.amounts import summed
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.events import Held


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
    """A placement that waits, since when, and what is kept for it, on which hosts."""

    id: int
    name: str
    holder: int
    since: float
    passed: int
    kept_on: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holdings:
    """All hosts by rank, and who waits, in order."""

    hosts: tuple[HostHoldings, ...]
    waiting: tuple[Waiter, ...]


def free(book: Book) -> Held:
    """Return what is left on a host, nothing where it is over-committed."""
    gpus = tuple((device, left) for device, left in book.devices.items() if left > 0)
    custom = tuple((name, left) for name, left in sorted(book.custom.items()) if left > 0)
    return Held(max(book.cpus, 0), gpus, max(book.memory, 0), custom)


def host_holdings(book: Book, accounts: Accounts) -> HostHoldings:
    """Return what is held on one host. Nothing may be kept for anybody while this is asked."""
    holdings: list[Holding] = []
    for id in accounts.on_host[book.host]:
        record = accounts.placements[id]
        here = [
            (bundle, held) for bundle, (place, held) in enumerate(record.places)
            if place.host == book.host and bundle not in record.lost
        ]  # fmt: skip
        holdings.append(
            Holding(
                id,
                record.demand.name,
                record.holder,
                tuple(bundle for bundle, _ in here),
                len(record.places),
                summed([held for _, held in here]),
                id in accounts.recalled,
                bool(record.lent),
                record.shape.within,
            )
        )
    return HostHoldings(book.host, book.name, book.is_open, book.total, free(book), book.elsewhere, tuple(holdings))
