"""Functions that tests run as tasks."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import monarch_async as ma


def add(left: int, right: int = 1) -> int:
    return left + right


def sum_named(numbers: dict[str, int], left: int) -> int:
    return left + sum(numbers.values())


def count_known() -> int:
    """How many functions the worker remembers."""
    runner: Any = ma.context().actor
    return len(runner._functions.keys() | runner._taught.keys())


async def add_later(left: int, right: int = 1) -> int:
    await asyncio.sleep(0)
    return left + right


def where() -> tuple[str, int, str]:
    """The host, the process, and the thread's name."""
    return ma.context().host, os.getpid(), threading.current_thread().name


async def where_async() -> tuple[str, int, str]:
    asyncio.get_running_loop()
    return where()


def square_slowly(number: int) -> int:
    time.sleep(0.002)
    return number * number


def fail(text: str) -> None:
    raise ValueError(text)


def fail_times(folder: str, times: int) -> int:
    """Raise so many times, then return the number of the try."""
    tries = note(folder)
    if tries <= times:
        raise ConnectionError(f"try {tries}")
    return tries


def note(folder: str) -> int:
    """Leave a file that says which process this is; return how many there are now."""
    (Path(folder) / f"{time.monotonic_ns()}").write_text(str(os.getpid()))
    return len(os.listdir(folder))


def pids(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in sorted(folder.iterdir())]


def die_times(folder: str, times: int, signo: int = signal.SIGKILL) -> int:
    """End this process so many times, then return the number of the try."""
    tries = note(folder)
    if tries <= times:
        os.kill(os.getpid(), signo)
    return tries


def hold(folder: str, seconds: float = 30.0) -> int:
    """Say that it runs, then block."""
    note(folder)
    time.sleep(seconds)
    return os.getpid()


async def hold_async(folder: str, seconds: float = 30.0) -> str:
    """Say that it runs, then wait; say when that is cancelled."""
    note(folder)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(folder)
        raise
    return "slept"


async def hold_on(folder: str) -> None:
    """Ignore cancellation."""
    note(folder)
    while True:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            note(folder)


def environment(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names] + [os.getcwd()]


def describe(*values: Any, **named: Any) -> list[str]:
    return [type(value).__name__ for value in (*values, *named.values())]


def size_and_host(value: Any) -> tuple[int, str]:
    return len(value), ma.context().host


def unpicklable() -> Any:
    return {"lock": threading.Lock()}


async def deep(levels: int) -> int:
    """Nested so deep."""
    return 0 if levels == 0 else 1 + await ma.submit(deep, levels - 1)


async def fan(width: int, depth: int) -> int:
    """A tree of tasks; return how many there are."""
    if depth == 0:
        return 1
    return 1 + sum(await asyncio.gather(*[ma.submit(fan, width, depth - 1) for _ in range(width)]))


def deep_on_threads(levels: int) -> int:
    """Nested by plain functions, which block their threads."""
    if levels == 0:
        return 0
    loop = ma.context().instance.proc.router.loop

    async def nested() -> int:
        return await ma.submit(deep_on_threads, levels - 1)

    return 1 + asyncio.run_coroutine_threadsafe(nested(), loop).result()


class Left(ma.Actor):
    """What a task spawns."""

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()


async def leave_all(lock: ma.Lock, *, is_to_fail: bool = False) -> int:
    """Spawn, place and lock, and care for nothing of it; return the pid of what was spawned."""
    await lock.acquire()
    await ma.cluster().place(ma.Demand([ma.Bundle(cpus=0)], name="left"))
    pid = await ma.this_host().spawn_procs().spawn("left", Left).pid.call_one()
    if is_to_fail:
        raise ValueError(pid)
    return pid


async def who_holds(lock: ma.Lock) -> str:
    """Take it, and ask."""
    async with lock:
        holder = await lock.holder()
    return holder.name if holder else ""


async def lose_an_actor() -> str:
    """Spawn one, and kill it."""
    actor = ma.this_host().spawn_procs().spawn("left", Left)
    os.kill(await actor.pid.call_one(), signal.SIGKILL)
    try:
        while True:
            await actor.pid.call_one()
    except ma.ProcDied:
        await asyncio.sleep(0.05)
        return "handled"


async def leave_behind(folder: str) -> str:
    """Submit and do not wait."""
    ma.submit(hold, folder, 0.05)
    return "returned"


async def leave_a_failure() -> str:
    ma.submit(fail, "left behind")
    return "returned"


async def look_at_a_failure() -> str:
    try:
        await ma.submit(fail, "looked at")
    except ValueError:
        return "handled"
    return "no error"


async def nest_a_hold(folder: str) -> None:
    await ma.submit(hold_async, folder)


async def mapped(count: int) -> list[int]:
    return sorted([value async for value in ma.map_unordered(add, range(count))])


class Submitter(ma.Actor):
    """Submits from an actor."""

    @ma.endpoint
    async def add(self, left: int) -> int:
        return await ma.submit(add, left)

    @ma.endpoint
    async def hold(self, folder: str) -> None:
        await ma.submit(hold_async, folder)

    @ma.endpoint
    async def leave(self, folder: str) -> None:
        self.future = ma.submit(hold_async, folder)


class Adder:
    """An object that can be called."""

    def __init__(self, right: int) -> None:
        self.right = right

    def __call__(self, left: int) -> int:
        return left + self.right

    async def later(self, left: int) -> int:
        return left + self.right


async def count_to(count: int, error: str = "", cls: type[Exception] = ValueError) -> AsyncIterator[int]:
    for number in range(count):
        yield number
    if error:
        raise cls(error)


async def note_and_count(folder: str) -> AsyncIterator[int]:
    """Count for ever; leave a file for each number."""
    for number in range(1_000_000):
        (Path(folder) / str(number)).touch()
        yield number


async def lock_and_wait(lock: ma.Lock) -> AsyncIterator[str]:
    async with lock:
        yield "locked"
        await asyncio.sleep(30)


async def die_before_items(folder: str, times: int) -> AsyncIterator[int]:
    tries = die_times(folder, times)
    yield tries
    yield tries + 1


async def die_between_items(folder: str) -> AsyncIterator[int]:
    note(folder)
    yield 0
    await asyncio.sleep(0.05)  # until that is on its way
    os.kill(os.getpid(), signal.SIGKILL)


async def relay_items(levels: int, count: int) -> AsyncIterator[int]:
    """Pass on what another task counts, which is that deep."""
    source = ma.task(count_to).stream(count) if levels == 0 else ma.task(relay_items).stream(levels - 1, count)
    async with source:
        async for item in source:
            yield item


async def count_on(folder: str) -> AsyncIterator[int]:
    note(folder)
    number = 0
    while True:
        yield (number := number + 1)
