"""ray.util.queue."""

import asyncio
import time

import ray
from contract import answer, error_of, until
from ray.util.queue import Empty, Full, Queue


def contract_first_in_first_out() -> object:
    queue = Queue()
    for n in range(3):
        queue.put(n)
    found = [queue.size(), queue.qsize(), len(queue), queue.empty(), [queue.get() for _ in range(3)], queue.empty()]
    queue.shutdown()
    return found


def contract_a_full_queue() -> object:
    queue = Queue(maxsize=2)
    queue.put_nowait(1)
    queue.put_nowait(2)
    began = time.monotonic()
    found = [
        queue.full(),
        error_of(lambda: queue.put_nowait(3)),
        error_of(lambda: queue.put(3, block=False)),
        error_of(lambda: queue.put(3, timeout=0.1)),
        0.05 < time.monotonic() - began < 5,
        queue.qsize(),
    ]
    queue.shutdown()
    return found


def contract_an_empty_queue() -> object:
    queue = Queue()
    found = [
        error_of(lambda: queue.get_nowait()),
        error_of(lambda: queue.get(block=False)),
        error_of(lambda: queue.get(timeout=0.1)),
    ]
    queue.shutdown()
    return found


def contract_empty_and_full_are_those_of_the_library() -> object:
    import queue

    return [issubclass(Empty, queue.Empty), issubclass(Full, queue.Full)]


def contract_wrong_timeouts() -> object:
    queue = Queue()
    found = [error_of(lambda: queue.put(1, timeout=-1)), error_of(lambda: queue.get(timeout=-1))]
    queue.shutdown()
    return found


def contract_batches() -> object:
    queue = Queue(maxsize=4)
    queue.put_nowait_batch([1, 2, 3])
    found = [
        error_of(lambda: queue.put_nowait_batch([4, 5])),
        queue.qsize(),
        queue.get_nowait_batch(2),
        error_of(lambda: queue.get_nowait_batch(2)),
        queue.qsize(),
        error_of(lambda: queue.get_nowait_batch("2")),
        error_of(lambda: queue.put_nowait_batch(5)),
    ]
    queue.shutdown()
    return found


def contract_producers_and_consumers() -> object:
    queue = Queue(maxsize=3)

    @ray.remote
    def produce(n):
        for i in range(n):
            queue.put(i)

    @ray.remote
    def consume(n):
        return [queue.get() for _ in range(n)]

    _, found = ray.get([produce.remote(20), consume.remote(20)])
    queue.shutdown()
    return found


def contract_a_get_waits_for_a_put() -> object:
    queue = Queue()

    @ray.remote
    def consume():
        return queue.get(timeout=20)

    ref = consume.remote()
    early = len(ray.wait([ref], timeout=0.2)[0])
    queue.put("late")
    found = [early, ray.get(ref)]
    queue.shutdown()
    return found


def contract_async_methods() -> object:
    queue = Queue(maxsize=1)

    async def run():
        await queue.put_async(1)
        value = await queue.get_async()
        try:
            await queue.get_async(block=False)
        except Empty:
            emptied = True
        await queue.put_async(2)
        try:
            await queue.put_async(3, timeout=0.05)
        except Full:
            filled = True
        both = await asyncio.gather(queue.get_async(), queue.put_async(4))
        return [value, emptied, filled, both]

    found = asyncio.run(run())
    queue.shutdown()
    return found


def contract_a_queue_in_an_actor() -> object:
    @ray.remote
    class Owner:
        def __init__(self, queue):
            self.queue = queue

        def put(self, x):
            self.queue.put(x)

    queue = Queue()
    owner = Owner.remote(queue)
    ray.get(owner.put.remote({"a": 1}))
    found = queue.get(timeout=20)
    queue.shutdown()
    return found


def contract_shutdown_ends_it() -> object:
    queue = Queue()
    queue.put(1)
    queue.shutdown()
    return queue.actor


def contract_options_of_its_actor() -> object:
    queue = Queue(actor_options={"name": "the queue"})
    queue.put(1)
    found = [ray.get(ray.get_actor("the queue").qsize.remote()), isinstance(queue.actor, ray.actor.ActorHandle)]
    queue.shutdown(force=True)
    return [*found, until(lambda: "types" in error_of(lambda: ray.get_actor("the queue")))]


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
