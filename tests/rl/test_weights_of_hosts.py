"""Weights for generators on several hosts."""

import asyncio
import os
import signal

import pytest
from weight_actors import Generator, Learner, filled

import monarch_async as ma
from monarch_async.mesh import ref_tickets
from monarch_async.mesh.domain import active_domain

pytestmark = pytest.mark.slow  # several hosts for every test

SHAPES = {"a": (512, 1024), "b": (1024,)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ref_tickets, "_SWEEP", 0.02)


async def objects() -> list[int]:
    domain = active_domain()
    statuses = [await domain.requests.ask(host.id << 32, "status") for host in domain.hosts]
    return [status["store"]["objects"] for status in statuses]


async def has_objects(*expected: int) -> None:
    async with asyncio.timeout(10):
        while await objects() != list(expected):
            await asyncio.sleep(0.01)


async def test_versions_go_where_somebody_asks() -> None:
    async with ma.local_hosts(3) as hosts:
        procs = await hosts.slice(hosts=slice(1, 3)).spawn_procs({"gpus": 1})
        generators = await procs.spawn("generators", Generator)
        async with ma.WeightPublisher() as publisher:
            await publisher.publish(filled(SHAPES, 1))
            assert await objects() == [1, 0, 0]
            await generators.subscribe.call(publisher, SHAPES)
            assert list(await generators.update.call()) == [(1, 1.0, 1.0)] * 2
            await publisher.publish(filled(SHAPES, 2))
            await has_objects(1, 1, 1)  # it came without being asked for, and the old one is gone
            assert list(await generators.update.call()) == [(2, 2.0, 2.0)] * 2
            waiting = generators.wait_newer.call()
            await generators.look.call()
            await publisher.publish(filled(SHAPES, 3))
            assert list(await waiting) == [3, 3]
            assert list(await generators.newest.call()) == [(3, 3.0, 3.0)] * 2
            watching = generators.watch.call(53, "update")
            for number in range(4, 54):
                await publisher.publish(filled(SHAPES, number))
            assert [torn for _, torn in await watching] == [0, 0]
            for number in range(54, 58):  # nobody asks any more
                await publisher.publish(filled(SHAPES, number))
            await has_objects(1, 0, 0)
        await has_objects(0, 0, 0)
        async with ma.WeightPublisher(spread=False) as publisher:
            await generators.subscribe.call(publisher, SHAPES)
            await generators.update.call()
            await publisher.publish(filled(SHAPES, 1))
            assert await objects() == [1, 0, 0]
            assert list(await generators.update.call()) == [(1, 1.0, 1.0)] * 2
        await has_objects(0, 0, 0)


async def test_the_host_of_the_publisher_is_lost() -> None:
    """Who waits is told so, and keeps what it has; other publishers' subscribers there are not missed."""
    async with ma.local_hosts(2) as hosts:
        async with ma.supervise(ma.ignore):
            procs = await hosts.spawn_procs({"gpus": 1})
            learners = await procs.spawn("learners", Learner, SHAPES)
            generators = await procs.spawn("generators", Generator)
            publisher = await learners.at(1).reference.call_one()
            await learners.at(1).train.call_one()
            await learners.at(1).publish.call_one()
            mine = ma.WeightPublisher("mine")
            await mine.publish(filled(SHAPES, 1))
            await generators.at(1).subscribe.call_one(mine, SHAPES)
            await generators.at(1).update.call_one()
            stayed = generators.at(0)
            await stayed.subscribe.call_one(publisher, SHAPES)
            assert await stayed.update.call_one() == (1, 1.0, 1.0)
            waiting = stayed.wait_newer.call_one()
            await stayed.look.call_one()
            agent = active_domain().hosts[1].id << 32
            os.kill((await active_domain().requests.ask(agent, "status"))["pid"], signal.SIGKILL)
            async with asyncio.timeout(10):
                with pytest.raises(ma.HostLost):
                    await waiting
                with pytest.raises(ma.HostLost):
                    await stayed.update.call_one()
                assert await stayed.look.call_one() == (1, 1.0, 1.0)
                assert await mine.publish(filled(SHAPES, 2)) == 2
                await stayed.subscribe.call_one(mine, SHAPES)
                assert await stayed.update.call_one() == (2, 2.0, 2.0)


async def test_without_hosts() -> None:
    async with ma.local_hosts():
        publisher = ma.WeightPublisher()
        subscriber = ma.WeightSubscriber(publisher)
    await publisher.aclose()
    with pytest.raises(ma.Closed):
        ma.WeightPublisher()
    with pytest.raises(ma.Closed):
        await subscriber.update({})
