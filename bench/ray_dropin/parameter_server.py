"""A parameter server: workers make gradients of the newest parameters, a server adds them.

Parameters are whole numbers in floats, a worker's gradient is its own number: every sum is exact and can be checked.
"""

from collections.abc import Iterator

import numpy as np
import ray
from rows import Step, check, main, row

WORKERS = 4
SMALL, LARGE = 1_000, 2_500_000


@ray.remote(num_cpus=0)
class Server:
    def __init__(self, size: int) -> None:
        self.parameters = np.zeros(size, dtype=np.float32)

    def apply(self, *gradients: np.ndarray) -> np.ndarray:
        for gradient in gradients:
            self.parameters = self.parameters + gradient
        return self.parameters

    def read(self) -> np.ndarray:
        return self.parameters


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, number: int) -> None:
        self.number = number

    def gradient(self, parameters: np.ndarray) -> np.ndarray:
        assert parameters[0] == parameters[-1], "parameters of two versions in one array"
        return np.full_like(parameters, self.number)


def start(size: int) -> tuple[object, list]:
    return Server.remote(size), [Worker.remote(number) for number in range(1, WORKERS + 1)]


@row("server_in_step", "gradients/s")
def in_step_small() -> Iterator[Step]:
    yield from in_step(SMALL, rounds=10, work=WORKERS)


@row("server_in_step_10mb", "GB/s", kind="bulk")
def in_step_large() -> Iterator[Step]:
    """Counted are parameters to each worker and a gradient from each."""
    yield from in_step(LARGE, rounds=2, work=2 * WORKERS * LARGE * 4 / 1e9)


def in_step(size: int, rounds: int, work: float) -> Iterator[Step]:
    """All gradients of a round are of the same parameters; nothing comes to the driver until the last round."""
    server, workers = start(size)
    per_round = sum(range(1, WORKERS + 1))
    expected = 0

    def step() -> float:
        nonlocal expected
        parameters = server.read.remote()
        for _ in range(rounds):
            parameters = server.apply.remote(*[worker.gradient.remote(parameters) for worker in workers])
        expected += rounds * per_round
        found = ray.get(parameters)
        check((float(found[0]), float(found[-1])), (expected, expected), "parameters after the rounds")
        return rounds * work

    yield step
    for actor in (server, *workers):
        ray.kill(actor)


@row("server_out_of_step", "gradients/s")
def out_of_step() -> Iterator[Step]:
    """Each worker goes on with new parameters as soon as its gradient is in, whatever the others do."""
    server, workers = start(SMALL)
    expected = 0

    def step() -> float:
        nonlocal expected
        running = {worker.gradient.remote(server.read.remote()): worker for worker in workers}
        for _ in range(40):
            [gradient], _ = ray.wait(list(running))
            worker = running.pop(gradient)
            expected += workers.index(worker) + 1
            running[worker.gradient.remote(server.apply.remote(gradient))] = worker
        for gradient, worker in running.items():
            expected += workers.index(worker) + 1
            server.apply.remote(gradient)
        found = ray.get(server.read.remote())
        check((float(found[0]), float(found[-1])), (expected, expected), "parameters after all gradients")
        return 40 + WORKERS

    yield step
    for actor in (server, *workers):
        ray.kill(actor)


if __name__ == "__main__":
    main()
