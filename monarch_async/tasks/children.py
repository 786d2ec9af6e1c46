"""What one task, or one actor, has submitted and not got back.

C1. A task ends when what it has submitted has ended: its answer waits for that. What failed there and nobody looked at
    is its failure. A task that fails, or is cancelled, cancels what it has submitted.
C2. What an actor has submitted is cancelled when the actor ends.
C3. While a task waits for what it has submitted, the cpus it holds are lent to others. So tasks that wait for tasks
    never wait for room that they hold themselves, however deep that goes.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch_async.tasks.future import ChildFuture


class Children:
    """See the module. A `mesh.domain.Belonging`."""

    __slots__ = ("_failed", "_forget", "_futures", "_lend", "_waiting", "depth", "is_of_task", "is_over", "owner")

    def __init__(
        self,
        owner: object,
        depth: int = 0,
        lend: Callable[[bool], None] | None = None,
        forget: Callable[["Children"], None] | None = None,
    ) -> None:
        """``depth``: how many tasks are around them.

        ``lend`` is told when the owner, a task, begins to wait (true) and when it goes on; an actor lends nothing.

        ``forget`` is told when the owner has ended.
        """
        self.owner, self.depth, self.is_of_task = owner, depth, lend is not None
        self.is_over = False  #: the owner, a task, has ended; what it left running in its process has not
        self._lend, self._forget = lend, forget
        self._futures: set[ChildFuture[Any]] = set()
        self._waiting = 0
        self._failed: list[ChildFuture[Any]] = []

    def __bool__(self) -> bool:
        return bool(self._futures or self._failed)

    def add(self, future: "ChildFuture[Any]") -> None:
        """A task has been submitted."""
        self._futures.add(future)

    def awaited(self) -> None:
        """One of them is waited for (C3)."""
        self.lend(True)

    def lend(self, is_waiting: bool) -> None:
        """The owner begins to wait for others by means of its own, or has ended that (C3)."""
        self._waiting += 1 if is_waiting else -1
        if self._lend is not None and self._waiting == (1 if is_waiting else 0):
            self._lend(is_waiting)

    def remove(self, future: "ChildFuture[Any]") -> None:
        """A task has ended."""
        self._futures.discard(future)
        if future.is_awaited:
            self.lend(False)
        if self.is_of_task and not future.cancelled() and future.exception_unseen() is not None:
            self._failed.append(future)

    async def finish(self) -> None:
        """Wait until all have ended; raise the first failure that nobody has looked at (C1)."""
        await self._wait()
        failed, self._failed = self._failed, []
        unseen = [error for future in failed if (error := future.exception_unseen()) is not None]
        for future in failed:
            future.exception()
        if unseen:
            raise unseen[0]

    async def abandon(self) -> None:
        """Cancel all, and wait for that (C1)."""
        self.cancel()
        await self._wait()
        for future in self._failed:
            future.exception()
        self._failed.clear()

    async def _wait(self) -> None:
        while self._futures:
            await asyncio.wait(list(self._futures))

    def cancel(self) -> None:
        """Cancel all."""
        for future in list(self._futures):
            future.cancel()

    def end(self) -> None:
        """See `Belonging` (C2)."""
        if self._forget is not None:
            self._forget(self)
        self.cancel()


children: ContextVar[Children | None] = ContextVar("monarch_async_children", default=None)
