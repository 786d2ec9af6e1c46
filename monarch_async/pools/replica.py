"""One replica of a pool: from the demand for room to its end. It decides nothing."""

import asyncio
import logging
import pickle
from contextvars import Context
from typing import TYPE_CHECKING, Any

from monarch_async.control.supervision import Failure
from monarch_async.errors import Error, HostLost, Lost
from monarch_async.mesh.actor_mesh import ActorMesh
from monarch_async.mesh.cluster import cluster
from monarch_async.mesh.guardian import Guardian, guarding
from monarch_async.mesh.placement import Placement
from monarch_async.pools.events import Died, Drain, Placed, Unplaced, Up

if TYPE_CHECKING:
    from monarch_async.pools.shell import PoolShell

log = logging.getLogger("monarch_async")


class Replica:
    """See the module. ``life`` is the task in which all of it happens."""

    def __init__(self, shell: "PoolShell", id: int) -> None:
        """Ask for room."""
        self.id, self._shell = id, shell
        self.host = ""
        self.mesh: ActorMesh | None = None  #: once it is up
        self._packed: bytes | None = None
        self._is_up = False
        self._placement: Placement | None = None  #: once there is room
        self._loss: Exception | None = None  #: what it died of before it was said to be up
        loop = shell.domain.router.loop
        self._over: asyncio.Future[None] = loop.create_future()
        # in a context of its own: it belongs to no scope, actor or call that happened to need it first
        self.life = loop.create_task(self._live(), context=Context())
        self.life.add_done_callback(self._ended)

    def end(self) -> None:
        """It is not wanted any more."""
        if self._is_up:
            self._finish()
        else:
            self.life.cancel()

    def packed(self) -> bytes:
        """Return its mesh as other processes get it."""
        if self._packed is None:
            self._packed = pickle.dumps(self.mesh)
        return self._packed

    # -- its life --------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        with guarding(Guardian(self._lost)):
            placement = await self._find_room()
            if placement is not None:
                await self._hold(placement)

    def _ended(self, life: "asyncio.Task[None]") -> None:
        """Also of one that was ended before it began."""
        self._shell.forget(self)
        if not life.cancelled() and (error := life.exception()) is not None:
            raise error

    async def _find_room(self) -> Placement | None:
        """Return its placement, None where there is no room."""
        demand = self._shell.recipe.demand
        try:
            placement = await self._shell.growth.place(lambda: cluster().place(demand))
        except Error as error:
            self._shell.feed(Unplaced(self.id, error))
            return None
        self._placement, self.host = placement, placement.spots[0].host.name
        placement.on_recall = lambda by: self._shell.feed(Drain(self.id))
        self._shell.feed(Placed(self.id))
        return placement

    async def _hold(self, placement: Placement) -> None:
        try:
            await self._run(placement)
        except Exception as error:  # it did not start
            self._died(error)
        finally:
            await asyncio.shield(self._release(placement))

    async def _run(self, placement: Placement) -> None:
        recipe = self._shell.recipe
        procs = placement.spawn_procs(name=recipe.name, env=recipe.env)
        mesh: Any = procs.spawn(recipe.name, recipe.cls, *recipe.args, **recipe.kwargs)
        await mesh
        if self._loss is not None:  # dead again, before this could go on
            raise self._loss
        self.mesh, self._is_up = mesh, True
        self._shell.feed(Up(self.id))
        await self._over

    async def _release(self, placement: Placement) -> None:
        try:
            await placement.release()
        except Error as error:  # its host is gone, say
            log.warning("replica %d of pool %s on %s: %s", self.id, self._shell.recipe.name, self.host, error)

    def _lost(self, failure: Failure) -> None:
        """It has died, or its place has ended; or something else failed there, for the owner to handle."""
        if not isinstance(failure.error, Lost) and failure.mesh is not self._placement:
            self._shell.tell(failure, is_delivered=False)
        elif self._is_up:
            self._died(failure.error)
            self._finish()
        else:
            self._loss = failure.error

    def _died(self, error: Exception) -> None:
        if not self._over.done():
            self._shell.feed(Died(self.id, error, not isinstance(error, HostLost)))

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)
