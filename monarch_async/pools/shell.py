"""The shell around one `Elastic`: its replicas, and those of this process that wait for a lease."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, assert_never

from monarch_async.control.supervision import Failure
from monarch_async.errors import Closed
from monarch_async.mesh.actor_mesh import ActorMesh
from monarch_async.mesh.domain import Domain
from monarch_async.pools.elastic import Elastic, Stage
from monarch_async.pools.events import (
    Closing,
    Died,
    Drain,
    End,
    Event,
    Fail,
    Give,
    GiveUp,
    Gone,
    Opened,
    Retried,
    Start,
    Tick,
    Unplaced,
)
from monarch_async.pools.growth import Grow, Growth
from monarch_async.pools.recipe import Recipe
from monarch_async.pools.replica import Replica
from monarch_async.pools.sizing import Sizes
from monarch_async.pools.status import PoolStatus, ReplicaStatus

if TYPE_CHECKING:
    from monarch_async.pools.desk import PoolDesk
    from monarch_async.pools.pool import ActorPool


class PoolShell:
    """One open pool, in the process that has made it. A `mesh.domain.Belonging`, and what a `Failure` is of."""

    def __init__(self, desk: "PoolDesk", recipe: Recipe, sizes: Sizes, grow: Grow | None) -> None:
        """Start the least number of replicas."""
        self.desk, self.recipe = desk, recipe
        self.domain: Domain = desk.domain
        self.pool: ActorPool[Any] | None = None  #: whose shell this is
        self.id = self.domain.take_placement_id()
        self.owner = self.domain.owner()
        self.growth = Growth(self.domain, recipe.name, grow)
        self.state = Elastic(sizes, self._broken)
        self.replicas: dict[int, Replica] = {}
        self._drained: dict[int, asyncio.Future[None]] = {}
        self._ticking: asyncio.TimerHandle | None = None
        loop = self.domain.router.loop
        self._opening: asyncio.Future[None] = loop.create_future()
        self._gone = asyncio.Event()
        self._is_closed = False
        self.domain.belongings.add(self)
        desk.pools[self.id] = self
        self.feed(Opened())

    @property
    def name(self) -> str:
        """The pool's."""
        return self.recipe.name

    # -- the state machine -----------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Tell the state machine, and do what it wants."""
        loop = self.domain.router.loop
        now = loop.time()  # for both: a pause that ended between them would have no tick
        for command in self.state.handle(event, now):
            match command:
                case Give(lease, replica):
                    self.desk.give(self, lease, self.replicas[replica])
                case Fail(lease, error):
                    self.desk.fail(lease, error)
                case Start(replica):
                    self.replicas[replica] = Replica(self, replica)
                case End(replica):
                    self.replicas[replica].end()
                case GiveUp(error, _, is_delivered):
                    self.tell(Failure(error, self, 0), is_delivered)
                case _:
                    assert_never(command)
        if not self._opening.done():
            self._check_open(event)
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        if (due := self.state.next_tick(now)) is not None:
            self._ticking = loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        self.feed(Tick())

    def _check_open(self, event: Event) -> None:
        if isinstance(event, Died | Unplaced):
            self._opening.set_exception(event.error)
            self._opening.exception()
        elif self.state.count(Stage.UP) >= self.state.sizes.least:
            self._opening.set_result(None)

    def _broken(self, failures: int, error: Exception) -> Exception:
        why = f"{failures} replicas failed one after the other; the last: {error}"
        broken = Closed(f"pool {self.name}", why)
        broken.__cause__ = error
        return broken

    def tell(self, failure: Failure, is_delivered: bool) -> None:
        """Who made the pool is to handle this."""
        if not self._is_closed and self._opening.done():
            self.domain.tell(self.owner, failure, is_delivered)

    def forget(self, replica: Replica) -> None:
        """Nothing is left of a replica."""
        del self.replicas[replica.id]
        self.feed(Gone(replica.id))
        if (drained := self._drained.pop(replica.id, None)) is not None and not drained.done():
            drained.set_result(None)
        if self._is_closed and not self.replicas:
            self._gone.set()

    # -- what is asked of it ---------------------------------------------------------------------------------------

    async def wait_open(self) -> None:
        """Wait until the least number is up. Raises what kept the first that failed from that."""
        await asyncio.shield(self._opening)

    async def drain(self, actor: int) -> None:
        """Let the leases of the replica with this actor end, then end it. Raises Closed where it is not here."""
        for replica in self.replicas.values():
            if replica.mesh is not None and replica.mesh.identity == actor:
                break
        else:
            raise Closed(f"a replica of pool {self.name}", "it has ended, or is of another pool")
        drained = self._drained.get(replica.id)
        if drained is None:
            drained = self._drained[replica.id] = self.domain.router.loop.create_future()
        self.feed(Drain(replica.id))
        await asyncio.shield(drained)

    async def restart(self, rank: int) -> None:
        """Try again after giving up: what a supervision policy does."""
        self.feed(Retried())

    def meshes(self) -> Sequence[ActorMesh]:
        """Return the replicas that may be leased, in the order in which they came."""
        up = [member.id for member in self.state.members.values() if member.stage is Stage.UP]
        return [mesh for id in up if (mesh := self.replicas[id].mesh) is not None]

    def status(self) -> PoolStatus:
        """Return what it is doing."""
        now, state = self.domain.router.loop.time(), self.state
        replicas = tuple(
            ReplicaStatus(m.id, m.stage.value, self.replicas[m.id].host, len(m.leases), m.served, now - m.since)
            for m in state.members.values()
        )
        return PoolStatus(self.name, replicas, len(state.waiting), state.failures, str(state.cause or ""))

    # -- its end ---------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Its owner has ended (`mesh.domain.Belonging`)."""
        await self.aclose("who made it has ended")

    async def aclose(self, why: str) -> None:
        """End all replicas; who waits is told ``why``. Waits until all are gone. Twice is fine."""
        if not self._is_closed:
            self._is_closed = True
            self.domain.belongings.discard(self)
            closed = Closed(f"pool {self.name}", why)
            if not self._opening.done():
                self._opening.set_exception(closed)
                self._opening.exception()
            self.feed(Closing(closed))
            self.desk.pools.pop(self.id, None)
            await self.growth.aclose()
            if not self.replicas:
                self._gone.set()
        await self._gone.wait()
