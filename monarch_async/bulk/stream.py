"""The transport "tcp", and the link it and others ask a peer's data plane over.

A `BulkLink` is one connection at a time, dialled on first use and again after a break, by the rules of `redial`. Many
requests and transfers share it. What a break means is for each to say: a request ends in TransferBroken, as nobody
knows whether it was carried out; a transfer goes on where it was.
"""

import asyncio
import itertools
import os
import socket
from collections.abc import Sequence
from typing import Any

from monarch_async.bulk.bulk_connection import BulkConnection
from monarch_async.bulk.endpoint import Endpoint
from monarch_async.bulk.pieces import Pieces
from monarch_async.bulk.redial import Break, Redial
from monarch_async.bulk.region import RemoteRegion
from monarch_async.bulk.request import TransferRequest, pack_values, unpack_error, unpack_values
from monarch_async.bulk.stream_transfer import StreamRead, StreamWrite
from monarch_async.bulk.transport import Progress, Run
from monarch_async.config import Config
from monarch_async.errors import (
    BadFrame,
    FrameTooLarge,
    HandshakeRefused,
    LinkBroken,
    TransferBroken,
    TransferError,
)
from monarch_async.transport.dial import dial
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url
from monarch_async.wire.auth import NOT_A_PEER, SPEAKS_TLS, WRONG_TOKEN
from monarch_async.wire.chunk import ANSWER, ASK, CANCEL, FAILED, MAX_CHUNK, Header

#: Requests, and transfers, of one link at a time; further ones wait. A server takes several times as many of a peer.
MAX_OPEN = 1024


