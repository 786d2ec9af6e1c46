"""An asynchronous loop of reinforcement learning: generators fill a queue, a learner empties it and pushes weights.

Generators are async actors that never stop: they take new weights between two trajectories. A trajectory says who made
it, as which of its own, with which weights, so that the learner sees a lost, doubled, reordered or torn one.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import numpy as np
import ray
from ray.util.queue import Queue
from rows import Step, check, main, row

GENERATORS = 3
BATCH = 16
TOKENS = 256
SMALL, LARGE = 1_000, 12_500_000


@ray.remote(num_cpus=0)
class Generator:
    """Makes trajectories with the weights it was last given, to a queue or as a stream."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.serial = 0
        self.version = 0.0
        self.stopped = False

    async def set_weights(self, weights: np.ndarray) -> float:
        assert weights[0] == weights[-1], "weights of two versions in one array"
        self.version = float(weights[0])
        return self.version

    def trajectory(self) -> tuple[int, int, float, np.ndarray]:
        self.serial += 1
        return self.number, self.serial, self.version, np.full(TOKENS, self.serial)

    async def fill(self, queue: Queue) -> int:
        while not self.stopped:
            await queue.put_async(self.trajectory())
        return self.serial

    async def stream(self, count: int) -> AsyncIterator[tuple[int, int, float, np.ndarray]]:
        for _ in range(count):
            await asyncio.sleep(0)
            yield self.trajectory()

    async def stop(self) -> None:
        self.stopped = True


class Learner:
    """Takes trajectories, checks each, makes the next version of the weights and pushes it to all generators."""

    def __init__(self, generators: list, size: int) -> None:
        self.generators = generators
        self.serials = [0] * len(generators)
        self.versions = [0.0] * len(generators)
        self.weights = np.zeros(size, dtype=np.float32)

    def take(self, trajectory: tuple[int, int, float, np.ndarray]) -> None:
        number, serial, version, tokens = trajectory
        self.serials[number] += 1
        check(serial, self.serials[number], f"serial number of generator {number}'s next trajectory")
        check(self.versions[number] <= version <= float(self.weights[0]), True, "whether a version came in its order")
        check((len(tokens), int(tokens[0]), int(tokens[-1])), (TOKENS, serial, serial), "tokens")
        self.versions[number] = version

    def push(self) -> None:
        """Give the next weights to every generator, and wait until all have them."""
        self.weights += 1
        shared = ray.put(self.weights)
        version = float(self.weights[0])
        has = ray.get([generator.set_weights.remote(shared) for generator in self.generators])
        check(has, [version] * len(self.generators), "versions that the generators have")


def start(size: int) -> tuple[list, Learner]:
    generators = [Generator.remote(number) for number in range(GENERATORS)]
    return generators, Learner(generators, size)


@row("rl_queue_loop", "trajectories/s")
def queue_loop() -> Iterator[Step]:
    generators, learner = start(SMALL)
    queue = Queue(maxsize=2 * BATCH)
    filling = [generator.fill.remote(queue) for generator in generators]

    def step() -> float:
        for _ in range(BATCH):
            learner.take(queue.get(timeout=60))
        learner.push()
        return BATCH

    yield step
    stopping = [generator.stop.remote() for generator in generators]
    while ray.wait(filling, num_returns=len(filling), timeout=0)[1]:
        if not queue.empty():
            learner.take(queue.get())
    ray.get(stopping)
    while not queue.empty():
        learner.take(queue.get())
    check(learner.serials, ray.get(filling), "trajectories taken, for each generator that filled the queue")
    queue.shutdown()
    for generator in generators:
        ray.kill(generator)


@row("rl_stream_loop", "trajectories/s")
def stream_loop() -> Iterator[Step]:
    generators, learner = start(SMALL)

    def step() -> float:
        streams = [generator.stream.options(num_returns="streaming").remote(BATCH) for generator in generators]
        for stream in streams:
            for ref in stream:
                learner.take(ray.get(ref))
        learner.push()
        return BATCH * GENERATORS

    yield step
    for generator in generators:
        ray.kill(generator)


@row("rl_push_50mb", "GB/s", kind="bulk")
def push_large() -> Iterator[Step]:
    """Weights of 50 MB from the learner until every generator has them, counted once for each."""
    generators, learner = start(LARGE)

    def step() -> float:
        learner.push()
        return GENERATORS * LARGE * 4 / 1e9

    yield step
    for generator in generators:
        ray.kill(generator)


if __name__ == "__main__":
    main()
