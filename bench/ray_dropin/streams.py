"""Streaming generators: of tasks, of plain and of async actors, small values and large ones."""

from collections.abc import AsyncIterator, Iterator

import numpy as np
import ray
from rows import Step, check, main, row

ITEMS = 100
CHUNK = 10_000_000
CHUNKS = 8


@ray.remote(num_returns="streaming")
def count_up(count: int) -> Iterator[int]:
    for number in range(count):  # noqa: UP028  Ray sends to generators, which a range does not take
        yield number


@ray.remote(num_returns="streaming")
def chunks(count: int) -> Iterator[np.ndarray]:
    for number in range(count):
        yield np.full(CHUNK // 8, number, dtype=np.int64)


@ray.remote(num_cpus=0)
class Counter:
    def count_up(self, count: int) -> Iterator[int]:
        for number in range(count):  # noqa: UP028  see above
            yield number


@ray.remote(num_cpus=0)
class AsyncCounter:
    async def count_up(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number


@row("stream_task", "items/s")
def of_task() -> Iterator[Step]:
    def step() -> float:
        found = [ray.get(ref) for ref in count_up.remote(ITEMS)]
        check(found, list(range(ITEMS)), "what a task yielded")
        return ITEMS

    yield step


@row("stream_actor", "items/s")
def of_actor() -> Iterator[Step]:
    counter = Counter.remote()

    def step() -> float:
        stream = counter.count_up.options(num_returns="streaming").remote(ITEMS)
        check([ray.get(ref) for ref in stream], list(range(ITEMS)), "what an actor yielded")
        return ITEMS

    yield step
    ray.kill(counter)


@row("stream_async_actor", "items/s")
def of_async_actor() -> Iterator[Step]:
    counter = AsyncCounter.remote()

    def step() -> float:
        streams = [counter.count_up.options(num_returns="streaming").remote(ITEMS) for _ in range(2)]
        for stream in streams:
            check([ray.get(ref) for ref in stream], list(range(ITEMS)), "what an async actor yielded")
        return 2 * ITEMS

    yield step
    ray.kill(counter)


@row("stream_10mb", "GB/s", kind="bulk")
def of_chunks() -> Iterator[Step]:
    def step() -> float:
        for number, ref in enumerate(chunks.remote(CHUNKS)):
            chunk = ray.get(ref)
            check((int(chunk[0]), int(chunk[-1])), (number, number), "first and last number of a chunk")
        return CHUNK * CHUNKS / 1e9

    yield step


if __name__ == "__main__":
    main()
