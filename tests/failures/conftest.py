"""Processes as the kernel sees them."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from agents import is_alive


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
