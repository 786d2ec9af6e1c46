"""What is tried again: tasks that raise, and tasks whose process dies."""

import os
import sys

import ray
from contract import Tally, answer, error_of


@ray.remote
def raise_until(tally, times, error):
    """Raises in its first ``times`` tries."""
    if tally.add() <= times:
        raise error
    return len(tally.lines())


@ray.remote
def die_until(tally, times):
    """Takes its process with it in its first ``times`` tries."""
    if tally.add() <= times:
        os._exit(1)
    return len(tally.lines())


def contract_an_exception_is_not_retried() -> object:
    tally = Tally()
    return [error_of(lambda: ray.get(raise_until.remote(tally, 1, ValueError("boom"))), "boom"), tally.lines()]


def contract_retry_exceptions_retries_all() -> object:
    tally = Tally()
    task = raise_until.options(retry_exceptions=True, max_retries=3)
    return ray.get(task.remote(tally, 2, ValueError("boom")))


def contract_retry_exceptions_end_with_the_last_error() -> object:
    tally = Tally()
    task = raise_until.options(retry_exceptions=True, max_retries=2)
    return [error_of(lambda: ray.get(task.remote(tally, 9, KeyError("boom"))), "boom"), len(tally.lines())]


def contract_retry_exceptions_of_some_types() -> object:
    task = raise_until.options(retry_exceptions=[ValueError], max_retries=3)
    retried, not_retried = Tally(), Tally()
    return [
        ray.get(task.remote(retried, 1, ValueError("boom"))),
        ray.get(task.remote(Tally(), 1, UnicodeError("a ValueError too"))),
        error_of(lambda: ray.get(task.remote(not_retried, 1, KeyError("boom")))),
        len(not_retried.lines()),
    ]


def contract_a_lost_process_is_retried_of_itself() -> object:
    return ray.get(die_until.remote(Tally(), 1))


def contract_a_lost_process_without_retries() -> object:
    tally = Tally()
    return [error_of(lambda: ray.get(die_until.options(max_retries=0).remote(tally, 1))), len(tally.lines())]


def contract_retries_of_lost_processes_end() -> object:
    tally = Tally()
    return [error_of(lambda: ray.get(die_until.options(max_retries=1).remote(tally, 9))), len(tally.lines())]


def contract_retries_without_end() -> object:
    return ray.get(die_until.options(max_retries=-1).remote(Tally(), 2))


def contract_options_of_the_decorator_hold() -> object:
    @ray.remote(max_retries=1, retry_exceptions=True)
    def flaky(tally):
        if tally.add() == 1:
            raise OSError("once")
        return "done"

    return [ray.get(flaky.remote(Tally())), error_of(lambda: ray.get(flaky.options(max_retries=0).remote(Tally())))]


def contract_sys_exit_ends_the_task() -> object:
    @ray.remote(max_retries=0)
    def leave():
        sys.exit(0)

    return error_of(lambda: ray.get(leave.remote()))


def contract_a_method_that_raises_is_retried_where_asked() -> object:
    @ray.remote
    class Flaky:
        def __init__(self):
            self.calls = 0

        @ray.method(max_task_retries=2, retry_exceptions=True)
        def try_again(self):
            self.calls += 1
            if self.calls < 3:
                raise ValueError("boom")
            return self.calls

        def once(self):
            self.calls += 1
            raise ValueError("boom")

        def count(self):
            return self.calls

    flaky = Flaky.remote()
    return [
        ray.get(flaky.try_again.remote()),
        error_of(lambda: ray.get(flaky.once.remote())),
        ray.get(flaky.count.remote()),
    ]


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
