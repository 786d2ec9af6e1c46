"""What an elastic pool is told, and what it wants done. A lease is named by who asked for it and a number of theirs."""

from dataclasses import dataclass

LeaseId = tuple[int, int]  #: (address of the process that asked, its number there)
Key = str | int | bytes

# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The pool is used from now on."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Somebody wants a replica; with a ``key`` the one that had this key last, where that is possible."""

    lease: LeaseId
    key: Key | None = None


@dataclass(frozen=True, slots=True)
class Returned:
    """A lease has ended, or is no longer wanted. Unknown ones do nothing."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class CallerGone:
    """A process has ended: so have its leases."""

    caller: int


@dataclass(frozen=True, slots=True)
class Placed:
    """There is room for a replica; it is started now."""

    replica: int


@dataclass(frozen=True, slots=True)
class Up:
    """A replica may be leased."""

    replica: int


@dataclass(frozen=True, slots=True)
class Unplaced:
    """There is no room for a replica, nor will be."""

    replica: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Died:
    """A replica did not start, or has ended by itself. ``is_fault``: of its own doing, not that of its host."""

    replica: int
    error: Exception
    is_fault: bool = True


@dataclass(frozen=True, slots=True)
class Drain:
    """A replica is to take no more leases, and to end when it has none."""

    replica: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing is left of a replica."""

    replica: int


@dataclass(frozen=True, slots=True)
class Retried:
    """A pool that gave up is to try again."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The pool is used no longer."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; see `Elastic.next_tick`."""


Event = (
    Opened | Asked | Returned | CallerGone | Placed | Up | Unplaced | Died | Drain | Gone | Retried | Closing | Tick
)  # fmt: skip

# -- commands ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Find room for a replica and start it there."""

    replica: int


@dataclass(frozen=True, slots=True)
class End:
    """End a replica, however far it has come, in order."""

    replica: int


@dataclass(frozen=True, slots=True)
class Give:
    """A lease has this replica."""

    lease: LeaseId
    replica: int


@dataclass(frozen=True, slots=True)
class Fail:
    """A lease will not be had."""

    lease: LeaseId
    error: Exception


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Replicas fail again and again: no more are started. ``is_delivered``: somebody waited, and was told."""

    error: Exception
    failures: int
    is_delivered: bool


Command = Start | End | Give | Fail | GiveUp
