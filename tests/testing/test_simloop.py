"""The virtual clock, the seeded order of steps, and the deadlock report."""

import asyncio
import math
import pickle
import time

import pytest

from monarch_async.testing import simloop
from monarch_async.testing.simloop import Deadlock, SimLoop


def now():
    return asyncio.get_running_loop().time()


def test_time_jumps_exactly_to_the_next_timer():
    async def main():
        times = [now()]
        for delay in (3600, 0.1, 86400 * 400):
            await asyncio.sleep(delay)
            times.append(now())
        return times

    began = time.monotonic()
    assert simloop.run(main()) == [0, 3600, 3600.1, 3600.1 + 86400 * 400]
    assert time.monotonic() - began < 1


def test_time_stands_still_while_anything_can_run():
    async def main():
        timer = asyncio.create_task(asyncio.sleep(1e-6))
        for _ in range(10_000):
            await asyncio.sleep(0)
        assert not timer.done()
        return now()

    assert simloop.run(main()) == 0


def test_timers_a_moment_apart_run_one_by_one_in_order():
    async def main():
        seen = []

        async def at(when):
            await asyncio.sleep(when)
            seen.append((when, now()))

        await asyncio.gather(*(at(n / 1e6) for n in (3, 1, 2)))
        return seen

    assert simloop.run(main()) == [(n / 1e6, n / 1e6) for n in (1, 2, 3)]


@pytest.mark.parametrize("start", [0, 1e6, 1e9, 1e12])
def test_the_smallest_delays_pass_whatever_the_time(start):
    """A timer less than the clock's last digit ahead must not spin for ever."""

    async def main():
        await asyncio.sleep(start)
        for delay in (1e-12, 1e-9, 1e-4, 0.3):
            await asyncio.sleep(delay)
        return now()

    assert simloop.run(main()) == pytest.approx(start + 0.3001)


def test_timeouts_run_on_the_virtual_clock():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return now()

    assert simloop.run(main()) == 30


def order_of_steps(seed):
    async def main():
        order = []

        async def worker(name):
            for _ in range(3):
                order.append(name)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(worker(name))
        return "".join(order)

    return simloop.run(main(), seed)


def test_the_seed_gives_the_order_of_task_steps():
    orders = [order_of_steps(seed) for seed in range(20)]
    assert orders == [order_of_steps(seed) for seed in range(20)]
    assert len(set(orders)) > 10
    assert all(sorted(order) == sorted("abcd" * 3) for order in orders)


def test_tasks_woken_together_run_in_any_order():
    async def main():
        event, order = asyncio.Event(), []

        async def waiter(name):
            await event.wait()
            order.append(name)

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(waiter(name))
            await asyncio.sleep(1)
            event.set()
        return "".join(order)

    assert len({simloop.run(main(), seed) for seed in range(50)}) == 6


@pytest.mark.parametrize("seed", range(5))
def test_plain_callbacks_keep_their_order(seed):
    async def main():
        order, tasks = [], []
        for n in range(20):
            asyncio.get_running_loop().call_soon(order.append, n)
            tasks.append(asyncio.create_task(asyncio.sleep(0)))
        await asyncio.gather(*tasks)
        return order

    assert simloop.run(main(), seed) == list(range(20))


def test_a_deadlock_names_the_tasks_and_where_they_wait():
    cleaned = []

    async def consumer(queue):
        try:
            await queue.get()
        finally:
            cleaned.append("consumer")

    async def main():
        task = asyncio.create_task(consumer(asyncio.Queue()), name="eater")
        await task

    with pytest.raises(Deadlock) as caught:
        simloop.run(main())
    first, second = sorted(caught.value.waiting, key=lambda line: "eater" in line)
    assert first.endswith(f"main (test_simloop.py:{main.__code__.co_firstlineno + 2})")
    where = f"consumer (test_simloop.py:{consumer.__code__.co_firstlineno + 2}) > Queue.get (queues.py:"
    assert second.startswith("eater: ")
    assert where in second
    assert first in str(caught.value)
    assert cleaned == ["consumer"], "the tasks are cancelled, not dropped"
    assert pickle.loads(pickle.dumps(caught.value)).waiting == caught.value.waiting


def test_a_cancelled_timer_and_one_at_infinity_are_no_hope():
    async def main():
        asyncio.get_running_loop().call_later(5, print).cancel()
        await asyncio.sleep(math.inf)

    with pytest.raises(Deadlock, match="sleep"):
        simloop.run(main())


def test_no_deadlock_while_a_timer_will_help():
    async def main():
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(5, event.set)
        await event.wait()
        return now()

    assert simloop.run(main()) == 5


def test_work_for_a_thread_is_done_at_once():
    async def main():
        def fail():
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await asyncio.to_thread(fail)
        return await asyncio.to_thread(sum, [1, 2]), now()

    assert simloop.run(main()) == (3, 0)


def test_errors_and_tasks_left_over_end_as_in_asyncio_run():
    ended = []

    async def background():
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append(now())

    async def main():
        task = asyncio.create_task(background())
        await asyncio.sleep(1)
        raise KeyError(task)

    with pytest.raises(KeyError):
        simloop.run(main())
    assert ended == [1]


def test_the_loop_works_without_run():
    loop = SimLoop(seed=3)
    try:
        assert loop.run_until_complete(asyncio.sleep(7, "done")) == "done"
        assert loop.time() == 7
    finally:
        loop.close()
