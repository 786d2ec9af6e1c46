"""Async and threaded actors: how many methods run at once, and where."""

import asyncio
import threading
import time

import ray
from contract import answer, differs, error_of, is_cancelled


@ray.remote
class Meeting:
    """Methods that meet only when as many are inside as there have to be."""

    def __init__(self):
        self.inside = 0
        self.most = 0
        self.changed = asyncio.Event()

    async def enter(self, wanted):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.changed.set()
        while self.inside < wanted:
            self.changed.clear()
            await self.changed.wait()
        return self.inside

    async def pass_through(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.02)
        self.inside -= 1

    async def most_at_once(self):
        return self.most


def contract_async_methods_interleave() -> object:
    meeting = Meeting.remote()
    return len(ray.get([meeting.enter.remote(5) for _ in range(5)]))


def contract_by_default_many_run_at_once() -> object:
    meeting = Meeting.remote()
    return len(ray.get([meeting.enter.remote(200) for _ in range(200)]))


def contract_max_concurrency_of_async_actors() -> object:
    meeting = Meeting.options(max_concurrency=3).remote()
    ray.get([meeting.pass_through.remote() for _ in range(12)])
    return ray.get(meeting.most_at_once.remote())


def contract_max_concurrency_one() -> object:
    meeting = Meeting.options(max_concurrency=1).remote()
    ray.get([meeting.pass_through.remote() for _ in range(4)])
    return ray.get(meeting.most_at_once.remote())


def contract_async_methods_run_on_one_loop() -> object:
    @ray.remote
    class Loops:
        async def where(self):
            await asyncio.sleep(0)
            return id(asyncio.get_running_loop()), threading.get_ident()

    loops = Loops.remote()
    return len(set(ray.get([loops.where.remote() for _ in range(5)])))


def contract_refs_are_awaited_in_async_methods() -> object:
    @ray.remote
    def one(x):
        return x + 1

    @ray.remote
    class Awaiting:
        async def go(self, listed):
            both = await asyncio.gather(*[one.remote(n) for n in range(3)])
            return [await one.remote(10), both, await listed[0]]

    return ray.get(Awaiting.remote().go.remote([ray.put("given")]))


def contract_errors_of_awaited_refs() -> object:
    @ray.remote
    def fail():
        raise ValueError("boom")

    @ray.remote
    class Awaiting:
        async def catch(self):
            try:
                await fail.remote()
            except ValueError as error:
                return "boom" in str(error), isinstance(error, ray.exceptions.RayTaskError)

        async def pass_on(self):
            await fail.remote()

    awaiting = Awaiting.remote()
    return [ray.get(awaiting.catch.remote()), error_of(lambda: ray.get(awaiting.pass_on.remote()), "boom")]


def contract_async_actors_call_each_other() -> object:
    @ray.remote
    class Ping:
        async def ping(self, other, n):
            return n if n == 0 else 1 + await other.ping.remote(ray.get_runtime_context().current_actor, n - 1)

    one, two = Ping.remote(), Ping.remote()
    return ray.get(one.ping.remote(two, 6))


def contract_an_exception_of_an_async_method() -> object:
    @ray.remote
    class Failing:
        async def fail(self):
            await asyncio.sleep(0)
            raise KeyError("lost")

        async def go(self):
            return 1

    failing = Failing.remote()
    return [error_of(lambda: ray.get(failing.fail.remote()), "lost"), ray.get(failing.go.remote())]


def contract_one_async_method_makes_an_async_actor() -> object:
    @ray.remote
    class Mixed:
        def plain(self):
            return "plain"

        async def waits(self):
            await asyncio.sleep(0)
            return "async"

    mixed = Mixed.remote()
    return ray.get([mixed.plain.remote(), mixed.waits.remote()])


@ray.remote
class Blocking:
    async def get(self):
        try:
            return ray.get(ray.put(1))
        except RuntimeError as error:
            return [type(error).__name__, "await ref" in str(error)]


@differs(
    "blocking the loop would stop every other method: it raises at once, and says what to write", ["RuntimeError", True]
)
def contract_get_on_a_loop_thread() -> object:
    return ray.get(Blocking.remote().get.remote())


@differs("plain methods run beside the loop, so that they do not stop it; sync_on_loop=True has Ray's way", False)
def contract_plain_methods_of_async_actors_are_on_the_loop() -> object:
    @ray.remote
    class Mixed:
        def plain(self):
            return threading.get_ident()

        async def waits(self):
            return threading.get_ident()

    mixed = Mixed.remote()
    return len(set(ray.get([mixed.plain.remote(), mixed.waits.remote()]))) == 1


