"""Work whose results can be checked, done while everything fails.

L1. Every step ends within `BOUND`, in a right value or in an error of `ma.Error`.
L2. An actor is added to exactly as often as was said, while it and its caller live.
L3. Nobody is let into a lock before the one inside has left, or has lost it.
"""

import asyncio
import hashlib
import random
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pprint import pformat
from typing import Any

import numpy
from chronicle import Chronicle

import monarch_async as ma
from monarch_async.ids import AGENT, address
from monarch_async.mesh.domain import active_domain
from monarch_async.runtime.router import active_router

#: No step may take longer: tasks are tried up to four times, and each loss takes a window to be seen.
BOUND = 45.0


class Clerk(ma.Actor):
    """Adds up, keeps, and passes on."""

    def __init__(self) -> None:
        self.total = 0
        self.handle: ma.Handle | None = None

    @ma.endpoint
    async def add(self, n: int) -> int:
        self.total += n
        return self.total

    @ma.endpoint
    async def whole(self) -> tuple[int, int]:
        return ma.context().rank, self.total

    @ma.endpoint
    async def count(self, n: int) -> AsyncIterator[int]:
        for item in range(n):
            if item % 16 == 0:
                await asyncio.sleep(0.01)
            yield item

    @ma.endpoint
    def digest(self, data: bytes) -> int:
        return zlib.crc32(data)

    @ma.endpoint
    async def digest_of(self, ref: ma.Ref) -> int:
        return zlib.crc32(await ref)

    @ma.endpoint
    async def put(self, seed: int, size: int) -> ma.Ref:
        return await ma.put(block(seed, size))

    @ma.endpoint
    async def offer(self, seed: int, size: int) -> ma.Handle:
        self.handle = await ma.register(numpy.frombuffer(block(seed, size), "u1"))
        return self.handle

    @ma.endpoint
    async def ask(self, other: "Clerk", seed: int, size: int) -> int:
        return await other.digest.call_one(block(seed, size))

    @ma.endpoint
    async def echo(self, value: object) -> object:
        return value


