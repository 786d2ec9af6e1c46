"""What the task queue is told, and what it wants done. Tasks and workers are numbers that the shell gives; hosts are
host ids."""

from collections.abc import Sequence
from dataclasses import dataclass

from monarch_async.tasks.shape import Shape

# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submitted:
    """A task is to run.

    Args:
        task: its number, which no other has had.
        shape: what kind of worker it needs.
        retries: how many times it may run again after the first.
        poison: it is set aside after ending so many workers.
        home: the host that has most bytes of its arguments, where they are worth a detour; 0: any.
        is_interruptible: it can be cancelled while it runs (a coroutine); else its worker must be ended.
        goes_first: before all that wait: others wait for it that hold room.
    """

    task: int
    shape: Shape
    retries: int = 3
    poison: int = 3
    home: int = 0
    is_interruptible: bool = False
    goes_first: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """There is room for a worker that was asked for."""

    worker: int
    host: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """There never will be."""

    worker: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has started."""

    worker: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A task has returned."""

    task: int


@dataclass(frozen=True, slots=True)
class Raised:
    """A task has raised ``error``; ``may_retry``: that was said to be worth another try."""

    task: int
    error: Exception
    may_retry: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """A task that was interrupted has ended, however it did."""

    task: int


@dataclass(frozen=True, slots=True)
class Died:
    """A worker that was asked for or had started is gone.

    ``is_blamed``: what it ran may have caused that. ``has_begun``: its task was sent; one that was not is not tried.
    """

    worker: int
    error: Exception
    is_blamed: bool
    has_begun: bool = True


@dataclass(frozen=True, slots=True)
class Recalled:
    """Something else waits for what a worker holds."""

    worker: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Something of a task's results has been seen: it is not to be tried again."""

    task: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nobody wants a task any more. Unknown ones, and those cancelled before, do nothing."""

    task: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """A task was cancelled long ago. Where it still runs, it ignores that."""

    task: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; see `TaskQueue.next_tick`."""


Event = (
    Submitted | Granted | Rejected | Ready | Finished | Raised
    | Stopped | Died | Recalled | Seen | Cancelled | Overdue | Tick
)  # fmt: skip

# -- commands ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask for room for a worker, on the host ``home`` if there is room there, too."""

    worker: int
    shape: Shape
    home: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Start a worker where there is room for it now."""

    worker: int


@dataclass(frozen=True, slots=True)
class End:
    """Give up a worker, or the question for it, and the room it has. ``at_once``: something runs there; tell `Died`."""

    worker: int
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Send a task to a worker."""

    task: int
    worker: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Cancel a task where it runs."""

    task: int
    worker: int


@dataclass(frozen=True, slots=True)
class Fail:
    """A task has ended with ``error``."""

    task: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Poison:
    """A task has ended too many workers: it is set aside, with the evidence."""

    task: int
    deaths: Sequence[Exception]


@dataclass(frozen=True, slots=True)
class Drop:
    """A task that was cancelled has ended, or never began."""

    task: int


Command = Ask | Start | End | Run | Interrupt | Fail | Poison | Drop
