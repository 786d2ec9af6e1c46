"""What an eavesdropper hears: a line to a listener whose bytes are kept."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from monarch_async.transport.url import Url


@dataclass
class Tap:
    """A listener's address that keeps what passes through it."""

    address: str = ""
    heard: bytearray = field(default_factory=bytearray)


@contextlib.asynccontextmanager
async def tap(target: Url) -> AsyncIterator[Tap]:
    """Pass everything on to ``target``, and keep a copy."""
    found = Tap()
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            found.heard += data
            writer.write(data)
            await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target.host, target.port)
        writers.extend((writer, back))
        tasks.update(asyncio.ensure_future(work) for work in (copy(reader, back), copy(there, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    found.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)
