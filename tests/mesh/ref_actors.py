"""Actors of the tests of shared objects."""

import asyncio
import gc
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

import monarch_async as ma
from monarch_async.mesh.domain import active_domain


class Reader(ma.Actor):
    """Gets references, keeps them, gives them away."""

    def __init__(self, first: Any = None) -> None:
        self.kept: Any = first
        self.started = False

    @ma.endpoint
    async def total(self, ref: ma.Ref[np.ndarray]) -> float:
        return float((await ref).sum())

    @ma.endpoint
    async def total_kept(self) -> float:
        return float((await self.kept).sum())

    @ma.endpoint
    async def value(self, ref: ma.Ref[Any]) -> Any:
        return await ref

    @ma.endpoint
    async def total_inside(self, box: dict[str, list[ma.Ref[np.ndarray]]]) -> float:
        return sum([float((await ref).sum()) for ref in box["refs"]])

    @ma.endpoint
    async def keep(self, ref: Any) -> None:
        self.kept = ref

    @ma.endpoint
    async def keep_value(self, ref: Any) -> None:
        self.kept = await ref

    @ma.endpoint
    def keep_in_thread(self, ref: Any) -> str:
        self.kept = ref
        return repr(ref)

    @ma.endpoint
    def give_from_thread(self) -> Any:
        return [self.kept]

    @ma.endpoint
    async def keep_soon(self, ref: Any) -> None:
        """Takes a while, during which the caller may go."""
        self.started = True
        await asyncio.sleep(30)

    @ma.endpoint
    async def has_started(self) -> bool:
        return self.started

    @ma.endpoint
    async def forget(self) -> None:
        self.kept = None
        gc.collect()

    @ma.endpoint
    async def holdings(self) -> int:
        return len(active_domain().holdings)

    @ma.endpoint
    async def make(self, size: int) -> ma.Ref[np.ndarray]:
        return await ma.put(np.ones(size))

    @ma.endpoint
    async def make_many(self, count: int) -> AsyncIterator[ma.Ref[int]]:
        for index in range(count):
            yield await ma.put(index)

    @ma.endpoint
    async def send(self, port: ma.Port[Any], size: int) -> None:
        await port.send(await ma.put(np.ones(size)))

    @ma.endpoint
    async def pass_on(self, ref: Any, other: "Reader") -> float:
        """Forget it at once: what it is passed to has it."""
        return await other.total.call_one(ref)

    @ma.endpoint
    async def write(self, ref: ma.Ref[Any]) -> list[float]:
        """Change the value, as far as it can be; return what the next await here sees of it."""
        value = await ref
        value["tensor"][:] = -1.0
        again = await ref
        return [float(value["tensor"].sum()), float(again["tensor"].sum())]

    @ma.endpoint
    async def where(self, ref: ma.Ref[Any]) -> tuple[int, int]:
        """Device and inode of the memory that the value is in."""
        value = await ref
        address = value.ctypes.data
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, _, device, inode, *_ = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            if first <= address < last:
                return int(device.replace(":", ""), 16), int(inode)
        raise AssertionError("not mapped")

    @ma.endpoint
    async def wander(self, box: dict[str, list[Any]], mesh: "Reader", hops: int, seed: int) -> list[Any]:
        """Keep, read, wrap, pass on and return references, as the dice fall."""
        dice, refs = random.Random(seed), box["refs"]
        if dice.random() < 0.3:
            self.kept = dice.choice(refs)
        if dice.random() < 0.3:
            refs = [*refs, await ma.put(np.full(dice.choice([10, 3000]), 1.0))]
        if dice.random() < 0.3:
            refs = [*refs, await ma.put({"inner": dice.choice(refs)})]
        if isinstance(value := await dice.choice(refs), dict):
            await value["inner"]
        if not hops:
            return refs[:2]
        other = mesh.at(dice.randrange(mesh.extent.size))
        found = await other.wander.call_one({"refs": refs[-4:]}, mesh, hops - 1, dice.randrange(1 << 30))
        return [*found, refs[0]]

    @ma.endpoint
    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
