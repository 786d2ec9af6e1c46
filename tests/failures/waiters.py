"""Actors that wait, and say what became of that. Apart from the tests: workers import them."""

import asyncio
import threading
from collections.abc import AsyncIterator

import monarch_async as ma


class Waiter(ma.Actor):
    """Notes when its calls begin, are cancelled and end."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.cancelled = 0
        self.begun = 0
        self.gate = asyncio.Event()
        self.told = asyncio.Event()

    @ma.endpoint
    async def wait(self) -> None:
        self.begun += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.notes.append("cancelled")
            raise

    @ma.endpoint
    async def wait_and_tidy(self, seconds: float) -> None:
        """Takes its time to clean up."""
        self.begun += 1
        try:
            await self.gate.wait()
        finally:
            await asyncio.sleep(seconds)
            self.notes.append("tidied")

    @ma.endpoint
    async def swallow(self) -> str:
        self.begun += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.notes.append("swallowed")
        return "a result nobody waits for"

    @ma.endpoint
    async def refuse(self) -> None:
        """Ends only when the gate opens."""
        self.begun += 1
        while not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.notes.append("refused")

    @ma.endpoint
    async def raise_when_cancelled(self) -> None:
        self.begun += 1
        try:
            await self.gate.wait()
        finally:
            raise ValueError("while cleaning up")

    @ma.endpoint
    async def raise_on(self, rank: int) -> None:
        """One member raises, the others wait."""
        if ma.context().rank == rank:
            raise ValueError(f"rank {rank} says no")
        await self.wait()  # type: ignore[operator]

    @ma.endpoint
    async def raise_when_told(self, rank: int) -> None:
        """The same, when `tell` has been called."""
        if ma.context().rank == rank:
            await self.told.wait()
        await self.raise_on(rank)  # type: ignore[operator]

    @ma.endpoint
    async def tell(self) -> None:
        self.told.set()

    @ma.endpoint
    async def items(self) -> AsyncIterator[int]:
        try:
            yield 1
            await self.gate.wait()
        except asyncio.CancelledError:
            self.notes.append("stream cancelled")
            raise

    @ma.endpoint
    async def open(self) -> None:
        self.gate.set()

    @ma.endpoint
    async def noted(self) -> list[str]:
        return self.notes

    @ma.endpoint
    async def counts(self) -> tuple[int, int]:
        return self.begun, self.cancelled

    @ma.endpoint
    async def wait_begun(self, count: int) -> None:
        while self.begun < count:
            await asyncio.sleep(0.001)

    @ma.endpoint
    async def pending(self) -> int:
        from monarch_async.runtime.router import active_router

        return len(active_router().pending)

    @ma.endpoint
    async def relay(self, other: "Waiter", endpoint: str) -> None:
        await getattr(other, endpoint).call()


class Serial(Waiter):
    """One call at a time."""

    max_concurrency = 1

    @ma.endpoint
    async def note(self, text: str) -> None:
        self.notes.append(text)
        await asyncio.sleep(0)


class Blocking(ma.Actor):
    """Plain ``def`` endpoints, which end when the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.done: list[str] = []

    @ma.endpoint
    def block(self, name: str, fails: bool = False) -> None:
        self.done.append(f"{name} begins")
        assert self.gate.wait(20)
        self.done.append(f"{name} ends")
        if fails:
            raise ValueError("too late")

    @ma.endpoint
    async def open(self) -> None:
        self.gate.set()

    @ma.endpoint
    async def wait_done(self, last: str) -> list[str]:
        while not self.done or self.done[-1] != last:
            await asyncio.sleep(0.001)
        return self.done
