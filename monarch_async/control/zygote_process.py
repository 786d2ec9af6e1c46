"""The agent's end of one zygote: its process, the socket to it, and the workers it was asked for."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from monarch_async.control import kernel
from monarch_async.control.zygote_messages import (
    Decoder,
    End,
    Exited,
    Failed,
    Fork,
    Order,
    Ready,
    Refused,
    Signal,
    Started,
    encode,
)

#: carries the marks of all zygotes above a process, so that a dead zygote's leavings can be told
MARKS = "MONARCH_ASYNC_ZYGOTES"

_READ = 64 << 10
_FULL_RETRY = 0.01
_END_GRACE = 5.0


class ZygoteProcess:
    """One zygote. Its owner runs `run` in a task; `tell` is given every report on a worker, in order.

    Orders wait here until the zygote is ready, and while its socket is full. The queue has no limit of its
    own: what waits has descriptors, of which this process has only so many, or is a signal to something that
    has.
    """

    def __init__(
        self,
        modules: Sequence[str],
        sys_path: Sequence[str],
        tell: Callable[[Started | Refused | Exited], None],
    ) -> None:
        self._modules, self._sys_path, self._tell = modules, sys_path, tell
        self.workers: dict[int, int] = {}  #: pid (0: not yet) by id of all asked for that have not ended
        self.is_empty = asyncio.Event()  #: set while there are none
        self.is_empty.set()
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[float] = self._loop.create_future()  #: seconds of imports; or RuntimeError
        self._ended = asyncio.Event()
        self._mark = os.urandom(8).hex()
        self._process: asyncio.subprocess.Process | None = None
        self._socket: socket.socket | None = None
        self._decoder = Decoder()
        self._outbox: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._is_waiting = False
        self._failure = ""

    @property
    def is_over(self) -> bool:
        """Whether it takes no more orders."""
        return self._ended.is_set()

    @property
    def pid(self) -> int:
        """Its pid; 0 before it has one."""
        return self._process.pid if self._process else 0

    async def run(self) -> None:
        """Start the zygote; stay until it and everything below it is gone; report what it left unsaid."""
        try:
            try:
                await self._spawn()
                await self._ended.wait()
            finally:
                await self._leave_nothing()
        except OSError as error:
            self._failure = str(error)
        finally:
            self._report_lost()

    def fork(self, spec: Mapping[str, object], fds: Sequence[int]) -> None:
        """Ask for a worker. Takes over ``fds`` and closes them when they are on their way."""
        self.workers[_id_of(spec)] = 0
        self.is_empty.clear()
        self._order(Fork(spec), tuple(fds))

    def signal(self, id: int, signo: int) -> None:
        """Send a signal to a worker's process group, after its fork if that is still to come."""
        self._order(Signal(id, signo))

    async def end(self) -> None:
        """Kill everything below, and the zygote; wait until `run` has seen it go."""
        self._failure = self._failure or "this host is shutting down"
        if self.ready.done() and not self._ended.is_set():
            self._order(End())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_GRACE):
                    await self._ended.wait()
        self._ended.set()

    # its process

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._socket = ours
        above = os.environ.get(MARKS)
        arguments = json.dumps({"modules": list(self._modules), "sys_path": list(self._sys_path)})
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "monarch_async.control.zygote",
                str(theirs.fileno()),
                arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=2,  # what preload modules print must not mix with what the agent tells its caller
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, MARKS: f"{above}:{self._mark}" if above else self._mark},
            )
        self._loop.add_reader(ours, self._hear)

    async def _leave_nothing(self) -> None:
        """End the process if it has not ended, and what it could not end itself."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()  # to the zygote this means the same as End
            self._socket = None
        if self._process is None:
            return
        try:
            async with asyncio.timeout(_END_GRACE if self.ready.done() else 0):
                status = await self._process.wait()
        except TimeoutError:
            kernel.signal_process(self._process.pid, signal.SIGKILL)
            status = await self._process.wait()
        if status != 0:
            for pid in filter(None, self.workers.values()):
                kernel.signal_group(pid, signal.SIGKILL)
            await asyncio.to_thread(kernel.kill_marked, self._mark)
        self._failure = self._failure or f"its zygote (pid {self._process.pid}) ended with status {status}"

    def _report_lost(self) -> None:
        if not self.ready.done():
            self.ready.set_exception(RuntimeError(self._failure))
            self.ready.exception()  # those who wait see it; that nobody does is no error
        for _, fds in self._outbox:
            _close(fds)
        self._outbox.clear()
        for id, pid in list(self.workers.items()):
            self._settle(Exited(id, pid, signal.SIGKILL) if pid else Refused(id, self._failure))

    # its reports

    def _hear(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        for message in self._decoder.feed(data):
            match message:
                case Ready(_, seconds):
                    self.ready.set_result(seconds)
                    self._flush()
                case Failed(reason):
                    self._failure = reason
                    self._ended.set()
                case Started() | Refused() | Exited():
                    self._settle(message)
                case _:
                    raise AssertionError(f"a zygote does not send {message}")
        if not data:
            self._loop.remove_reader(self._socket)
            self._ended.set()

    def _settle(self, report: Started | Refused | Exited) -> None:
        if isinstance(report, Started):
            self.workers[report.id] = report.pid
        else:
            del self.workers[report.id]
            if not self.workers:
                self.is_empty.set()
        self._tell(report)

    # orders to it

    def _order(self, order: Order, fds: tuple[int, ...] = ()) -> None:
        self._outbox.append((memoryview(encode(order)), fds))
        self._flush()

    def _flush(self) -> None:
        if not self.ready.done() or self._socket is None or self._is_waiting:
            return
        outbox = self._outbox
        while outbox:
            frame, fds = outbox[0]
            try:
                sent = socket.send_fds(self._socket, [frame], fds) if fds else self._socket.send(frame)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._socket, self._resume)
                self._is_waiting = True
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    return  # it is gone: the end of the stream is read next, and settles what waits here
                self._loop.call_later(_FULL_RETRY, self._resume)  # too many descriptors on their way at once
                self._is_waiting = True
                return
            _close(fds)
            if sent < len(frame):
                outbox[0] = frame[sent:], ()
            else:
                outbox.popleft()

    def _resume(self) -> None:
        self._is_waiting = False
        if self._socket is not None:
            self._loop.remove_writer(self._socket)
            self._flush()


def _id_of(spec: Mapping[str, object]) -> int:
    id = spec["id"]
    assert isinstance(id, int)
    return id


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
