"""How tests wait for what tasks have noted in a folder."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import monarch_async as ma


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def wait_noted(folder: Path, count: int = 1) -> None:
    """Wait until so many files are there, each complete."""
    await wait_until(lambda: sum(path.stat().st_size > 0 for path in folder.iterdir()) >= count)


async def wait_given_back() -> None:
    """Wait until nobody holds anything, and nobody waits."""
    async with asyncio.timeout(10):
        while True:
            holdings = await ma.cluster().holdings()
            if not holdings.waiting and all(not host.holdings for host in holdings.hosts):
                return
            await asyncio.sleep(0.01)
