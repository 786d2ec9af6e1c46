"""An actor that takes, keeps, overwrites and returns large values, and what to look at around it."""

import asyncio
import os
import signal
from collections.abc import Callable

import torch

import monarch_async as ma
from monarch_async.runtime.router import active_router

MB = 1 << 20


def open_segments() -> int:
    """How many memfds this process has open."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += "memfd:monarch_async" in os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass
    return count


def shared_with(data: object) -> bool:
    """Whether the memory of a tensor is (still) somebody's segment."""
    assert isinstance(data, torch.Tensor)
    address = data.data_ptr()
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, _, end = line.split(" ", 1)[0].partition("-")
            if int(start, 16) <= address < int(end, 16):
                return "memfd:monarch_async" in line
    return False


class Holder(ma.Actor):
    def __init__(self) -> None:
        self.kept: list[object] = []

    @ma.endpoint
    async def total(self, data: bytes) -> tuple[int, int]:
        return len(data), sum(data[:100])

    @ma.endpoint
    async def make(self, size: int) -> bytes:
        return b"\x05" * size

    @ma.endpoint
    async def zero(self, data: torch.Tensor) -> tuple[float, bool]:
        """What the tensor held, before it is overwritten; and whether its pages came from a segment."""
        held, shares = float(data.sum()), shared_with(data)
        data.zero_()
        return held, shares

    @ma.endpoint
    async def keep(self, data: torch.Tensor) -> None:
        self.kept.append(data)

    @ma.endpoint
    async def kept_sums(self) -> list[float]:
        return [float(data.sum()) for data in self.kept]  # type: ignore[attr-defined]

    @ma.endpoint
    async def drop(self) -> None:
        self.kept.clear()

    @ma.endpoint
    async def ones(self, count: int) -> torch.Tensor:
        return torch.ones(count)

    @ma.endpoint
    async def segments(self) -> int:
        return open_segments()

    @ma.endpoint
    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def nothing_on_the_way() -> bool:
    outgoing = active_router().outgoing
    return not (outgoing._offered or outgoing._sending or outgoing._lent or len(outgoing._plane.regions))


async def wait_until(condition: Callable[[], bool]) -> bool:
    """Wait for what other processes tell this one: a round trip or two."""
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return condition()
