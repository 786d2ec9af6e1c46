"""The serving side of bulk connections: memory that is read and written, operations that are asked for.

It decides nothing about who may use it: who has passed the handshake of this process's endpoint may, within what is
registered. A peer that breaks the rules of the wire loses its connection, and with it whatever it had going on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from monarch_async.bulk.bulk_connection import BulkConnection
from monarch_async.bulk.region import Regions
from monarch_async.bulk.request import TransferRequest, pack_error, pack_values, unpack_values
from monarch_async.bulk.served import ServedRead, ServedWrite
from monarch_async.config import Config
from monarch_async.errors import Backpressure, BadFrame, Error, TransferError
from monarch_async.wire.auth import Agreed
from monarch_async.wire.chunk import ANSWER, ASK, CANCEL, FAILED, READ, TAKEN, WRITE, Header

_log = logging.getLogger(__name__)

#: Requests and transfers that a peer may have going on; further ones are refused. Our links open a quarter of it.
_MAX_OPEN = 8192
#: How often transfers that do not move are asked whether their memory is still registered.
_WATCH = 0.1


class Client:
    """A peer that is connected. ``name`` is for logs."""

    def __init__(self, name: str) -> None:
        """It has just come."""
        self.name = name
        self._is_gone = False
        self._callbacks: list[Callable[[], None]] = []

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when its connection ends: now, where it has."""
        if self._is_gone:
            callback()
        else:
            self._callbacks.append(callback)

    def gone(self) -> None:
        """Its connection has ended."""
        self._is_gone = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


#: What peers may ask for: gets who asks and the arguments, and returns what msgpack has a form for. Cancelled where the
#: asking is, or when the peer is gone.
Operation = Callable[[Client, list[Any]], Awaitable[Any]]


