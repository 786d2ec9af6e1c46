"""Queues between the driver, tasks and actors."""

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from monarch_async import ray
from monarch_async.ray.actor import ActorHandle
from monarch_async.ray.exceptions import RayActorError
from monarch_async.ray.util.queue import Empty, Full, Queue

pytestmark = pytest.mark.usefixtures("driver")


@pytest.fixture
def queue() -> Iterator[Queue[object]]:
    made: Queue[object] = Queue(maxsize=2)
    yield made
    made.shutdown(force=True)


@ray.remote
def take(queue: Queue[object], count: int) -> list[object]:
    return [queue.get() for _ in range(count)]


@ray.remote
class Producer:
    async def put(self, queue: Queue[object], items: list[object]) -> None:
        for item in items:
            await queue.put_async(item)

    async def get_on_the_loop(self, queue: Queue[object]) -> object:
        return queue.get()

    async def get(self, queue: Queue[object], timeout: float | None = None) -> object:
        return await queue.get_async(timeout=timeout)


def test_items_come_in_order(queue: Queue[object]) -> None:
    queue.put("a")
    queue.put_nowait("b")
    assert queue.full() and not queue.empty()
    assert (queue.size(), queue.qsize(), len(queue), queue.maxsize) == (2, 2, 2, 2)
    assert [queue.get(), queue.get_nowait()] == ["a", "b"]
    assert queue.empty() and not queue.full()


def test_an_item_may_be_a_ref(queue: Queue[object]) -> None:
    """It comes out as its value; one inside an item stays a ref."""
    queue.put(ray.put(5))
    queue.put([ray.put(6)])
    assert queue.get() == 5
    assert ray.get(queue.get()) == [6]  # type: ignore[call-overload]


def test_without_a_limit() -> None:
    queue: Queue[int] = Queue()
    queue.put_nowait_batch(range(1000))
    assert not queue.full() and queue.get_nowait_batch(1000) == list(range(1000))
    queue.shutdown(force=True)


def test_full_and_empty(queue: Queue[object]) -> None:
    for get in (queue.get_nowait, lambda: queue.get(block=False), lambda: queue.get(timeout=0.01)):
        with pytest.raises(Empty):
            get()
    queue.put_nowait_batch([1, 2])
    for put in (queue.put_nowait, partial(queue.put, block=False), partial(queue.put, timeout=0.01)):
        with pytest.raises(Full):
            put(3)
    assert queue.get(timeout=0) == 1
    queue.put(3, timeout=0)
    assert queue.get_nowait_batch(2) == [2, 3]


def test_batches_are_all_or_nothing(queue: Queue[object]) -> None:
    with pytest.raises(Full):
        queue.put_nowait_batch([1, 2, 3])
    queue.put_nowait_batch([1])
    with pytest.raises(Full):
        queue.put_nowait_batch([1, 2])
    with pytest.raises(Empty):
        queue.get_nowait_batch(2)
    assert queue.get_nowait_batch(0) == []
    assert queue.get_nowait_batch(1) == [1]


def test_bad_arguments(queue: Queue[object]) -> None:
    for timed in (lambda: queue.put(1, timeout=-1), lambda: queue.get(timeout=-1)):
        with pytest.raises(ValueError, match="-1"):
            timed()
    with pytest.raises(ValueError, match="-1"):
        queue.get_nowait_batch(-1)
    with pytest.raises(TypeError):
        queue.get_nowait_batch("2")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        queue.put_nowait_batch(2)  # type: ignore[arg-type]
    assert queue.empty()


def test_put_waits_for_room(queue: Queue[object]) -> None:
    queue.put_nowait_batch([1, 2])
    thread = threading.Thread(target=queue.put, args=(3,))
    thread.start()
    assert queue.get() == 1
    thread.join(10)
    assert not thread.is_alive()
    assert queue.get_nowait_batch(2) == [2, 3]


def test_get_waits_for_an_item(queue: Queue[object]) -> None:
    taken = take.remote(queue, 3)
    for item in range(3):
        queue.put(item)
    assert ray.get(taken) == [0, 1, 2]


def test_many_consumers_share_the_items(queue: Queue[object]) -> None:
    taken = [take.remote(queue, 20) for _ in range(2)]
    for item in range(40):
        queue.put(item)
    parts = ray.get(taken)
    assert sorted(parts[0] + parts[1]) == list(range(40))  # type: ignore[operator, type-var]
    assert all(part == sorted(part) for part in parts)


def test_in_an_event_loop(queue: Queue[object]) -> None:
    async def both() -> list[object]:
        async def put() -> None:
            for item in range(10):
                await queue.put_async(item)

        async with asyncio.TaskGroup() as group:
            group.create_task(put())
            got = group.create_task(get())
        with pytest.raises(Empty):
            await queue.get_async(timeout=0.01)
        with pytest.raises(Empty):
            await queue.get_async(block=False)
        with pytest.raises(ValueError, match="-1"):
            await queue.put_async(1, timeout=-1)
        return got.result()

    async def get() -> list[object]:
        return [await queue.get_async() for _ in range(10)]

    assert asyncio.run(both()) == list(range(10))


def test_async_actors(queue: Queue[object]) -> None:
    producer, consumer = Producer.remote(), Producer.remote()
    put = producer.put.remote(queue, list(range(5)))
    assert [ray.get(consumer.get.remote(queue)) for _ in range(5)] == list(range(5))
    ray.get(put)
    with pytest.raises(Empty):
        ray.get(consumer.get.remote(queue, timeout=0.01))


def test_what_would_stop_an_event_loop_says_what_does_not(queue: Queue[object]) -> None:
    """And has done nothing."""
    queue.put("stays")
    actor = Producer.remote()
    with pytest.raises(RuntimeError, match="get_async"):
        ray.get(actor.get_on_the_loop.remote(queue))
    assert queue.get() == "stays"


def test_a_blocked_get_blocks_nobody_else(queue: Queue[object]) -> None:
    taken = take.remote(queue, 1)
    start = time.monotonic()
    assert queue.empty()
    assert time.monotonic() - start < 5
    queue.put("x")
    assert ray.get(taken) == ["x"]


def test_actor_options() -> None:
    queue: Queue[int] = Queue(actor_options={"name": "the queue", "num_cpus": 1})
    queue.put(1)
    assert ray.get(ray.get_actor("the queue").get.remote()) == 1
    queue.shutdown(force=True)


def wait_dead(actor: ActorHandle) -> None:
    """One that is killed may answer what comes right then."""
    with pytest.raises(RayActorError):
        while True:
            ray.get(actor.qsize.remote(), timeout=10)


@pytest.mark.parametrize("force", [False, True])
def test_shutdown(force: bool) -> None:
    queue: Queue[int] = Queue()
    actor = queue.actor
    queue.put(1)
    queue.shutdown(force=force)
    wait_dead(actor)
    queue.shutdown()


def test_shutdown_ends_who_waits() -> None:
    queue: Queue[object] = Queue()
    taken = take.remote(queue, 1)
    with pytest.raises(Empty):
        queue.get(timeout=0.3)  # so that it waits by now
    queue.shutdown(grace_period_s=0.1)  # type: ignore[arg-type]
    with pytest.raises(RayActorError):
        ray.get(taken, timeout=20)
