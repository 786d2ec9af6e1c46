"""A host's books: which client holds what here, by placement, as its agent knows it. Pure.

Each client's scheduler decides alone, from its own books; this is where two of them meet. A placement's entry holds
what all its bundles on this host have, together.

    Held by a client    `reserve`, until `free`, or `forget` (the client is gone for good)
    Kept by a lease     `keep`: the client may go, and whoever owns the lease next; until `release_lease`, of the last
                        lease with procs in it

L1. What a client reserves fits beside what everybody holds, itself included; otherwise nothing is booked. A client's
    own scheduler reserves only what fits its own books, so a refusal means that another client was first.
L2. `lend` gives back a placement's cpus until `reclaim`, which never fails: who waits for something else goes on at
    once, over-committed where others have its cpus now.
L3. Everything a client holds ends with it, except what is kept by a lease.
L4. Totals are those of the entries: they return to exactly nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from monarch_async.scheduler.amounts import summed
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.resources import Resources


@dataclass(frozen=True, slots=True)
class Entry:
    """What one placement holds here. ``client``: an address; 0 where a ``lease`` keeps it."""

    placement: int
    client: int
    held: Held
    label: str
    lease: str = ""
    is_lent: bool = False

    @property
    def charged(self) -> Held:
        """What of it others cannot have now."""
        return replace(self.held, cpus=0) if self.is_lent else self.held


class Ledger:
    """See the module."""

    def __init__(self, resources: Resources) -> None:
        """``resources``: what there is."""
        self.resources = resources
        self._entries: dict[int, Entry] = {}
        self._book = Book.of(0, 0, "", resources)

    @property
    def entries(self) -> list[Entry]:
        """Every entry, oldest first."""
        return list(self._entries.values())

    def placements_of(self, client: int) -> list[int]:
        """Return the ids of what a client holds here."""
        return [entry.placement for entry in self._entries.values() if entry.client == client]

    def has(self, placement: int) -> bool:
        """Return whether anybody holds it."""
        return placement in self._entries

    def reserve(self, client: int, placement: int, held: Held, label: str) -> bool:
        """Book it, or return false where it does not fit (L1). Booked twice by its client, the later counts."""
        before = self._entries.get(placement)
        if before is not None and before.client != client:
            return False
        if before is not None:
            self._remove(before)
        fits = self._book.has(held)
        entry = Entry(placement, client, held, label) if fits else before
        if entry is not None:
            self._put(entry)
        return fits

    def free(self, client: int, placement: int) -> bool:
        """End what ``client`` holds as ``placement``; return whether it held that."""
        entry = self._entries.get(placement)
        if entry is None or entry.client != client:
            return False
        self._remove(entry)
        return True

    def lend(self, client: int, placement: int, is_lent: bool) -> bool:
        """Give back a placement's cpus, or take them again (L2); return whether that changed anything."""
        entry = self._entries.get(placement)
        if entry is None or entry.client != client or entry.is_lent == is_lent:
            return False
        self._remove(entry)
        self._put(replace(entry, is_lent=is_lent))
        return entry.held.cpus > 0

    def forget(self, client: int) -> list[int]:
        """A client is gone for good: end what it holds (L3); return the placements."""
        return self._end([entry for entry in self._entries.values() if client and entry.client == client])

    def _end(self, gone: Sequence[Entry]) -> list[int]:
        for entry in gone:
            self._remove(entry)
        return [entry.placement for entry in gone]

    def _put(self, entry: Entry) -> None:
        self._entries[entry.placement] = entry
        self._book.take(entry.charged)

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.placement]
        self._book.give(entry.charged)

    # -- leases ----------------------------------------------------------------------------------------------------

    def keep(self, client: int, placement: int, lease: str) -> bool:
        """From now on ``lease`` holds it, not the client; return whether the client held it. Several may be of one."""
        entry = self._entries.get(placement)
        if entry is None or entry.client != client:
            return False
        self._remove(entry)
        self._put(replace(entry, client=0, lease=lease, is_lent=False))
        return True

    def release_lease(self, lease: str, heir: Callable[[int], str] = lambda placement: "") -> list[int]:
        """A lease has ended: so has what it keeps, but where another lease is the ``heir``; return the placements."""
        kept = [entry for entry in self._entries.values() if lease and entry.lease == lease]
        heirs = {entry.placement: heir(entry.placement) for entry in kept}
        for entry in kept:
            if heirs[entry.placement]:
                self._entries[entry.placement] = replace(entry, lease=heirs[entry.placement])
        return self._end([entry for entry in kept if not heirs[entry.placement]])

    # -- what the others are told ----------------------------------------------------------------------------------

    def elsewhere(self, client: int) -> Held:
        """Return what others than ``client`` hold together, leases included."""
        return summed([entry.charged for entry in self._entries.values() if entry.client != client])
