"""How a process becomes a worker: between the fork in the zygote and the first line of the worker's own code.

``start="fork"``: `isolate`, then `enter` in the forked child, with the zygote's imports at hand.
``start="spawn"``: `isolate`, then `execute`, a fresh interpreter that runs this module, and `enter` there.

The spec is a dict that travels as msgpack. Keys read here, all but ``id`` optional:

    id        int               names the worker to the agent
    env       {str: str}        added to the environment before any import of the user's
    cwd       str               directory to change to
    nofile    int               how many files it may open: more, as agent and zygote may, break select()
    start     "fork" | "spawn"
    python    str               interpreter for "spawn", looked up in PATH; the zygote's own where absent
    sys_path  [str]             entries appended to sys.path where missing
    title     str               process name, 15 bytes of it
    entry     "module:function" what to run: ``main(control: socket, spec: dict) -> int``, its exit status

Anything that fails before the entry is at hand goes up a *report* pipe as text and makes the start refused;
afterwards the worker is started, and what it has to say goes to its stderr. It does not run ``atexit``
callbacks: those of a fork are the zygote's.
"""

import importlib
import io
import os
import random
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, TextIO

from monarch_async.control import kernel
from monarch_async.control.zygote_messages import pack, unpack

DEFAULT_ENTRY = "monarch_async.mesh.worker:main"

#: exit status of a worker whose entry raised, as in sysexits.h: internal software error
STATUS_ENTRY_RAISED = 70

#: what a started worker reports; anything else is the reason why it could not be
STARTED = b"+"

Entry = Callable[[socket.socket, dict[str, Any]], int | None]

_STATUS_REFUSED = 127
_MAX_REASON = 32 << 10  # half of what a pipe holds, so that reporting never blocks


class Report:
    """The worker's end of the pipe on which it says once how its start went."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def started(self) -> None:
        """Say that the entry is about to run."""
        self._send(STARTED)

    def refuse(self, reason: str) -> NoReturn:
        """Say why there will be no worker, and end this process."""
        self._send(reason.encode(errors="replace")[-_MAX_REASON:] or b"no reason given")
        os._exit(_STATUS_REFUSED)

    def _send(self, text: bytes) -> None:
        with suppress(OSError):  # the zygote is gone, and this process on its way out
            os.write(self._fd, text)
        os.close(self._fd)

    def keep_for_exec(self) -> int:
        """Let the pipe survive an exec and return its descriptor."""
        os.set_inheritable(self._fd, True)
        return self._fd


def isolate(spec: Mapping[str, Any], zygote: int, stdout: int, stderr: int) -> None:
    """Cut a freshly forked child, all signals blocked, loose from its zygote (a pid); then change directory.

    It gets a session and a process group of its own, dies with the zygote, and adopts its own orphans. That
    last point makes ending exact: an orphan reaches the zygote only when its worker is gone, so the zygote
    never has to guess whether the worker that an orphan came from still lives.

    Raises:
        OSError: the directory cannot be entered.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    kernel.die_with_parent(zygote)
    kernel.adopt_orphans()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    if nofile := spec.get("nofile"):
        kernel.limit_open_files(nofile)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if cwd := spec.get("cwd"):
        try:
            os.chdir(cwd)
        except OSError as error:
            raise OSError(error.errno, f"cannot change to directory {cwd!r}: {error.strerror}") from None


def execute(spec: Mapping[str, Any], control: socket.socket, report: Report) -> NoReturn:
    """Replace this process by a fresh interpreter that runs `main`.

    Raises:
        OSError: there is no such interpreter, or it cannot be executed.
    """
    with tempfile.TemporaryFile() as file:
        file.write(pack(spec))
        file.seek(0)
        body = os.dup(file.fileno())
    os.set_inheritable(body, True)
    control.set_inheritable(True)
    fds = [str(fd) for fd in (control.fileno(), body, report.keep_for_exec())]
    python = spec.get("python") or sys.executable
    environment = {**os.environ, **(spec.get("env") or {})}
    try:
        os.execvpe(python, [python, "-m", "monarch_async.control.bootstrap", *fds], environment)
    except OSError as error:
        raise OSError(error.errno, f"cannot run interpreter {python!r}: {error.strerror}") from None


def main(arguments: list[str]) -> NoReturn:
    """Run as ``python -m monarch_async.control.bootstrap CONTROL SPEC REPORT``, all three descriptors."""
    control_fd, body, report_fd = map(int, arguments)
    for fd in (control_fd, report_fd):
        os.set_inheritable(fd, False)
    with open(body, "rb") as file:
        spec = unpack(file.read())
    open_streams()
    enter(spec, socket.socket(fileno=control_fd), Report(report_fd))


def enter(spec: dict[str, Any], control: socket.socket, report: Report, is_forked: bool = False) -> NoReturn:
    """Make this interpreter the worker's, run its entry and end the process with the entry's status."""
    try:
        if is_forked:
            os.environ.update(spec.get("env") or {})
            _forget_shared_state()
        kernel.set_title(spec.get("title") or f"worker {spec['id']}")
        sys.path += [path for path in spec.get("sys_path") or () if path not in sys.path]
        entry = find_entry(spec.get("entry") or DEFAULT_ENTRY)
    except BaseException:
        report.refuse(traceback.format_exc())
    report.started()
    os._exit(_run(entry, control, spec))


def find_entry(name: str) -> Entry:
    """Return the function that ``module:function`` names, importing the module."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _run(entry: Entry, control: socket.socket, spec: dict[str, Any]) -> int:
    try:
        status = entry(control, spec) or 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if not isinstance(stop.code, int | None):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = STATUS_ENTRY_RAISED
    for stream in (sys.stdout, sys.stderr):
        # nobody reads any more; it was closed, or replaced by the user
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    kernel.flush_c_stdio()
    return status & 0xFF


def _forget_shared_state() -> None:
    """Give a fork random state of its own, and the thread count its environment asks for."""
    random.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()  # those of devices do not exist yet
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if threads.isdecimal() and int(threads):  # torch read the zygote's when it was imported
            torch.set_num_threads(int(threads))


class _Sink(io.FileIO):
    """A descriptor to write to, whatever is behind it: a file in the zygote can be a pipe in its worker."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise io.UnsupportedOperation("not seekable")


def open_streams() -> None:
    """Make Python's and C's standard streams write whole lines, and every character, whatever the locale.

    In a zygote this comes before the preload modules: log handlers that they make hold on to the streams.
    """
    sys.stdout = sys.__stdout__ = _line_buffered(1)
    sys.stderr = sys.__stderr__ = _line_buffered(2)
    kernel.line_buffer_c_stdout()


def _line_buffered(fd: int) -> TextIO:
    buffer = io.BufferedWriter(_Sink(fd, "w", closefd=False))
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)


if __name__ == "__main__":
    main(sys.argv[1:])
