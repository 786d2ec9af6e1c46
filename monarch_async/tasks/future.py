"""What `submit` returns."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from monarch_async.runtime.call import RemoteFuture
from monarch_async.runtime.path import Path
from monarch_async.tasks.children import Children

if TYPE_CHECKING:
    from monarch_async.tasks.pool import TaskPool

T = TypeVar("T")


class TaskFuture(RemoteFuture[T]):
    """The future of a task. Like that of a call: cancelling it stops the task, and it has ended once that has."""

    __slots__ = ("number", "pool")

    def __init__(self, pool: "TaskPool", what: str, number: int) -> None:
        """``number`` is the task's in its pool; ``what`` names it."""
        super().__init__(pool.router, what)
        self.pool, self.number = pool, number

    def cancel(self, msg: Any | None = None) -> bool:
        """Take the task back, or stop it; the future is cancelled once it has ended."""
        if self.done():
            return False
        if not self.is_cancelling:
            self.is_cancelling = True
            self.pool.cancel(self)
        return True

    def ended(self) -> None:
        """The task has ended, and the future with it."""

    def waits_for(self) -> Sequence[Path]:
        """No call that the router knows of."""
        return ()

    @property
    def actor(self) -> int:
        """No actor of the caller's."""
        return 0


class ChildFuture(TaskFuture[T]):
    """One that was submitted by a task or an actor."""

    __slots__ = ("children", "is_awaited")

    def __init__(self, pool: "TaskPool", what: str, number: int, children: Children) -> None:
        """One of ``children``."""
        super().__init__(pool, what, number)
        self.children, self.is_awaited = children, False
        children.add(self)

    def add_done_callback(self, fn: Callable[..., object], *, context: Any | None = None) -> None:
        """Whoever awaits it comes here."""
        if not self.is_awaited and not self.done():
            self.is_awaited = True
            self.children.awaited()
        super().add_done_callback(fn, context=context)

    def ended(self) -> None:
        """See `TaskFuture.ended`."""
        self.children.remove(self)

    def exception_unseen(self) -> BaseException | None:
        """Return the failure if nobody has looked at it; that does not count as looking."""
        return self._exception if self._log_traceback else None  # type: ignore[attr-defined]

    def report_if_unseen(self) -> None:
        """What a task has submitted is its own business, when it ends."""
        if not self.children.is_of_task:
            super().report_if_unseen()

    __del__ = report_if_unseen
