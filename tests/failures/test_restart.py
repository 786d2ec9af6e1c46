"""Members made anew: the state is fresh, the references hold, the others notice nothing."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import pytest_asyncio
from families import Child, Parent
from shapes import FromFile

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def children(hosts: ma.HostMesh) -> tuple[ma.ProcMesh, Child]:
    procs = await hosts.spawn_procs({"gpus": 3}, name="kids")
    return procs, await procs.spawn("children", Child)


async def test_an_actor_is_restarted_in_its_proc(children: tuple[ma.ProcMesh, Child]) -> None:
    procs, mesh = children
    pids = await mesh.pid.call()
    assert list(await mesh.counted.call()) == [1, 1, 1]
    waiting = mesh.at(1).wait.call_one()
    await mesh.restart(1)
    with pytest.raises(ma.ActorDied, match=r"actor children\[1\] on host0 died: it is restarted"):
        await waiting
    assert list(await mesh.counted.call()) == [2, 1, 2]
    assert list(await mesh.pid.call()) == list(pids)
    await procs.stop()


async def test_a_proc_is_restarted_with_its_actors(hosts: ma.HostMesh, children: tuple[ma.ProcMesh, Child]) -> None:
    procs, mesh = children
    more = await procs.spawn("more", Child)
    elsewhere = await (await hosts.spawn_procs()).spawn("elsewhere", Parent)
    pids = await mesh.pid.call()
    assert list(await mesh.counted.call()) == list(await more.counted.call()) == [1, 1, 1]
    waiting = mesh.at(2).wait.call_one()
    await procs.restart(2)
    with pytest.raises(ma.Lost, match="died: it is restarted"):
        await waiting
    after = await mesh.pid.call()
    assert [old == new for old, new in zip(pids, after, strict=True)] == [True, True, False]
    assert list(await mesh.counted.call()) == list(await more.counted.call()) == [2, 2, 1]
    # a reference that another proc holds, from before and after
    with pytest.raises(ValueError, match="the root cause") as info:
        await elsewhere.call_on.call_one(mesh.at(2), "fail")
    assert isinstance(info.value.__cause__, ma.RemoteError)
    assert info.value.__cause__.actor == "children[2]"
    await procs.stop()


async def test_a_dead_proc_comes_back(hosts: ma.HostMesh, children: tuple[ma.ProcMesh, Child]) -> None:
    procs, mesh = children
    elsewhere = await (await hosts.spawn_procs()).spawn("elsewhere", Parent)
    assert await elsewhere.call_on.call_one(mesh.at(0), "counted") == 1
    waiting = mesh.at(0).wait.call_one()
    os.kill(await mesh.at(0).pid.call_one(), signal.SIGKILL)
    with pytest.raises(ma.ProcDied):
        await waiting
    with pytest.raises(ma.ProcDied):
        await elsewhere.call_on.call_one(mesh.at(0), "counted")
    await mesh.restart(0)  # of the actors: it needs its proc
    assert await elsewhere.call_on.call_one(mesh.at(0), "counted") == 1
    assert await mesh.at(0).counted.call_one() == 2
    # and dies like any other
    waiting = mesh.at(0).wait.call_one()
    os.kill(await mesh.at(0).pid.call_one(), signal.SIGKILL)
    with pytest.raises(ma.ProcDied):
        await waiting
    await procs.restart(0)
    assert await mesh.at(0).counted.call_one() == 1
    await procs.stop()


async def test_a_dead_proc_comes_back_after_all_others_were_stopped(children: tuple[ma.ProcMesh, Child]) -> None:
    procs, mesh = children
    waiting = mesh.at(2).wait.call_one()
    os.kill(await mesh.at(2).pid.call_one(), signal.SIGKILL)
    with pytest.raises(ma.ProcDied):
        await waiting
    await procs.slice(gpus=slice(0, 2)).stop()
    await procs.restart(2)
    assert await mesh.at(2).counted.call_one() == 1
    await procs.stop()
    with pytest.raises(ma.Closed):
        await procs.restart(2)


async def test_ranks_are_those_of_the_slice(children: tuple[ma.ProcMesh, Child]) -> None:
    procs, mesh = children
    await mesh.counted.call()
    await mesh.slice(gpus=slice(1, 3)).restart(1)
    assert list(await mesh.counted.call()) == [2, 2, 1]
    with pytest.raises(ma.RankError):
        await mesh.restart(3)
    await procs.stop()
    with pytest.raises(ma.Closed, match="proc mesh kids is closed: it was stopped"):
        await procs.restart(0)


async def test_restarts_of_one_member_at_a_time(children: tuple[ma.ProcMesh, Child]) -> None:
    procs, mesh = children
    pid = await mesh.at(1).pid.call_one()
    await asyncio.gather(*[procs.restart(1) for _ in range(5)])
    assert await mesh.at(1).counted.call_one() == 1
    assert await mesh.at(1).pid.call_one() != pid
    await asyncio.gather(*[mesh.restart(1) for _ in range(5)])
    assert await mesh.at(1).counted.call_one() == 1
    await procs.stop()


async def test_an_actor_that_fails_to_come_up_again(hosts: ma.HostMesh, tmp_path: Path) -> None:
    procs = await hosts.spawn_procs({"gpus": 2})
    flag = tmp_path / "flag"
    mesh = await procs.spawn("loaders", FromFile, str(flag))
    flag.touch()
    for restart in (mesh.restart, procs.restart):
        with pytest.raises(OSError, match="is there") as info:
            await restart(1)
        assert isinstance(info.value, ma.RemoteError)
        assert (info.value.actor, info.value.endpoint) == ("loaders[1]", "__init__")
        with pytest.raises(ma.ActorDied, match="its __init__ raised OSError"):
            await mesh.at(1).pid.call_one()
    flag.unlink()
    await mesh.restart(1)
    assert await mesh.at(1).pid.call_one() != await mesh.at(0).pid.call_one()
    await procs.stop()


async def test_what_a_restarted_actor_had_spawned_is_gone(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs()
    parents = await procs.spawn("parents", Parent)
    await parents.spawn.call_one()
    pids = await parents.child_pids.call_one()
    await parents.restart(0)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    await parents.spawn.call_one()
    assert await parents.child_pids.call_one() != pids
    await procs.stop()


async def test_only_who_spawned_may_restart(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs()
    parents = await procs.spawn("parents", Parent)
    children = await parents.spawn.call_one()
    with pytest.raises(ma.Closed, match="only the process that spawned a mesh can restart it"):
        await children.restart(0)
    await procs.stop()
