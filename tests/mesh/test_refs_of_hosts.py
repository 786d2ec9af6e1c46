"""Shared objects on several hosts, in stores that are full, and after their end. Each test starts its own hosts."""

import asyncio
import gc
import os
import pickle
import random
import signal
from typing import Any

import numpy as np
import pytest
from ref_actors import Reader

import monarch_async as ma
from monarch_async.mesh import ref_tickets, room_report
from monarch_async.mesh.domain import active_domain

pytestmark = pytest.mark.slow  # several hosts for every test

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ref_tickets, "_SWEEP", 0.02)


async def gauges() -> list[dict[str, int]]:
    """What the stores of all hosts have."""
    domain = active_domain()
    statuses = [await domain.requests.ask(host.id << 32, "status") for host in domain.hosts]
    return [status["store"] for status in statuses]


async def has_objects(*expected: int) -> None:
    """Wait until the hosts have so many."""
    gc.collect()
    async with asyncio.timeout(10):
        while [store["objects"] for store in await gauges()] != list(expected):
            await asyncio.sleep(0.01)


async def test_two_hosts() -> None:
    async with ma.local_hosts(2) as hosts:
        procs = await hosts.spawn_procs({"gpus": 2}, name="readers")
        readers = await procs.spawn("readers", Reader)
        ref = await ma.put(np.ones(500_000))
        assert repr(ref).endswith("host0>")
        assert list(await readers.total.call(ref)) == [500_000.0] * 4
        assert len(set(await readers.slice(hosts=1).where.call(ref))) == 1  # one copy
        far = await readers.at(3).make.call_one(1000)
        assert repr(far).endswith("host1>")
        assert float((await far).sum()) == 1000.0
        done, pending = await ma.wait([ref, far])
        assert len(done) == 2 and not pending
        await readers.at(0).keep.call_one(far)
        del far
        gc.collect()
        assert await readers.at(0).total_kept.call_one() == 1000.0
        del ref, done
        await readers.forget.call()
        await has_objects(0, 0)


@pytest.mark.parametrize("calls", [40, pytest.param(1000, marks=pytest.mark.slow)])
async def test_references_on_many_ways_at_once(calls: int) -> None:
    """None is lost on its way, whichever calls are cancelled; and in the end there is nothing."""
    async with ma.local_hosts(2) as hosts:
        readers = await (await hosts.spawn_procs({"gpus": 2})).spawn("readers", Reader)

        async def one(seed: int) -> None:
            dice = random.Random(seed)
            refs = [await ma.put(np.ones(dice.choice([5, 4000])))]
            call = readers.at(dice.randrange(4)).wander.call_one({"refs": refs}, readers, dice.randrange(6), seed)
            del refs
            try:
                async with asyncio.timeout(dice.choice([None, None, None, 0.01])):
                    found = await call
            except TimeoutError:
                return
            for ref in found:
                await ref
            if dice.random() < 0.2:
                readers.keep_in_thread.broadcast(found)

        for start in range(0, calls, 8):
            await asyncio.gather(*map(one, range(start, start + 8)))
        await readers.keep_in_thread.call(None)
        await readers.forget.call()
        await has_objects(0, 0)
        assert list(await readers.holdings.call()) == [0] * 4 and not active_domain().router.pending


async def test_the_host_is_lost() -> None:
    async with ma.local_hosts(2) as hosts:
        async with ma.supervise(ma.ignore):
            procs = await hosts.spawn_procs({"gpus": 1}, name="readers")
            readers = await procs.spawn("readers", Reader)
            lost, kept = [await readers.at(1).make.call_one(1000) for _ in range(2)]
            await readers.at(0).keep_value.call_one(kept)
            domain = active_domain()
            with pytest.raises(ma.HostLost):
                pid = (await domain.requests.ask(domain.hosts[1].id << 32, "status"))["pid"]
                os.kill(pid, signal.SIGKILL)
                while True:
                    await readers.at(1).holdings.call_one()
            with pytest.raises(ma.ObjectLost, match=r"shared object \w+ \(.* put on host1\)"):
                await lost
            with pytest.raises(ma.ObjectLost):
                await readers.at(0).total.call_one(lost)
            (value,) = await readers.at(0).give_from_thread.call_one()  # its host has a copy
            assert value.sum() == 1000.0


