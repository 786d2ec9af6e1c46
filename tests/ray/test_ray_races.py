"""Threads against the loop, losses that are told late, ends in the middle of things."""

import asyncio
import contextlib
import gc
import os
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thread_waits import wait_until

from monarch_async import ray
from monarch_async.errors import Lost
from monarch_async.ray import borrowing as borrowing_module
from monarch_async.ray.calling import ActorCall, ActorClient
from monarch_async.ray.entry import Borrowed
from monarch_async.ray.payload import inside
from monarch_async.ray.runtime import Runtime, current

pytestmark = pytest.mark.usefixtures("driver")


def on_loop(function: Callable[[], Any]) -> Any:
    """Return what a function returns on the loop."""

    async def call() -> Any:
        return function()

    return current().run(call())


@ray.remote
class Owner:
    """Makes objects of its own, and says who borrows them."""

    def __init__(self) -> None:
        self.kept: Any = None

    def make(self, value: Any) -> list[Any]:
        return [ray.put(value)]

    def count_lent(self) -> int:
        gc.collect()
        return len(current().borrowing._lent)

    def keep(self, value: Any) -> None:
        self.kept = value

    def append(self, item: int) -> list[int]:
        self.kept = [*(self.kept or []), item]
        return self.kept


# -- what threads leave to the loop ------------------------------------------------------------------------------------


