"""A process that owns memory and offers it over UCX. ``python ucx_owner.py SOCKET``; told what to do by its link."""

import asyncio
import mmap
import os
import sys
from typing import Any

import uvloop
from ucx_link import serve

from monarch_async.bulk.endpoint import Endpoint, this_machine
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.bulk.ucx import open_worker
from monarch_async.bulk.ucx_grants import UcxGrants
from monarch_async.bulk.ucx_worker import UcxWorker


def pattern(size: int) -> bytes:
    """Bytes whose place can be told from their values."""
    period = bytes(i * 7 % 251 for i in range(251))
    return (period * (size // 251 + 1))[:size]


class Owner:
    def __init__(self, worker: UcxWorker) -> None:
        self.regions = Regions()
        self.worker = worker
        self.kept: dict[int, tuple[Region, list[memoryview]]] = {}
        self.ended = asyncio.Event()

    def operations(self) -> dict[str, Any]:
        names = ("make", "peek", "poke", "advance", "remove", "facts", "churn", "end")
        return {name: getattr(self, name) for name in names}

    def describe(self, region: Region) -> bytes:
        beacon = self.regions.beacon
        endpoint = Endpoint(
            b"cluster", 1, "owner", this_machine(), os.getpid(), beacon.address, beacon.nonce, ucx=self.worker.address
        )
        return RemoteRegion(
            endpoint, region.id, region.stamp, region.id, region.addresses(), region.is_writable, region.rkeys
        ).pack()

    async def make(self, client: object, arguments: list[Any]) -> bytes:
        sizes, is_writable = arguments
        whole = pattern(sum(sizes))
        spans, start = [], 0
        for size in sizes:
            span = memoryview(bytearray())
            if size:
                memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE)
                memory.madvise(mmap.MADV_HUGEPAGE)
                span = memoryview(memory)
            span[:] = whole[start : start + size]
            spans.append(span)
            start += size
        region = self.regions.add(spans, is_writable)
        region.rkeys = self.worker.register(region)
        self.kept[region.id] = region, spans
        return self.describe(region)

    async def peek(self, client: object, arguments: list[Any]) -> bytes:
        id, start, stop = arguments
        return b"".join(self.kept[id][1])[start:stop]

    async def advance(self, client: object, arguments: list[Any]) -> bytes:
        region, _ = self.kept[arguments[0]]
        self.regions.advance(region)
        return self.describe(region)

    async def poke(self, client: object, arguments: list[Any]) -> None:
        id, value = arguments
        for span in self.kept[id][1]:
            span[:] = bytes((value,)) * len(span)

    async def remove(self, client: object, arguments: list[Any]) -> int:
        """Let go of a region as the plane does, and of its memory; return for how many milliseconds it was used yet."""
        region, spans = self.kept.pop(arguments[0])
        began = asyncio.get_running_loop().time()
        self.regions.remove(region)
        await region.wait_unused()
        self.worker.unregister(region)
        kept = [span.obj for span in spans]
        region.spans = ()
        for span in spans:
            span.release()
        for memory in kept:
            if isinstance(memory, mmap.mmap):
                memory.close()  # whoever reads there now crashes this process
        return int(1000 * (asyncio.get_running_loop().time() - began))

    async def churn(self, client: object, arguments: list[Any]) -> float:
        """Register and let go of memory so many times; return how many seconds that took."""
        spans = [memoryview(mmap.mmap(-1, 1 << 20)), memoryview(bytearray(100))]
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(arguments[0]):
            region = self.regions.add(spans, False)
            region.rkeys = self.worker.register(region)
            self.regions.remove(region)
            self.worker.unregister(region)
        return loop.time() - began

    async def facts(self, client: object, arguments: list[Any]) -> tuple[int, int, float]:
        """Descriptors, resident bytes, seconds of processor time."""
        with open("/proc/self/statm") as file:  # noqa: ASYNC230  it is no disk
            pages = int(file.read().split()[1])
        return len(os.listdir("/proc/self/fd")), pages * mmap.PAGESIZE, sum(os.times()[:2])

    async def end(self, client: object, arguments: list[Any]) -> None:
        self.ended.set()


async def main() -> None:
    beacon_of = Regions()
    worker = open_worker(beacon_of.beacon, is_loopback_only=True)
    if isinstance(worker, str):
        sys.exit(worker)
    owner = Owner(worker)
    owner.regions = beacon_of
    server = await serve(sys.argv[1], UcxGrants(owner.regions, worker).operations() | owner.operations())
    print("ready", flush=True)
    await owner.ended.wait()
    server.close()
    await worker.aclose()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
