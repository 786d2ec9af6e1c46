"""Processes as the kernel sees them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


@pytest.fixture
def wait_gone() -> Callable[..., Awaitable[float]]:
    """``await wait_gone(pids, within=seconds)``: wait until none of them lives; return how long that took."""

    async def wait(pids: list[int], within: float) -> float:
        began = time.monotonic()
        while left := [pid for pid in pids if is_alive(pid)]:
            assert time.monotonic() < began + within, f"processes {left} still live after {within} s"
            await asyncio.sleep(0.01)
        return time.monotonic() - began

    return wait
