"""One shared object as one host knows it; what is asked of its store, and what the store has done. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from monarch_async.errors import TransferError


class State(Enum):
    """Where an object is, on this host; see `store`."""

    QUEUED = auto()  #: to be put, waits for memory
    FILLING = auto()  #: being written by the process that puts it
    AWAY = auto()  #: known here, no copy of it
    PULLING = auto()  #: a copy is arriving
    HERE = auto()
    SPILLING = auto()  #: in memory, and on its way to disk
    SPILLED = auto()  #: on disk only
    LOADING = auto()  #: coming back from there


#: States in which it has memory.
IN_MEMORY = frozenset({State.FILLING, State.PULLING, State.HERE, State.SPILLING, State.LOADING})
#: States in which all of it can be read.
READABLE = frozenset({State.HERE, State.SPILLING})


class Kind(Enum):
    """What somebody waits for."""

    ALLOC = auto()  #: memory to write a new object to
    OPEN = auto()  #: to read it
    WHERE = auto()  #: another host's agent: to read it as far as it is here
    FETCH = auto()  #: that it is here
    HOLD = auto()  #: that its home knows of this host's reference
    OTHER = auto()  #: answered at once


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: of whom (a proc, a client, an agent), and its call."""

    kind: Kind
    address: int
    call: int
    wants_region: bool = False


class Hold(Enum):
    """Whether the home of an object counts this host as one that refers to it."""

    NO = auto()
    ASKED = auto()
    YES = auto()
    LOST = auto()  #: the home is gone


class SharedObject:
    """See the module."""

    __slots__ = (
        "copies", "cost", "has_failed_to_spill", "hold", "holders", "home", "id", "is_ending", "is_kept", "is_own",
        "is_ready", "is_stopping", "nbytes", "pins", "serial", "sources", "state", "waiting", "writer",
    )  # fmt: skip

    def __init__(self, id: bytes, home: int, is_own: bool, nbytes: int, cost: int, state: State) -> None:
        """``is_own``: this host is its home; ``cost``: memory it takes."""
        self.id, self.home, self.is_own, self.nbytes, self.cost, self.state = id, home, is_own, nbytes, cost, state
        self.holders: set[int] = set()  #: processes here; at its home also agents, for their hosts
        self.pins: dict[int, int] = {}  #: how often it is open, by process or agent
        self.waiting: list[Ask] = []
        self.writer = 0
        self.copies: set[int] = set()  #: at its home: agents that keep a copy on its behalf
        self.is_kept = False  #: elsewhere: that is such a copy
        self.is_ready = False  #: its memory can be used: written to, or read as far as it has arrived
        self.is_stopping = False  #: its pull is being given up
        self.is_ending = False  #: nobody may use it any more; it goes when what is under way has ended
        self.has_failed_to_spill = False
        self.hold, self.serial = Hold.NO, 0
        self.sources: tuple[int, ...] = ()

    @property
    def is_last(self) -> bool:
        """Whether this copy cannot be got again from elsewhere."""
        return self.is_own or self.hold is Hold.LOST

    @property
    def is_wanted(self) -> bool:
        """Whether anybody refers to it."""
        is_copy = self.is_kept and self.state is not State.AWAY
        return bool(self.holders or self.pins or self.waiting or self.writer or is_copy)

    @property
    def is_idle(self) -> bool:
        """Whether its memory may be taken away."""
        return self.state is State.HERE and not self.pins and not self.waiting

    def knows(self, address: int) -> bool:
        """Return whether a process refers to it, or waits for it."""
        is_user = address in self.holders or address in self.pins or address == self.writer
        return is_user or any(ask.address == address for ask in self.waiting)

    def take(self, *kinds: Kind, address: int | None = None) -> list[Ask]:
        """Return asks of these kinds (of one process, where given), which wait no longer."""
        taken = [ask for ask in self.waiting if ask.kind in kinds and address in (None, ask.address)]
        if taken:
            self.waiting = [ask for ask in self.waiting if ask not in taken]
        return taken

    def unpin(self, address: int, count: int | None = 1) -> None:
        """Undo opens of a process: one, or all (None)."""
        left = 0 if count is None else self.pins.get(address, 0) - count
        if left > 0:
            self.pins[address] = left
        else:
            self.pins.pop(address, None)


# -- what is to be done ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """Answer: it is so."""

    ask: Ask


@dataclass(frozen=True, slots=True)
class Give:
    """Answer with the object's memory."""

    ask: Ask
    object: SharedObject


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with an error."""

    ask: Ask
    error: TransferError


@dataclass(frozen=True, slots=True)
class Allocate:
    """Get memory for it; tell `Store.allocated` or `allocation_failed`."""

    object: SharedObject


@dataclass(frozen=True, slots=True)
class Free:
    """Give its memory back. Nothing is to be told."""

    object: SharedObject


@dataclass(frozen=True, slots=True)
class Pull:
    """Get memory and a copy, from the first source that can; tell `receiving`, then `pulled` or `pull_failed`."""

    object: SharedObject
    sources: Sequence[int]


@dataclass(frozen=True, slots=True)
class StopPull:
    """Nobody needs the copy any more: bring a pull to its end soon. That is told as for any other."""

    object: SharedObject


@dataclass(frozen=True, slots=True)
class Spill:
    """Write it to disk; tell `spilled` or `spill_failed`. Its memory stays as it is."""

    object: SharedObject


@dataclass(frozen=True, slots=True)
class Load:
    """Get memory, read it from disk; tell `loaded` or `load_failed`. The file stays."""

    object: SharedObject


@dataclass(frozen=True, slots=True)
class Unlink:
    """Remove its file."""

    object: SharedObject


@dataclass(frozen=True, slots=True)
class AskHome:
    """Tell its home that this host refers to it; tell `home_answered`."""

    object: SharedObject
    serial: int


@dataclass(frozen=True, slots=True)
class TellHome:
    """Tell its home that this host refers to it no longer."""

    object: SharedObject


@dataclass(frozen=True, slots=True)
class Forget:
    """Tell an agent that it need not keep its copy."""

    object: SharedObject
    agent: int


Command = (
    Done | Give | Refuse | Allocate | Free | Pull | StopPull | Spill | Load | Unlink | AskHome | TellHome | Forget
)  # fmt: skip
