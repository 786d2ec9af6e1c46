"""What a process that asks for placements and what places them say to each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from monarch_async.control.host import Host
from monarch_async.errors import Error
from monarch_async.scheduler.demand import Demand
from monarch_async.scheduler.holdings import Holdings


@dataclass(frozen=True, slots=True)
class Granted:
    """What was granted: the host and the device ids of each bundle.

    ``addresses`` and ``ports`` are by host id: how the other hosts of the placement reach it, and a few ports there
    that nobody uses.
    """

    spots: tuple[tuple[Host, tuple[str, ...]], ...]
    addresses: dict[int, str]
    ports: dict[int, list[int]]


class Holder(Protocol):
    """Who waits for a placement, then has it. Told on the loop; first of its grant or its refusal, once."""

    def take_grant(self, granted: Granted) -> None:
        """It is there."""
        ...

    def take_refusal(self, error: Error) -> None:
        """It will never be: Unschedulable, or Closed where nobody places any more."""
        ...

    def take_loss(self, bundles: Sequence[int]) -> None:
        """Bundles were on a host that is gone. The others are held still."""
        ...

    def take_recall(self, by: str) -> None:
        """It is asked back, for ``by``."""
        ...

    def take_end(self, why: str) -> None:
        """It is held no longer: what it was placed within has ended."""
        ...


class Places(Protocol):
    """Where a process asks: in the client the `Placer`, in a worker what passes it on there."""

    def ask(self, id: int, demand: Demand, holder: Holder) -> None:
        """Ask for ``demand`` as placement ``id``: one that no process has used."""
        ...

    def withdraw(self, id: int) -> None:
        """End a placement, granted or waiting: the holder hears nothing more. Unknown ids do nothing."""
        ...

    def lend(self, id: int) -> None:
        """Let others have its cpus, until `reclaim`."""
        ...

    def reclaim(self, id: int) -> None:
        """Have its cpus again."""
        ...

    async def explain(self, demand: Demand) -> str:
        """Return who holds what, and why ``demand`` would wait or where it fits."""
        ...

    async def holdings(self) -> Holdings:
        """Return who holds what on every host, and who waits."""
        ...
