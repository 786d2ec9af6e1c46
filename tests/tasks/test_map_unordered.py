"""A function over many items."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from task_functions import add, die_times, fail, hold, hold_async, pids
from task_waits import wait_given_back, wait_noted

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Counting:
    """Counts how far it was read."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.read += 1
            yield number

    async def later(self) -> AsyncIterator[int]:
        for number in self:
            await asyncio.sleep(0)
            yield number


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


async def test_results_as_they_finish(hosts: ma.HostMesh, tmp_path: Path) -> None:
    def after_the_next(number: int) -> int:
        """Return when the result of the next number has come."""
        while number < 2 and not (tmp_path / str(number + 1)).exists():
            time.sleep(0.005)
        return number

    results = []
    async for value in ma.map_unordered(after_the_next, range(3), limit=3):
        results.append(value)
        (tmp_path / str(value)).touch()
    assert results == [2, 1, 0]
    assert [value async for value in ma.map_unordered(add, [])] == []
    assert sorted([value async for value in ma.map_unordered(add, range(300))]) == list(range(1, 301))


async def test_the_source_is_read_no_further_than_the_limit(hosts: ma.HostMesh) -> None:
    """M1, for sources of both kinds."""
    for of_kind in (lambda items: items, lambda items: items.later()):
        items = Counting(50)
        results = ma.map_unordered(add, of_kind(items), limit=4)
        assert items.read == 0
        taken = 0
        async for _ in results:
            taken += 1
            await asyncio.sleep(0)
            assert items.read <= taken + 4
        assert taken == 50


async def test_results_that_nobody_takes_hold_back_the_source(hosts: ma.HostMesh) -> None:
    items = Counting(50)
    results = ma.map_unordered(add, items, limit=4)
    await anext(results)
    await ma.submit(nap, 0.1)
    assert items.read == 5
    await results.aclose()


async def test_leaving_the_loop_cancels_the_rest(hosts: ma.HostMesh, tmp_path: Path) -> None:
    async def hold_but_first(number: int) -> int:
        if number:
            await hold_async(folder)
        return number

    folder = str(tmp_path)
    async for value in ma.map_unordered(hold_but_first, range(4), limit=4, cpus=0.5):
        assert value == 0
        await wait_noted(tmp_path, 3)
        break
    await wait_noted(tmp_path, 6)
    assert len(set(pids(tmp_path))) == 3
    await wait_given_back()


async def test_the_first_error_ends_it(hosts: ma.HostMesh, tmp_path: Path) -> None:
    """M2."""
    items = Counting(100)
    with pytest.raises(ValueError, match="7"):
        async for _ in ma.map_unordered(go_no_further_than_seven, items, limit=2):
            pass
    assert items.read <= 10
    await wait_given_back()


async def go_no_further_than_seven(number: int) -> int:
    """What comes after it is not done before it has failed: how many that are is not for luck."""
    if number > 7:
        await asyncio.Event().wait()
    return fail_at_seven(number)


def fail_at_seven(number: int) -> int:
    return fail(str(number)) or 0 if number == 7 else number


async def test_errors_as_items(hosts: ma.HostMesh) -> None:
    found = {}
    async for outcome in ma.map_unordered(fail_at_seven, range(10), errors="yield"):
        found[outcome.item] = outcome.value if outcome.error is None else type(outcome.error).__name__
    assert found == {**{number: number for number in range(10)}, 7: "ValueError"}


async def test_errors_of_the_source(hosts: ma.HostMesh) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        async for value in ma.map_unordered(add, broken()):
            assert value == 2
    with pytest.raises(ma.PicklingError, match=r"argument args\[0\] of task str"):
        async for _ in ma.map_unordered(str, [asyncio.get_running_loop()]):
            pass


async def test_what_is_wrong_is_said_at_once(hosts: ma.HostMesh) -> None:
    with pytest.raises(ma.BadCall, match="limit=0"):
        ma.map_unordered(add, [], limit=0)
    with pytest.raises(ma.BadCall, match="errors='skip'"):
        ma.map_unordered(add, [], errors="skip")  # type: ignore[call-overload]
    with pytest.raises(ma.BadCall, match="int"):
        ma.map_unordered(add, 5)  # type: ignore[call-overload]


async def test_deaths_are_retried(hosts: ma.HostMesh, tmp_path: Path) -> None:
    async def die_once(number: int) -> int:
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        return die_times(str(folder), 1)

    assert [value async for value in ma.map_unordered(die_once, range(4))] == [2] * 4
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.05):
            async for _ in ma.map_unordered(hold, [str(tmp_path)]):
                pass
    await wait_given_back()


async def test_an_error_is_raised_once_and_is_the_end(hosts: ma.HostMesh) -> None:
    """M2. Who asked on got the cancellation of what had still run."""
    results = ma.map_unordered(fail, ["first"] * 20, limit=20)
    with pytest.raises(ValueError, match="first"):
        await anext(results)
    await asyncio.sleep(0.05)
    with pytest.raises(StopAsyncIteration):
        await anext(results)
