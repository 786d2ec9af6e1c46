"""The zygote: a single-threaded process that has imported what workers need, and forks them in milliseconds.

``python -m monarch_async.control.zygote SOCKET '{"modules": [...], "sys_path": [...]}'``, with the descriptor
of a unix stream socket whose other end only the agent holds. It speaks `zygote_messages`.

Why a process of its own, without event loop or threads: a fork copies only the thread that called it, so a
lock held by any other thread stays locked for ever in the child. Python threads are therefore refused; native
ones (a BLAS library's pool) are tolerated, as those libraries handle forks themselves. CUDA does not survive
a fork at all.

What it guarantees:

Z1  every `Fork` is answered by exactly one `Started` or `Refused`, and every `Started` by exactly one
    `Exited`;
Z2  when a worker has ended, its process group and everything it left behind are killed and reaped, also what
    called ``setsid``: as workers and the zygote are sub-reapers, that turns up as a child here that is no
    worker;
Z3  when the agent is gone (end of the stream), or says `End`, or on SIGTERM, everything below is killed and
    reaped before the zygote exits. Should the zygote itself be killed, its workers die by the parent-death
    signal.
"""

import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from monarch_async.control import bootstrap, kernel
from monarch_async.control.preload import prepare
from monarch_async.control.zygote_messages import (
    FORK_DESCRIPTORS,
    Decoder,
    End,
    Exited,
    Failed,
    Fork,
    Ready,
    Refused,
    Report,
    Signal,
    Started,
    encode,
)

_READ = 64 << 10


@dataclass(slots=True)
class Starting:
    """A worker that has been forked and has not reported yet; ``said`` is what came on its report pipe.

    ``report`` is None once that pipe has ended.
    """

    id: int
    report: int | None
    said: bytes = b""


@dataclass(frozen=True, slots=True)
class Running:
    """A worker that runs its entry."""

    id: int


