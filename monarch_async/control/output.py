"""What a proc prints: from its pipes, line by line, to its client.

Lines are read as the pipe has them and sent on in batches. When the way to the client is full the pipe is not read, so
a proc that prints too much waits in its `print`; nothing is dropped. The last stderr lines stay here for the news of
the proc's death.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable

from monarch_async.control.log_lines import LineSplitter

STDOUT, STDERR = 1, 2
_READ = 64 << 10
_RETRY = 0.02


class Output:
    """Both pipes of one proc. ``send(stream, lines)`` gets whole lines; ``may_send()`` says whether there is room."""

    def __init__(
        self,
        stdout: int,
        stderr: int,
        send: Callable[[int, list[bytes]], None],
        may_send: Callable[[], bool],
        keep: int,
    ) -> None:
        """Take over both read ends; keep the last ``keep`` lines of stderr."""
        self._loop = asyncio.get_running_loop()
        self._send, self._may_send = send, may_send
        self.last_lines: deque[str] = deque(maxlen=keep)
        self._splitters = {STDOUT: LineSplitter(), STDERR: LineSplitter()}
        self._fds = {STDOUT: stdout, STDERR: stderr}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        for stream, fd in self._fds.items():
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._readable, stream)

    def _readable(self, stream: int) -> None:
        if not self._may_send():
            self._loop.remove_reader(self._fds[stream])
            self._timers[stream] = self._loop.call_later(_RETRY, self._resume, stream)
        elif not self._read(stream):
            self._close(stream)

    def _resume(self, stream: int) -> None:
        del self._timers[stream]
        if stream in self._fds:
            self._loop.add_reader(self._fds[stream], self._readable, stream)

    def _read(self, stream: int) -> int:
        """Read once; return how many bytes came, 0 at the end, -1 where there is nothing now."""
        try:
            data = os.read(self._fds[stream], _READ)
        except BlockingIOError:
            return -1
        self._take(stream, self._splitters[stream].feed(data))
        return len(data)

    def _take(self, stream: int, lines: list[bytes]) -> None:
        if lines:
            if stream == STDERR:
                self.last_lines.extend(line.decode(errors="backslashreplace") for line in lines)
            self._send(stream, lines)

    def _close(self, stream: int) -> None:
        fd = self._fds.pop(stream)
        self._loop.remove_reader(fd)
        timer = self._timers.pop(stream, None)
        if timer is not None:
            timer.cancel()
        os.close(fd)
        self._take(stream, self._splitters[stream].close())

    def drain(self) -> None:
        """The proc has ended: take what is still in the pipes, also an unfinished line, and close them."""
        for stream in list(self._fds):
            while self._read(stream) > 0:
                pass
            self._close(stream)
