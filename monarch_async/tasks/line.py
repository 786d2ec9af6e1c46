"""The tasks and workers of one shape: who waits, who is idle, how many more are wanted. Part of the `queue`; pure."""

import itertools
from collections import OrderedDict
from enum import Enum

from monarch_async.tasks.events import Submitted
from monarch_async.tasks.shape import Shape

LOOKAHEAD = 16
RAMP = 16
MOST_FREE = 64  #: workers of a shape that takes nothing


class Stage(Enum):
    """What a worker is doing; see `queue`."""

    ASKED = "asked for"
    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    CONDEMNED = "condemned"


class QueuedTask:
    """One task that has not ended."""

    __slots__ = (
        "deaths", "home", "id", "is_cancelled", "is_interruptible", "line", "poison", "retries", "since", "tries",
        "worker",
    )  # fmt: skip

    def __init__(self, said: Submitted, line: "Line", now: float) -> None:
        """Waiting since ``now``."""
        self.id, self.line = said.task, line
        self.retries, self.poison, self.home = said.retries, said.poison, said.home
        self.is_interruptible = said.is_interruptible
        self.is_cancelled = False
        self.deaths: list[Exception] = []
        self.worker: QueueWorker | None = None
        self.tries = 0  #: how often it has begun
        self.since = now  #: when it was submitted, or has begun


class QueueWorker:
    """One worker, from the question for it on."""

    __slots__ = ("host", "id", "idle_since", "is_recalled", "line", "stage", "started", "task")

    def __init__(self, id: int, line: "Line") -> None:
        """Asked for."""
        self.id, self.line = id, line
        self.stage = Stage.ASKED
        self.host = 0
        self.task: QueuedTask | None = None
        self.is_recalled = False
        self.started = self.idle_since = 0.0


class Line:
    """The tasks and workers of one shape."""

    __slots__ = ("asked", "failed_at", "failed_starts", "homed", "idle", "shape", "starting", "waiting", "workers")

    def __init__(self, shape: Shape) -> None:
        """Nobody waits."""
        self.shape = shape
        self.waiting: OrderedDict[int, QueuedTask] = OrderedDict()  # a cancelled one is found at once
        self.homed = 0  # how many of them have a home
        self.asked: dict[int, QueueWorker] = {}
        self.starting = 0
        self.workers = 0  # that are starting, idle or busy
        self.idle: dict[int, QueueWorker] = {}  # the one that has been for longest first
        self.failed_starts = 0
        self.failed_at = 0.0  # when the last of them did

    def wait(self, task: QueuedTask, is_first: bool = False) -> None:
        """Put a task into the line."""
        self.waiting[task.id] = task
        self.homed += task.home > 0
        if is_first:
            self.waiting.move_to_end(task.id, last=False)

    def leave(self, task: QueuedTask) -> None:
        """Take a task out of it."""
        del self.waiting[task.id]
        self.homed -= task.home > 0

    def next_for(self, host: int) -> QueuedTask:
        """Take out the task that a worker on ``host`` is to run (Q4)."""
        found = next(iter(self.waiting.values()))
        if self.homed and found.home != host:
            ahead = itertools.islice(self.waiting.values(), LOOKAHEAD + 1)
            found = next((task for task in ahead if task.home == host), found)
        self.leave(found)
        return found

    def take_idle(self, home: int) -> QueueWorker | None:
        """Return an idle worker, where there is one on ``home``; any, the last used first, where that is 0."""
        if not self.idle:
            return None
        if not home:
            return self.idle.popitem()[1]
        found = next((worker for worker in reversed(self.idle.values()) if worker.host == home), None)
        return None if found is None else self.idle.pop(found.id)

    @property
    def may_ask(self) -> bool:
        """Whether one more worker is wanted (Q5)."""
        asked = len(self.asked)
        if asked + self.starting >= len(self.waiting) or asked >= max(RAMP, self.workers):
            return False
        return not self.shape.is_free or asked + self.workers < MOST_FREE
