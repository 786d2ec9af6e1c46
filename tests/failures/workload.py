"""An actor that would notice any loss, repetition or change of order, and a client that keeps it busy."""

import asyncio
import os
from collections.abc import AsyncIterator

import monarch_async as ma


class Ledger(ma.Actor):
    """Writes down what arrives, in the order it arrives."""

    def __init__(self) -> None:
        self.entries: list[object] = []

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def enter(self, n: int) -> int:
        self.entries.append(n)
        return n

    @ma.endpoint
    async def enter_large(self, n: int, data: bytearray) -> bytearray:
        """Check a payload that goes in chunks, and send it back so."""
        assert bytes(data[:4]) == n.to_bytes(4, "little")
        assert set(bytes(data[4:])) == {n % 256}
        self.entries.append(n)
        return data

    @ma.endpoint
    async def length(self) -> int:
        return len(self.entries)

    @ma.endpoint
    async def take(self) -> list[object]:
        taken, self.entries = self.entries, []
        return taken

    @ma.endpoint
    async def count(self, n: int) -> AsyncIterator[int]:
        for index in range(n):
            yield index

    @ma.endpoint
    async def pester(self, other: "Ledger", size: int, n: int) -> None:
        """Send to another actor, large and small in turn, all at once; check what comes back."""
        await asyncio.gather(*[_enter(other, index, size if index % 3 == 1 else 0) for index in range(n)])


def block(n: int, size: int) -> bytearray:
    """Return a payload that says who it is."""
    return bytearray(n.to_bytes(4, "little") + bytes([n % 256]) * size)


async def _enter(ledger: Ledger, n: int, size: int) -> None:
    if size:
        assert await ledger.enter_large.call_one(n, block(n, size)) == block(n, size)
    else:
        assert await ledger.enter.call_one(n) == n


async def keep_busy(ledgers: Ledger, rounds: int, size: int) -> None:
    """Calls, mesh calls, broadcasts, streams and large payloads, all under way at once; then compare the books."""
    one = ledgers.at(0)  # type: ignore[attr-defined]

    async def consume() -> None:
        assert [item async for item in one.count.stream_one(rounds * 10)] == list(range(rounds * 10))

    work = [asyncio.ensure_future(consume())]
    expected: list[int] = []
    for index in range(rounds):
        base = 4 * index
        work.append(asyncio.ensure_future(_enter(one, base, 0)))
        await asyncio.sleep(0)  # the order is that of the calls, which a task makes when it starts
        ledgers.enter.broadcast(base + 1)
        expected += [base, base + 1]
        if index % 5 == 0:
            work.append(asyncio.ensure_future(_enter(one, base + 2, size)))
            await asyncio.sleep(0)
            expected.append(base + 2)
        work.append(asyncio.ensure_future(ledgers.enter.call(base + 3)))
        expected.append(base + 3)
    await asyncio.gather(*work)
    books = await ledgers.take.call()
    assert books[0] == expected
    for other in list(books)[1:]:
        assert other == [n for n in expected if n % 4 in (1, 3)]