def block(seed: int, size: int) -> bytes:
    """The same bytes for the same seed, anywhere."""
    pattern = hashlib.sha256(str(seed).encode()).digest()
    return (pattern * (size // len(pattern) + 1))[:size]


def square(n: int) -> int:
    return n * n


async def slow_square(n: int) -> int:
    await asyncio.sleep(0.05)
    return n * n


class Labours:
    """All the work of one run; each kind is done again and again until `stop`."""

    def __init__(self, dice: random.Random, chronicle: Chronicle) -> None:
        self.dice, self.chronicle = dice, chronicle
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._inside: dict[int, set[int]] = {}  # tokens, by home
        self._is_over = False

    def stop(self) -> None:
        """Finish what is begun, and begin nothing more."""
        self._is_over = True

    async def run(self) -> None:
        kinds = [self.calls, self.calls, self.streams, self.tasks, self.maps, self.places, self.objects, self.offers]
        async with asyncio.TaskGroup() as group:
            for number, kind in enumerate([*kinds, self.locks, self.locks]):
                group.create_task(self._repeat(f"{kind.__name__} {number}", kind))

    async def _repeat(self, name: str, kind: Callable[[str], Awaitable[None]]) -> None:
        while not self._is_over:
            began = self.chronicle.now
            try:
                async with asyncio.timeout(BOUND):
                    async with self._described(name):
                        await kind(name)
                self.done[name] += 1
            except ma.Error as error:
                self.failed[type(error).__name__] += 1
                self.chronicle.note(f"{name}, begun at {began:.3f}: {type(error).__name__}: {str(error)[:300]}")
            except TimeoutError:
                raise AssertionError(f"{name}, begun at {began:.3f} s, has not ended in {BOUND} s") from None
            except BaseException as error:
                self.chronicle.note(f"{name}, begun at {began:.3f}: {error!r}")
                raise
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def _described(self, name: str) -> AsyncIterator[None]:
        """Shortly before its time is over, write down what everybody does."""
        timer = asyncio.create_task(self._describe(name))
        try:
            yield
        finally:
            timer.cancel()
            await asyncio.wait([timer])

    async def _describe(self, name: str) -> None:
        await asyncio.sleep(BOUND - 5)
        self.chronicle.note(f"{name} takes long; the client waits for: {active_router().pending}")
        for host in ma.cluster().hosts.hosts:
            with suppress(TimeoutError, ma.Error):
                async with asyncio.timeout(2):
                    status = await active_domain().requests.ask(address(host.id, AGENT), "status")
                    self.chronicle.note(f"{host.name}: {pformat(status, width=200)}")

    @asynccontextmanager
    async def _clerks(self, name: str) -> AsyncIterator[Any]:
        """A clerk on every host there is."""
        short = name.replace(" ", "")
        procs = ma.cluster().hosts.spawn_procs({"n": 1}, name=short)
        if self.dice.random() < 0.5:
            await procs  # all of them, or nothing is left
        try:
            yield await procs.spawn(f"clerks-{short}", Clerk)
        finally:
            try:
                await procs.stop()
            except ma.Error as error:
                self.chronicle.note(f"stop {procs}: {type(error).__name__}: {str(error)[:100]}")

    async def calls(self, name: str) -> None:
        """L2. Calls, casts, and calls from one to another, until something fails."""
        async with self._clerks(name) as clerks:
            totals = [0] * clerks.size
            while not self._is_over:
                rank = self.dice.randrange(clerks.size)
                amounts = [self.dice.randint(1, 9) for _ in range(20)]
                calls = [clerks.at(rank).add.call_one(n) for n in amounts]
                for n, answer in zip(amounts, await asyncio.gather(*calls), strict=True):
                    totals[rank] += n
                    assert answer == totals[rank], f"{name}: {answer} is not {totals[rank]}"
                clerks.add.broadcast(1)
                totals = [total + 1 for total in totals]
                wholes = list(await clerks.whole.call())
                assert wholes == list(enumerate(totals)), f"{name}: {wholes} is not {totals}"
                seed, size = self.dice.randrange(1000), self.dice.choice([10, 100_000, 3_000_000])
                crc, other = zlib.crc32(block(seed, size)), clerks.at(self.dice.randrange(clerks.size))
                assert await clerks.at(rank).digest.call_one(block(seed, size)) == crc
                assert await clerks.at(rank).ask.call_one(other, seed, size) == crc

    async def streams(self, name: str) -> None:
        async with self._clerks(name) as clerks:
            while not self._is_over:
                rank, limit = self.dice.randrange(clerks.size), self.dice.choice([1, 50, 400])
                items = [item async for item in clerks.at(rank).count.stream_one(limit)]
                assert items == list(range(limit))

    async def tasks(self, name: str) -> None:
        numbers = [self.dice.randrange(1000) for _ in range(30)]
        futures = [ma.submit(self.dice.choice([square, slow_square]), n, retries=5, poison=100) for n in numbers]
        for n, answer in zip(numbers, await asyncio.gather(*futures, return_exceptions=True), strict=True):
            if isinstance(answer, ma.Lost):
                self.failed[f"task {type(answer).__name__}"] += 1
                self.chronicle.note(f"{name}, of {n}: {type(answer).__name__}: {str(answer)[:300]}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                assert answer == n * n

    async def maps(self, name: str) -> None:
        numbers = range(self.dice.choice([0, 1, 20, 80]))
        answers = [x async for x in ma.map_unordered(slow_square, numbers, limit=8, retries=8, poison=100)]
        assert sorted(answers) == [n * n for n in numbers]

    async def places(self, name: str) -> None:
        bundles = [ma.Bundle(cpus=self.dice.choice([0.25, 0.5]))] * self.dice.choice([1, 2, 3])
        strategy = self.dice.choice(["pack", "spread"])
        async with ma.cluster().place(ma.Demand(bundles, strategy=strategy, name=name)) as placement:
            clerks = await (await placement.spawn_procs(name=name.replace(" ", ""))).spawn("placed", Clerk)
            assert [rank for rank, _ in await clerks.whole.call()] == list(range(len(bundles)))
            await asyncio.sleep(self.dice.choice([0, 0.3]))

    async def objects(self, name: str) -> None:
        """Values that are shared, of the client and of an actor."""
        async with self._clerks(name) as clerks:
            while not self._is_over:
                seed, size = self.dice.randrange(1000), self.dice.choice([1000, 500_000, 8_000_000])
                crc = zlib.crc32(block(seed, size))
                ref = await ma.put(block(seed, size))
                assert set(await clerks.digest_of.call(ref)) == {crc}
                del ref
                theirs = await clerks.at(self.dice.randrange(clerks.size)).put.call_one(seed, size)
                assert zlib.crc32(await theirs) == crc
                assert set(await clerks.digest_of.call(theirs)) == {crc}
                del theirs

    async def offers(self, name: str) -> None:
        """Memory that is read from afar."""
        async with self._clerks(name) as clerks:
            while not self._is_over:
                seed, size = self.dice.randrange(1000), self.dice.choice([1000, 8_000_000])
                handle = await clerks.at(self.dice.randrange(clerks.size)).offer.call_one(seed, size)
                assert (await handle.fetch()).tobytes() == block(seed, size)

    async def locks(self, name: str) -> None:
        """L3. The home of the lock may be lost meanwhile: then it is no longer ours, and that is said at the end."""
        home = ma.cluster().hosts.slice(hosts=0)  # of that name there is one on each host
        lock = ma.Lock("chaos", home=home)
        async with lock as token:
            inside = self._inside.setdefault(home.hosts[0].id, set())
            others = [*inside]
            inside.add(token)
            try:
                for other in others:
                    try:
                        await lock.check(other)
                    except (ma.NotHolder, ma.Lost):
                        continue
                    assert other not in inside, f"{name}: let in by {token}, while {other} is held"
                await asyncio.sleep(self.dice.uniform(0, 0.05))
            finally:
                inside.discard(token)
