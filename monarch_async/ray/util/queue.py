"""A first-in, first-out queue between tasks, actors and the driver, kept by an actor of its own."""

import asyncio
import contextlib
import queue
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from monarch_async import ray
from monarch_async.ray.object_ref import ObjectRef
from monarch_async.ray.runtime import current

T = TypeVar("T")


class Empty(queue.Empty):
    """There was no item, or none in time."""


class Full(queue.Full):
    """There was no room, or none in time."""


class QueueActor:
    """What keeps the items.

    Every method is ``async``, also those that wait for nothing: only coroutines of an actor are sure to run on one
    thread, its loop's.
    """

    def __init__(self, maxsize: int) -> None:
        """Make it; it holds ``maxsize`` items, or any number where that is not positive."""
        self._items: asyncio.Queue[object] = asyncio.Queue(maxsize)

    async def qsize(self) -> int:
        """Return how many items are in it."""
        return self._items.qsize()

    async def empty(self) -> bool:
        """Return whether none is."""
        return self._items.empty()

    async def full(self) -> bool:
        """Return whether there is room for no more."""
        return self._items.full()

    async def put(self, item: object, timeout: float | None = None) -> None:
        """Add an item, once there is room; raises Full where there is none within ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._items.put(item)
        except TimeoutError:
            raise Full from None

    async def get(self, timeout: float | None = None) -> object:
        """Take the next item, once there is one; raises Empty where there is none within ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await self._items.get()
        except TimeoutError:
            raise Empty from None

    async def put_nowait(self, item: object) -> None:
        """Add an item; raises Full where there is no room."""
        await self.put_nowait_batch([item])

    async def put_nowait_batch(self, items: list[object]) -> None:
        """Add all items, or raise Full and add none."""
        size, room = self._items.qsize(), self._items.maxsize
        if 0 < room < size + len(items):
            raise Full(f"cannot add {len(items)} items to a queue of {room} that has {size}")
        for item in items:
            self._items.put_nowait(item)

    async def get_nowait(self) -> object:
        """Take the next item; raises Empty where there is none."""
        return (await self.get_nowait_batch(1))[0]

    async def get_nowait_batch(self, num_items: int) -> list[object]:
        """Take the next ``num_items`` items, or raise Empty and take none."""
        if num_items > self._items.qsize():
            raise Empty(f"cannot take {num_items} items from a queue that has {self._items.qsize()}")
        return [self._items.get_nowait() for _ in range(num_items)]


class Queue(Generic[T]):
    """As ``asyncio.Queue``, for any number of processes: it may be given to tasks and actors, which share the items.

        queue = Queue(maxsize=100)
        refs = [consume.remote(queue) for _ in range(2)]
        for item in range(10):
            queue.put(item)

    Where several put into it while it is full, or get from it while it is empty, their order is not fixed. An item is
    a value like any argument; a ref that is an item itself comes out as its value.
    """

    def __init__(self, maxsize: int = 0, actor_options: Mapping[str, object] | None = None) -> None:
        """Start the actor of a queue of ``maxsize`` items, 0 for any number.

        ``actor_options`` are those of its actor, as of ``ActorClass.options``.
        """
        self.maxsize = maxsize
        self.actor: Any = ray.remote(QueueActor).options(**(actor_options or {})).remote(maxsize)

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """Return how many items are in it."""
        return ray.get(self.actor.qsize.remote())

    def qsize(self) -> int:
        """Return how many items are in it."""
        return self.size()

    def empty(self) -> bool:
        """Return whether none is."""
        return ray.get(self.actor.empty.remote())

    def full(self) -> bool:
        """Return whether there is room for no more."""
        return ray.get(self.actor.full.remote())

    # -- putting ---------------------------------------------------------------------------------------------------

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, once there is room.

        Args:
            item: what to add.
            block: False raises Full at once where there is no room.
            timeout: seconds to wait at most, then raise Full. None: any time.

        Raises ValueError for a negative timeout, RuntimeError on an event loop's thread, which `put_async` is for.
        """
        current().check_may_wait("Queue.put", "await queue.put_async(item)")
        with _plain(block):
            ray.get(self._put(item, block, timeout))

    async def put_async(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """As `put`, in an event loop."""
        with _plain(block):
            await self._put(item, block, timeout)

    def _put(self, item: T, block: bool, timeout: float | None) -> ObjectRef:
        if not block:
            return self.actor.put_nowait.remote(item)
        return self.actor.put.remote(item, _checked(timeout))

    def put_nowait(self, item: T) -> None:
        """Add an item; raises Full where there is no room."""
        self.put(item, block=False)

    def put_nowait_batch(self, items: Iterable[T]) -> None:
        """Add all items in their order with one call, or raise Full and add none."""
        if not isinstance(items, Iterable):
            raise TypeError(f"put_nowait_batch takes an iterable of items, not {items!r}")
        ray.get(self.actor.put_nowait_batch.remote(list(items)))

    # -- getting ---------------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the next item and return it.

        Args:
            block: False raises Empty at once where there is none.
            timeout: seconds to wait at most, then raise Empty. None: any time.

        Raises ValueError for a negative timeout, RuntimeError on an event loop's thread, which `get_async` is for.
        """
        current().check_may_wait("Queue.get", "await queue.get_async()")
        with _plain(block):
            return ray.get(self._get(block, timeout))

    async def get_async(self, block: bool = True, timeout: float | None = None) -> T:
        """As `get`, in an event loop."""
        with _plain(block):
            return await self._get(block, timeout)

    def _get(self, block: bool, timeout: float | None) -> ObjectRef:
        if not block:
            return self.actor.get_nowait.remote()
        return self.actor.get.remote(_checked(timeout))

    def get_nowait(self) -> T:
        """Take the next item; raises Empty where there is none."""
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list[T]:
        """Take the next ``num_items`` items with one call, or raise Empty and take none."""
        if not isinstance(num_items, int):
            raise TypeError(f"num_items is an int, not {num_items!r}")
        if num_items < 0:
            raise ValueError(f"num_items is at least 0, not {num_items}")
        return ray.get(self.actor.get_nowait_batch.remote(num_items))

    # -- the end ---------------------------------------------------------------------------------------------------

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End its actor, with what is in the queue.

        Calls that were made before are answered first, for ``grace_period_s`` seconds at most, unless ``force``.
        """
        if self.actor is None:
            return
        if not force:
            ended = self.actor.__ray_terminate__.remote()
            _, running = ray.wait([ended], num_returns=1, timeout=grace_period_s)
            force = bool(running)
        if force:
            ray.kill(self.actor, no_restart=True)
        self.actor = None


def _checked(timeout: float | None) -> float | None:
    if timeout is not None and timeout < 0:
        raise ValueError(f"a timeout is at least 0 seconds, not {timeout}")
    return timeout


@contextlib.contextmanager
def _plain(block: bool) -> Iterator[None]:
    """What a call raises that does not wait is raised as such, not as the error of a method of an actor."""
    try:
        yield
    except (Empty, Full) as error:
        if block:
            raise
        raise (Full if isinstance(error, Full) else Empty)(*error.args) from None
