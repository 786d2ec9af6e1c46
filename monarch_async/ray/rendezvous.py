"""Where the ranks of a group find each other: at the hub.

Rank 0 starts a store of torch's and brings its address, which the others wait for. Once all ranks of a group have come
it is forgotten, and also once its rank 0 has given up or ended: whoever comes under its name after that begins anew.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from monarch_async.ray.membership import Address, Declared, Membership


@dataclass(slots=True)
class _Meeting:
    """A group of which not every rank has come. ``address`` is known once rank 0 has."""

    world_size: int
    address: "asyncio.Future[Address]"
    process: int | None = None  # that of rank 0
    waiting: int = 0
    came: set[int] = field(default_factory=set)


class Rendezvous:
    """The hub's half. ``operations`` are what processes ask it for; their first argument is who asks."""

    def __init__(self) -> None:
        """Nobody is here."""
        self._meetings: dict[str, _Meeting] = {}
        self._declared = Declared()
        self.operations: dict[str, Callable[..., Awaitable[object]]] = {
            "collective.meet": self.meet,
            "collective.leave": self.leave,
            "collective.declare": self.declare,
            "collective.withdraw": self.withdraw,
            "collective.declared": self.declared,
        }

    async def meet(self, src: int, membership: Membership, address: Address | None) -> Address:
        """Return the address that rank 0 brings, once it has.

        Raises TimeoutError where it does not come in time, RuntimeError where two have different ideas of the group.
        """
        meeting = self._meeting(membership)
        if address is not None:
            meeting = self._opened(membership.group, meeting, src, address)
        meeting.waiting += 1
        try:
            async with asyncio.timeout(membership.timeout_ms / 1000):
                found = await asyncio.shield(meeting.address)
        except TimeoutError:
            raise TimeoutError(
                f"rank 0 of group {membership.group!r} did not come within {membership.timeout_ms} ms"
            ) from None
        finally:
            meeting.waiting -= 1
            if not meeting.waiting and not meeting.address.done():
                self._end(membership.group, meeting)
        meeting.came.add(membership.rank)
        if len(meeting.came) == meeting.world_size:
            self._end(membership.group, meeting)
        return found

    def _meeting(self, membership: Membership) -> _Meeting:
        meeting = self._meetings.get(membership.group)
        if meeting is None:
            future: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
            meeting = self._meetings[membership.group] = _Meeting(membership.world_size, future)
        if meeting.world_size != membership.world_size:
            raise RuntimeError(
                f"rank {membership.rank} says that group {membership.group!r} has {membership.world_size} ranks, "
                f"others that it has {meeting.world_size}"
            )
        return meeting

    def _opened(self, group: str, meeting: _Meeting, process: int, address: Address) -> _Meeting:
        if meeting.address.done():  # of an earlier rank 0, which not all have followed
            future: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
            meeting = self._meetings[group] = _Meeting(meeting.world_size, future)
        meeting.process = process
        meeting.address.set_result(address)
        return meeting

    def _end(self, group: str, meeting: _Meeting) -> None:
        if self._meetings.get(group) is meeting:
            del self._meetings[group]

    async def leave(self, src: int, group: str) -> None:
        """The rank 0 in this process has given up: nobody is sent to its store any more."""
        meeting = self._meetings.get(group)
        if meeting is not None and meeting.process == src:
            self._end(group, meeting)

    def forget(self, has_ended: Callable[[int], bool]) -> None:
        """Processes have ended, and the stores in them."""
        for group, meeting in list(self._meetings.items()):
            if meeting.process is not None and has_ended(meeting.process):
                self._end(group, meeting)

    async def declare(self, src: int, group: str, members: dict[str, Membership]) -> None:
        """See `Declared.declare`."""
        self._declared.declare(group, members)

    async def withdraw(self, src: int, group: str) -> None:
        """See `Declared.withdraw`."""
        self._declared.withdraw(group)

    async def declared(self, src: int, group: str, actor_id: str) -> Membership | None:
        """See `Declared.of`."""
        return self._declared.of(group, actor_id)
