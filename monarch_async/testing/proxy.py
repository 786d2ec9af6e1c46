"""A byte proxy between a dialer and a listener, for faults that hit an exact frame.

    async with FaultProxy("tcp://127.0.0.1:7700", frame_length=length, skip=handshake_length) as proxy:
        proxy.cut("to_listener", at_frame=5, after_bytes=3)
        ...                                  # dial proxy.url instead of the listener

Real sockets at both ends, so what the code under test sees is what a network does: a half-closed stream, a
reset, a peer that is silent. The proxy knows nothing about the bytes but where a frame ends, which the
caller's functions say.

Frames are numbered from 1 in each direction, over all connections of the proxy together: frame n is the one
with which ``frames[direction]`` becomes n, and a frame that was cut has not passed. A frame is held until
it is complete and then passed on whole, which is what makes faults exact; without ``frame_length`` bytes
are passed on as they come.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, assert_never
from urllib.parse import urlsplit

from monarch_async.testing.splitter import FrameLength, Skip, Splitter

Direction = Literal["to_listener", "to_dialer"]

_READ_BYTES = 256 << 10
_LINE_BYTES = 4 << 20  # on their way in one direction; past that the sender finds that nobody reads


@dataclass(frozen=True, slots=True)
class _Cut:
    after_bytes: int


@dataclass(frozen=True, slots=True)
class _Corrupt:
    offset: int


@dataclass(frozen=True, slots=True)
class _Duplicate:
    pass


@dataclass(frozen=True, slots=True)
class _Freeze:
    pass


_Fault = _Cut | _Corrupt | _Duplicate | _Freeze


@dataclass(frozen=True, slots=True)
class _Armed:
    fault: _Fault
    happened: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes to pass on, not before ``due``: one frame, or bytes that belong to none."""

    data: bytes
    is_frame: bool
    due: float


class _CutHere(Exception):
    """Ends a connection from inside."""


