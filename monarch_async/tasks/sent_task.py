"""A task as the process that submitted it has it."""

from typing import Any

from monarch_async.errors import PicklingError
from monarch_async.remote_error import RemoteError
from monarch_async.tasks.function import TaskFunction
from monarch_async.tasks.future import TaskFuture
from monarch_async.tasks.items import TaskItems
from monarch_async.tasks.options import CheckedOptions
from monarch_async.wire.payload import Encoded


class SentTask:
    """What is kept of a task until it has ended: all that is needed to send it again."""

    __slots__ = ("encoded", "function", "future", "items", "number", "options", "tries")

    def __init__(
        self, number: int, function: TaskFunction, options: CheckedOptions, encoded: Encoded, future: TaskFuture[Any]
    ) -> None:
        """Not sent yet. ``items`` is where those of a stream arrive."""
        self.number, self.function, self.options, self.encoded, self.future = (
            number, function, options, encoded, future
        )  # fmt: skip
        self.tries = 0
        self.items: TaskItems[Any] | None = None

    @property
    def name(self) -> str:
        """What it is called in errors and tables."""
        return self.options.name or self.function.name

    def named(self, error: Exception) -> Exception:
        """Return an error that says whose it is: the runner's endpoint is nobody's business."""
        if type(error) is PicklingError:
            return PicklingError(f"{error.where.partition(' of ')[0]} of task {self.name}", error.why)
        if isinstance(error, RemoteError):
            object.__setattr__(error, "actor", "task")
            object.__setattr__(error, "endpoint", self.name)
        return error
