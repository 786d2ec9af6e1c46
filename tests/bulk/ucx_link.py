"""A connection of msgpack requests and answers: what UCX needs of `stream.BulkLink` and `bulk_server`, and no more."""

import asyncio
import itertools
import socket
from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from monarch_async import errors
from monarch_async.bulk.errands import Operation
from monarch_async.errors import TransferBroken


class OneLink:
    """The asking side."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._name, self._writer = name, writer
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read(reader))
        self.is_open = True

    @classmethod
    async def open(cls, name: str, path: str) -> "OneLink":
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        sock.connect("\0" + path)  # uvloop takes names of files only
        return cls(name, *await asyncio.open_unix_connection(sock=sock))

    async def ask(self, operation: str, *arguments: Any) -> Any:
        if not self.is_open:
            raise TransferBroken(self._name, "its process is gone")
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._writer.write(msgpack.packb((number, operation, arguments)))
        return await answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        unpacker = msgpack.Unpacker()
        try:
            while data := await reader.read(1 << 16):
                unpacker.feed(data)
                for number, value, error in unpacker:
                    answer = self._asked.pop(number)
                    if answer.done():
                        continue
                    if error:
                        answer.set_exception(getattr(errors, error)(*value))
                    else:
                        answer.set_result(value)
        except OSError:
            pass
        self.is_open = False
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(TransferBroken(self._name, "its process is gone"))

    async def aclose(self) -> None:
        self._writer.close()
        await self._reading


class OneClient:
    """A connected peer."""

    def __init__(self) -> None:
        self.gone: list[Callable[[], None]] = []

    def on_gone(self, callback: Callable[[], None]) -> None:
        self.gone.append(callback)


async def serve(path: str, operations: Mapping[str, Operation]) -> asyncio.AbstractServer:
    """Answer on an abstract socket."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = OneClient()

        async def answer(number: int, operation: str, arguments: list[Any]) -> None:
            try:
                packed = msgpack.packb((number, await operations[operation](client, arguments), ""))
            except errors.Error as error:
                packed = msgpack.packb((number, error.args, type(error).__name__))
            writer.write(packed)

        unpacker = msgpack.Unpacker()
        try:
            async with asyncio.TaskGroup() as answers:
                while data := await reader.read(1 << 16):
                    unpacker.feed(data)
                    for request in unpacker:
                        answers.create_task(answer(*request))
        except (OSError, asyncio.CancelledError):  # the streams of asyncio complain of the latter
            pass
        finally:
            for callback in client.gone:
                callback()
            writer.close()

    sock = socket.socket(socket.AF_UNIX)
    sock.bind("\0" + path)
    return await asyncio.start_unix_server(connected, sock=sock)
