"""What becomes of those who wait, and of those who begin, when a session ends or begins."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from thread_waits import wait_until

from monarch_async import ray
from monarch_async.ray import driver as driver_module
from monarch_async.ray import runtime as runtime_module
from monarch_async.ray.runtime import current


@pytest.fixture(autouse=True)
def no_session() -> Iterator[None]:
    yield
    ray.shutdown()



def test_who_waits_is_told_when_the_session_ends() -> None:
    ray.init(num_cpus=1)
    entry = current().new_entry("what never comes")
    refs: list[Any] = [ray.ObjectRef(entry)]

    @ray.remote
    def after(value: int) -> int:
        return value

    refs.append(after.remote(refs[0]))
    raised: list[BaseException] = []

    def get(ref: Any) -> None:
        try:
            ray.get(ref)
        except BaseException as error:
            raised.append(error)

    waits = [threading.Thread(target=get, args=(ref,), daemon=True) for ref in refs]
    for thread in waits:
        thread.start()
    future = refs[0].future()
    wait_until(lambda: bool(entry._callbacks) and len(entry._callbacks) >= 3)
    ray.shutdown()
    for thread in waits:
        thread.join(10)
    assert len(raised) == 2 and all(isinstance(error, ray.exceptions.RayError) for error in raised)
    with pytest.raises(ray.exceptions.RayError):
        future.result(10)


def test_what_did_not_come_before_the_session_ended_never_does() -> None:
    ray.init(num_cpus=1)
    ref: Any = ray.ObjectRef(current().new_entry("what never comes"))
    there = ray.put(1)
    ray.shutdown()
    ray.init(num_cpus=1)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(ref, timeout=10)
    assert ray.get(there) == 1
    assert ray.wait([ref], timeout=10) == ([ref], [])


def test_threads_that_begin_at_a_time_begin_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    real, begun = driver_module.Driver.begin, []

    def begin(self: Any, *args: Any) -> Any:
        begun.append(self)
        time.sleep(0.1)
        return real(self, *args)

    monkeypatch.setattr(driver_module.Driver, "begin", begin)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(runtime_module.current())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 1 and len(set(map(id, found))) == 1


@pytest.mark.slow
def test_calls_and_streams_that_wait_are_told_when_the_session_ends() -> None:
    @ray.remote
    class Counter:
        def count(self, value: int) -> int:
            return value

        def stream(self, value: int) -> Iterator[int]:
            yield value

    ray.init(num_cpus=1)
    counter: Any = Counter.remote()
    ray.get(counter.count.remote(1))
    never: Any = ray.ObjectRef(current().new_entry("what never comes"))
    call, stream, later = counter.count.remote(never), counter.stream.remote(never), counter.stream.remote(never)
    raised: list[BaseException] = []

    def get(get: Callable[[], Any]) -> None:
        try:
            get()
        except BaseException as error:
            raised.append(error)

    waits = [
        threading.Thread(target=get, args=(what,), daemon=True)
        for what in (lambda: ray.get(call), lambda: ray.get(next(stream)))
    ]
    for thread in waits:
        thread.start()
    ray.shutdown()
    for thread in waits:
        thread.join(10)
    assert len(raised) == 2 and all(isinstance(error, ray.exceptions.RayError) for error in raised)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(later._next_sync(10))
    with pytest.raises(ray.exceptions.RayError):
        call.future().result(10)


def test_what_is_there_stays_when_the_session_ends() -> None:
    ray.init(num_cpus=1)
    there: Any = ray.put([1])
    ray.shutdown()
    assert there.future().result(10) == [1]
