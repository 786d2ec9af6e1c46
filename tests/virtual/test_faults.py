"""Three hosts, a workload, and faults at chosen times: whatever goes wrong, every call ends in time, and truly.

F1. A call returns the right value, or raises an error of `ma.Error` that says what was lost; it does so in time.
F2. What one sender sends to one actor is delivered in order, nothing twice. Without an error it was delivered.
F3. Who was never told of a loss has lost nothing.
F4. In the end no side waits for, runs or holds anything, and what is left of the cluster works.
"""

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import simulation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation import CONFIG, Simulation, cluster

import monarch_async as ma

HOSTS = 3
WINDOW = CONFIG.resume_window

#: How long a call may take: faults last, and are told of within a window, which a late resume may begin anew.
IN_TIME = 120.0

END = "the end"  # what a call that was lost is noted as


def now() -> float:
    return asyncio.get_running_loop().time()


class Member(ma.Actor):
    """Notes what comes, by sender."""

    def __init__(self) -> None:
        self.notes: dict[str, list[int]] = {}

    @ma.endpoint
    async def note(self, sender: str, number: int, padding: bytes = b"", seconds: float = 0.0) -> tuple[int, int, int]:
        self.notes.setdefault(sender, []).append(number)
        if seconds:
            await asyncio.sleep(seconds)
        return ma.context().rank, number, len(padding)

    @ma.endpoint
    async def refuse(self, sender: str, number: int) -> None:
        self.notes.setdefault(sender, []).append(number)
        raise ValueError(number)

    @ma.endpoint
    async def count(self, sender: str, number: int, limit: int):
        self.notes.setdefault(sender, []).append(number)
        for item in range(limit):
            if item % 5 == 4:
                await asyncio.sleep(0.3)
            yield item

    @ma.endpoint
    async def pass_on(self, other: Any, rank: int, sender: str, numbers: list[int], pause: float) -> list[int | str]:
        """Call another one, again and again; for each call its number, or the name of the error it ended in."""
        outcomes: list[int | str] = []
        for number in numbers:
            try:
                assert await other.note.call_one(sender, number) == (rank, number, 0)
                outcomes.append(number)
            except ma.Error as error:
                outcomes.append(type(error).__name__)
            await asyncio.sleep(pause)
        return outcomes

    @ma.endpoint
    async def noted(self) -> dict[str, list[int]]:
        return self.notes


