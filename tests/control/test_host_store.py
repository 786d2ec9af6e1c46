"""The stores of real agents, asked as processes ask them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import monarch_async as ma
from monarch_async.bulk.arena import forget_mappings, open_segment
from monarch_async.bulk.region import RemoteRegion
from monarch_async.config import Config
from monarch_async.errors import Error, HostLost, ObjectLost, StoreFull
from monarch_async.ids import address
from monarch_async.mesh.domain import active_domain
from monarch_async.runtime.router import active_router

MIB = 1 << 20


class Stores:
    """Asks the stores of all hosts as this program."""

    def __init__(self, hosts: ma.HostMesh) -> None:
        self.requests = active_domain().requests
        self.agents = [address(host.id, 0) for host in active_domain().hosts]
        self.homes: dict[bytes, tuple[int, int]] = {}

    def send(self, at: int, operation: str, *arguments: object) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self.requests.send(self.agents[at], "store", operation, *arguments))

    async def ask(self, at: int, operation: str, *arguments: object) -> Any:
        async with asyncio.timeout(20):
            return await self.send(at, operation, *arguments)

    async def put(self, at: int, data: bytes, id: bytes | None = None) -> bytes:
        id = id or os.urandom(16)
        token = (await self.ask(at, "alloc", id, len(data)))["segment"]
        view = open_segment(tuple(token), is_private=False)
        view[:] = data
        del view
        await self.ask(at, "seal", id)
        self.homes[id] = self.agents[at], len(data)
        return id

    def facts_of(self, id: bytes) -> tuple[bytes, int, int]:
        return id, *self.homes[id]

    async def read(self, at: int, id: bytes) -> bytes:
        """Open, copy, close."""
        token = (await self.ask(at, "open", *self.facts_of(id)))["segment"]
        data = bytes(open_segment(tuple(token)))
        await self.ask(at, "close", id)
        return data

    async def drop(self, at: int, *ids: bytes) -> None:
        for id in ids:
            await self.ask(at, "drop", id)

    async def facts(self, at: int) -> dict[str, int]:
        return (await self.requests.ask(self.agents[at], "status"))["store"]

    async def wait(self, at: int, **expected: int) -> None:
        """Wait until the gauges of a host are these: what agents post to each other takes a moment."""
        async with asyncio.timeout(10):
            while not (facts := await self.facts(at)).items() >= expected.items():
                assert facts
                await asyncio.sleep(0.005)

    async def wait_empty(self) -> None:
        for at in range(len(self.agents)):
            await self.wait(at, objects=0, used=0, spilled=0, pulls=0)


@contextlib.asynccontextmanager
async def started(n: int, **settings: Any) -> AsyncIterator[Stores]:
    """Hosts of a test's own."""
    try:
        async with ma.local_hosts(n, config=replace(Config(), **settings)) as hosts:
            yield Stores(hosts)
    finally:
        forget_mappings()


async def test_put_open_close_and_drop() -> None:
    async with started(1) as stores:
        id = await stores.put(0, b"x" * 100_000)
        assert (await stores.facts(0))["objects"] == 1
        with pytest.raises(ObjectLost):
            await stores.ask(0, "seal", id)
        token = (await stores.ask(0, "open", *stores.facts_of(id)))["segment"]
        view = open_segment(tuple(token))
        view[0] = 7  # ours alone
        assert await stores.read(0, id) == b"x" * 100_000
        await stores.drop(0, id)
        assert (await stores.facts(0))["objects"] == 1  # it is open
        del view
        await stores.ask(0, "close", id)
        await stores.wait_empty()
        with pytest.raises(ObjectLost):
            await stores.ask(0, "open", *stores.facts_of(id))


async def test_bad_requests_are_refused_and_change_nothing() -> None:
    async with started(1) as stores:
        for request in [("alloc", b"short", 5), ("alloc", os.urandom(16), 0), ("alloc", os.urandom(16)),
                        ("dance", os.urandom(16)), ("open", os.urandom(16)), ("alloc", 7, 7)]:  # fmt: skip
            with pytest.raises(Error, match="bad request"):
                await stores.ask(0, *request)
        await stores.wait_empty()


async def test_a_full_store_makes_puts_wait() -> None:
    async with started(1, store_bytes=8 * MIB) as stores:
        with pytest.raises(StoreFull, match=str(8 * MIB)):
            await stores.ask(0, "alloc", os.urandom(16), 9 * MIB)
        first = await stores.put(0, bytes(5 * MIB))
        second = os.urandom(16)
        waits = stores.send(0, "alloc", second, 5 * MIB)
        third = stores.send(0, "alloc", os.urandom(16), 4 * MIB)
        await stores.wait(0, waiting_puts=2)
        assert not waits.done()
        await stores.drop(0, first)
        assert "segment" in await waits
        await stores.wait(0, waiting_puts=1)
        await stores.ask(0, "cancel", second)
        assert "segment" in await third
        assert (await stores.facts(0))["used"] == 4 * MIB


