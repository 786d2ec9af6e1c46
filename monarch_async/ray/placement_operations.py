"""What other processes ask of the hub about placement groups and nodes."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from monarch_async.ray.exceptions import TaskPlacementGroupRemoved
from monarch_async.ray.groups import GroupRemoved, GroupRequest
from monarch_async.ray.nodes import NodeTable
from monarch_async.ray.placement_group import PlacementGroup, PlacementGroupID
from monarch_async.ray.placing import Placing


class Hub(Protocol):
    """What is needed of it."""

    operations: dict[str, Callable[..., Awaitable[Any]]]

    def entry_for(self, work: Coroutine[Any, Any, Any]) -> int:
        """Return the number of a new object, whose value is what ``work`` returns."""
        ...


class PlacementOperations:
    """See the module. ``src`` is the address of who asks."""

    def __init__(self, hub: Hub, placing: Placing) -> None:
        """Register them."""
        self._hub, self._groups, self._table = hub, placing.groups, NodeTable(placing.living)
        hub.operations.update(
            {
                "placement_group.create": self.create,
                "placement_group.remove": self.remove,
                "placement_group.wait": self.wait,
                "placement_group.ready": self.ready,
                "placement_group.find": self.find,
                "placement_group.table": self.table,
                "nodes.rows": self.rows,
                "nodes.totals": self.totals,
                "nodes.available": self.available,
                "nodes.available_by_node": self.available_by_node,
            }
        )

    async def create(self, src: int, request: GroupRequest) -> None:
        """Make a group. Raises ValueError where its name is taken."""
        self._groups.create(request)

    async def remove(self, src: int, id: bytes) -> None:
        """Remove a group."""
        self._groups.remove(id)

    async def wait(self, src: int, id: bytes, timeout: float | None) -> bool:
        """Wait until a group is there; return whether it is."""
        return await self._groups.wait(id, timeout)

    async def ready(self, src: int, id: bytes) -> int:
        """Return the number of an object that is there once a group is."""
        return self._hub.entry_for(self._ready(id))

    async def _ready(self, id: bytes) -> PlacementGroup:
        try:
            group = self._groups.get(id)
            await group.wait_created()
        except GroupRemoved as error:
            raise TaskPlacementGroupRemoved(f"{error} was removed") from None
        return PlacementGroup(PlacementGroupID(id), group.request.specs)

    async def find(self, src: int, name: str, namespace: str) -> tuple[bytes, tuple[dict[str, float], ...]] | None:
        """Return the id and the bundles of the group of a name."""
        group = self._groups.find(name, namespace)
        return None if group is None else (group.request.id, group.request.specs)

    async def table(self, src: int, id: bytes | None) -> dict[str, Any]:
        """Return the row of a group, or of all."""
        return dict(self._groups.table(id))

    async def rows(self, src: int) -> list[dict[str, Any]]:
        """Return the rows of all nodes."""
        return self._table.rows()

    async def totals(self, src: int) -> dict[str, float]:
        """Return what all nodes have."""
        return self._table.totals()

    async def available(self, src: int) -> dict[str, float]:
        """Return what is free."""
        return await self._table.available()

    async def available_by_node(self, src: int) -> dict[str, dict[str, float]]:
        """Return what is free on each node."""
        return await self._table.available_by_node()
