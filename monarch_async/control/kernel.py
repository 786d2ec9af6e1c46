"""What ending processes exactly needs from the kernel and from libc beyond the ``os`` module.

Two Linux features carry it. The *parent-death signal* ends a worker with its zygote, whatever killed that.
The *sub-reaper* flag makes a process the new parent of every orphan below it, so a grandchild that called
``setsid`` or forked twice can still be found: it turns up as a child. Elsewhere (macOS) these functions do
nothing, and only process groups are ended.

The parent-death signal is sent when the *thread* that forked ends, so it is used only where a single-threaded
process is the parent, or the main thread of one.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
#: Three for each of twenty thousand workers. Not more: where there is no close_range(2) some close all up to the limit.
_ENOUGH_FILES = 1 << 16
_IOLBF = 1 if _LINUX or sys.platform == "darwin" else 0

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have SIGKILL sent to this process when its parent, a pid, ends; die now if it already has."""
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_title(title: str) -> None:
    """Set the name that ``ps -o comm`` and ``top`` show; the kernel keeps its first 15 bytes."""
    if _LINUX:
        _prctl(_PR_SET_NAME, ctypes.c_char_p(title.encode(errors="replace").replace(b"\0", b"?")[:15]))


def raise_open_files() -> int:
    """Let this process open as many files as it may and can use; return how many it was to open (its soft limit)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):  # a system may take less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return soft


def limit_open_files(soft: int) -> None:
    """Have this process open no more files than this, unless it may not even open so many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def children(pid: int) -> list[int]:
    """Return the pids of the children of a single-threaded process, zombies included; none if it is gone."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # no such process, no /proc, or a kernel built without this file
        return [child for child in _pids() if _parent_of(child) == pid]


def signal_process(pid: int, signo: int) -> None:
    """Send a signal to one process; nothing happens if it is gone."""
    try:
        os.kill(pid, signo)
    except (ProcessLookupError, PermissionError):  # not permitted: another user's after a set-uid exec
        pass


def signal_group(leader: int, signo: int) -> None:
    """Send a signal to the process group of ``leader``, or to it alone while it has not made its group."""
    try:
        os.killpg(leader, signo)
    except ProcessLookupError:
        signal_process(leader, signo)
    except PermissionError:
        pass


def reap(before: Callable[[int], None], wait: bool = False) -> tuple[int, int] | None:
    """Reap one child that has ended: its pid and wait status; None if there is none (``wait``: no child).

    ``before(pid)`` is called while the pid, and so the number of its process group, cannot yet be reused.
    """
    hang = 0 if wait else os.WNOHANG
    try:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13: the smallest window there is
            pid, status = os.waitpid(-1, hang)
            if not pid:
                return None
            before(pid)
            return pid, status
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | hang)
        if found is None:
            return None
        before(found.si_pid)
        return os.waitpid(found.si_pid, 0)
    except ChildProcessError:
        return None


def kill_marked(mark: str, patience: float = 5.0) -> None:
    """Send SIGKILL to every process with ``mark`` in the environment it was started with, until none is left.

    This finds what a dead zygote leaves behind, also in other sessions and under other parents. Blocks for as
    long as they take to go, but at most ``patience``: a process in an uninterruptible wait can take for ever.
    """
    until = time.monotonic() + patience
    while (found := marked(mark)) and time.monotonic() < until:
        for pid in found:
            signal_process(pid, signal.SIGKILL)
        time.sleep(0.002)


def marked(mark: str) -> list[int]:
    """Return the pids of the live processes with ``mark`` in the environment they were started with."""
    found = []
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark.encode() in file.read():
                    found.append(pid)
        except OSError:  # gone, or another user's
            pass
    return found


def line_buffer_c_stdout() -> None:
    """Make C's ``stdout`` write whole lines, as on a terminal: lines from C and Python keep their order."""
    try:
        stdout = ctypes.c_void_p.in_dll(_libc, "__stdoutp" if sys.platform == "darwin" else "stdout")
    except ValueError:
        return
    _libc.setvbuf(stdout, None, _IOLBF, ctypes.c_size_t(0))


def flush_c_stdio() -> None:
    """Write out what C's stdio has buffered in this process."""
    _libc.fflush(None)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])  # the name before may hold anything
    except (OSError, IndexError, ValueError):
        return 0


def _prctl(option: int, argument: object) -> None:
    # prctl is variadic and reads longs: an int passed without a type would leave the upper half undefined
    value = argument if isinstance(argument, ctypes.c_char_p) else ctypes.c_ulong(argument)  # type: ignore[arg-type]
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), value, zero, zero, zero) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}): {os.strerror(errno)}")
