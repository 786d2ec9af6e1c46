"""Whatever the order of steps, the split of bytes, and the byte at which a connection breaks: the same promises.

Every call ends in exactly one way with the right result, in order for each sender and actor; streams bring every item;
in the end no side holds anything.
"""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
import simulation
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import CONFIG, Simulation, cluster

import monarch_async as ma
from monarch_async.transport import inproc


class Member(ma.Actor):
    """Notes what comes, by sender."""

    def __init__(self) -> None:
        self.notes: dict[str, list[int]] = {}
        self.cancelled = 0
        self.most = self.now = 0

    @ma.endpoint
    async def note(self, sender: str, number: int, padding: bytes = b"") -> tuple[int, int]:
        self.notes.setdefault(sender, []).append(number)
        return ma.context().rank, number

    @ma.endpoint
    async def think(self, sender: str, number: int, seconds: float) -> tuple[int, int]:
        self.notes.setdefault(sender, []).append(number)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        return ma.context().rank, number

    @ma.endpoint
    async def refuse(self, sender: str, number: int) -> None:
        self.notes.setdefault(sender, []).append(number)
        raise ValueError(number)

    @ma.endpoint
    async def count(self, sender: str, number: int, limit: int, size: int):
        self.notes.setdefault(sender, []).append(number)
        for item in range(limit):
            if item % 5 == 4:
                await asyncio.sleep(0.01)
            yield item, b"x" * size

    @ma.endpoint
    async def pass_on(self, other: Any, sender: str, numbers: list[int]) -> list[tuple[int, int]]:
        """Call another one, several calls at once."""
        return await asyncio.gather(*[other.note.call_one(f"{sender} via {ma.context().rank}", n) for n in numbers])

    @ma.endpoint
    async def noted(self) -> tuple[dict[str, list[int]], int]:
        return self.notes, self.most


class Serial(Member):
    max_concurrency = 1


class Sender:
    """One task of the client, which numbers what it sends."""

    def __init__(self, name: str, mesh: Any, dice: random.Random) -> None:
        self.name, self.mesh, self.dice = name, mesh, dice
        self.number = 0
        self.sent: dict[int, list[int]] = {rank: [] for rank in range(mesh.size)}  # what must have arrived, by member
        self.maybe: set[int] = set()  # numbers whose call was cancelled: it may have begun
        self._tasks: list[asyncio.Task[None]] = []

    def take(self, *ranks: int) -> int:
        self.number += 1
        for rank in ranks:
            self.sent[rank].append(self.number)
        return self.number

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            kind = self.dice.choice("note think all each broadcast refuse stream leave cancel".split())
            rank = self.dice.randrange(self.mesh.size)
            self._tasks.append(asyncio.create_task(getattr(self, kind)(rank)))
            await asyncio.sleep(0)  # so that it is sent
            if self.dice.random() < 0.3:
                await asyncio.sleep(self.dice.choice([0, 0.001, 0.1]))
        await asyncio.gather(*self._tasks)

    async def note(self, rank: int) -> None:
        number = self.take(rank)
        padding = bytes(self.dice.choice([0, 0, 200, 3000, 70_000]))
        assert await self.mesh.at(rank).note.call_one(self.name, number, padding) == (rank, number)

    async def think(self, rank: int) -> None:
        number = self.take(rank)
        assert await self.mesh.at(rank).think.call_one(self.name, number, 0.05) == (rank, number)

    async def all(self, rank: int) -> None:
        number = self.take(*range(self.mesh.size))
        values = await self.mesh.note.call(self.name, number)
        assert list(values) == [(rank, number) for rank in range(self.mesh.size)]

    async def each(self, rank: int) -> None:
        number = self.take(*range(self.mesh.size))
        seen = [value async for _, value in self.mesh.note.stream(self.name, number)]
        assert sorted(seen) == [(rank, number) for rank in range(self.mesh.size)]

    async def broadcast(self, rank: int) -> None:
        await self.mesh.note.broadcast(self.name, self.take(*range(self.mesh.size)))

    async def refuse(self, rank: int) -> None:
        number = self.take(rank)
        with pytest.raises(ValueError, match=str(number)):
            await self.mesh.at(rank).refuse.call_one(self.name, number)

    async def stream(self, rank: int) -> None:
        number, limit = self.take(rank), self.dice.choice([0, 1, 7, 40])
        items = [item async for item, _ in self.mesh.at(rank).count.stream_one(self.name, number, limit, 90)]
        assert items == list(range(limit))

    async def leave(self, rank: int) -> None:
        """Leave a stream early."""
        number = self.take(rank)
        self.maybe.add(number)
        async with self.mesh.at(rank).count.stream_one(self.name, number, 100, 10) as stream:
            items = [(await anext(stream))[0] for _ in range(self.dice.choice([0, 3]))]
        assert items == list(range(len(items)))

    async def cancel(self, rank: int) -> None:
        number = self.take(*range(self.mesh.size))
        self.maybe.add(number)
        call = self.mesh.think.call(self.name, number, 5.0)
        await asyncio.sleep(self.dice.choice([0, 0.01, 1.0]))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


