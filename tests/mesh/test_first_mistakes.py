"""What is written in the first hour: blocks that are not entered, awaits that are missing, words of other libraries."""

import asyncio
from typing import Any

import pytest

import monarch_async as ma
from monarch_async.mesh.domain import active_domain

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Echo(ma.Actor):
    def __init__(self, size: int = 1) -> None: ...

    @ma.endpoint
    async def echo(self, x: int) -> int:
        return x


async def test_hosts_whose_block_was_not_entered(hosts: ma.HostMesh) -> None:
    forgotten: Any = ma.local_hosts(2)
    with pytest.raises(AttributeError, match=r"spawn_procs: enter the block .*async with ma\.local_hosts\(\.\.\.\) as"):
        forgotten.spawn_procs()
    with pytest.raises(TypeError, match=r"async with ma\.local_hosts\(\.\.\.\) as hosts"):
        await forgotten
    attached: Any = ma.attach("tcp://127.0.0.1:1", token="x")
    with pytest.raises(AttributeError, match=r"async with ma\.attach\(\.\.\.\) as hosts"):
        attached.status()
    assert not hasattr(forgotten, "__nothing__")


async def test_a_placement_that_was_not_awaited(hosts: ma.HostMesh) -> None:
    request: Any = ma.cluster().place(ma.Demand([ma.Bundle(cpus=0)], name="small"))
    with pytest.raises(AttributeError, match="spawn_procs: small is not placed yet: await it, or enter its block"):
        request.spawn_procs()
    await (await request).release()


async def test_a_result_that_was_not_awaited(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs()
    echo = await procs.spawn("echo", Echo)
    pending: Any = echo.echo.call(1)
    with pytest.raises(AttributeError, match=r"values: echo\.echo is on its way: await it"):
        pending.values()
    assert (await pending).values() == (1,)
    await procs.stop()


async def test_adverbs_of_other_libraries(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs()
    echo: Any = await procs.spawn("echo", Echo)
    with pytest.raises(AttributeError, match=r"echo\.echo has no \.remote: say how: \.call, \.call_one"):
        echo.echo.remote(1)
    assert not hasattr(echo.echo, "__nothing__")
    await procs.stop()


@pytest.mark.slow
async def test_a_host_is_called_by_its_name(hosts: ma.HostMesh) -> None:
    cluster = ma.cluster()
    with pytest.raises(ma.BadCall, match=r"drain: no host 'nope'; there are: host0"):
        await cluster.drain("nope")
    with pytest.raises(ma.BadCall, match=r"leave: 7: expected a host, its name, or a mesh of hosts"):
        await cluster.leave(7)  # type: ignore[arg-type]
    (more,) = (await cluster.grow(1)).hosts
    async with asyncio.timeout(10):
        await cluster.drain(more.name)
    assert more.name not in [host.name for host in cluster.hosts.hosts]


async def test_resources_of_replicas_are_no_arguments_of_the_actor(hosts: ma.HostMesh) -> None:
    with pytest.raises(ma.BadCall, match=r"unexpected keyword argument 'gpus'.*bundle=ma\.Bundle\(gpus=\.\.\.\)"):
        async with ma.ActorPool(Echo, gpus=2):
            pass


@pytest.mark.filterwarnings("error")
async def test_a_request_that_nobody_awaits_is_no_coroutine_that_was_forgotten(hosts: ma.HostMesh) -> None:
    domain = active_domain()
    asked = domain.requests.send(hosts.hosts[0].id << 32, "status")
    del asked
