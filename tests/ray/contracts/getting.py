"""get and wait: order, timeouts, errors, and arrays that are not copied."""

import time

import numpy as np
import ray
from contract import Gate, answer, differs, error_of

SMALL = "small arrays are copies of one's own: only large ones share their memory"


@ray.remote
def give(x):
    return x


@ray.remote
def fail(word="boom"):
    raise ValueError(word)


@ray.remote
def held(gate, x="held"):
    gate.wait()
    return x


def contract_get_keeps_the_order() -> object:
    @ray.remote
    def after(seconds):
        time.sleep(seconds)
        return seconds

    return ray.get([after.remote(0.1), after.remote(0.0), after.remote(0.05)])


def contract_get_of_nothing_and_of_the_same_twice() -> object:
    ref = ray.put(1)
    return [ray.get([]), ray.get([ref, ref])]


def contract_get_of_what_is_no_ref() -> object:
    ref = ray.put(1)
    return [
        error_of(lambda: ray.get(5)),
        error_of(lambda: ray.get([ref, 5])),
        error_of(lambda: ray.get({"a": ref})),
        error_of(lambda: ray.get([[ref]])),
        error_of(lambda: ray.get(None)),
    ]


def contract_get_with_a_timeout() -> object:
    gate = Gate()
    ref = held.remote(gate)
    began = time.monotonic()
    error = error_of(lambda: ray.get(ref, timeout=0.1))
    took = time.monotonic() - began
    is_timeout = error_of(lambda: ray.get([ref], timeout=0))
    gate.open()
    return [error, 0.05 < took < 2, is_timeout, ray.get(ref, timeout=20)]


def contract_a_get_timeout_is_a_timeout() -> object:
    return [
        issubclass(ray.exceptions.GetTimeoutError, TimeoutError),
        issubclass(ray.exceptions.GetTimeoutError, ray.exceptions.RayError),
    ]


def contract_get_with_timeout_zero_of_what_is_there() -> object:
    ref = give.remote(1)
    ray.wait([ref])
    return ray.get(ref, timeout=0)


def contract_get_raises_the_first_error_of_the_list() -> object:
    refs = [ray.put(0), fail.remote("one"), fail.remote("two")]
    ray.wait(refs, num_returns=3)
    return error_of(lambda: ray.get(refs), "one", "two")


def contract_get_raises_before_the_rest_is_there() -> object:
    gate = Gate()
    slow = held.remote(gate)
    error = error_of(lambda: ray.get([fail.remote(), slow], timeout=0.5))
    gate.open()
    return "ValueError" in error["types"] or "GetTimeoutError" in error["types"]


def contract_an_error_is_raised_by_each_get() -> object:
    ref = fail.remote()
    return [error_of(lambda: ray.get(ref), "boom") for _ in range(2)]


def contract_wait_gives_what_is_ready() -> object:
    gate = Gate()
    quick, slow = give.remote(1), held.remote(gate)
    ready, rest = ray.wait([slow, quick])
    found = [ready == [quick], rest == [slow]]
    gate.open()
    ready, rest = ray.wait([slow, quick], num_returns=2, timeout=20)
    return [*found, ready == [slow, quick], rest]


def contract_wait_keeps_the_order_given() -> object:
    """Which of several ready ones come is open; they and the others are in the order in which they were given."""
    refs = [give.remote(n) for n in range(10)][::-1]
    ray.get(refs)
    ready, rest = ray.wait(refs, num_returns=4)
    kept = [part == sorted(part, key=refs.index) for part in (ready, rest)]
    return [*kept, len(ready), sorted(map(refs.index, ready + rest)) == list(range(10))]


def contract_wait_with_a_timeout() -> object:
    gate = Gate()
    slow = held.remote(gate)
    began = time.monotonic()
    ready, rest = ray.wait([slow], timeout=0.1)
    took = time.monotonic() - began
    at_once = ray.wait([slow], timeout=0)
    gate.open()
    return [ready, rest == [slow], 0.05 < took < 2, at_once == ([], [slow])]


def contract_wait_gives_no_more_than_was_asked_for() -> object:
    refs = [ray.put(n) for n in range(5)]
    return [[len(part) for part in ray.wait(refs, num_returns=n)] for n in (1, 3, 5)]


def contract_wait_with_a_timeout_and_several() -> object:
    gate = Gate()
    refs = [give.remote(1), held.remote(gate), give.remote(2)]
    ray.get([refs[0], refs[2]])
    ready, rest = ray.wait(refs, num_returns=3, timeout=0.2)
    gate.open()
    return [ready == [refs[0], refs[2]], rest == [refs[1]]]


def contract_a_failed_task_is_ready() -> object:
    ref = fail.remote()
    ready, rest = ray.wait([ref], timeout=20)
    return [ready == [ref], rest]


def contract_wait_takes_what_it_takes() -> object:
    ref = ray.put(1)
    return [
        error_of(lambda: ray.wait(ref)),
        error_of(lambda: ray.wait([1])),
        error_of(lambda: ray.wait([ref, ref])),
        error_of(lambda: ray.wait([ref], num_returns=2)),
        error_of(lambda: ray.wait([ref], num_returns=0)),
        error_of(lambda: ray.wait([ref], timeout=-1)),
        error_of(lambda: ray.wait([])),
    ]


def contract_wait_accepts_fetch_local() -> object:
    ref = ray.put(1)
    return ray.wait([ref], num_returns=1, timeout=None, fetch_local=False)[0] == [ref]


def contract_wait_in_a_task() -> object:
    @ray.remote
    def first(refs):
        ready, rest = ray.wait(refs)
        return ray.get(ready), len(rest)

    gate = Gate()
    found = ray.get(first.remote([held.remote(gate), give.remote("quick")]))
    gate.open()
    return found


def contract_arrays_from_put_are_read_only() -> object:
    array = np.arange(100_000)
    got = ray.get(ray.put(array))

    def write():
        got[0] = 1

    return [got.flags.writeable, bool((got == array).all()), error_of(write), array.flags.writeable]


@differs(SMALL, [True, [0, 1, 2]])
def contract_small_arrays_are_read_only_too() -> object:
    got = ray.get(ray.put(np.arange(3)))
    return [got.flags.writeable, got.tolist()]


@differs(SMALL, [[False, 100000.0], [False, 100000.0], [True, 3.0]])
def contract_arrays_given_to_tasks_are_read_only() -> object:
    @ray.remote
    def look(array):
        return array.flags.writeable, float(array.sum())

    return ray.get([look.remote(np.ones(100_000)), look.remote(ray.put(np.ones(100_000))), look.remote(np.ones(3))])


@differs(SMALL, [[True, 3], [False, 100000], [False, 100000]])
def contract_arrays_returned_by_tasks_are_read_only() -> object:
    @ray.remote
    def make(n):
        return np.ones(n)

    @ray.remote
    class Maker:
        def make(self, n):
            return np.ones(n)

    arrays = ray.get([make.remote(3), make.remote(100_000), Maker.remote().make.remote(100_000)])
    return [[array.flags.writeable, len(array)] for array in arrays]


def contract_arrays_in_containers() -> object:
    got = ray.get(ray.put({"a": [np.arange(50_000), "x"]}))
    return [got["a"][0].flags.writeable, int(got["a"][0][-1]), got["a"][1]]


def contract_an_array_outlives_its_ref() -> object:
    ref = ray.put(np.arange(100_000))
    array = ray.get(ref)
    del ref
    return int(array[-1])


def contract_arrays_of_objects() -> object:
    got = ray.get(ray.put(np.array([{"a": 1}, None, "x"], dtype=object)))
    return got.tolist()


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
