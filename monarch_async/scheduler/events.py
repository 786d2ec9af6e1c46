"""What the scheduler is told, and what it wants done. Whoever asks gives a placement its id; hosts are host ids."""

from dataclasses import dataclass

from monarch_async.scheduler.demand import Demand
from monarch_async.scheduler.resources import Resources


@dataclass(frozen=True, slots=True)
class Spot:
    """Where one bundle is: a host, and the ids of the devices it has there (one, where it has a fraction of it)."""

    host: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """What one bundle's worth of resources of a host is held by: units of 1/10,000 (memory: bytes)."""

    cpus: int = 0
    gpus: tuple[tuple[str, int], ...] = ()  #: (device id, units of it)
    memory: int = 0
    custom: tuple[tuple[str, int], ...] = ()


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostUp:
    """A host has joined, or re-joined empty. Hosts are ranked in the order in which they first came."""

    host: int
    name: str
    resources: Resources


@dataclass(frozen=True, slots=True)
class HostGone:
    """A host is lost or has left, and with it all that was placed there."""

    host: int


@dataclass(frozen=True, slots=True)
class HostClosed:
    """Nothing new goes to this host: it is drained, or suspect. Undone by `HostOpened`."""

    host: int


@dataclass(frozen=True, slots=True)
class HostOpened:
    """New placements may go there again."""

    host: int


@dataclass(frozen=True, slots=True)
class Declared:
    """What hosts could be had on request, by kind, ``count`` more of each at most. Replaces what was said."""

    kinds: tuple[tuple[Resources, int], ...]


@dataclass(frozen=True, slots=True)
class TakenElsewhere:
    """What other clients and detached leases hold on a host, in all. Replaces what was said; may over-commit."""

    host: int
    held: Held


@dataclass(frozen=True, slots=True)
class Ask:
    """Place ``demand`` as placement ``id``. ``holder`` is the address of the process that will hold it."""

    id: int
    demand: Demand
    holder: int = 0


@dataclass(frozen=True, slots=True)
class Withdraw:
    """End a placement, granted or waiting. Unknown ids do nothing."""

    id: int


@dataclass(frozen=True, slots=True)
class HolderGone:
    """A process has ended: end every placement it holds or waits for."""

    holder: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The agent of ``host`` did not reserve what was granted (another client was first): the placement waits again."""

    id: int
    host: int


@dataclass(frozen=True, slots=True)
class Lend:
    """The holder waits for something else to be placed: its cpus may be used meanwhile."""

    id: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """It goes on, and has its cpus again, over-committed where others have them now."""

    id: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; see `Scheduler.next_tick`."""


Event = (
    HostUp | HostGone | HostClosed | HostOpened | Declared | TakenElsewhere
    | Ask | Withdraw | HolderGone | Refused | Lend | Reclaim | Tick
)  # fmt: skip

# -- commands ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """Placement ``id`` has these spots, one per bundle, and ``held`` of each: have the agents reserve them."""

    id: int
    spots: tuple[Spot, ...]
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Reject:
    """``id`` can never be placed; it is forgotten."""

    id: int
    demand: str
    why: str
    table: str


@dataclass(frozen=True, slots=True)
class Release:
    """A placement that was granted has ended: the agents of its hosts that live are to free it (and end its procs)."""

    id: int
    hosts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Bundles of a placement were on a host that is gone. What is left of it stays held until it is withdrawn."""

    id: int
    bundles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recall:
    """Ask the holder to give ``id`` back. ``by``: what waits for it. A spare goes when idle, a preemptible one ends."""

    id: int
    by: str


@dataclass(frozen=True, slots=True)
class Warn:
    """``id`` has waited for long: show ``text``, who holds what."""

    id: int
    text: str


Command = Grant | Reject | Release | Lost | Recall | Warn
