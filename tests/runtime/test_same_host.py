"""Reading another process's memory, and what happens where that is not possible."""

import ctypes
import os
import subprocess
import sys

import pytest

import monarch_async as ma
from monarch_async.runtime.router import active_router
from monarch_async.runtime.same_host import Offer, address_of, can_offer, read_parts

pytestmark = pytest.mark.skipif(not can_offer(), reason="this system has no process_vm_readv")

SENDER = """
import sys, json
from monarch_async.runtime.router import active_router
from monarch_async.runtime.same_host import Offer
parts = [memoryview(bytearray(b"abc" * 1000)), memoryview(bytearray()), memoryview(bytearray(b"x"))]
offer = Offer()
pid, at, nonce, addresses = offer.of(parts)
print(json.dumps([pid, at, nonce.hex(), addresses]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def offer():
    import json

    process = subprocess.Popen(
        [sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdin, process.stdout:
        pid, at, nonce, addresses = json.loads(process.stdout.readline())
        yield [pid, at, bytes.fromhex(nonce), addresses]
        process.stdin.close()
        process.wait()


def views(*sizes: int) -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in sizes]


def test_reads_every_part(offer: list[object]) -> None:
    here = views(3000, 0, 1)
    assert read_parts(offer, here)
    assert [bytes(view) for view in here] == [b"abc" * 1000, b"", b"x"]


def test_a_wrong_nonce_is_not_read_past(offer: list[object]) -> None:
    offer[2] = bytes(16)
    here = views(3000, 0, 1)
    assert not read_parts(offer, here)
    assert bytes(here[0]) == bytes(3000)


def test_memory_that_is_not_there(offer: list[object]) -> None:
    offer[3] = [8, 0, 8]
    assert not read_parts(offer, views(3000, 0, 1))


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    own = Offer().of([])
    assert not read_parts([process.pid, *own[1:]], [])


def test_the_address_is_that_of_the_memory() -> None:
    memory = bytearray(b"hello")
    assert ctypes.string_at(address_of(memoryview(memory)), 5) == b"hello"


class Sum(ma.Actor):
    @ma.endpoint
    async def total(self, data: bytes) -> tuple[int, int]:
        return len(data), sum(data[:100])

    @ma.endpoint
    async def make(self, size: int) -> bytes:
        return os.urandom(1) * size


@pytest.mark.parametrize("reads", [True, False], ids=["read", "chunks"])
async def test_both_ways_carry_the_same(reads: bool) -> None:
    async with ma.local_hosts(config=ma.Config(same_host_reads=reads)) as hosts:
        procs = await hosts.spawn_procs({"gpus": 3})
        actors = await procs.spawn("sum", Sum)
        for size in (300_000, 5_000_000, 20_000_000):
            data = b"\x03" * size
            assert list(await actors.total.call(data)) == [(size, 300)] * 3
            assert all(len(made) == size for made in await actors.make.call(size))
        outgoing = active_router().outgoing
        assert not outgoing._offered
        assert not outgoing._sending