async def test_a_put_that_waits_can_be_withdrawn() -> None:
    async with started(1, store_bytes=8 * MIB) as stores:
        first = await stores.put(0, bytes(5 * MIB))
        id = os.urandom(16)
        waits = stores.send(0, "alloc", id, 5 * MIB)
        await stores.wait(0, waiting_puts=1)
        await stores.ask(0, "cancel", id)
        with pytest.raises(Error, match="withdrawn"):
            await waits
        await stores.drop(0, first)
        await stores.wait_empty()


async def test_what_is_not_used_goes_to_disk_and_comes_back(tmp_path: Path) -> None:
    async with started(1, store_bytes=8 * MIB, spill_folder=str(tmp_path / "spilled")) as stores:
        parts = [os.urandom(3 * MIB) for _ in range(4)]
        ids = [await stores.put(0, part) for part in parts]
        facts = await stores.facts(0)
        assert facts["spilled"] == 2 and facts["spilled_bytes"] == 6 * MIB and facts["used"] <= 8 * MIB
        for id, part in zip(ids, parts, strict=True):
            assert await stores.read(0, id) == part
        assert (await stores.facts(0))["used"] <= 8 * MIB
        assert not list((tmp_path / "spilled").iterdir())  # files have no names
        await stores.drop(0, *ids)
        await stores.wait_empty()


