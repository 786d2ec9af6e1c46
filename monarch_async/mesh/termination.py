"""SIGTERM ends a program as Ctrl-C does: what it has on its hosts is stopped in order, instead of left to leases."""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

#: What shells, Kubernetes and Slurm call the end of a process by this signal.
STATUS = 128 + signal.SIGTERM


async def end_on_sigterm(main: Coroutine[Any, Any, T]) -> T:
    """Await ``main``; SIGTERM cancels it, and then this raises SystemExit(143). A second one ends the process at once.

    Where the program has a handler of its own, or this is not the main thread, nothing is changed.
    """
    if not _is_free():
        return await main
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    is_terminated = False

    def terminate(signo: int, frame: FrameType | None) -> None:  # also while the loop is busy, but for C code
        nonlocal is_terminated
        is_terminated = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        loop.call_soon_threadsafe(task.cancel)

    signal.signal(signal.SIGTERM, terminate)
    try:
        return await main
    except asyncio.CancelledError:
        if is_terminated:
            raise SystemExit(STATUS) from None
        raise
    finally:
        if signal.getsignal(signal.SIGTERM) is terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_free() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
