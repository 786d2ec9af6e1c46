"""A lease: one replica of a pool, for as long as a block lasts."""

from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from monarch_async.errors import Closed
from monarch_async.pools.events import Key

if TYPE_CHECKING:
    from monarch_async.pools.face import PoolFace

A = TypeVar("A")


class Lease(Generic[A]):
    """Made by `ActorPool.lease`; for one ``async with`` block."""

    __slots__ = ("_key", "_number", "_pool")

    def __init__(self, pool: "PoolFace[A]", key: Key | None) -> None:
        """Nothing is asked for before the block is entered."""
        self._pool, self._key, self._number = pool, key, 0

    async def __aenter__(self) -> A:
        """Wait for a replica; return the mesh of its one actor.

        Raises Closed where the pool has ended, or has given up; Unschedulable where there is no room for any replica;
        ProcDied and HostLost where the process that has the pool is gone.
        """
        if self._number:
            raise Closed(f"a lease of {self._pool}", "it was used: each is for one block")
        self._number = self._pool._take_number()
        try:
            return await self._pool._lease(self._number, self._key)
        except BaseException:
            self._pool._return(self._number)
            raise

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Give it back, without waiting."""
        self._pool._return(self._number)