class BulkServer:
    """All bulk connections that others have made to this process."""

    def __init__(self, regions: Regions, config: Config, operations: Mapping[str, Operation]) -> None:
        """Serve ``regions`` and ``operations``."""
        self.regions, self.config, self.operations = regions, config, operations
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.TimerHandle | None = None

    def take(self, wire: asyncio.Transport, agreed: Agreed) -> None:
        """Serve a socket that has passed the handshake. Pass this as ``on_agreed`` to `transport.dial.listening`."""
        connection = _Connection(self, Client(agreed.info.decode(errors="replace")))
        self._connections.add(connection)
        connection.connection.attach(wire, agreed.leftover, self.config.bulk_retries)

    def left(self, connection: "_Connection") -> None:
        """A connection is over."""
        self._connections.discard(connection)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run an operation; `aclose` waits for its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def watch(self) -> None:
        """Something is going on: look whether its memory is still registered, while it lasts."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().call_later(_WATCH, self._look)

    def _look(self) -> None:
        self._watching = None
        if sum(connection.check() for connection in self._connections.copy()):  # of every one of them
            self.watch()

    async def aclose(self) -> None:
        """End all connections and operations. Twice is fine."""
        for connection in self._connections.copy():
            connection.connection.abort()
        if self._watching is not None:
            self._watching.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.copy())


class _Connection:
    """One connected peer; see `served.Serving` and `bulk_connection.Consumer`."""

    def __init__(self, server: BulkServer, client: Client) -> None:
        self.client = client
        self.regions = server.regions
        self.bulk_chunk, self.bulk_window = server.config.bulk_chunk, server.config.bulk_window
        self._server = server
        self._max_body = server.config.max_frame
        self.connection = BulkConnection(self, client.name, self._max_body)
        self._transfers: dict[int, ServedRead | ServedWrite] = {}
        self._operations: dict[int, asyncio.Task[None]] = {}

    def check(self) -> bool:
        """End transfers whose memory is no longer registered; return whether there are others."""
        for transfer in [*self._transfers.values()]:
            transfer.check()
        return bool(self._transfers)

    # -- what arrives ------------------------------------------------------------------------------------------------

    def take_message(self, header: Header, body: bytes) -> None:
        """A request, or something about a transfer. What is for nobody was over already."""
        if not self.connection.is_open:
            return
        kind, id = header.kind, header.transfer
        if kind in (ASK, READ, WRITE):
            self._open(header, body)
        elif kind == TAKEN and header.start <= header.total:
            transfer = self._transfers.get(id)
            if isinstance(transfer, ServedRead):
                transfer.taken(header)
        elif kind == CANCEL:
            if (transfer := self._transfers.get(id)) is not None:
                transfer.end()
            elif (operation := self._operations.get(id)) is not None:
                operation.cancel()
        else:
            raise BadFrame(f"kind {kind} from a peer that dialled")

    def _open(self, header: Header, body: bytes) -> None:
        id = header.transfer
        if id in self._transfers or id in self._operations:
            raise BadFrame(f"a second request {id}")
        if len(self._transfers) + len(self._operations) >= _MAX_OPEN:
            self.refuse(id, Backpressure("data plane", f"{_MAX_OPEN} requests of a peer", "await some of them"))
        elif header.kind == ASK:
            self._operations[id] = self._server.start(self._run(id, *_operation(body)))
        else:
            self._begin(header, TransferRequest.unpack(body))

    def _begin(self, header: Header, request: TransferRequest) -> None:
        id = header.transfer
        try:
            transfer = (ServedRead if header.kind == READ else ServedWrite)(self, header, request)
        except (TransferError, BadFrame) as error:
            self.refuse(id, error)
            return
        self._transfers[id] = transfer
        transfer.start()
        if id in self._transfers:
            self._server.watch()

    def place(self, header: Header) -> ServedWrite | None:
        """Say where a chunk goes; nowhere where its write is over."""
        transfer = self._transfers.get(header.transfer)
        if transfer is None:
            return None
        if not isinstance(transfer, ServedWrite):
            raise BadFrame("a chunk for a read")
        return transfer if transfer.takes(header) else None

    def take_chunk(self, header: Header, is_good: bool) -> None:
        """A chunk is there."""
        transfer = self._transfers.get(header.transfer)
        if isinstance(transfer, ServedWrite):
            transfer.take_chunk(header, is_good)

    # -- see `served.Serving` ----------------------------------------------------------------------------------------

    def refuse(self, id: int, error: Error) -> None:
        """Answer with an error."""
        self.connection.send(FAILED, id, pack_error(error))

    def forget(self, id: int) -> None:
        """A transfer is over."""
        self._transfers.pop(id, None)

    def connection_lost(self, why: Exception | None) -> None:
        """The peer is gone: so is what it had going on."""
        self._server.left(self)
        for transfer in [*self._transfers.values()]:
            transfer.end()
        for operation in [*self._operations.values()]:
            operation.cancel()
        self.client.gone()

    async def _run(self, id: int, name: str, arguments: list[Any]) -> None:
        try:
            operation = self._server.operations.get(name)
            if operation is None:
                raise TransferError(name, "no such operation of a data plane")
            answer = pack_values([await operation(self.client, arguments)])
            if len(answer) > self._max_body:
                raise TransferError(name, f"an answer of {len(answer)} bytes is too large")
            self.connection.send(ANSWER, id, answer)
        except Error as error:
            self.refuse(id, error)
        except Exception as error:
            _log.exception("operation %s for %s failed", name, self.client.name)
            self.refuse(id, TransferError(name, f"{type(error).__name__}: {error}"))
        finally:
            self._operations.pop(id, None)


def _operation(body: bytes) -> tuple[str, list[Any]]:
    """Return the name and the arguments that an ASK carries. Raises BadFrame."""
    values = unpack_values(body)
    if len(values) != 2 or not isinstance(values[0], str) or not isinstance(values[1], list):
        raise BadFrame("a request that names no operation")
    return values[0], values[1]