def contract_threaded_actors() -> object:
    @ray.remote
    class Threads:
        def __init__(self, n):
            self.barrier = threading.Barrier(n)

        def meet(self):
            self.barrier.wait(10)
            return threading.get_ident()

    threads = Threads.options(max_concurrency=3).remote(3)
    return len(set(ray.get([threads.meet.remote() for _ in range(3)])))


def contract_threaded_actors_have_so_many_threads() -> object:
    @ray.remote(max_concurrency=2)
    class Threads:
        def __init__(self):
            self.inside = self.most = 0
            self.lock = threading.Lock()

        def enter(self):
            with self.lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
            time.sleep(0.03)
            with self.lock:
                self.inside -= 1
            return self.most

    threads = Threads.remote()
    return max(ray.get([threads.enter.remote() for _ in range(8)]))


def contract_threaded_actors_may_get() -> object:
    @ray.remote(max_concurrency=2)
    class Threads:
        def outer(self, handle):
            return 1 + ray.get(handle.inner.remote())

        def inner(self):
            return 1

    threads = Threads.remote()
    return ray.get(threads.outer.remote(threads))


def contract_concurrency_groups_of_async_actors() -> object:
    @ray.remote(concurrency_groups={"io": 2, "compute": 1})
    class Grouped:
        def __init__(self):
            self.inside = {"io": 0, "compute": 0, "default": 0}
            self.most = dict(self.inside)

        async def _pass(self, group):
            self.inside[group] += 1
            self.most[group] = max(self.most[group], self.inside[group])
            await asyncio.sleep(0.03)
            self.inside[group] -= 1

        @ray.method(concurrency_group="io")
        async def io(self):
            await self._pass("io")

        @ray.method(concurrency_group="compute")
        async def compute(self):
            await self._pass("compute")

        async def default(self):
            await self._pass("default")

        async def counted(self):
            return self.most

    grouped = Grouped.remote()
    calls = [method.remote() for _ in range(6) for method in (grouped.io, grouped.compute, grouped.default)]
    ray.get(calls)
    most = ray.get(grouped.counted.remote())
    return [most["io"], most["compute"], most["default"]]


def contract_a_full_group_does_not_hold_the_others() -> object:
    @ray.remote(concurrency_groups={"held": 1})
    class Grouped:
        def __init__(self):
            self.is_open = False

        @ray.method(concurrency_group="held")
        async def hold(self):
            while not self.is_open:
                await asyncio.sleep(0.01)
            return "held"

        async def open(self):
            self.is_open = True
            return "opened"

    grouped = Grouped.remote()
    held = [grouped.hold.remote(), grouped.hold.remote()]
    return [ray.get(grouped.open.remote()), ray.get(held)]


def contract_concurrency_groups_of_threaded_actors() -> object:
    @ray.remote(concurrency_groups={"pair": 2})
    class Threads:
        def __init__(self):
            self.barrier = threading.Barrier(2)
            self.own = threading.get_ident()

        @ray.method(concurrency_group="pair")
        def meet(self):
            self.barrier.wait(10)
            return "met"

        def go(self):
            return "gone"

    threads = Threads.remote()
    return ray.get([threads.meet.remote(), threads.meet.remote(), threads.go.remote()])


def contract_the_group_may_be_given_with_the_call() -> object:
    @ray.remote(concurrency_groups={"pair": 2})
    class Threads:
        def __init__(self):
            self.barrier = threading.Barrier(2)

        def meet(self):
            self.barrier.wait(10)
            return "met"

    meet = Threads.remote().meet.options(concurrency_group="pair")
    return ray.get([meet.remote(), meet.remote()])


def contract_an_unknown_concurrency_group() -> object:
    @ray.remote(concurrency_groups={"io": 1})
    class Grouped:
        async def go(self):
            return 1

    go = Grouped.remote().go.options(concurrency_group="none")
    return "RayError" in error_of(lambda: ray.get(go.remote(), timeout=10))["types"]


def contract_an_async_method_that_was_waiting_is_cancelled() -> object:
    @ray.remote
    class Held:
        def __init__(self):
            self.cancelled = False

        async def hold(self):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled = True
                raise

        async def was_cancelled(self):
            return self.cancelled

    held = Held.remote()
    ref = held.hold.remote()
    ray.get(held.was_cancelled.remote())
    ray.cancel(ref)
    return [is_cancelled(lambda: ray.get(ref, timeout=20)), ray.get(held.was_cancelled.remote())]


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
