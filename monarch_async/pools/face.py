"""What may be done with a pool, in the process that has made it and in any that got it passed."""

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from monarch_async.errors import BadCall, NotAnEndpoint
from monarch_async.pools.events import Key
from monarch_async.pools.lease import Lease
from monarch_async.pools.status import PoolStatus
from monarch_async.runtime.actor import EndpointSpec, Interface, Style

A = TypeVar("A")


class PoolFace(Generic[A]):
    """Base of `ActorPool` and of what it is in other processes. Every endpoint of the class is an attribute."""

    def __init__(self, name: str, interface: Interface) -> None:
        """``interface``: of the actor class."""
        self.name, self.interface = name, interface

    def lease(self, key: Key | None = None) -> Lease[A]:
        """Return a lease: ``async with pool.lease() as replica:`` gives the actor mesh of one replica.

        The block waits for one with room, in the order of asking: that which had this ``key`` last, as long as it is
        up and has room, else the one with the fewest leases. The lease ends with the block, however that ends, and
        with the process that has it. Raises BadCall where the key is not a text, whole number or bytes.
        """
        if key is not None and not isinstance(key, str | int | bytes):
            raise BadCall(f"pool {self.name}.lease", f"key={key!r}: expected a text, a whole number or bytes")
        return Lease(self, key)

    def sticky(self, key: Key) -> "Keyed":
        """Return the pool's endpoints with a key: ``pool.sticky(conversation).generate.call_one(prompt)``."""
        self.lease(key)
        return Keyed(self, key)

    def __getattr__(self, name: str) -> Any:
        """Return the endpoint of that name."""
        if name.startswith("__") or "interface" not in self.__dict__:
            raise AttributeError(name)
        return pooled_endpoint(self, name, None)

    async def drain(self, replica: A) -> None:
        """Give this replica no more leases, and end it once it has none; wait until it is gone.

        It is replaced where the pool would be too small without it. Raises Closed where it has ended already.
        """
        await self._drain(replica)

    async def status(self) -> PoolStatus:
        """Return what the replicas are doing, how many wait, and of what the last one failed; ``print`` it."""
        raise NotImplementedError

    # -- what differs

    def _take_number(self) -> int:
        raise NotImplementedError

    async def _lease(self, number: int, key: Key | None) -> A:
        raise NotImplementedError

    def _return(self, number: int) -> None:
        raise NotImplementedError

    async def _drain(self, replica: Any) -> None:
        raise NotImplementedError


class Keyed:
    """A pool's endpoints, with a key."""

    __slots__ = ("_key", "_pool")

    def __init__(self, pool: PoolFace[Any], key: Key) -> None:
        self._pool, self._key = pool, key

    def __getattr__(self, name: str) -> Any:
        """Return the endpoint of that name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return pooled_endpoint(self._pool, name, self._key)


def pooled_endpoint(pool: PoolFace[Any], name: str, key: Key | None) -> "PooledEndpoint | PooledStream":
    """Return an endpoint of a pool's class. Raises NotAnEndpoint."""
    interface = pool.interface
    spec = interface.endpoints.get(name)
    if spec is None:
        raise NotAnEndpoint(f"pool {pool.name}", name, tuple(interface.endpoints), name in interface.methods)
    return (PooledStream if spec.style is Style.STREAM else PooledEndpoint)(pool, spec, key)


class PooledEndpoint:
    """One endpoint of a pool: each call has a lease of its own."""

    __slots__ = ("_key", "_pool", "_spec")

    def __init__(self, pool: PoolFace[Any], spec: EndpointSpec, key: Key | None) -> None:
        self._pool, self._spec, self._key = pool, spec, key

    async def call_one(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for a replica with room and call it there; return its result. Raises as `lease` and the call do.

        Arguments are pickled when there is a replica: do not change them meanwhile. A replica that dies meanwhile
        fails the call: it is not made again, as nobody knows how far it came.
        """
        self._spec.check(f"pool {self._pool.name}.{self._spec.name}", args, kwargs)
        async with self._pool.lease(self._key) as replica:
            return await getattr(replica, self._spec.name).call_one(*args, **kwargs)


class PooledStream:
    """One async-generator endpoint of a pool."""

    __slots__ = ("_key", "_pool", "_spec")

    def __init__(self, pool: PoolFace[Any], spec: EndpointSpec, key: Key | None) -> None:
        self._pool, self._spec, self._key = pool, spec, key

    async def stream_one(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Wait for a replica with room and iterate over what the endpoint yields there; it is leased for so long."""
        self._spec.check(f"pool {self._pool.name}.{self._spec.name}", args, kwargs)
        async with self._pool.lease(self._key) as replica:
            async with getattr(replica, self._spec.name).stream_one(*args, **kwargs) as stream:
                async for item in stream:
                    yield item
