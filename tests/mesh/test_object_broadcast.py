"""`ma.broadcast`: what it takes, whom it reaches, who is named where it does not. Each test starts its own hosts."""

import asyncio
import contextlib
import gc
import io
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import torch
from broadcast_actors import Owner
from ref_actors import Reader
from rich.console import Console

import monarch_async as ma
from monarch_async.mesh import ref_tickets
from monarch_async.mesh.domain import active_domain

pytestmark = pytest.mark.slow  # several hosts for every test

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ref_tickets, "_SWEEP", 0.02)


async def statuses() -> list[dict[str, Any]]:
    domain = active_domain()
    return [await domain.requests.ask(host.id << 32, "status") for host in domain.hosts]


async def objects() -> list[int]:
    """How many objects each host has."""
    return [status["store"]["objects"] for status in await statuses()]


async def has_objects(*expected: int) -> None:
    gc.collect()
    async with asyncio.timeout(10):
        while await objects() != list(expected):
            await asyncio.sleep(0.01)


async def test_values_references_and_meshes_of_all_kinds() -> None:
    async with ma.local_hosts(3) as hosts:
        procs = await hosts.spawn_procs({"gpus": 2}, name="readers", preload=["numpy"])
        readers = await procs.spawn("readers", Owner)

        ref = await ma.broadcast(np.ones(200_000), hosts)
        assert await objects() == [1, 1, 1]
        assert list(await readers.total.call(ref)) == [200_000.0] * 6
        assert len(set(await readers.slice(hosts=1).where.call(ref))) == 1
        assert await ma.broadcast(ref, procs) == ref and await objects() == [1, 1, 1]

        some = await ma.broadcast({"a": "value"}, hosts.slice(hosts=slice(1, 3)))
        assert await objects() == [2, 2, 2]  # it is of host 0, where it was put
        assert await readers.at(5).value.call_one(some) == {"a": "value"}
        one = await ma.put(np.ones(100))
        await ma.broadcast(one, readers.slice(hosts=1))
        assert await objects() == [3, 3, 2]
        del some, one
        await has_objects(1, 1, 1)

        far = await readers.at(4).broadcast_to.call_one(readers.slice(hosts=slice(0, 3, 2)), 1000)
        assert await objects() == [2, 1, 2] and repr(far).endswith("host2>")
        assert (await far).sum() == 1000
        del ref, far
        await has_objects(0, 0, 0)
        for mesh in ("hosts", None):
            with pytest.raises(ma.BadCall, match="no mesh of hosts"):
                await ma.broadcast(1, mesh)  # type: ignore[call-overload]
        assert await objects() == [0, 0, 0]


async def test_the_content_of_a_handle() -> None:
    async with ma.local_hosts(2) as hosts:
        readers = await (await hosts.slice(hosts=1).spawn_procs({"gpus": 1})).spawn("readers", Owner)
        tied = torch.arange(300_000, dtype=torch.float32)
        value = {
            "tied": [tied, tied],
            "turned": torch.randn(300, 400).t(),
            "steps": torch.arange(100_000)[::2],
            "wide": torch.randn(4, 1).expand(4, 300),
            "numpy": np.arange(50_000, dtype=np.int16).reshape(100, 500).T,
            "none": torch.empty(0, 3),
            "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
        }
        handle = await readers.offer.call_one(value)
        ref = await ma.broadcast(handle, hosts)
        found = await ref
        assert await objects() == [1, 1] and repr(ref).endswith("host0>")
        assert found.keys() == value.keys() and found["tied"][0] is found["tied"][1]
        assert ref.nbytes < handle.nbytes  # it is in there once
        for name in ("turned", "steps", "wide", "none", "scalar"):
            assert torch.equal(found[name], value[name]) and found[name].dtype == value[name].dtype
        assert torch.equal(found["tied"][1], tied) and found["turned"].stride() == (1, 400)
        assert np.array_equal(found["numpy"], value["numpy"]) and not found["numpy"].flags.writeable
        assert torch.equal((await readers.value.call_one(ref))["turned"], value["turned"])
        small = await ma.broadcast(handle["scalar"], hosts)
        assert (await small).item() == 2.5
        part = await ma.broadcast(handle["tied"][0], readers)
        assert torch.equal(await part, tied)
        del ref, found, small, part
        await has_objects(0, 0)


async def test_a_handle_that_is_stale_leaves_nothing() -> None:
    async with ma.local_hosts(2) as hosts:
        memory = np.ones(MIB)
        handle = await ma.register(memory)
        await handle.aclose()
        with pytest.raises(ma.StaleHandle):
            await ma.broadcast(handle, hosts)
        await has_objects(0, 0)


@contextlib.asynccontextmanager
async def three_hosts() -> AsyncIterator[tuple[ma.HostMesh, Reader, list[int]]]:
    """Hosts with an actor each, and the pids of their agents."""
    async with ma.local_hosts(3) as hosts:
        async with ma.supervise(ma.ignore):
            readers = await (await hosts.spawn_procs({"gpus": 1})).spawn("readers", Reader)
            yield hosts, readers, [status["pid"] for status in await statuses()]


async def test_a_host_that_is_lost_in_the_middle_is_passed_over_and_named() -> None:
    async with three_hosts() as (hosts, readers, pids):
        ref = await ma.put(np.ones(16 * MIB))
        second = hosts.hosts[1].id << 32
        broadcast = asyncio.ensure_future(ma.broadcast(ref, hosts))
        while not (await active_domain().requests.ask(second, "status"))["store"]["pulls"]:
            assert not broadcast.done()
        os.kill(pids[1], signal.SIGSTOP)  # it has begun, and gets no further
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(ma.NotEverywhere, match=r"^shared object \w+ .*: not on host1: .*") as caught:
            await broadcast
        assert list(caught.value.reasons) == ["host1"]
        assert await readers.at(2).total.call_one(ref) == 16 * MIB


async def test_hosts_that_are_lost_already() -> None:
    """Also the one that the chain begins with."""
    async with three_hosts() as (hosts, readers, pids):
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(ma.HostLost):
            while True:
                await readers.at(1).holdings.call_one()
        with pytest.raises(ma.NotEverywhere) as caught:
            await ma.broadcast(np.ones(MIB), hosts.slice(hosts=slice(1, 3)))
        assert list(caught.value.reasons) == ["host1"]
        ref = await ma.put(np.ones(MIB))
        with pytest.raises(ma.NotEverywhere):
            await ma.broadcast(ref, hosts)
        assert await ma.broadcast(ref, hosts.slice(hosts=2)) == ref
        assert await readers.at(2).total.call_one(ref) == MIB


async def test_one_that_is_cancelled() -> None:
    async with ma.local_hosts(2) as hosts:
        ref = await ma.put(np.ones(8 * MIB))
        broadcast = asyncio.ensure_future(ma.broadcast(ref, hosts))
        await asyncio.sleep(0)
        broadcast.cancel()
        with pytest.raises(asyncio.CancelledError):
            await broadcast
        await has_objects(1, 1)  # the hosts go on
        del ref
        await has_objects(0, 0)


async def test_progress() -> None:
    text = io.StringIO()
    async with ma.local_hosts(3) as hosts:
        with ma.progress(Console(file=text, width=200), patience=0.0):
            ref = await ma.broadcast(np.ones(4 * MIB), hosts)
            await asyncio.sleep(0)
        del ref
    assert "broadcast" in text.getvalue() and ": 67.1 MB in" in text.getvalue(), text.getvalue()