class Sender:
    """One task of the client, which numbers what it sends, and keeps book of how it ended."""

    def __init__(self, name: str, mesh: Any, dice: random.Random) -> None:
        self.name, self.mesh, self.dice = name, mesh, dice
        self.number = 0
        self.sent: dict[int, list[int]] = {rank: [] for rank in range(mesh.size)}
        self.failed: dict[int, set[int]] = {rank: set() for rank in range(mesh.size)}  # which may have been delivered
        self.relayed: dict[tuple[str, int], list[int | str]] = {}  # by sender and receiver
        self._tasks: list[asyncio.Task[None]] = []

    def take(self, *ranks: int) -> int:
        self.number += 1
        for rank in ranks:
            self.sent[rank].append(self.number)
        return self.number

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            kind = self.dice.choice("note slow all each broadcast refuse stream cancel relay".split())
            rank = self.dice.randrange(self.mesh.size)
            self._tasks.append(asyncio.create_task(self._timed(kind, rank)))
            await asyncio.sleep(self.dice.choice([0, 0, 0.2, 1.0, 3.0]))
        await asyncio.gather(*self._tasks)

    async def _timed(self, kind: str, rank: int) -> None:
        began = now()
        try:
            async with asyncio.timeout(IN_TIME):
                await getattr(self, kind)(rank)
        except TimeoutError:
            late = f"{self.name}: {kind} to {rank}, begun at {began:.3f}, has not ended at {now():.3f}"
            raise AssertionError(late) from None

    async def _outcome(self, call: Awaitable[Any], number: int, *ranks: int) -> Any:
        """F1: the value; `END` where something was lost."""
        try:
            return await call
        except ma.MeshError as error:
            if not all(isinstance(one, ma.Lost) for one in error.by_rank.values()):
                raise
        except ma.Lost:
            pass
        for rank in ranks:
            self.failed[rank].add(number)
        return END

    async def note(self, rank: int) -> None:
        number, size = self.take(rank), self.dice.choice([0, 0, 200, 3000, 70_000])
        call = self.mesh.at(rank).note.call_one(self.name, number, bytes(size))
        assert await self._outcome(call, number, rank) in ((rank, number, size), END)

    async def slow(self, rank: int) -> None:
        number = self.take(rank)
        call = self.mesh.at(rank).note.call_one(self.name, number, b"", self.dice.choice([0.1, 2.0, 12.0]))
        assert await self._outcome(call, number, rank) in ((rank, number, 0), END)

    async def all(self, rank: int) -> None:
        everyone = range(self.mesh.size)
        number = self.take(*everyone)
        values = await self._outcome(self.mesh.note.call(self.name, number), number, *everyone)
        assert values == END or list(values) == [(rank, number, 0) for rank in everyone]

    async def each(self, rank: int) -> None:
        everyone, seen = range(self.mesh.size), set()
        number = self.take(*everyone)

        async def collect() -> None:
            async for _, value in self.mesh.note.stream(self.name, number):
                assert value == (value[0], number, 0) and value[0] not in seen
                seen.add(value[0])

        outcome = await self._outcome(collect(), number, *everyone)
        assert outcome == END or seen == {*everyone}

    async def broadcast(self, rank: int) -> None:
        everyone = range(self.mesh.size)
        number = self.take(*everyone)
        for rank in everyone:
            self.failed[rank].add(number)  # nobody says
        await self._outcome(self.mesh.note.broadcast(self.name, number), number)

    async def refuse(self, rank: int) -> None:
        number = self.take(rank)

        async def check() -> None:
            with pytest.raises(ValueError, match=str(number)):
                await self.mesh.at(rank).refuse.call_one(self.name, number)

        await self._outcome(check(), number, rank)

    async def stream(self, rank: int) -> None:
        number, limit, items = self.take(rank), self.dice.choice([0, 1, 7, 60]), list[int]()

        async def collect() -> None:
            async for item in self.mesh.at(rank).count.stream_one(self.name, number, limit):
                items.append(item)

        outcome = await self._outcome(collect(), number, rank)
        assert items == list(range(limit if outcome is None else len(items)))

    async def cancel(self, rank: int) -> None:
        number = self.take(rank)
        self.failed[rank].add(number)
        call = self.mesh.at(rank).note.call_one(self.name, number, b"", 50.0)
        await asyncio.sleep(self.dice.choice([0, 1.0]))
        call.cancel()
        with pytest.raises((asyncio.CancelledError, ma.Lost)):
            await call

    async def relay(self, rank: int) -> None:
        other = (rank + self.dice.randrange(1, self.mesh.size)) % self.mesh.size
        number, numbers = self.take(), list(range(self.dice.choice([1, 12])))
        sender, pause = f"{self.name}.{number} by {rank}", self.dice.choice([0, 0.5])
        call = self.mesh.at(rank).pass_on.call_one(self.mesh.at(other), other, sender, numbers, pause)
        outcomes = await self._outcome(call, number)
        if outcomes == END:
            return
        for n, outcome in enumerate(outcomes):
            assert outcome == n or outcome in ("HostLost", "ProcDied", "ActorDied"), outcome
        self.relayed[sender, other] = outcomes

    def check(self, rank: int, notes: dict[str, list[int]], is_ordered: bool) -> None:
        """F2, F3: for a member that can still be asked."""
        noted, certain = notes.get(self.name, []), [n for n in self.sent[rank] if n not in self.failed[rank]]
        assert len({*noted}) == len(noted), f"{self.name}: {noted} at {rank}, something twice"
        assert {*certain} <= {*noted} <= {*self.sent[rank]}, f"{self.name}: {noted} at {rank}, without {certain}"
        if is_ordered:
            assert noted == sorted(noted), f"{self.name}: {noted} at {rank}"
        for (sender, receiver), outcomes in self.relayed.items():
            if receiver == rank:
                noted = notes.get(sender, [])
                assert noted == sorted({*noted})
                assert {n for n in outcomes if isinstance(n, int)} <= {*noted}


# -- faults ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """The sockets between two machines break, now or after so many more bytes."""

    pair: tuple[str, str]
    after: int | None

    async def happen(self, world: Simulation) -> None:
        for end in (*world.net.ends(*self.pair), *world.net.ends(*self.pair[::-1])):
            end.cut(None if self.after is None else end.arrived + self.after)


@dataclass(frozen=True)
class Refuse:
    """They break, and for a while no new one can be had: by either, or by the first."""

    pair: tuple[str, str]
    seconds: float
    is_one_way: bool

    async def happen(self, world: Simulation) -> None:
        ways = {self.pair} if self.is_one_way else {self.pair, self.pair[::-1]}
        world.net.refused |= ways
        for way in ways:
            for end in world.net.dialled(*way):
                end.cut()
        await asyncio.sleep(self.seconds)
        world.net.refused -= ways


