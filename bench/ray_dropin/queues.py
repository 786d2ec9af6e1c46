"""`ray.util.queue`: one item there and back, batches, a producer and a consumer."""

from collections.abc import Iterator

import ray
from ray.util.queue import Empty, Queue
from rows import Step, check, main, row

BATCH = 100
ITEMS = 200


@ray.remote(num_cpus=0)
def produce(queue: Queue, count: int) -> None:
    for number in range(count):
        queue.put(number)


@row("queue_put_get", "items/s")
def put_get() -> Iterator[Step]:
    queue = Queue()

    def step() -> float:
        for number in range(10):
            queue.put(number)
            check(queue.get(timeout=30), number, "what was put")
        return 10

    yield step
    try:
        queue.get(block=False)
    except Empty:
        queue.shutdown()
    else:
        raise AssertionError("an empty queue had an item")


@row("queue_batches", "items/s")
def batches() -> Iterator[Step]:
    queue = Queue(maxsize=BATCH)

    def step() -> float:
        queue.put_nowait_batch(list(range(BATCH)))
        check(queue.full(), True, "whether a full queue is")
        check(queue.get_nowait_batch(BATCH), list(range(BATCH)), "what was put")
        return BATCH

    yield step
    queue.shutdown()


@row("queue_producer_consumer", "items/s")
def producer_consumer() -> Iterator[Step]:
    queue = Queue(maxsize=50)

    def step() -> float:
        done = produce.remote(queue, ITEMS)
        check([queue.get(timeout=60) for _ in range(ITEMS)], list(range(ITEMS)), "what a task put, in order")
        check(ray.get(done), None, "result of the producer")
        return ITEMS

    yield step
    queue.shutdown()


if __name__ == "__main__":
    main()
