"""Messages with buffers, on their way out: in one frame where they are small, else in chunks beside the others."""

from collections.abc import Callable, Iterator

from monarch_async.config import Config
from monarch_async.runtime.transfer import BlockPool, Outbound
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import BUFFERS, CHUNKED, pack_frame
from monarch_async.wire.message import CallFields, pack_call_fields, pack_reply_fields
from monarch_async.wire.payload import Encoded


class Outgoing:
    """The large messages of one router that are still being sent."""

    def __init__(self, address: int, config: Config, pool: BlockPool, ids: Iterator[int]) -> None:
        """``address`` is the sender's own; transfer ids come from ``ids``."""
        self._address, self._config, self._pool, self._ids = address, config, pool, ids
        self._sending: dict[int, tuple[Outbound, Connection]] = {}

    def pack_large(
        self,
        kind: int,
        flags: int,
        dst: int,
        target: int,
        call: int,
        fields: CallFields | None,
        encoded: Encoded,
        connection: Connection,
    ) -> tuple[Callable[[], None], int]:
        """Return how to send a message with buffers, and its size. Buffers are copied now, sent later."""
        skeleton, buffers = encoded
        sizes = [len(skeleton), *map(len, buffers)]
        nbytes = sum(sizes)
        if nbytes <= self._config.large:
            control = _with_sizes(fields, sizes, None)
            payload = b"".join((skeleton, *buffers))
            frame = pack_frame(kind, flags | BUFFERS, dst, self._address, target, call, control, payload)
            return lambda: connection.send(frame), nbytes
        transfer = next(self._ids)
        frame = pack_frame(
            kind, flags | CHUNKED, dst, self._address, target, call, _with_sizes(fields, sizes, transfer)
        )
        source = Outbound(transfer, dst, self._address, self._copy(encoded), self._config.chunk)

        def send() -> None:
            connection.send(frame)
            self._sending[transfer] = (source, connection)
            connection.bulk(source)

        return send, nbytes

    def _copy(self, encoded: Encoded) -> list[memoryview]:
        copies = [memoryview(encoded.skeleton)]
        for buffer in encoded.buffers:
            copy = self._pool.take(len(buffer))
            copy[:] = buffer
            copies.append(copy)
        return copies

    def allow(self, transfer: int, received: int) -> None:
        """The receiver has so many bytes."""
        found = self._sending.get(transfer)
        if found is not None:
            source, connection = found
            source.allow(received)
            if source.is_done:
                del self._sending[transfer]
            connection.resume_bulk()

    def lose(self, gone: Callable[[int], bool]) -> None:
        """Receivers are gone: send nothing more to them."""
        for transfer, (source, _) in list(self._sending.items()):
            if gone(source.dst):
                source.abandon()
                del self._sending[transfer]

    def close(self) -> None:
        """Forget everything."""
        self._sending.clear()


def _with_sizes(fields: CallFields | None, sizes: list[int], transfer: int | None) -> bytes:
    if fields is None:
        return pack_reply_fields(sizes, transfer)
    return pack_call_fields(fields._replace(sizes=sizes, transfer=transfer))
