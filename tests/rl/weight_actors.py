"""Learners and generators of the tests of weights."""

import asyncio
import gc
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

import monarch_async as ma


def filled(shapes: dict[str, tuple[int, ...]], number: float, library: str = "numpy") -> dict[str, Any]:
    """Weights that are a number all through; of numpy where the processes need not import torch."""
    if library == "numpy":
        return {name: np.full(shape, number, np.float32) for name, shape in shapes.items()}
    import torch

    return {name: torch.full(shape, float(number)) for name, shape in shapes.items()}


def spread_of(state: Any) -> tuple[float, float]:
    """The least and the greatest element: two different ones mean torn."""
    arrays = [np.asarray(array) for array in state.values()]
    return min(float(array.min()) for array in arrays), max(float(array.max()) for array in arrays)


class Generator(ma.Actor):
    """Has weights of its own."""

    @ma.endpoint
    async def subscribe(
        self, publisher: ma.WeightPublisher, shapes: dict[str, tuple[int, ...]], library: str = "numpy"
    ) -> None:
        self.subscriber = ma.WeightSubscriber(publisher)
        self.state = filled(shapes, 0, library)
        self.held: Any = None

    @ma.endpoint
    async def update(self) -> tuple[int, float, float]:
        return await self.subscriber.update(self.state), *spread_of(self.state)

    @ma.endpoint
    async def look(self) -> tuple[int, float, float]:
        """What it has, without asking anybody."""
        return self.subscriber.version, *spread_of(self.state)

    @ma.endpoint
    async def newest(self) -> tuple[int, float, float]:
        version, weights = await self.subscriber.newest()
        return version, *spread_of(weights)

    @ma.endpoint
    async def hold(self) -> tuple[int, int, int]:
        """Keep the newest; tell the device and inode of its memory."""
        version, self.held = await self.subscriber.newest()
        address = np.asarray(next(iter(self.held.values()))).ctypes.data
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, _, _, device, inode, *_ = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            if first <= address < last:
                return version, int(device.replace(":", ""), 16), int(inode)
        raise AssertionError("not mapped")

    @ma.endpoint
    async def held_spread(self) -> tuple[float, float]:
        return spread_of(self.held)

    @ma.endpoint
    async def let_go(self) -> None:
        self.held = None
        gc.collect()

    @ma.endpoint
    async def wait_newer(self) -> int:
        return await self.subscriber.wait_newer()

    @ma.endpoint
    async def follow(self) -> list[int]:
        """Take versions as they come, until there are no more; all whole."""
        seen = []
        async for version, weights in self.subscriber:
            assert spread_of(weights) == (version, version)
            seen.append(version)
        return seen

    @ma.endpoint
    async def watch(self, last: int, takes: str) -> tuple[int, int]:
        """Move to the newest version again and again until it is the last; count them, and those that were torn."""
        moves = torn = version = 0
        while version < last:
            version, least, greatest = await (self.newest() if takes == "newest" else self.update())
            moves += 1
            torn += not least == greatest == version
            await asyncio.sleep(0)
        return moves, torn

    @ma.endpoint
    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Learner(ma.Actor):
    """Publishes from an actor that has a thread, which is where its ``__init__`` runs."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.publisher = ma.WeightPublisher("policy")
        self.shapes = shapes
        self.number = 0

    @ma.endpoint
    async def reference(self) -> ma.WeightPublisher:
        return self.publisher

    @ma.endpoint
    def train(self) -> None:
        self.number += 1

    @ma.endpoint
    async def publish(self) -> int:
        return await self.publisher.publish(filled(self.shapes, self.number))

    @ma.endpoint
    async def misuse(self, other: ma.WeightPublisher) -> int:
        return await other.publish({})

    @ma.endpoint
    async def fail(self) -> None:
        """By what it spawned, and does not handle."""
        procs = await ma.this_host().spawn_procs({"gpus": 1}, name="own")
        await procs.kill()

    @ma.endpoint
    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