class BulkLink:
    """The way to one peer's `bulk_server.BulkServer`. Used on one loop."""

    def __init__(self, endpoint: Endpoint, config: Config, url: Url, tls: Tls | None = None) -> None:
        """Dial ``url`` when first used; with ``tls``, by the settings where that is not given."""
        self._tls = tls or Tls(config)
        self.name = endpoint.name
        self.max_body = config.max_frame
        self.connection: BulkConnection | None = None
        self._endpoint, self._config, self._url = endpoint, config, url
        self._redial = Redial(config.bulk_retries)
        self._pause = 0.0
        self._dialling: asyncio.Task[BulkConnection] | None = None
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._exchanges: dict[int, StreamRead | StreamWrite] = {}
        self._slots = asyncio.Semaphore(MAX_OPEN)
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether there is a connection now."""
        return self.connection is not None

    async def ask(self, operation: str, *arguments: object) -> Any:
        """Return what the peer's operation of that name returns.

        Raises what it raises, where that is an error of this package (TransferError otherwise); TransferBroken where
        the connection cannot be made, or breaks: the operation may then have been carried out. Cancelling cancels it.
        """
        async with self._slots:
            connection = self.connection or await self.opened()
            if not connection.is_open:
                raise TransferBroken(self.name, "the connection broke")
            id = next(self._ids)
            body = pack_values([operation, arguments])
            if len(body) > self.max_body:
                raise FrameTooLarge(len(body), self.max_body)
            self._asked[id] = answer = asyncio.get_running_loop().create_future()
            connection.send(ASK, id, body)
            try:
                return unpack_values(await answer)[0]
            except asyncio.CancelledError:
                connection.send(CANCEL, id)
                raise
            finally:
                self._asked.pop(id, None)

    async def opened(self) -> BulkConnection:
        """Return the connection; dial, and wait, where there is none. Raises TransferBroken."""
        if self._is_closed:
            raise TransferBroken(self.name, "this end of its data plane is closed")
        if self.connection is not None:
            return self.connection
        if self._dialling is None or self._dialling.done():
            self._dialling = asyncio.get_running_loop().create_task(self._dial())
            self._dialling.add_done_callback(_look)
        return await asyncio.shield(self._dialling)

    async def _dial(self) -> BulkConnection:
        loop = asyncio.get_running_loop()
        info = f"process {os.getpid()} on {socket.gethostname()}".encode()
        while True:
            if self._pause:
                await asyncio.sleep(self._pause)
            try:
                async with asyncio.timeout(self._config.bulk_retries):
                    self._tls.check(self._url)
                    wire, agreed = await dial(self._url, self._endpoint.key, info, self._tls, self._endpoint.tls)
                break
            except ValueError as error:
                raise TransferBroken(self.name, f"its process cannot be reached: {error}") from None
            except (LinkBroken, HandshakeRefused, TimeoutError) as error:
                pause = self._redial.failed(_kind(error), loop.time())
                if pause is None:
                    self._pause = 0.0
                    raise TransferBroken(self.name, f"its process cannot be reached: {error}") from error
                self._pause = pause
        self._pause = 0.0
        self.connection = connection = BulkConnection(self, self.name, self.max_body)
        connection.attach(wire, agreed.leftover, self._config.bulk_retries)
        return connection

    async def aclose(self) -> None:
        """Close the connection; what waits ends in TransferBroken. Twice is fine."""
        self._is_closed = True
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        if self.connection is not None:
            self.connection.abort()

    # -- for transfers: see `stream_transfer.Exchanges` --------------------------------------------------------------

    def enter(self, exchange: StreamRead | StreamWrite) -> int:
        """Return a new id; its frames go to ``exchange``."""
        id = next(self._ids)
        self._exchanges[id] = exchange
        return id

    def forget(self, ids: Sequence[int]) -> None:
        """Frames of these go nowhere."""
        for id in ids:
            self._exchanges.pop(id, None)

    def progressed(self) -> None:
        """Bytes have moved."""
        self._redial.progressed()

    # -- what arrives: see `bulk_connection.Consumer` ----------------------------------------------------------------

    def place(self, header: Header) -> StreamRead | None:
        """Say where a chunk goes."""
        exchange = self._exchanges.get(header.transfer)
        if exchange is None:
            return None
        if not isinstance(exchange, StreamRead) or header.total != exchange.pieces.size:
            raise BadFrame(f"a chunk of {header.total} bytes, for something else")
        return exchange if exchange.takes(header) else None

    def take_chunk(self, header: Header, is_good: bool) -> None:
        """A chunk is there."""
        exchange = self._exchanges.get(header.transfer)
        if isinstance(exchange, StreamRead):
            exchange.take_chunk(header, is_good)

    def take_message(self, header: Header, body: bytes) -> None:
        """An answer, or something about a transfer. What is for nobody was given up meanwhile."""
        if (exchange := self._exchanges.get(header.transfer)) is not None:
            exchange.take_message(header, body)
        elif (answer := self._asked.get(header.transfer)) is not None and not answer.done():
            self._redial.progressed()
            if header.kind == ANSWER:
                answer.set_result(body)
            elif header.kind == FAILED:
                answer.set_exception(unpack_error(body))
            else:
                raise BadFrame(f"kind {header.kind} for a request")

    def connection_lost(self, why: Exception | None) -> None:
        """Requests end; transfers go on over the next one."""
        self.connection = None
        pause: float | None = 0.0
        if self._exchanges:
            pause = self._redial.failed(Break.BROKEN, asyncio.get_running_loop().time())
        else:
            self._redial.progressed()  # nobody waits, so nobody's patience is spent
        self._pause = pause or 0.0
        reason = "this end is closed" if self._is_closed else f"the connection broke{f' ({why})' if why else ''}"
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(TransferBroken(self.name, reason))
        for exchange in set(self._exchanges.values()):
            exchange.lost(TransferBroken(self.name, reason) if pause is None or self._is_closed else None)


class StreamTransport:
    """See `transport.Transport`. Chunks of ``config.bulk_chunk`` bytes, each with a checksum, over one connection."""

    name = "tcp"

    def __init__(self, endpoint: Endpoint, config: Config, tls: Tls | None = None) -> None:
        """Dial ``endpoint.url`` when first used."""
        self._config = config
        self._link = BulkLink(endpoint, config, endpoint.url, tls)
        self._slots = asyncio.Semaphore(MAX_OPEN)

    async def read(
        self, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview], progress: Progress
    ) -> None:
        """Copy runs of the region to ``into``."""
        await self._move(StreamRead(self._request(region, runs), Pieces(into), progress), region)

    async def write(
        self, region: RemoteRegion, runs: Sequence[Run], source: Sequence[memoryview], progress: Progress
    ) -> None:
        """Copy ``source`` to runs of the region."""
        await self._move(StreamWrite(self._request(region, runs), Pieces(source), progress), region)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._link.aclose()

    def _request(self, region: RemoteRegion, runs: Sequence[Run]) -> TransferRequest:
        chunk = min(self._config.bulk_chunk, MAX_CHUNK)
        return TransferRequest(region.id, region.stamp, runs, None, chunk, self._config.bulk_window)

    async def _move(self, transfer: StreamRead | StreamWrite, region: RemoteRegion) -> None:
        link = self._link
        async with self._slots:
            try:
                while True:
                    connection = link.connection or await link.opened()
                    if await transfer.attempt(link, connection):
                        return
            except TransferBroken:
                raise
            except TransferError as error:
                raise type(error)(region.what, error.why) from None


def _kind(error: LinkBroken | HandshakeRefused | TimeoutError) -> Break:
    if isinstance(error.__cause__, ConnectionRefusedError):
        return Break.REFUSED
    if isinstance(error, HandshakeRefused):
        return Break.OTHERS if error.reason in (WRONG_TOKEN, NOT_A_PEER, SPEAKS_TLS) else Break.BROKEN
    return Break.UNREACHABLE


def _look(dialled: asyncio.Task[BulkConnection]) -> None:
    """Whoever waited has been told; perhaps nobody waits any more."""
    if not dialled.cancelled():
        dialled.exception()