class Posts:
    """Has the loop do something while it is being pickled, as a collection may that happens just then."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __reduce__(self) -> Any:
        done = threading.Event()

        def look() -> None:
            self.seen.append(inside.get())
            done.set()

        current().post(look)
        done.wait()

        async def look_again() -> None:
            look()

        current().run(look_again())
        return str, ("posted",)


def test_the_loop_is_not_thought_to_be_inside_of_what_a_thread_pickles() -> None:
    """References that it pickles then would go without their tickets, and the objects could be lost."""
    seen: list[Any] = []
    assert ray.get(ray.put([Posts(seen)])) == ["posted"]
    assert seen == [None, None]


def test_all_who_wait_are_told_though_one_of_them_fails() -> None:
    entry, reported = current().new_entry("x"), threading.Event()
    told: list[int] = []

    def fail() -> None:
        raise ValueError("no")

    on_loop(lambda: current().loop.set_exception_handler(lambda *_: reported.set()))
    try:
        entry.when_done(fail)
        entry.when_done(lambda: told.append(1))
        on_loop(lambda: entry.complete(b"\x80\x05N."))
        assert told == [1] and reported.wait(5)
    finally:
        on_loop(lambda: current().loop.set_exception_handler(None))


# -- borrowing ---------------------------------------------------------------------------------------------------------


def test_threads_that_unpickle_one_reference_at_a_time_borrow_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first of the two to go gives back what the other still refers to."""
    both = threading.Barrier(2)

    class Slow(Borrowed):
        __slots__ = ()

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.3)

    monkeypatch.setattr(borrowing_module, "Borrowed", Slow)
    made: list[Any] = []
    borrow = current().borrowing.borrow
    threads = [threading.Thread(target=lambda: made.append(borrow(1 << 40, 77, None))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] is made[1]


def test_what_is_borrowed_is_given_back_however_soon_the_loop_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may look before the thread on which the last reference goes has done with it."""
    owner: Any = Owner.remote()
    runtime = current()
    box = ray.get(owner.make.remote("x"))
    assert ray.get(box[0]) == "x"
    wait_until(lambda: ray.get(owner.count_lent.remote()) == 1)
    real = Runtime.post

    def post(self: Runtime, work: Any, *args: Any) -> None:
        real(self, work, *args)
        if threading.get_ident() != runtime._thread:
            drained = threading.Event()
            real(self, drained.set)
            drained.wait()

    monkeypatch.setattr(Runtime, "post", post)
    box.clear()
    gc.collect()
    monkeypatch.undo()
    wait_until(lambda: ray.get(owner.count_lent.remote()) == 0)


def test_references_inside_of_a_large_argument_are_kept_until_the_worker_borrows_them() -> None:
    owner: Any = Owner.remote()

    @ray.remote
    def is_kept(value: list[Any]) -> bool:
        entry = value[1]._entry
        return entry.is_held or bool(current().domain.holdings.tickets._arriving)

    for _ in range(5):
        box = ray.get(owner.make.remote("x"))
        assert ray.get(is_kept.remote(ray.put([np.zeros(1 << 20), box[0]])))


def test_what_is_claimed_while_a_thread_looks_for_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's own task may be submitted just as its reference comes."""
    borrowing = current().borrowing
    claimed: list[Any] = []
    real = borrowing_module.Entry

    def slow(*args: Any) -> Any:
        monkeypatch.setattr(borrowing_module, "Entry", real)
        claimed.append(on_loop(lambda: borrowing.claim(78, "a task", 1 << 40)))
        return real(*args)

    monkeypatch.setattr(borrowing_module, "Entry", slow)
    found = borrowing.find(78)
    assert found is claimed[0]
    assert borrowing.find(78) is found
    borrowing._lent.pop(78)


def test_an_answer_that_is_about_to_be_unpickled_is_waited_for() -> None:
    """Answers to requests are unpickled a turn of the loop after they have come: the question may come in between."""
    runtime = current()
    tickets = runtime.domain.holdings.tickets
    said: list[tuple[int, int]] = []

    def ask() -> None:
        tickets.credit(5, 7, 1 << 62, 0)  # the call has been answered
        assert not said
        tickets._arriving.add((5, 7))  # now it is unpickled

    tickets._say, real = lambda *who: said.append(who), tickets._say  # type: ignore[method-assign]
    try:
        on_loop(ask)
        on_loop(lambda: None)
        on_loop(lambda: None)
        assert not said
        on_loop(lambda: tickets._arriving.discard((5, 7)))
        on_loop(lambda: tickets.credit(5, 7, 1 << 62, 0))
        wait_until(lambda: said == [(5, 7)])
    finally:
        tickets._say = real  # type: ignore[method-assign]


# -- calls -------------------------------------------------------------------------------------------------------------


def client_of(handle: Any) -> ActorClient:
    client = handle._line.client_in(current())
    assert isinstance(client, ActorClient)
    return client


def lost_later(client: ActorClient, retries: int) -> tuple[ActorCall, Any]:
    """Return a call that was sent to the incarnation before this one, and its result."""
    entry = current().new_entry("late")
    call = ActorCall("run", ("append", "", 1), pickle.dumps(((1,), {}), 5), (), (entry,), retries, None)
    call.client, call.number = client, next(client._order)
    call.incarnation = client._incarnation
    return call, entry


@pytest.mark.parametrize("retries", [0, 1])
def test_a_loss_that_is_told_late_is_of_the_incarnation_that_is_over(retries: int) -> None:
    """The one that came after it lives, and goes on taking calls."""
    handle: Any = Owner.options(max_restarts=1).remote()
    ray.get(handle.append.remote(0))
    client = client_of(handle)
    call, entry = lost_later(client, retries)
    ray.kill(handle, no_restart=False)
    with contextlib.suppress(ray.exceptions.RayActorError):
        ray.get(handle.append.remote(1))
    wait_until(lambda: _answers(handle))
    on_loop(lambda: client.lost(call, Lost("late")))
    assert isinstance(ray.get(handle.append.remote(2), timeout=10), list)
    if retries:
        assert isinstance(ray.get(ray.ObjectRef(entry), timeout=10), list)
    else:
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(ray.ObjectRef(entry), timeout=10)


def _answers(handle: Any) -> bool:
    try:
        return ray.get(handle.append.remote(1), timeout=5) is not None
    except ray.exceptions.RayActorError:
        return False


def test_a_cancelled_call_is_not_retried() -> None:
    @ray.remote(max_restarts=-1)
    class Sleeper:
        def __init__(self) -> None:
            self.count = 0

        async def sleep(self) -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ValueError("cancelled") from None

        async def ping(self) -> None:
            pass

    sleeper: Any = Sleeper.remote()
    ray.get(sleeper.ping.remote())
    ref = sleeper.sleep.options(max_task_retries=-1, retry_exceptions=True).remote()
    ray.get(sleeper.ping.remote())
    ray.cancel(ref)
    with pytest.raises((ray.exceptions.RayTaskError, ray.exceptions.TaskCancelledError)):
        ray.get(ref, timeout=10)


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_that_a_task_cannot_begin_ends_with_the_error() -> None:
    @ray.remote
    def numbers() -> Iterator[int]:
        yield 1

    @ray.remote
    def begin() -> str:
        real = Runtime.hub

        async def hub(self: Any, operation: str, *args: Any) -> Any:
            if operation == "streams.begin":
                raise ValueError("it cannot begin")
            return await real(self, operation, *args)

        Runtime.hub = hub  # type: ignore[method-assign]
        try:
            generator: Any = numbers.remote()
            with pytest.raises(ValueError, match="it cannot begin"):
                ray.get(generator._next_sync(10))
        finally:
            Runtime.hub = real  # type: ignore[method-assign]
        return "raised"

    assert ray.get(begin.remote(), timeout=30) == "raised"


def test_a_stream_is_cancelled_by_the_task_that_reads_it() -> None:
    @ray.remote
    def numbers() -> Iterator[int]:
        while True:
            yield 1
            time.sleep(0.01)

    @ray.remote
    def read() -> int:
        generator: Any = numbers.remote()
        count = ray.get(next(generator))
        ray.cancel(generator)
        with pytest.raises(ray.exceptions.TaskCancelledError):
            for ref in generator:
                ray.get(ref)
        return count

    assert ray.get(read.remote(), timeout=30) == 1
    tasks: Any = current().hub_access.tasks  # type: ignore[attr-defined]
    wait_until(lambda: not tasks._streams)


@ray.remote
class Log:
    def __init__(self) -> None:
        self.lines: list[Any] = []

    def add(self, line: Any) -> None:
        time.sleep(0.01)
        self.lines.append(line)

    def stream(self, name: str) -> Iterator[str]:
        self.lines.append(f"{name} begins")
        yield name
        time.sleep(0.02)
        self.lines.append(f"{name} ends")

    def read(self) -> list[Any]:
        return self.lines


@ray.remote
def slowly(value: int) -> int:
    time.sleep(0.1)
    return value


def test_streams_have_their_turn_among_the_calls() -> None:
    for _ in range(3):
        log: Any = Log.remote()
        for number in range(3):
            log.add.remote(number)
        first: Any = log.stream.remote("a")
        log.add.remote(slowly.remote(3))
        second: Any = log.stream.remote("b")
        log.add.remote(4)
        assert ray.get(log.read.remote(), timeout=10) == [0, 1, 2, "a begins", "a ends", 3, "b begins", "b ends", 4]
        assert [ray.get(ref) for generator in (first, second) for ref in generator] == ["a", "b"]


def test_a_stream_that_waits_behind_others_can_be_cancelled() -> None:
    log: Any = Log.remote()
    ray.get(log.read.remote())
    never: Any = ray.ObjectRef(current().new_entry("what never comes"))
    behind: Any = log.stream.remote(never)
    last = log.read.remote()
    ray.cancel(behind)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(next(behind))
    assert ray.get(last, timeout=10) == []


def test_a_stream_of_a_task_can_be_cancelled_before_its_arguments_are_there() -> None:
    @ray.remote
    def numbers(count: int) -> Iterator[int]:
        yield from range(count)

    never: Any = ray.ObjectRef(current().new_entry("what never comes"))
    for is_soon in (True, False):
        generator: Any = numbers.remote(never)
        if not is_soon:
            on_loop(lambda: None)
        ray.cancel(generator)
        with pytest.raises(ray.exceptions.TaskCancelledError):
            ray.get(generator._next_sync(10))


def test_threaded_actors_stream_to_several_at_a_time() -> None:
    @ray.remote(max_concurrency=2)
    class Meeting:
        def __init__(self) -> None:
            self.both = threading.Barrier(2)

        def meet(self) -> Iterator[int]:
            self.both.wait(10)
            yield 1

    meeting: Any = Meeting.remote()
    generators: list[Any] = [meeting.meet.remote() for _ in range(2)]
    assert [ray.get(next(generator)) for generator in generators] == [1, 1]


@ray.remote
def sleep_as(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)


@ray.remote
def wait_for_child(path: str) -> None:
    ray.get(sleep_as.remote(path))


@pytest.mark.parametrize("is_recursive", [True, False])
def test_what_a_cancelled_task_has_submitted_is_cancelled_with_it_unless_told_otherwise(
    is_recursive: bool, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    ref: Any = wait_for_child.remote(str(path))
    wait_until(lambda: path.exists() and bool(path.read_text()))
    child = Path(f"/proc/{path.read_text()}")
    tasks: Any = current().hub_access.tasks  # type: ignore[attr-defined]
    (run,) = next(iter(tasks.children.values()))
    ray.cancel(ref, recursive=is_recursive)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(ref, timeout=10)
    if not is_recursive:
        on_loop(lambda: None)
        assert child.exists() and len(tasks.children) == 1
        on_loop(lambda: run.cancel(True, True))
    wait_until(lambda: not child.exists())
    wait_until(lambda: not tasks.children)


def test_a_task_that_awaits_others_lends_them_its_cpus() -> None:
    @ray.remote(num_cpus=4)
    def number() -> int:
        return 1

    @ray.remote(num_cpus=4)
    def numbers() -> Iterator[int]:
        yield from (1, 2)

    @ray.remote(num_cpus=4)
    async def gather() -> AsyncIterator[int]:
        yield await number.remote()  # type: ignore[misc]
        made: Any = numbers.remote()
        async for ref in made:
            yield await ref

    generator: Any = gather.remote()
    assert [ray.get(generator._next_sync(10)) for _ in range(3)] == [1, 1, 2]


def test_streams_that_tasks_wait_for_go_before_tasks_that_nobody_waits_for() -> None:
    @ray.remote(num_cpus=4)
    def numbers(number: int) -> Iterator[int]:
        yield number

    @ray.remote(num_cpus=4)
    def read(number: int) -> tuple[int, float]:
        began = time.monotonic()
        generator: Any = numbers.remote(number)
        assert [ray.get(ref) for ref in generator] == [number]
        return os.getpid(), began

    said = ray.get([read.remote(number) for number in range(12)], timeout=50)
    assert len({pid for pid, _ in said}) < 6  # else every one of them was begun before the first stream


def _not_in(driver: int) -> str:
    assert os.getpid() != driver
    return "made elsewhere"


class NotInDriver:
    """Cannot be had in one process."""

    def __init__(self, driver: int) -> None:
        self.driver = driver

    def __reduce__(self) -> Any:
        return _not_in, (self.driver,)


def test_arguments_that_come_from_elsewhere_are_not_unpickled_on_their_way() -> None:
    @ray.remote
    def make(driver: int) -> Any:
        return NotInDriver(driver)

    @ray.remote
    def stream(value: Any) -> Iterator[Any]:
        yield value

    @ray.remote
    class Holder:
        def __init__(self, value: Any) -> None:
            self.value = value

        def read(self) -> Any:
            return self.value

        def stream(self, value: Any) -> Iterator[Any]:
            yield value

    made: Any = make.remote(os.getpid())
    holder: Any = Holder.remote(made)
    assert ray.get(holder.read.remote(), timeout=20) == "made elsewhere"
    for generator in (stream.remote(made), holder.stream.remote(made)):
        assert ray.get(generator._next_sync(20)) == "made elsewhere"


@ray.remote
class Counting:
    def echo(self, number: int) -> int:
        return number


def test_any_number_of_calls_may_wait_for_an_actor() -> None:
    """Natively so many would be Backpressure; Ray has no such thing."""
    actor = Counting.remote()
    assert ray.get(actor.echo.remote(-1)) == -1
    client: Any = current().calling.client(actor._facts.actor, True)
    client._path.window = 4
    refs = [actor.echo.remote(number) for number in range(500)]
    assert ray.get(refs) == list(range(500))