class Zygote:
    """Forks workers as the agent orders, and reaps them."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._decoder = Decoder()
        self._fds: list[int] = []  # received, and not yet taken by the Fork they belong to
        self._workers: dict[int, Starting | Running] = {}  # by pid
        self._pids: dict[int, int] = {}  # by worker id
        self._helpers = frozenset(kernel.children(os.getpid()))  # of preload modules: they live as long as we
        self._ended = False
        self._selector = selectors.PollSelector()  # needs no descriptor, so a fork inherits none
        self._wakeup, self._wakeup_sender = socket.socketpair()

    def serve(self) -> None:
        """Work until the agent is gone or says `End`; then nothing is left below this process."""
        self._listen_to_signals()
        self._selector.register(self._agent, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        while not self._ended:
            for key, _ in self._selector.select():
                if key.fileobj is self._agent:
                    self._hear_agent()
                elif key.fileobj is self._wakeup:
                    self._hear_signals()
                else:
                    self._hear_worker(key.data)
        self._finish()

    def _listen_to_signals(self) -> None:
        for end in (self._wakeup, self._wakeup_sender):
            end.setblocking(False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_sender.fileno(), warn_on_full_buffer=False)

    def _hear_signals(self) -> None:
        caught = b""
        with suppress(BlockingIOError):
            caught = self._wakeup.recv(_READ)
        if signal.SIGTERM in caught:
            self._ended = True
        self._reap()

    def _hear_agent(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._agent, _READ, FORK_DESCRIPTORS)
        except ConnectionError:
            data, fds = b"", []
        for fd in fds:
            os.set_inheritable(fd, False)
        self._fds += fds
        if not data:
            self._ended = True
        for message in self._decoder.feed(data):
            match message:
                case Fork(spec):
                    self._start(dict(spec))
                case Signal(id, signo):
                    if id in self._pids:
                        kernel.signal_group(self._pids[id], signo)
                case End():
                    self._ended = True
                    return
                case _:
                    raise AssertionError(f"an agent does not send {message}")

    # starting

    def _start(self, spec: dict[str, Any]) -> None:
        fds, self._fds = self._fds[:FORK_DESCRIPTORS], self._fds[FORK_DESCRIPTORS:]
        try:
            if len(fds) < FORK_DESCRIPTORS:
                raise OSError("the worker's descriptors did not arrive: too many open files in the zygote")
            pid, report = self._fork(spec, fds)
        except OSError as error:
            self._tell(Refused(spec["id"], f"cannot fork: {error}"))
            return
        finally:
            for fd in fds:
                os.close(fd)
        self._workers[pid] = worker = Starting(spec["id"], report)
        self._pids[worker.id] = pid
        self._selector.register(report, selectors.EVENT_READ, pid)

    def _fork(self, spec: dict[str, Any], fds: list[int]) -> tuple[int, int]:
        """Return the child's pid and the end of its report pipe."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        zygote = os.getpid()
        # what is buffered would be written twice; a signal too early would reach the zygote's handlers
        sys.stdout.flush()
        sys.stderr.flush()
        kernel.flush_c_stdio()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on native threads
                pid = os.fork()
            if pid == 0:
                os.close(reader)
                self._become_worker(spec, fds, zygote, bootstrap.Report(writer))
        except OSError:
            os.close(reader)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(writer)
        return pid, reader

    def _become_worker(
        self, spec: dict[str, Any], fds: list[int], zygote: int, report: bootstrap.Report
    ) -> NoReturn:
        try:
            control, stdout, stderr = fds
            bootstrap.isolate(spec, zygote, stdout, stderr)
            self._close_inherited()
            connection = socket.socket(fileno=control)
            if spec.get("start") == "spawn":
                bootstrap.execute(spec, connection, report)
        except BaseException as error:
            reason = error.strerror if isinstance(error, OSError) else None
            report.refuse(reason or f"{type(error).__name__}: {error}")
        bootstrap.enter(spec, connection, report, is_forked=True)

    def _close_inherited(self) -> None:
        """Close, in a child, what is the zygote's: a copy would keep open what others wait to see closed."""
        for end in (self._agent, self._wakeup, self._wakeup_sender):
            end.close()
        for worker in self._workers.values():
            if isinstance(worker, Starting) and worker.report is not None:
                os.close(worker.report)
        for fd in self._fds:
            os.close(fd)

    def _hear_worker(self, pid: int) -> None:
        worker = self._workers.get(pid)
        if isinstance(worker, Starting) and self._read_report(worker) and worker.said == bootstrap.STARTED:
            self._workers[pid] = Running(worker.id)
            self._tell(Started(worker.id, pid))
        # any other report is answered when the worker has ended, which it is about to

    def _read_report(self, worker: Starting) -> bool:
        """Read what the worker reported; return whether that was all."""
        try:
            while worker.report is not None and (data := os.read(worker.report, _READ)):
                worker.said += data
        except BlockingIOError:
            return False
        self._close_report(worker)
        return True

    def _close_report(self, worker: Starting) -> None:
        if worker.report is not None:
            self._selector.unregister(worker.report)
            os.close(worker.report)
            worker.report = None

    # ending

    def _reap(self, wait: bool = False) -> bool:
        """Reap what has ended, with ``wait`` at least one; return whether anything had."""
        is_any = False
        while (ended := kernel.reap(self._kill_group, wait and not is_any)) is not None:
            is_any = True
            pid, status = ended
            worker = self._workers.pop(pid, None)
            if worker is not None:
                del self._pids[worker.id]
                self._tell_end(worker, pid, status)
        self._kill_strays()
        return is_any

    def _tell_end(self, worker: Starting | Running, pid: int, status: int) -> None:
        if isinstance(worker, Starting):
            if not self._read_report(worker):
                self._close_report(worker)  # held open by something that outlives the worker
            if worker.said != bootstrap.STARTED:
                code = os.waitstatus_to_exitcode(status)
                ending = f"exited with status {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"
                silent = f"the new process {ending} before it was ready; its stderr may say why"
                self._tell(Refused(worker.id, worker.said.decode(errors="replace").rstrip() or silent))
                return
            self._tell(Started(worker.id, pid))
        self._tell(Exited(worker.id, pid, status))

    def _kill_group(self, pid: int) -> None:
        if pid in self._workers:
            kernel.signal_group(pid, signal.SIGKILL)

    def _kill_strays(self) -> None:
        """Kill what ended workers left behind; what is below that comes to us then, with another SIGCHLD."""
        for pid in kernel.children(os.getpid()):
            if pid not in self._workers and pid not in self._helpers:
                kernel.signal_process(pid, signal.SIGKILL)

    def _finish(self) -> None:
        """Kill and reap until there is no child; orphans of what was killed become children first."""
        self._helpers = frozenset()
        for pid in self._workers:
            kernel.signal_group(pid, signal.SIGKILL)
        while True:
            for pid in kernel.children(os.getpid()):
                kernel.signal_process(pid, signal.SIGKILL)
            if not self._reap(wait=True):
                return

    def _tell(self, report: Report) -> None:
        _tell(self._agent, report)


def main(arguments: list[str]) -> int:
    """Run the zygote; return its exit status."""
    started = time.monotonic()
    agent = socket.socket(fileno=int(arguments[0]))
    agent.set_inheritable(False)
    os.closerange(
        3, agent.fileno()
    )  # what the agent happened to inherit; not every event loop's spawn closes it
    os.closerange(agent.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.set_title("ma-zygote")
    bootstrap.open_streams()
    kernel.adopt_orphans()
    kernel.die_with_parent(os.getppid())  # while importing it cannot notice the end of the stream
    try:
        prepare(**json.loads(arguments[1]))
    except Exception as error:
        reason = str(error) if isinstance(error, RuntimeError) else traceback.format_exc()
        _tell(agent, Failed(reason))
        return 1
    kernel.outlive_parent()
    _tell(agent, Ready(os.getpid(), time.monotonic() - started))
    Zygote(agent).serve()
    return 0


def _tell(agent: socket.socket, report: Report) -> None:
    with suppress(ConnectionError):  # the agent is gone: the end of its stream is read next
        agent.sendall(encode(report))


def _signal_name(signo: int) -> str:
    try:
        return signal.Signals(signo).name
    except ValueError:
        return f"signal {signo}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
