"""The sending half of a stream: an async generator that stops when its consumer does not keep up.

The consumer's credit is a number of items and of bytes. The generator is not resumed while either is used up, so what
is in flight is bounded by the credit and one item.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch_async.runtime.answers import Request
    from monarch_async.runtime.instance import Instance


class Producer:
    """One streamed call in its worker."""

    def __init__(self, instance: "Instance", request: "Request", credit: tuple[int, int]) -> None:
        """``credit``: (items, bytes) to begin with."""
        self._instance, self._request = instance, request
        self._items, self._bytes = credit
        self._more = asyncio.Event()

    def allow(self, items: int, nbytes: int) -> None:
        """The consumer took so much."""
        self._items += items
        self._bytes += nbytes
        if self._items > 0 and self._bytes > 0:
            self._more.set()

    async def run(self, generator: AsyncGenerator[object, None]) -> None:
        """Send every item; waits for credit before asking for the next one. Closes the generator however it ends."""
        instance, request = self._instance, self._request
        key = (request.src, request.call)
        instance.proc.producers[key] = self
        try:
            async for item in generator:
                size = instance.answers.item(request, item)
                self._items -= 1
                self._bytes -= size
                while self._items <= 0 or self._bytes <= 0:
                    self._more.clear()
                    await self._more.wait()
        finally:
            del instance.proc.producers[key]
            await generator.aclose()
