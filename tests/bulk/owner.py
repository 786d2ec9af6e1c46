"""A process that owns memory. Reads requests on its standard input, a line of JSON each, and answers likewise.

Run as a program it is the owner; imported it is the way to start one.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

from monarch_async.bulk.arena import Arena
from monarch_async.bulk.bulk_server import BulkServer
from monarch_async.bulk.cma import allow_readers
from monarch_async.bulk.endpoint import Endpoint, this_machine
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.bulk.staged import local_operations
from monarch_async.bulk.stream import BulkLink
from monarch_async.config import Config
from monarch_async.transport.dial import listening
from monarch_async.transport.url import Url


def pattern(seed: int, size: int) -> bytes:
    """What an owner's region holds at first."""
    part = random.Random(seed).randbytes(min(size, 1_000_003))  # divides nothing that pieces are cut by
    return (part * (size // len(part) + 1))[:size] if part else b""


def open_things() -> int:
    """How many descriptors and mappings of segments this process has."""
    with open("/proc/self/maps") as maps:
        mapped = sum("memfd:monarch_async" in line for line in maps)
    return mapped + sum("memfd" in link for link in descriptors())


def descriptors() -> list[str]:
    """What this process's descriptors are."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found


class Memory:
    """What the owner does when it is asked."""

    def __init__(self, endpoint: Endpoint, regions: Regions, arena: Arena) -> None:
        self.endpoint, self.regions, self.arena = endpoint, regions, arena
        self.held: dict[int, tuple[Region, bytearray]] = {}

    async def register(self, seed: int, cuts: list[int], is_writable: bool) -> str:
        """Memory with a pattern, in spans of these sizes."""
        memory = bytearray(pattern(seed, sum(cuts)))
        spans, at = [], 0
        for size in cuts:
            spans.append(memoryview(memory)[at : at + size])
            at += size
        region = self.regions.add(spans, is_writable)
        self.held[region.id] = region, memory
        return self.describe(region)

    def describe(self, region: Region) -> str:
        endpoint, addresses = self.endpoint, region.addresses()
        return RemoteRegion(
            endpoint, region.id, region.stamp, region.id, addresses, region.is_writable, (), "weights"
        ).pack().hex()  # fmt: skip

    async def advance(self, id: int) -> str:
        region, _ = self.held[id]
        self.regions.advance(region)
        return self.describe(region)

    async def remove(self, id: int) -> None:
        region, _ = self.held.pop(id)
        self.regions.remove(region)
        await region.wait_unused()

    async def digest(self, id: int) -> str:
        return hashlib.sha256(self.held[id][1]).hexdigest()

    async def users(self, id: int) -> int:
        return self.held[id][0].users

    async def things(self) -> list[int]:
        return [open_things(), self.arena.idle_bytes]


async def own() -> None:
    """Be the owner until standard input ends."""
    regions, arena, key = Regions(), Arena(), os.urandom(32)
    name = f"monarch-async-test-{os.getpid()}"
    if "--shy" in sys.argv:
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    allow_readers()
    endpoint = Endpoint(
        b"cluster!", 7, "owner[0] on here", this_machine(), os.getpid(), regions.beacon.address, regions.beacon.nonce,
        key, name,
    )  # fmt: skip
    memory = Memory(endpoint, regions, arena)
    server = BulkServer(regions, Config(), local_operations(regions, arena))
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

    async def answer(line: bytes) -> None:
        number, what, *arguments = json.loads(line)
        print(json.dumps([number, await getattr(memory, what)(*arguments)]), flush=True)

    async with listening(Url.abstract(name), key, lambda info: b"", server.take, lambda *_: None):
        async with asyncio.TaskGroup() as tasks:
            while line := await lines.readline():
                tasks.create_task(answer(line))
        await server.aclose()


class Owner:
    """An owner, as tests see it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        return self.process.pid

    async def _listen(self) -> None:
        while line := await self._stdout.readline():
            number, answer = json.loads(line)
            self._answers.pop(number).set_result(answer)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EOFError("the owner has ended"))
                answer.exception()  # nobody need look

    def ask(self, *request: object) -> asyncio.Future[Any]:
        """Have it do something, at once; await the answer."""
        number = random.getrandbits(60)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._stdin.write(json.dumps([number, *request]).encode() + b"\n")
        return answer

    async def register(self, seed: int, *cuts: int, is_writable: bool = True) -> RemoteRegion:
        return RemoteRegion.unpack(bytes.fromhex(await self.ask("register", seed, cuts, is_writable)))

    async def advance(self, region: RemoteRegion) -> RemoteRegion:
        return RemoteRegion.unpack(bytes.fromhex(await self.ask("advance", region.id)))

    def stop(self) -> None:
        """As a debugger does: it is there, and does nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def aclose(self) -> None:
        self._stdin.close()
        await self.process.wait()
        await self._listening


@contextlib.asynccontextmanager
async def an_owner(*flags: str, **how: Any) -> AsyncIterator[Owner]:
    """Start one; end it after the block."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, *flags, stdin=pipe, stdout=pipe, limit=16 << 20, **how
    )
    owner = Owner(process)
    try:
        yield owner
    finally:
        await owner.aclose()


@contextlib.asynccontextmanager
async def a_link(endpoint: Endpoint) -> AsyncIterator[BulkLink]:
    """The connection to an owner."""
    link = BulkLink(endpoint, Config(bulk_retries=1.0), Url.abstract(endpoint.local))
    try:
        yield link
    finally:
        await link.aclose()


if __name__ == "__main__":
    asyncio.run(own())