class FaultProxy:
    """Listens at `url` and passes everything on to ``target``, except for the faults asked for.

    Faults at a frame return an event that is set once they have happened, so that a test can wait for its
    fault, or assert that it was reached at all. They may be set at any time before that frame passes.
    """

    def __init__(self, target: str, *, frame_length: FrameLength | None = None, skip: int | Skip = 0) -> None:
        """Take the listener's address: ``tcp://host:port``, ``tls://host:port`` (passed on as it is) or ``unix:///path``.

        ``frame_length(buffer, offset)`` returns the whole length of the frame that starts at ``offset``, or
        None while too little of it is there to say. ``skip`` says how many bytes each end sends before its
        first frame: a number, or a function of what that end has sent so far, which returns None while it
        cannot say; what has arrived by then is taken for handshake and passed on.
        """
        if urlsplit(target).scheme not in ("tcp", "tls", "unix"):
            raise ValueError(f"cannot proxy {target!r}: expected tcp://host:port, tls://host:port or unix:///path")
        self.url = ""  #: where to dial, once entered; same scheme as the target
        self.frames: dict[Direction, int] = {"to_listener": 0, "to_dialer": 0}  #: how many have passed
        self.connections = 0  #: how many were accepted
        self._target = target
        self._frame_length = frame_length
        self._skip: Skip = skip if callable(skip) else lambda _: skip
        self._faults: dict[tuple[Direction, int], list[_Armed]] = {}
        self._delay = 0.0
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._is_refusing = False
        self._progress = asyncio.Event()
        self._failure: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if urlsplit(self._target).scheme == "unix":
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="proxy-"))
                server = await asyncio.start_unix_server(self._accept, f"{folder}/socket")
                self.url = f"unix://{folder}/socket"
            else:
                server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
                self.url = f"{urlsplit(self._target).scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            stack.push_async_callback(server.wait_closed)
            stack.push_async_callback(self._end_tasks)
            stack.callback(server.close)
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything. Raises what went wrong in the proxy (a fault past the end of its frame, say)."""
        await self._exit.aclose()
        if self._failure is not None and self._failure is not error:
            raise self._failure

    def cut(self, direction: Direction, *, at_frame: int, after_bytes: int = 0) -> asyncio.Event:
        """Pass ``after_bytes`` of that frame on, then close both sides of its connection."""
        return self._arm(direction, at_frame, _Cut(after_bytes))

    def corrupt(self, direction: Direction, *, at_frame: int, offset: int) -> asyncio.Event:
        """Invert the byte at ``offset`` of that frame (from its end where negative)."""
        return self._arm(direction, at_frame, _Corrupt(offset))

    def duplicate(self, direction: Direction, *, at_frame: int) -> asyncio.Event:
        """Pass that frame on twice; it counts once."""
        return self._arm(direction, at_frame, _Duplicate())

    def freeze_at(self, direction: Direction, *, at_frame: int) -> asyncio.Event:
        """Freeze before that frame passes."""
        return self._arm(direction, at_frame, _Freeze())

    def freeze(self) -> None:
        """Pass nothing on, handshakes included, and close nothing. What arrives waits for `thaw`."""
        self._thawed.clear()

    def thaw(self) -> None:
        """End a freeze."""
        self._thawed.set()

    def delay(self, seconds: float) -> None:
        """Pass on what arrives from now on so much later, each way, as a longer line would: pipelined."""
        self._delay = seconds

    def refuse_new(self) -> None:
        """Close new connections at once: the dialer sees its connection end before the first byte."""
        self._is_refusing = True

    def accept_new(self) -> None:
        """End `refuse_new`."""
        self._is_refusing = False

    def cut_now(self) -> None:
        """Close both sides of every connection; what was on its way is gone."""
        for task in self._tasks:
            task.cancel()

    async def wait_frames(self, direction: Direction, n: int) -> None:
        """Wait until ``n`` frames in all have passed that way. Raises what went wrong in the proxy."""
        while self.frames[direction] < n:
            await self._wait_progress()

    async def wait_connections(self, n: int) -> None:
        """Wait until ``n`` connections in all were accepted. Raises what went wrong in the proxy."""
        while self.connections < n:
            await self._wait_progress()

    def _arm(self, direction: Direction, at_frame: int, fault: _Fault) -> asyncio.Event:
        if self._frame_length is None:
            raise ValueError("a fault at a frame needs frame_length")
        if at_frame <= self.frames[direction]:
            raise ValueError(f"frame {at_frame} {direction} has passed: {self.frames[direction]} have")
        armed = _Armed(fault)
        self._faults.setdefault((direction, at_frame), []).append(armed)
        return armed.happened

    async def _wait_progress(self) -> None:
        if self._failure is not None:
            raise self._failure
        await self._progress.wait()

    def _announce(self) -> None:
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            writer.transport.abort()
            return
        self.connections += 1
        self._announce()
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # it may be cut before it has begun

    async def _end_tasks(self) -> None:
        self.cut_now()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Own one connection, until both ways have ended or it was cut."""
        try:
            async with _aborted(writer):
                upstream, upwriter = await _dial(self._target)
                async with _aborted(upwriter), asyncio.TaskGroup() as group:
                    to_listener, to_dialer = _Line(), _Line()
                    group.create_task(self._read(reader, to_listener))
                    group.create_task(self._write("to_listener", to_listener, upwriter))
                    group.create_task(self._read(upstream, to_dialer))
                    group.create_task(self._write("to_dialer", to_dialer, writer))
        except* (_CutHere, OSError):
            pass  # cut here, ended by a reset, or nobody listens: both ends see their side closed
        except* Exception as group:
            self._failure = self._failure or group.exceptions[0]
            self._announce()

    async def _read(self, reader: asyncio.StreamReader, line: "_Line") -> None:
        """Cut what one end sends into pieces; None at its end."""
        time = asyncio.get_running_loop().time
        splitter = Splitter(self._frame_length, self._skip)
        while data := await reader.read(_READ_BYTES):
            for piece, is_frame in splitter.feed(data):
                await line.put(_Piece(piece, is_frame, time() + self._delay))
        await line.put(_Piece(splitter.rest(), False, time() + self._delay))
        await line.put(None)

    async def _write(self, direction: Direction, line: "_Line", writer: asyncio.StreamWriter) -> None:
        """Pass pieces on when they are due, then the end of the stream; the other way stays open."""
        time = asyncio.get_running_loop().time
        writer.transport.set_write_buffer_limits(high=0)  # so that drained means handed to the kernel
        while (piece := await line.get()) is not None:
            if piece.due > time():
                await asyncio.sleep(piece.due - time())
            await self._thawed.wait()
            if piece.is_frame:
                await self._pass_frame(direction, piece.data, writer)
            else:
                _write(writer, piece.data)
                await writer.drain()
        if not writer.is_closing():
            writer.write_eof()

    async def _pass_frame(self, direction: Direction, data: bytes, writer: asyncio.StreamWriter) -> None:
        while self._freeze_before_next(direction):
            await self._thawed.wait()
        # From here to the count nothing awaits: a frame of another connection would take the same number.
        number = self.frames[direction] + 1
        faults = self._faults.pop((direction, number), [])
        is_cut = False
        for armed in faults:
            match armed.fault:
                case _Cut(after_bytes):
                    is_cut = True
                    data = data[:after_bytes]
                case _Corrupt(offset):
                    data = _inverted_at(offset, data)
                case _Duplicate():
                    data += data
                case _Freeze():
                    pass  # done above
                case other:
                    assert_never(other)
        _write(writer, data)
        if not is_cut:
            self.frames[direction] = number
            self._announce()
        await writer.drain()
        for armed in faults:
            armed.happened.set()
        if is_cut:
            raise _CutHere

    def _freeze_before_next(self, direction: Direction) -> bool:
        """Freeze if that was asked for at the frame that passes next; return whether the proxy is frozen."""
        armed = self._faults.get((direction, self.frames[direction] + 1), [])
        for freeze in [a for a in armed if isinstance(a.fault, _Freeze)]:
            armed.remove(freeze)
            self.freeze()
            freeze.happened.set()
        return not self._thawed.is_set()


class _Line:
    """What is on its way in one direction, in order. `put` waits while that is `_LINE_BYTES` or more."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[_Piece | None] = asyncio.Queue()
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, piece: _Piece | None) -> None:
        await self._room.wait()
        self._pieces.put_nowait(piece)
        self._count(len(piece.data) if piece else 0)

    async def get(self) -> _Piece | None:
        piece = await self._pieces.get()
        self._count(-len(piece.data) if piece else 0)
        return piece

    def _count(self, change: int) -> None:
        self._bytes += change
        if self._bytes < _LINE_BYTES:
            self._room.set()
        else:
            self._room.clear()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Raises ConnectionResetError where that side has gone: its reader may have ended before, and have said nothing."""
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(data)


def _inverted_at(offset: int, frame: bytes) -> bytes:
    if not -len(frame) <= offset < len(frame):
        raise ValueError(f"cannot corrupt byte {offset} of a frame of {len(frame)}")
    changed = bytearray(frame)
    changed[offset] ^= 0xFF
    return bytes(changed)


async def _dial(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return await asyncio.open_unix_connection(parts.path)
    return await asyncio.open_connection(parts.hostname, parts.port)


@asynccontextmanager
async def _aborted(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Close that side at the end, without waiting for a peer that does not read."""
    try:
        yield
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