@dataclass(frozen=True)
class Silence:
    """Nothing arrives for a while: one way, or both."""

    pair: tuple[str, str]
    seconds: float
    is_one_way: bool

    async def happen(self, world: Simulation) -> None:
        ways = [self.pair] if self.is_one_way else [self.pair, self.pair[::-1]]
        for way in ways:
            world.net.lose(*way)
        await asyncio.sleep(self.seconds)
        for way in ways:
            world.net.find(*way)


@dataclass(frozen=True)
class Slow:
    """A thin line."""

    pair: tuple[str, str]
    seconds: float
    rate: float

    async def happen(self, world: Simulation) -> None:
        for way in (self.pair, self.pair[::-1]):
            world.net.slow_down(*way, self.rate)
        await asyncio.sleep(self.seconds)
        for way in (self.pair, self.pair[::-1]):
            world.net.slow_down(*way, None)


@dataclass(frozen=True)
class Freeze:
    """An agent, or its whole machine, is suspended."""

    host: int
    seconds: float
    is_whole: bool

    async def happen(self, world: Simulation) -> None:
        if world.is_up(self.host):
            world.freeze(self.host, self.is_whole)
            await asyncio.sleep(self.seconds)
            world.thaw(self.host)


@dataclass(frozen=True)
class Crash:
    """An agent is killed, and started again."""

    host: int
    seconds: float

    async def happen(self, world: Simulation) -> None:
        if world.is_up(self.host):
            await world.crash(self.host)
            await asyncio.sleep(self.seconds)
            await world.start_agent(self.host)


@dataclass(frozen=True)
class Kill:
    """A proc dies."""

    which: int

    async def happen(self, world: Simulation) -> None:
        living = [proc for proc in world.procs.values() if not proc.is_over]
        if living:
            living[self.which % len(living)].kill(9)


Fault = Cut | Refuse | Silence | Slow | Freeze | Crash | Kill

AGENTS = [f"agent{n}" for n in range(HOSTS)]
PAIRS = st.sampled_from(
    [
        *[pair for agent in AGENTS for pair in (("client", agent), (agent, "client"))],
        *[(one, other) for one in AGENTS for other in AGENTS if one != other],
    ]
)
SECONDS = st.sampled_from([0.4, 2.0, 5.0, 8.5, 9.9, 10.6, 14.0, 26.0])
FAULTS = st.one_of(
    st.builds(Cut, PAIRS, st.none() | st.integers(0, 3000)),
    st.builds(Refuse, PAIRS, SECONDS, st.booleans()),
    st.builds(Silence, PAIRS, SECONDS, st.booleans()),
    st.builds(Slow, PAIRS, SECONDS, st.sampled_from([1000.0, 30_000.0])),
    st.builds(Freeze, st.integers(0, HOSTS - 1), SECONDS, st.booleans()),
    st.builds(Crash, st.integers(0, HOSTS - 1), SECONDS),
    st.builds(Kill, st.integers(0, HOSTS - 1)),
)
PLANS = st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.3, 1.0, 2.5, 6.0, 11.0]), FAULTS), max_size=6)
SMALL = replace(CONFIG, window_calls=3, stream_items=4, stream_bytes=500, large=2000, chunk=700)


async def work(world: Simulation, plan: list[tuple[float, Fault]], dice: random.Random, is_ordered: bool) -> None:
    mesh = await (await world.hosts.spawn_procs()).spawn("members", Member)
    senders = [Sender(f"s{n}", mesh, dice) for n in range(3)]

    async def fail() -> None:
        """Each fault so long after the one before has begun; they overlap."""
        async with asyncio.TaskGroup() as group:
            for pause, fault in plan:
                await asyncio.sleep(pause)
                group.create_task(fault.happen(world))

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        for sender in senders:
            group.create_task(sender.run(8))
    await world.settle()
    for rank in range(mesh.size):
        try:
            async with asyncio.timeout(IN_TIME):
                notes = await mesh.at(rank).noted.call_one()
        except ma.Lost:
            continue
        for sender in senders:
            sender.check(rank, notes, is_ordered)
    await world.settle()
    world.assert_nothing_pending()


@given(
    seed=st.integers(0, 1 << 16),
    plan=PLANS,
    latency=st.sampled_from([0.0, 0.003]),
    is_fifo=st.booleans(),
    config=st.sampled_from([CONFIG, SMALL]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_faults(seed: int, plan: list[Any], latency: float, is_fifo: bool, config: ma.Config) -> None:
    async def main() -> None:
        async with cluster(HOSTS, config, latency, seed=seed, patience=2000.0) as world, ma.supervise(ma.ignore):
            await work(world, plan, random.Random(seed), is_fifo)

    simulation.run(main(), seed, is_fifo)
