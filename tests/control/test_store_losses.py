"""The stores of real agents whose memory, disks, processes, clients and hosts give out."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_asker import MIB, Stores, started

import monarch_async as ma
from monarch_async.bulk.arena import forget_mappings, open_segment
from monarch_async.bulk.region import RemoteRegion
from monarch_async.config import Config
from monarch_async.errors import ObjectLost, TransferError
from monarch_async.ids import agent_of
from monarch_async.mesh.domain import active_domain
from monarch_async.mesh.local_source import LocalAgent
from monarch_async.runtime.router import active_router

pytestmark = pytest.mark.slow  # agents of their own for every test


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


class Holder(ma.Actor):
    """Puts, holds and opens, and never lets go."""

    @ma.endpoint
    async def ask(self, *request: Any) -> Any:
        router = active_router()
        return await active_domain().requests.ask(agent_of(router.address), "store", *request)

    @ma.endpoint
    async def post(self, *request: Any) -> None:
        router = active_router()
        active_domain().requests.post(agent_of(router.address), "store", *request)

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()


async def test_a_process_that_dies_holds_nothing() -> None:
    settings = replace(Config(), store_bytes=8 * MIB)
    async with ma.local_hosts(2, config=settings) as hosts, ma.supervise(ma.ignore):
        stores = Stores()
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


async def test_a_relay_that_is_killed_is_bypassed() -> None:
    """The middle of a chain ends while bytes go through it: those behind turn to the one before it."""
    data = os.urandom(8 * MIB) * 20
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
        await stores.drop(0, id)
        for at in (0, 1, 3):
            await stores.wait(at, objects=0, used=0)


# -- clients that leave, or are far ------------------------------------------------------------------------------------

TOKEN = "a token of the tests"


@contextlib.asynccontextmanager
async def agent(listen: str, **settings: Any) -> AsyncIterator[str]:
    """An agent that outlives its clients; yields its address."""
    agent = await LocalAgent.start("h", listen, TOKEN, replace(Config(), **settings), None, (0, 1))
    try:
        yield await agent.wait_ready()
    finally:
        await agent.aclose(10)


async def test_what_a_client_has_mapped_when_it_leaves_stays_as_it_is(tmp_path: Path) -> None:
    async with agent(f"unix://{tmp_path}/agent") as url:
        async with ma.attach(url, token=TOKEN):
            first = Stores()
            id = await first.put(0, b"1" * MIB)
            token = (await first.ask(0, "open", *first.facts_of(id)))["segment"]
            value = open_segment(tuple(token))
        async with ma.attach(url, token=TOKEN):
            second = Stores()
            await second.wait_empty()
            again = await second.put(0, b"2" * MIB)
            assert await second.read(0, again) == b"2" * MIB
            assert value == b"1" * MIB
            await second.drop(0, again)
            await second.wait_empty()
        del value
    forget_mappings()


async def test_a_region_for_who_cannot_map() -> None:
    async with started(1) as stores:
        plane = active_router().plane
        id, data = os.urandom(16), os.urandom(MIB)
        region = RemoteRegion.unpack((await stores.ask(0, "alloc", id, MIB, True))["region"])
        assert region.is_writable and region.size == MIB
        await plane.write(region, [(0, MIB)], [memoryview(data)])
        await stores.ask(0, "seal", id)
        stores.homes[id] = stores.agents[0], MIB
        with pytest.raises(TransferError):
            await plane.write(region, [(0, 1)], [memoryview(b"!")])
        region = RemoteRegion.unpack((await stores.ask(0, "open", *stores.facts_of(id), True))["region"])
        found = bytearray(MIB)
        await plane.read(region, [(0, MIB)], [memoryview(found)])
        assert found == data
        await stores.ask(0, "close", id)
        await stores.drop(0, id)
        await stores.wait_empty()


async def test_a_client_that_came_by_tcp_gets_regions() -> None:
    async with agent("tcp://127.0.0.1:0") as url:
        async with ma.attach(url, token=TOKEN):
            stores, plane = Stores(), active_router().plane
            id, data = os.urandom(16), os.urandom(MIB)
            region = RemoteRegion.unpack((await stores.ask(0, "alloc", id, MIB))["region"])
            await plane.write(region, [(0, MIB)], [memoryview(data)])
            await stores.ask(0, "seal", id)
            region = RemoteRegion.unpack((await stores.ask(0, "open", id, stores.agents[0], MIB))["region"])
            found = bytearray(MIB)
            await plane.read(region, [(0, MIB)], [memoryview(found)])
            assert found == data
        async with ma.attach(url, token=TOKEN):
            await Stores().wait_empty()  # the first has left
