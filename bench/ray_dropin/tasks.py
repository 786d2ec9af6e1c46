"""Tasks: one after the other, many at once, from many submitters, with arguments that other tasks make."""

from collections.abc import Iterator

import ray
from rows import Step, check, main, row

BATCH = 500
CLIENTS = 4
CHAIN = 50


@ray.remote
def same(number: int) -> int:
    return number


@ray.remote
def add(left: int, right: int) -> int:
    return left + right


@ray.remote(num_returns=2)
def halves(number: int) -> tuple[int, int]:
    return number // 2, number - number // 2


@ray.remote
def submit_batch(count: int) -> list[int]:
    return ray.get([same.remote(number) for number in range(count)])


@ray.remote(num_cpus=0)
class Submitter:
    """A process that submits tasks and gets their results, one of several at the same time."""

    def submit(self, count: int) -> bool:
        return ray.get([same.remote(number) for number in range(count)]) == list(range(count))


@row("tasks_sync", "tasks/s")
def tasks_sync() -> Iterator[Step]:
    def step() -> float:
        for number in range(10):
            check(ray.get(same.remote(number)), number, "result of a task")
        return 10

    yield step


@row("tasks_async", "tasks/s")
def tasks_async() -> Iterator[Step]:
    def step() -> float:
        check(ray.get([same.remote(number) for number in range(BATCH)]), list(range(BATCH)), "results of tasks")
        return BATCH

    yield step


@row("tasks_batch_in_task", "tasks/s")
def tasks_batch() -> Iterator[Step]:
    def step() -> float:
        check(ray.get(submit_batch.remote(BATCH)), list(range(BATCH)), "results of a task's tasks")
        return BATCH

    yield step


@row("tasks_4_clients", "tasks/s")
def tasks_clients() -> Iterator[Step]:
    clients = [Submitter.remote() for _ in range(CLIENTS)]

    def step() -> float:
        right = ray.get([client.submit.remote(BATCH // CLIENTS) for client in clients])
        check(right, [True] * CLIENTS, "whether the results of the clients' tasks are right")
        return BATCH // CLIENTS * CLIENTS

    yield step
    for client in clients:
        ray.kill(client)


@row("tasks_chain_50", "tasks/s")
def tasks_chain() -> Iterator[Step]:
    def step() -> float:
        ref = ray.put(0)
        for _ in range(CHAIN):
            ref = add.remote(ref, 1)
        check(ray.get(ref), CHAIN, "the end of a chain of tasks")
        return CHAIN

    yield step


@row("tasks_two_returns", "tasks/s")
def tasks_two_returns() -> Iterator[Step]:
    def step() -> float:
        pairs = [halves.remote(number) for number in range(100)]
        sums = ray.get([add.remote(left, right) for left, right in pairs])
        check(sums, list(range(100)), "sums of what tasks with two results returned")
        return 200

    yield step


if __name__ == "__main__":
    main()
