"""All placement groups of a program: they are at the hub, whoever made them."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from monarch_async.control.host import Host
from monarch_async.ray.exceptions import RaySystemError, TaskPlacementGroupRemoved
from monarch_async.ray.group import Group, GroupRemoved, GroupRequest
from monarch_async.ray.living import LivingHosts

log = logging.getLogger("monarch_async")

#: So many removed groups are still in the tables.
_MOST_REMOVED = 256

_own: "PlacementGroups | None" = None


def own_groups() -> "PlacementGroups | None":
    """Return the groups of this process, if it has the hub."""
    return _own


class PlacementGroups:
    """All groups of a program, by id, and by name within their namespaces."""

    def __init__(self, living: LivingHosts) -> None:
        """None yet."""
        self._living = living
        self._groups: dict[bytes, Group] = {}
        self._named: dict[tuple[str, str], Group] = {}
        self._removed: deque[bytes] = deque()
        self._endings: set[asyncio.Task[None]] = set()
        living.on_lost.append(self._lose)

    def start(self) -> None:
        """From now on they are those of this process."""
        global _own
        _own = self

    def create(self, request: GroupRequest) -> None:
        """Make one. Raises RaySystemError where its name is taken in its namespace."""
        key = (request.namespace, request.name)
        if request.name and key in self._named:
            where = f"namespace {request.namespace!r}"
            raise RaySystemError(f"there is a placement group {request.name!r} in {where} already")
        group = self._groups[request.id] = Group(request, self._living)
        if request.name:
            self._named[key] = group
        group.start()

    def remove(self, id: bytes) -> None:
        """Remove one, and end what runs there. Unknown ones and those removed do nothing."""
        group = self._groups.get(id)
        if group is None or group.is_removed:
            return
        group.mark_removed()
        self._named.pop((group.request.namespace, group.request.name), None)
        ending = asyncio.create_task(group.end())
        self._endings.add(ending)
        ending.add_done_callback(self._ended)
        self._removed.append(id)
        if len(self._removed) > _MOST_REMOVED:
            del self._groups[self._removed.popleft()]

    def _ended(self, ending: "asyncio.Task[None]") -> None:
        self._endings.discard(ending)
        if not ending.cancelled() and (error := ending.exception()) is not None:
            log.warning("a placement group was not ended in order: %s", error)

    def get(self, id: bytes) -> Group:
        """Return a group. Raises GroupRemoved where it is not known (any longer)."""
        group = self._groups.get(id)
        if group is None:
            raise GroupRemoved(f"placement group {id.hex()}")
        return group

    def find(self, name: str, namespace: str) -> GroupRequest | None:
        """Return what was asked for under a name; None where there is no such group."""
        group = self._named.get((namespace, name))
        return group.request if group is not None else None

    def is_created(self, id: bytes) -> bool:
        """Whether a group is there. On any thread."""
        group = self._groups.get(id)
        return group is not None and group.state == "CREATED"

    def is_removed(self, id: bytes) -> bool:
        """Whether a group has ended, or never was."""
        group = self._groups.get(id)
        return group is None or group.is_removed

    async def wait(self, id: bytes, timeout: float | None) -> bool:
        """Wait until a group is there; return whether it is. ``timeout``: in seconds. Raises as `wait_created`."""
        try:
            async with asyncio.timeout(timeout):
                await self.wait_created(id)
        except TimeoutError:
            return False
        return True

    async def wait_created(self, id: bytes) -> None:
        """Wait until a group is there. Raises TaskPlacementGroupRemoved."""
        try:
            await self.get(id).wait_created()
        except GroupRemoved as error:
            raise TaskPlacementGroupRemoved(f"{error} was removed") from None

    def table(self, id: bytes | None = None) -> Mapping[str, Any]:
        """Return the row of a group, empty where there is none; of all, by the hex of their ids, where not given."""
        if id is not None:
            group = self._groups.get(id)
            return group.row() if group is not None else {}
        return {group.request.id.hex(): group.row() for group in self._groups.values()}

    def _lose(self, host: Host) -> None:
        for group in list(self._groups.values()):
            group.lose(host)

    @property
    def operations(self) -> dict[str, Callable[..., Any]]:
        """What the hub is asked about groups; ``src`` is the process that asks."""
        return {
            "placement_group.create": lambda src, request: self.create(request),
            "placement_group.remove": lambda src, id: self.remove(id),
            "placement_group.wait": lambda src, id, timeout: self.wait(id, timeout),
            "placement_group.created": lambda src, id: self.wait_created(id),
            "placement_group.find": lambda src, name, namespace: self.find(name, namespace),
            "placement_group.table": lambda src, id: self.table(id),
        }

    async def aclose(self) -> None:
        """End all groups. Waits for that."""
        global _own
        _own = None
        for id in list(self._groups):
            self.remove(id)
        if self._endings:
            await asyncio.wait(self._endings)
