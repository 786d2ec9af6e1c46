"""One worker of a pool: from the demand for room to its end. It decides nothing."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING

from monarch_async.errors import Error
from monarch_async.mesh.cluster import cluster
from monarch_async.mesh.guardian import Guardian, guarding
from monarch_async.mesh.placement import Placement
from monarch_async.mesh.proc_mesh import ProcMesh
from monarch_async.tasks.events import Died, Granted, Ready, Recalled, Rejected
from monarch_async.tasks.runner import TaskRunner
from monarch_async.tasks.shape import Shape

if TYPE_CHECKING:
    from monarch_async.runtime.path import Path
    from monarch_async.tasks.flight import Flight
    from monarch_async.tasks.function import TaskFunction
    from monarch_async.tasks.pool import TaskPool

log = logging.getLogger("monarch_async")

#: What the procs of workers are called.
NAME = "tasks"

#: A worker remembers so many functions, of so many bytes as pickled: closures that a loop makes are all different.
MOST_KNOWN, MOST_KNOWN_BYTES = 128, 64 << 20


class WarmWorker:
    """See the module. ``life`` is the task in which all of it happens."""

    def __init__(self, pool: "TaskPool", id: int, shape: Shape, home: str) -> None:
        """Ask for room. ``home``: the name of the host where it is wanted most; empty: anywhere."""
        self.id, self._pool, self._shape, self._home = id, pool, shape, home
        self.path: Path | None = None
        self.host = ""
        self.flight: Flight | None = None
        self.is_dead = False
        self.heard_at = 0.0  #: when it last gave a sign of life
        self._knows: OrderedDict[bytes, int] = OrderedDict()  # functions and their bytes, the one last used last
        self._known_bytes = 0
        self._runner: TaskRunner | None = None
        self._is_wanted = False
        self._ended: asyncio.Future[bool] = pool.router.loop.create_future()
        # in a context of its own: it belongs to no scope, actor or call that happened to need it first
        self.life = pool.router.loop.create_task(self._live(), context=Context())

    # -- what the queue wants --------------------------------------------------------------------------------------

    def start(self) -> None:
        """There is room, and it is wanted."""
        self._is_wanted = True

    def end(self, at_once: bool) -> None:
        """It is not wanted any more. ``at_once``: something runs there, which ends with it."""
        if not self._ended.done():
            self._ended.set_result(at_once)
        if not self._is_wanted:
            self.life.cancel()

    def close(self) -> "asyncio.Task[None]":
        """End in any case; return what is to be waited for."""
        if not self._ended.done():
            self.life.cancel()
        return self.life

    def teach(self, function: "TaskFunction") -> None:
        """Send a function, once, before the first task that calls it; those that were not called for long go."""
        if function.id in self._knows:
            self._knows.move_to_end(function.id)
            return
        self._knows[function.id] = function.nbytes
        self._known_bytes += function.nbytes
        old: list[bytes] = []
        while len(self._knows) > 1 and (len(self._knows) > MOST_KNOWN or self._known_bytes > MOST_KNOWN_BYTES):
            id, nbytes = self._knows.popitem(last=False)
            self._known_bytes -= nbytes
            old.append(id)
        assert self._runner is not None
        told = self._runner.learn.call_one(function.id, function.name, function.skeleton, function.buffers, old)
        told.add_done_callback(_looked_at)  # what goes wrong there shows when a task calls it

    def probe(self, then: Callable[[], None]) -> None:
        """Call ``then`` once it has given a sign of life. It may be dead, which is then told by others."""

        def answered(sign: "asyncio.Future[None]") -> None:
            if not sign.cancelled() and sign.exception() is None:
                self.heard_at = self._pool.router.loop.time()
                then()

        assert self._runner is not None
        self._runner.ping.call_one().add_done_callback(answered)

    # -- its life --------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            with guarding(Guardian(lambda failure: self._pool.worker_died(self, failure.error))):
                await self._lease()
        finally:
            self._pool.forget(self)

    async def _lease(self) -> None:
        demand = self._shape.demand(self._pool.name, self._pool.depth, self._home)
        try:
            placement = await cluster().place(demand)
        except Error as error:
            self._pool.feed(Rejected(self.id, error))
            return
        try:
            await self._work(placement)
        except Exception as error:  # it did not start
            self.is_dead = True
            self._pool.feed(Died(self.id, error, is_blamed=False))
        finally:
            await placement.release()

    async def _work(self, placement: Placement) -> None:
        placement.on_recall = lambda by: self._pool.feed(Recalled(self.id))
        host = placement.spots[0].host
        self.host = host.name
        self._pool.feed(Granted(self.id, host.id))
        if not self._is_wanted:
            return
        shape = self._shape
        procs = placement.spawn_procs(name=NAME, env=dict(shape.env), cwd=shape.cwd)
        runner = procs.spawn(NAME, TaskRunner, placement.id, self._pool.depth + 1)
        await runner
        if self.is_dead:
            return
        self.heard_at = self._pool.router.loop.time()
        self._runner, self.path = runner, runner.cast.paths[0]  # type: ignore[attr-defined]
        self._pool.feed(Ready(self.id))
        if await self._ended:
            await self._kill(procs)

    async def _kill(self, procs: ProcMesh) -> None:
        try:
            await procs.kill()
        except Error as error:
            log.warning("task worker on %s could not be killed: %s", self.host, error)


def _looked_at(future: "asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()
