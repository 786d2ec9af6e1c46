"""Actors that call each other in circles. Apart from the tests: workers import them."""

import asyncio
from collections.abc import AsyncIterator

import monarch_async as ma


class Caller(ma.Actor):
    """Strictly serial: while it waits for somebody, nobody gets in."""

    max_concurrency = 1

    def __init__(self) -> None:
        self.told = asyncio.Event()

    @ma.endpoint
    async def answer(self) -> int:
        await asyncio.sleep(0)
        return 42

    @ma.endpoint
    async def answer_at_once(self) -> int:
        return 42

    @ma.endpoint
    def answer_on_thread(self) -> int:
        return 42

    @ma.endpoint
    async def numbers(self) -> AsyncIterator[int]:
        yield 42

    @ma.endpoint
    async def ask(self, path: "list[Caller]", endpoint: str, adverb: str = "call_one") -> int:
        """Ask the first of the path, which asks the rest of it."""
        first, *rest = path
        if rest:
            return await first.ask.call_one(rest, endpoint, adverb)
        if adverb == "stream_one":
            return [item async for item in first.numbers.stream_one()][0]  # noqa: RUF015
        if adverb == "stream":
            return [value async for _, value in getattr(first, endpoint).stream()][0]  # noqa: RUF015
        answer = await getattr(getattr(first, endpoint), adverb)()
        return answer.item() if adverb == "call" else answer

    @ma.endpoint
    async def tell(self, path: "list[Caller]") -> None:
        """A broadcast waits for nobody, so it may go in circles."""
        if path:
            path[0].tell.broadcast(path[1:])
        self.told.set()

    @ma.endpoint
    async def ask_later(self, other: "Caller") -> None:
        """Ask in a task, after this call has been answered."""
        self.later = asyncio.create_task(self._ask_later(other))

    async def _ask_later(self, other: "Caller") -> int:
        await asyncio.sleep(0.01)
        return await other.answer.call_one()

    @ma.endpoint
    async def asked_later(self) -> int:
        await asyncio.sleep(0.05)
        return 1 if self.later.done() else 0

    @ma.endpoint
    async def later_answer(self) -> int:
        return self.later.result()

    @ma.endpoint
    async def plainly(self) -> int:
        """Calling an endpoint of one's own as a method is no call."""
        return await self.answer()  # type: ignore[operator]


class Pair(Caller):
    """Two at a time."""

    max_concurrency = 2


class Open(Caller):
    """The default: any number at a time."""

    max_concurrency = 1000
