"""A thousand tasks at once of which some fail: for good, at first, or with their worker.

A task knows its second attempt by a file that its first one made, as nothing else outlives a worker.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import ray
from rows import Step, check, main, row

TASKS = 1000
EVERY_FAILURE, EVERY_RETRY = 20, 10
FEW, DEATHS = 100, 2


class Unlucky(ValueError):
    """What a task raises here, with its number as a field."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@ray.remote
def square(number: int) -> int:
    return number * number


@ray.remote
def square_or_fail(number: int) -> int:
    if number % EVERY_FAILURE == 0:
        raise Unlucky(number)
    return number * number


def is_first_attempt(folder: str, number: int) -> bool:
    mark = Path(folder) / str(number)
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@ray.remote(max_retries=3, retry_exceptions=[ConnectionError])
def square_at_second(number: int, folder: str) -> int:
    if number % EVERY_RETRY == 0 and is_first_attempt(folder, number):
        raise ConnectionError(f"number {number} fails at first")
    return number * number


@ray.remote(max_retries=5)
def square_or_die(number: int, folder: str) -> int:
    if number % (FEW // DEATHS) == 0 and is_first_attempt(folder, number):
        os._exit(1)
    return number * number


def squares(count: int) -> list[int]:
    return [number * number for number in range(count)]


@row("fan_out_1000", "tasks/s")
def without_failures() -> Iterator[Step]:
    def step() -> float:
        check(ray.get([square.remote(number) for number in range(TASKS)]), squares(TASKS), "squares")
        return TASKS

    yield step


@row("fan_out_1000_failures", "tasks/s")
def with_failures() -> Iterator[Step]:
    def step() -> float:
        refs = [square_or_fail.remote(number) for number in range(TASKS)]
        failed = 0
        for number, ref in enumerate(refs):
            try:
                found = ray.get(ref)
            except Unlucky as error:
                check(isinstance(error, ray.exceptions.RayTaskError), True, "whether the error is also ray's")
                check(error.number if hasattr(error, "number") else error.cause.number, number, "the error's field")
                failed += 1
            else:
                check(found, number * number, "square")
        check(failed, TASKS // EVERY_FAILURE, "failed tasks")
        return TASKS

    yield step


@row("fan_out_1000_retries", "tasks/s")
def with_retries() -> Iterator[Step]:
    def step() -> float:
        with tempfile.TemporaryDirectory() as folder:
            refs = [square_at_second.remote(number, folder) for number in range(TASKS)]
            check(ray.get(refs), squares(TASKS), "squares, a tenth of them at the second attempt")
            check(len(os.listdir(folder)), TASKS // EVERY_RETRY, "tasks that failed at first")
        return TASKS + TASKS // EVERY_RETRY

    yield step


@row("fan_out_100_deaths", "tasks/s")
def with_deaths() -> Iterator[Step]:
    def step() -> float:
        with tempfile.TemporaryDirectory() as folder:
            refs = [square_or_die.remote(number, folder) for number in range(FEW)]
            check(ray.get(refs), squares(FEW), "squares, some of them after a worker's death")
            check(len(os.listdir(folder)), DEATHS, "workers that died")
        return FEW

    yield step


if __name__ == "__main__":
    main()
