"""Long copies, which keep nobody else on their loop waiting for longer than one piece takes."""

import asyncio
from collections.abc import Callable, Iterable

from monarch_async.bulk.memory import copy


async def copy_pieces(
    pieces: Iterable[tuple[memoryview, memoryview]], progress: Callable[[int], object] | None = None
) -> None:
    """Copy (into, source) pieces of equal length; after each, ``progress`` is told, and others have their turn."""
    for into, source in pieces:
        copy(into, source)
        if progress is not None:
            progress(len(into))
        await asyncio.sleep(0)
