"""Asks the stores of real agents, as processes do."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import monarch_async as ma
from monarch_async.bulk.arena import forget_mappings, open_segment
from monarch_async.config import Config
from monarch_async.ids import address
from monarch_async.mesh.domain import active_domain

MIB = 1 << 20


class Stores:
    """Asks the stores of all hosts as this program."""

    def __init__(self) -> None:
        self.requests = active_domain().requests
        self.agents = [address(host.id, 0) for host in active_domain().hosts]
        self.homes: dict[bytes, tuple[int, int]] = {}

    def send(self, at: int, operation: str, *arguments: object) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self.requests.send(self.agents[at], "store", operation, *arguments))

    async def ask(self, at: int, operation: str, *arguments: object) -> Any:
        async with asyncio.timeout(20):
            return await self.send(at, operation, *arguments)

    async def put(self, at: int, data: bytes, id: bytes | None = None) -> bytes:
        id = id or os.urandom(16)
        token = (await self.ask(at, "alloc", id, len(data)))["segment"]
        view = open_segment(tuple(token), is_private=False)
        view[:] = data
        del view
        await self.ask(at, "seal", id)
        self.homes[id] = self.agents[at], len(data)
        return id

    def facts_of(self, id: bytes) -> tuple[bytes, int, int]:
        return id, *self.homes[id]

    async def read(self, at: int, id: bytes) -> bytes:
        """Open, copy, close."""
        token = (await self.ask(at, "open", *self.facts_of(id)))["segment"]
        data = bytes(open_segment(tuple(token)))
        await self.ask(at, "close", id)
        return data

    async def drop(self, at: int, *ids: bytes) -> None:
        for id in ids:
            await self.ask(at, "drop", id)

    async def facts(self, at: int) -> dict[str, int]:
        return (await self.requests.ask(self.agents[at], "status"))["store"]

    async def wait(self, at: int, **expected: int) -> None:
        """Wait until the gauges of a host are these: what agents post to each other takes a moment."""
        async with asyncio.timeout(10):
            while not (facts := await self.facts(at)).items() >= expected.items():
                assert facts
                await asyncio.sleep(0.005)

    async def wait_empty(self) -> None:
        for at in range(len(self.agents)):
            await self.wait(at, objects=0, used=0, spilled=0, pulls=0)


@contextlib.asynccontextmanager
async def started(n: int, **settings: Any) -> AsyncIterator[Stores]:
    """Hosts of a test's own."""
    try:
        async with ma.local_hosts(n, config=replace(Config(), **settings)):
            yield Stores()
    finally:
        forget_mappings()
