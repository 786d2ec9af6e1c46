"""A demand on its way to a placement, and the block that holds it."""

import asyncio
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from monarch_async.control.holder import Granted
from monarch_async.control.supervision import Failure
from monarch_async.errors import Closed, Error, Preempted
from monarch_async.mesh.domain import Domain
from monarch_async.mesh.placement import Placement
from monarch_async.mesh.scope import Scope
from monarch_async.scheduler.demand import Demand


class PlacementRequest:
    """Made by `Cluster.place`; nothing is asked for before it is awaited or entered, once.

        async with cluster.place(demand) as placement: ...     # released when the block ends
        placement = await cluster.place(demand)                # until `Placement.release`, or its owner ends

    Both wait until all of the demand is had, and raise Unschedulable at once where it never can be. Who is cancelled
    meanwhile holds nothing.

    The block is one of supervision, as `supervise` makes it: what is spawned in it ends with it, and a failure that
    nobody handles cancels its body and is raised by it. So does `Preempted`.
    """

    def __init__(self, domain: Domain, demand: Demand) -> None:
        """Of the process of ``domain``."""
        self._demand, self._domain = demand, domain
        self._id = domain.take_placement_id()
        self.owner: object = None  #: see `domain.Belonging`
        self._placement: Placement | None = None
        self._arrival: asyncio.Future[Placement] = domain.router.loop.create_future()
        self._scope: Scope | None = None
        self._is_used = self._has_arrived = False
        self._recalled_by = ""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{name}: {self._demand.name} is not placed yet: await it, or enter its block")

    def __await__(self) -> Generator[Any, None, Placement]:
        return self._arrive().__await__()

    async def __aenter__(self) -> Placement:
        """Wait until it is there."""
        placement = await self._arrive()
        self._scope = Scope()
        await self._scope.__aenter__()
        return placement

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End what was spawned in the block, release the placement, raise the failure that ended the body."""
        assert self._scope is not None and self._placement is not None
        self._placement.is_released = True
        try:
            await self._scope.__aexit__(cls, error, tb)
        finally:
            await self._placement.release()

    async def _arrive(self) -> Placement:
        if self._is_used:
            raise Closed(f"the request for {self._demand.name}", "it was used: each `place` is for one placement")
        self._is_used = True
        self.owner = self._domain.owner()
        self._domain.belongings.add(self)
        try:
            self._domain.placer.ask(self._id, self._demand, self)
            placement = await self._arrival
        except BaseException:
            if self._placement is not None:
                self._placement.is_released = True
            self._give_back()
            raise
        self._has_arrived = True
        if self._recalled_by:
            self.take_recall(self._recalled_by)
        return placement

    def _give_back(self) -> None:
        self._domain.belongings.discard(self)
        self._domain.placer.withdraw(self._id)

    async def end(self) -> None:
        """Its owner has ended (`domain.Belonging`)."""
        if self._placement is not None:
            await self._placement.release()
        else:
            self._give_back()
            self.take_refusal(Closed(f"the request for {self._demand.name}", "who asked has ended"))

    # -- what the placer says (`holder.Holder`) --------------------------------------------------------------------

    def take_grant(self, granted: Granted) -> None:
        """It is there."""
        self._placement = Placement(self._domain, self._id, self._demand, granted, self._give_back)
        if not self._arrival.done():
            self._arrival.set_result(self._placement)

    def take_refusal(self, error: Error) -> None:
        """It will never be."""
        if not self._arrival.done():
            self._arrival.set_exception(error)

    def take_loss(self, bundles: Sequence[int]) -> None:
        """Bundles were on a host that is gone."""
        assert self._placement is not None
        self._placement.lost |= frozenset(bundles)

    def take_recall(self, by: str) -> None:
        """It is asked back. Who gets it just now is to say first what it does then."""
        self._recalled_by = by
        if self._has_arrived:
            self._domain.router.loop.call_soon(self._recall, by)

    def _recall(self, by: str) -> None:
        placement = self._placement
        if placement is not None and not placement.is_released:
            if placement.on_recall is not None:
                placement.on_recall(by)
            else:
                self._fail(placement, Preempted(placement.name, by))

    def take_end(self, why: str) -> None:
        """It is held no longer."""
        placement = self._placement
        if placement is not None and not placement.is_released:
            placement.is_released = True
            self._fail(placement, Closed(f"placement {placement.name}", why))

    def _fail(self, placement: Placement, error: Error) -> None:
        """The block ends; where there is none it is released, and its owner is told."""
        if self._scope is not None:
            if not self._scope.is_left:
                self._scope.fail(error)
            return
        placement.is_released = True
        self._domain.start_task(placement.release())
        self._domain.tell(self.owner, Failure(error, placement, 0), False)