def splitter(cuts: list[int]) -> inproc.Split:
    """Cuts the first bytes of what arrives together into pieces of these sizes; the rest comes as one."""

    def split(data: bytes) -> list[bytes]:
        pieces, start = [], 0
        for turn in range(100):
            stop = start + cuts[turn % len(cuts)]
            pieces.append(data[start:stop])
            start = stop
        return [*pieces, data[start:]]

    return split


async def check(mesh: Any, senders: list[Sender], is_ordered: bool) -> None:
    """Compare what every member has noted with what was sent to it."""
    for rank, (notes, most) in enumerate(await mesh.noted.call()):
        for sender in senders:
            noted = notes.get(sender.name, [])
            assert len(set(noted)) == len(noted), f"{sender.name}: a call was delivered twice"
            certain = [n for n in sender.sent[rank] if n not in sender.maybe]
            expected = [n for n in sender.sent[rank] if n not in sender.maybe or n in noted]
            if is_ordered:
                assert noted == expected, f"{sender.name} to {rank}: {noted} expected {expected}"
            assert set(certain) <= set(noted) <= set(sender.sent[rank])
        assert most <= mesh._max_concurrency


async def storm(world: Simulation, cls: type[Member], dice: random.Random, is_ordered: bool, plan: list[Any]) -> None:
    procs = await world.hosts.spawn_procs({"gpus": 2})
    mesh = procs.spawn("members", cls)
    senders = [Sender(f"s{n}", mesh, dice) for n in range(3)]

    async def cut() -> None:
        for after, from_listener, pause in plan:
            await asyncio.sleep(pause)
            world.net.cut(dice.choice([*world.net.listeners]), after, from_listener)

    async with asyncio.TaskGroup() as group:
        group.create_task(cut())
        for sender in senders:
            group.create_task(sender.run(12))
        for rank in range(2):
            other = mesh.at((rank + 1) % mesh.size)
            group.create_task(via(mesh.at(rank), other))
    await check(mesh, senders, is_ordered)
    await world.settle()
    world.assert_nothing_pending()


async def via(first: Any, other: Any) -> None:
    if first._max_concurrency == 1:
        return  # two serial actors that call each other wait for each other
    await other  # what it is sent by others may come before what makes it
    answers = await first.pass_on.call_one(other, "actor", list(range(9)))
    assert [number for _, number in answers] == list(range(9))


CUTS = st.lists(
    st.tuples(st.integers(0, 3000) | st.none(), st.booleans(), st.sampled_from([0, 0.001, 0.05, 0.5])), max_size=6
)
SPLITS = st.lists(st.sampled_from([1, 3, 39, 40, 41, 100, 1000, 5000]), min_size=1, max_size=3)
SMALL = replace(CONFIG, window_calls=3, stream_items=4, stream_bytes=500, large=2000, chunk=700)


@given(
    seed=st.integers(0, 1 << 16),
    plan=CUTS,
    cuts=SPLITS,
    hosts=st.integers(1, 2),
    latency=st.sampled_from([0.0, 0.003]),
    cls=st.sampled_from([Member, Serial]),
    is_fifo=st.booleans(),
    config=st.sampled_from([CONFIG, SMALL]),
)
@settings(max_examples=40, deadline=None)
def test_any_schedule(
    seed: int,
    plan: list[Any],
    cuts: list[int],
    hosts: int,
    latency: float,
    cls: type[Member],
    is_fifo: bool,
    config: ma.Config,
) -> None:
    async def main() -> None:
        async with cluster(hosts, config, latency, splitter(cuts), seed) as world:
            is_ordered = is_fifo or cls is Serial
            await storm(world, cls, random.Random(seed), is_ordered, plan)

    simulation.run(main(), seed, is_fifo)