async def test_a_disk_that_cannot_be_written_makes_puts_wait(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    async with started(1, store_bytes=8 * MIB, spill_folder=str(tmp_path / "file")) as stores:
        first = await stores.put(0, bytes(5 * MIB))
        waits = stores.send(0, "alloc", os.urandom(16), 5 * MIB)
        await stores.wait(0, waiting_puts=1, used=5 * MIB, spilled=0)
        assert not waits.done()
        await stores.drop(0, first)
        assert "segment" in await waits


async def test_one_copy_on_each_host_that_reads() -> None:
    data = os.urandom(20 * MIB + 5)
    async with started(2) as stores:
        id = await stores.put(0, data)
        await stores.ask(1, "hold", *stores.facts_of(id))
        await stores.drop(0, id)
        opened = [stores.send(1, "open", *stores.facts_of(id)) for _ in range(3)]
        tokens = {tuple(answer["segment"]) for answer in await asyncio.gather(*opened)}
        assert len(tokens) == 1
        assert open_segment(tokens.pop()) == data
        assert (await stores.facts(1))["objects"] == 1
        for _ in range(3):
            await stores.ask(1, "close", id)
        await stores.drop(1, id)
        await stores.wait_empty()


async def test_a_hold_of_what_is_gone_is_refused() -> None:
    async with started(2) as stores:
        id = await stores.put(0, b"x")
        await stores.drop(0, id)
        for at in (0, 1):
            for operation in ("hold", "open", "fetch"):
                with pytest.raises(ObjectLost):
                    await stores.ask(at, operation, *stores.facts_of(id))
        await stores.wait_empty()


async def test_fetched_and_evicted_and_fetched_again() -> None:
    async with started(2, store_bytes=8 * MIB) as stores:
        id = await stores.put(0, b"x" * 5 * MIB)
        await stores.ask(1, "hold", *stores.facts_of(id))
        await stores.ask(1, "fetch", *stores.facts_of(id))
        assert (await stores.facts(1))["used"] == 5 * MIB
        mine = await stores.put(1, bytes(5 * MIB))  # its home has the other too
        assert (await stores.facts(1))["used"] == 5 * MIB
        assert await stores.read(1, id) == b"x" * 5 * MIB  # let over, once
        await stores.drop(1, id, mine)
        await stores.drop(0, id)
        await stores.wait_empty()


class Holder(ma.Actor):
    """Puts, holds and opens, and never lets go."""

    @ma.endpoint
    async def ask(self, *request: Any) -> Any:
        router = active_router()
        return await active_domain().requests.ask(router.address & ~0xFFFF_FFFF, "store", *request)

    @ma.endpoint
    async def post(self, *request: Any) -> None:
        router = active_router()
        active_domain().requests.post(router.address & ~0xFFFF_FFFF, "store", *request)

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()


async def test_a_process_that_dies_holds_nothing() -> None:
    settings = replace(Config(), store_bytes=8 * MIB)
    async with ma.local_hosts(2, config=settings) as hosts, ma.supervise(ma.ignore):
        stores = Stores(hosts)
        holders = await (await hosts.spawn_procs({"n": 1})).spawn("holders", Holder)
        id = await stores.put(0, b"x" * MIB)
        await holders.ask.call("hold", *stores.facts_of(id))
        await stores.drop(0, id)
        await holders.ask.call("open", *stores.facts_of(id))
        second = holders.slice(hosts=1)
        await second.ask.call_one("alloc", os.urandom(16), 4 * MIB)
        await second.post.call_one("alloc", os.urandom(16), 5 * MIB)
        await stores.wait(1, waiting_puts=1)
        await stores.wait(0, objects=1)
        for pid in [await holders.slice(hosts=at).pid.call_one() for at in (0, 1)]:
            os.kill(pid, signal.SIGKILL)
        await stores.wait_empty()
    forget_mappings()


async def test_a_lost_host_holds_nothing_and_what_it_alone_had_is_lost() -> None:
    async with started(2) as stores:
        mine, its = await stores.put(0, b"x" * MIB), await stores.put(1, b"y" * MIB)
        copied = await stores.put(1, b"z" * MIB)
        await stores.ask(1, "hold", *stores.facts_of(mine))
        for id in (its, copied):
            await stores.ask(0, "hold", *stores.facts_of(id))
        await stores.ask(0, "fetch", *stores.facts_of(copied))
        await stores.drop(0, mine)
        assert (await stores.facts(0))["objects"] == 3
        pid = (await stores.requests.ask(stores.agents[1], "status"))["pid"]
        os.kill(pid, signal.SIGKILL)
        await stores.wait(0, objects=2)
        with pytest.raises(ObjectLost, match="lost"):
            await stores.ask(0, "open", *stores.facts_of(its))
        assert await stores.read(0, copied) == b"z" * MIB
        await stores.drop(0, its, copied)
        await stores.wait(0, objects=0, used=0)


async def test_a_region_for_who_cannot_map() -> None:
    async with started(1) as stores:
        plane = active_router().plane
        id, data = os.urandom(16), os.urandom(MIB)
        region = RemoteRegion.unpack((await stores.ask(0, "alloc", id, MIB, True))["region"])
        assert region.is_writable and region.size == MIB
        await plane.write(region, [(0, MIB)], [memoryview(data)])
        await stores.ask(0, "seal", id)
        stores.homes[id] = stores.agents[0], MIB
        with pytest.raises(ma.TransferError):
            await plane.write(region, [(0, 1)], [memoryview(b"!")])
        region = RemoteRegion.unpack((await stores.ask(0, "open", *stores.facts_of(id), True))["region"])
        found = bytearray(MIB)
        await plane.read(region, [(0, MIB)], [memoryview(found)])
        assert found == data
        await stores.ask(0, "close", id)
        await stores.drop(0, id)
        await stores.wait_empty()


# -- chains ------------------------------------------------------------------------------------------------------------


async def test_a_chain_gives_all_hosts_a_copy_and_the_home_takes_them_back() -> None:
    data = os.urandom(40 * MIB + 3)
    async with started(4) as stores:
        id = await stores.put(0, data)
        assert await stores.ask(1, "spread", *stores.facts_of(id), stores.agents[1:]) == {}
        for at in (1, 2, 3):
            assert (await stores.facts(at))["used"] >= len(data)
            assert await stores.read(at, id) == data
        assert await stores.ask(0, "spread", *stores.facts_of(id), stores.agents) == {}  # all have it
        await stores.drop(0, id)
        await stores.wait_empty()


async def test_a_relay_that_is_killed_is_bypassed() -> None:
    """The middle of a chain ends while bytes go through it: those behind turn to the one before it."""
    data = os.urandom(8 * MIB) * 30
    async with started(4) as stores:
        id = await stores.put(0, data)
        pid = (await stores.requests.ask(stores.agents[2], "status"))["pid"]
        spread = stores.send(1, "spread", *stores.facts_of(id), stores.agents[1:])
        await stores.wait(3, pulls=1)
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            failed = await spread
        assert set(failed) <= {stores.agents[2]}
        for at in (1, 3):
            assert await stores.read(at, id) == data
        with contextlib.suppress(HostLost):
            await stores.ask(2, "drop", id)
        await stores.drop(0, id)
        for at in (0, 1, 3):
            await stores.wait(at, objects=0, used=0)


async def test_a_chain_of_something_that_is_gone_says_so_for_each() -> None:
    async with started(3) as stores:
        id = await stores.put(0, b"x")
        await stores.drop(0, id)
        failed = await stores.ask(1, "spread", *stores.facts_of(id), stores.agents[1:])
        assert set(failed) == set(stores.agents[1:])
        await stores.wait_empty()
