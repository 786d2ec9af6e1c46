"""A task on its way to a worker and back: what the router has pending for it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from monarch_async.wire.payload import Buffer

if TYPE_CHECKING:
    from monarch_async.runtime.path import Path
    from monarch_async.tasks.pool import TaskPool
    from monarch_async.tasks.sent_task import SentTask
    from monarch_async.tasks.warm_worker import WarmWorker


class Flight:
    """One try of one task. A `runtime.call.Pending`: no second future, no callback, as there is one for every task."""

    __slots__ = ("_path", "_pool", "id", "is_sure", "nbytes", "sent_at", "task", "worker")
    is_carrier = True

    def __init__(
        self, pool: "TaskPool", task: "SentTask", worker: "WarmWorker", path: "Path", now: float, is_sure: bool
    ) -> None:
        """Sent ``now``. ``is_sure``: the worker was alive then."""
        self._pool, self.task, self.worker, self._path = pool, task, worker, path
        self.sent_at, self.is_sure = now, is_sure
        self.id = self.nbytes = 0

    def take_reply(self, src: int, flags: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        """The runner has answered."""
        self._path.answered(self.nbytes)
        self._pool.take_answer(self, flags, skeleton, buffers)
        return True

    def has_member(self, gone: Callable[[int], bool]) -> bool:
        """See `Pending`."""
        return gone(self._path.dst)

    def lose(self, gone: Callable[[int], bool], error: Exception) -> bool:
        """The worker is gone."""
        self._path.answered(self.nbytes)
        self._pool.worker_died(self.worker, error)
        return True