async def test_a_full_store_makes_puts_wait() -> None:
    async with ma.local_hosts(config=ma.Config(store_bytes=8 * MIB)) as hosts:
        with pytest.raises(ma.StoreFull):
            await ma.put(np.zeros(2 * MIB))  # of 8 bytes each
        refs = [await ma.put(bytes(3 * MIB)) for _ in range(2)]
        third = asyncio.ensure_future(ma.put(b"3" * (3 * MIB)))
        fourth = asyncio.ensure_future(ma.put(b"4" * (3 * MIB)))
        await asyncio.sleep(0.1)
        assert not third.done() and (await gauges())[0]["waiting_puts"] == 2
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        refs.pop()
        assert await (await fourth) == b"4" * (3 * MIB)
        procs = await hosts.spawn_procs({"gpus": 1}, name="makers")
        maker = await procs.spawn("makers", Reader)
        making = maker.make.call_one(3 * MIB // 8)
        await asyncio.sleep(0.1)
        assert not making.done()
        refs.clear()
        del fourth, third
        gc.collect()
        await making
        del making
        await has_objects(0)


async def test_a_put_that_waits_says_for_what(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(room_report, "PATIENCE", 0.05)
    async with ma.local_hosts(2, config=ma.Config(store_bytes=8 * MIB)) as hosts:
        procs = await hosts.spawn_procs({"gpus": 1}, name="readers")
        readers = await procs.spawn("readers", Reader)
        refs = [await ma.put(bytes(3 * MIB)) for _ in range(2)]
        await readers.keep.call(refs[0])
        waits = asyncio.ensure_future(ma.put(bytes(5 * MIB)))
        async with asyncio.timeout(10):
            while len(caplog.messages) < 2:
                await asyncio.sleep(0.01)
        said = caplog.messages[0]
        assert "5,243,008 bytes, put on host0) has waited 0 s for room: of the store of host0, " in said
        assert "by this process (2, " in said and "readers[0] (1, " in said and "host1 (1, " in said
        (store, _) = [host.store for host in (await hosts.status()).hosts]
        assert store.waiting_puts == 1 and store.holders[0].objects == 2
        await readers.forget.call()
        refs.clear()
        await waits
        del waits
        await has_objects(0, 0)


async def test_a_read_that_waits_for_room_is_shown() -> None:
    async with ma.local_hosts(2, config=ma.Config(store_bytes=8 * MIB)) as hosts:
        procs = await hosts.spawn_procs({"gpus": 1}, name="readers")
        readers = await procs.spawn("readers", Reader)
        mine = await ma.put(np.zeros(7 * MIB, "u1"))
        theirs = [await readers.at(1).make.call_one(3 * MIB // 8) for _ in range(2)]
        await readers.at(0).keep_value.call_one(theirs[0])  # one goes over what may be kept
        waits = readers.at(0).total.call_one(theirs[1])
        async with asyncio.timeout(10):
            while (store := (await hosts.status()).hosts[0].store).waiting_reads != 1:
                await asyncio.sleep(0.01)
        assert "readers[0]" in {share.name for share in store.holders}
        assert "waiting for room: 1" in str(await hosts.status())
        await readers.forget.call()
        assert await waits == 3 * MIB // 8
        del mine, theirs, waits
        await has_objects(0, 0)


async def test_a_reference_of_an_earlier_cluster() -> None:
    async with ma.local_hosts():
        ref = await ma.put(1)
        data = pickle.dumps(ref)
    with pytest.raises(ma.Closed):
        await ref
    async with ma.local_hosts():
        for old in (ref, pickle.loads(data)):
            with pytest.raises(ma.ForeignHandle, match=r"shared object \w+ .*another cluster"):
                await old
            with pytest.raises(ma.ForeignHandle):
                await ma.wait([old])


async def test_a_value_outlives_the_hosts() -> None:
    async with ma.local_hosts():
        value: Any = await (await ma.put(np.ones(MIB)))
    assert value.sum() == MIB


async def test_a_value_outlives_an_agent_that_ends_first() -> None:
    readable, writable = os.pipe()
    async with ma.local_hosts(2) as hosts:
        async with ma.supervise(ma.ignore):
            pid = (await hosts.status()).hosts[0].pid
            value: Any = await (await ma.put(np.ones(MIB)))
            os.kill(pid, signal.SIGTERM)
            while os.path.exists(f"/proc/{pid}/fd"):
                await asyncio.sleep(0.01)
            assert os.write(writable, value.view("u1").data[:100]) == 100  # EFAULT, where a touch would be SIGBUS
    os.close(readable)
    os.close(writable)
