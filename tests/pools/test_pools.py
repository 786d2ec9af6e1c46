"""Pools with real processes."""

import asyncio
import contextlib
import os
import pickle
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from pool_actors import Breaking, Caller, Engine, Keeper

import monarch_async as ma
from monarch_async.mesh.actor_mesh import ActorMesh
from monarch_async.pools.elastic import Elastic

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def wait_until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def _of(waiting: Generator[Any, None, Any]) -> Any:
    class Waiting:
        def __await__(self) -> Generator[Any, None, Any]:
            return waiting

    return await Waiting()


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def test_calls_are_spread_over_the_replicas(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine, min=2, max=2) as pool:
        assert len(pool.replicas) == 2
        pids = [await pool.pid.call_one() for _ in range(4)]
        assert len(set(pids)) == 2
        async with pool.lease() as one, pool.lease() as other:
            assert await one.pid.call_one() != await other.pid.call_one()
        assert [number async for number in pool.count.stream_one(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(KeyError):
            await pool.fail.call_one()
        status = await pool.status()
        assert [replica.stage for replica in status.replicas] == ["up", "up"]
        assert "pool Engine: 0 waiting" in str(status)


async def test_a_key_goes_to_the_same_replica(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine, min=2, max=2) as pool:
        pids = [await pool.sticky("a").pid.call_one() for _ in range(4)]
        assert len(set(pids)) == 1
        async with pool.lease(key="b") as replica:
            assert await replica.pid.call_one() not in pids
        with pytest.raises(ma.BadCall, match="key="):
            pool.lease(key=1.5)  # type: ignore[arg-type]
        with pytest.raises(ma.NotAnEndpoint):
            pool.fly  # noqa: B018


async def test_devices_of_replicas(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine, min=2, max=2, bundle=ma.Bundle(gpus=1), env={"A": "b"}, name="gen") as pool:
        holdings = (await ma.cluster().holdings()).hosts[0].holdings
        assert sorted(holding.held.gpus[0][0] for holding in holdings) == ["3", "5"]
        assert {holding.name for holding in holdings} == {"gen"}
        assert len(pool.replicas) == 2


async def test_it_grows_while_somebody_waits_and_shrinks_when_idle(hosts: ma.HostMesh, tmp_path: Path) -> None:
    async with ma.ActorPool(Engine, max=3, concurrency=1, scale_up_after=0.01, idle=0.1) as pool:
        held = [asyncio.ensure_future(pool.hold.call_one(str(tmp_path), str(n))) for n in range(4)]
        await wait_until(lambda: len(list(tmp_path.iterdir())) == 3)
        assert (await pool.status()).waiting == 1
        assert len({text(path) for path in tmp_path.iterdir()}) == 3
        running = {path.name for path in tmp_path.iterdir()}
        for name in running:
            for replica in pool.replicas:
                await replica.go_on.call_one(name)
        await wait_until(lambda: len(list(tmp_path.iterdir())) == 4)
        for replica in pool.replicas:
            await replica.go_on.call_one(({"0", "1", "2", "3"} - running).pop())
        assert len(set(await asyncio.gather(*held))) == 3
        await wait_until(lambda: len(pool.replicas) == 1)


async def test_a_drained_replica_ends_when_its_leases_have(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine, min=1, max=2) as pool:
        async with pool.lease() as replica:
            first = await replica.pid.call_one()
            draining = asyncio.ensure_future(pool.drain(replica))
            await wait_until(lambda: len(pool.replicas) == 1 and pool.replicas[0] is not replica)
            assert await replica.pid.call_one() == first
            assert not draining.done()
            assert await pool.pid.call_one() != first
        await draining
        with pytest.raises(ma.ProcDied):
            await replica.pid.call_one()
        with pytest.raises(ma.Closed, match="it has ended"):
            await pool.drain(replica)


async def test_a_dead_replica_is_replaced_and_its_calls_fail(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine, backoff=0.01) as pool:
        first = await pool.pid.call_one()
        with pytest.raises(ma.ProcDied):
            await pool.crash.call_one()
        assert await pool.pid.call_one() != first
        status = await pool.status()
        assert "killed by SIGKILL" in status.cause


async def test_what_keeps_it_from_starting_is_raised(hosts: ma.HostMesh, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such model"):
        async with ma.ActorPool(Engine, str(tmp_path), fails=1):
            raise AssertionError
    with pytest.raises(ma.Unschedulable, match="needs 3 gpus on one host"):
        async with ma.ActorPool(Engine, bundle=ma.Bundle(gpus=3)):
            raise AssertionError


async def test_a_pool_of_none_tells_who_asks_that_there_is_no_room(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine, min=0, bundle=ma.Bundle(gpus=3)) as pool:
        with pytest.raises(ma.Unschedulable):
            await pool.pid.call_one()


async def test_a_pool_of_none_starts_one_when_asked(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine, min=0) as pool:
        assert not pool.replicas
        assert await pool.pid.call_one() > 0


async def test_it_gives_up_and_says_why(hosts: ma.HostMesh, tmp_path: Path) -> None:
    with pytest.raises(ma.Closed, match=r"3 replicas failed one after the other; the last: .*broken the 3\. time") as e:
        async with ma.supervise(ma.escalate):
            async with ma.ActorPool(Breaking, str(tmp_path), failures=3, backoff=0.01) as pool:
                with pytest.raises(ma.ProcDied):
                    await pool.crash.call_one()
                await asyncio.Event().wait()
    assert isinstance(e.value.__cause__, ValueError)


async def test_who_waits_is_told_when_it_gives_up(hosts: ma.HostMesh, tmp_path: Path) -> None:
    async with ma.ActorPool(Breaking, str(tmp_path), failures=2, backoff=0.01) as pool:
        with pytest.raises(ma.ProcDied):
            await pool.crash.call_one()
        with pytest.raises(ma.Closed, match="2 replicas failed one after the other"):
            await pool.crash.call_one()
        with pytest.raises(ma.Closed, match="2 replicas failed one after the other"):
            await pool.crash.call_one()


async def test_a_cancelled_caller_holds_nothing(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine, max=1, concurrency=1) as pool:
        async with pool.lease():
            waiting = asyncio.ensure_future(pool.pid.call_one())
            await asyncio.sleep(0)
            assert (await pool.status()).waiting == 1
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await pool.status()).waiting == 0
        assert await pool.pid.call_one() > 0


async def test_who_waits_when_the_block_ends_is_told(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine, max=1, concurrency=1) as pool:
        async with pool.lease():
            waiting = asyncio.ensure_future(pool.pid.call_one())
            await asyncio.sleep(0)
            await pool.__aexit__(None, None, None)
            with pytest.raises(ma.Closed, match="pool Engine is closed: its block has ended"):
                await waiting
    with pytest.raises(ma.Closed):
        await pool.pid.call_one()
    with pytest.raises(ma.Closed, match="enter its block first"):
        await ma.ActorPool(Engine).pid.call_one()


async def test_arguments_that_make_no_sense(hosts: ma.HostMesh) -> None:
    for wrong in ({"min": -1}, {"max": 0}, {"min": 3, "max": 2}, {"concurrency": 0}, {"idle": "long"}):
        with pytest.raises(ma.BadCall):
            ma.ActorPool(Engine, **wrong)
    with pytest.raises(ma.BadCall, match="a replica has one"):
        ma.ActorPool(Engine, demand=ma.Demand([ma.Bundle()] * 2))
    with pytest.raises(ma.BadEndpoint):
        ma.ActorPool(int)


# -- from other processes ----------------------------------------------------------------------------------------------


async def test_others_lease_through_the_process_that_has_it(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine, min=2, max=2) as pool:
        procs = hosts.spawn_procs({"gpus": 2})
        callers = procs.spawn("callers", Caller, pool)
        pids = [pid for _, pid in (await callers.pid_of.call("a")).items()]
        assert pids[0] == pids[1] == await pool.sticky("a").pid.call_one()
        one = callers.slice(gpus=0)
        assert await one.numbers.call_one() == [0, 1, 2, 3]
        assert "pool Engine" in await one.table.call_one()
        gone = await one.drain_one.call_one()
        assert all([await replica.pid.call_one() != gone for replica in pool.replicas])
        await procs.stop()


async def test_the_leases_of_a_dead_process_end(hosts: ma.HostMesh, tmp_path: Path) -> None:
    async with ma.ActorPool(Engine, max=1, concurrency=1) as pool:
        with_lease, waiting = tmp_path / "lease", tmp_path / "waiting"
        async with ma.supervise(ma.ignore):
            procs = hosts.spawn_procs({"gpus": 2})
            callers = procs.spawn("callers", Caller, pool)
            keeping = callers.slice(gpus=0).keep.call_one(str(with_lease))
            await wait_until(lambda: text(with_lease))
            asking = callers.slice(gpus=1).ask.call_one(str(waiting))
            await wait_until(lambda: text(waiting))
            os.kill(await callers.slice(gpus=0).pid.call_one(), signal.SIGKILL)
            with pytest.raises(ma.ProcDied):
                await keeping
            await asking
            assert text(waiting) == "has it"
            assert await pool.pid.call_one() > 0


async def test_a_remote_caller_that_is_cancelled_gives_its_lease_back(hosts: ma.HostMesh, tmp_path: Path) -> None:
    async with ma.ActorPool(Engine, max=1, concurrency=1) as pool:
        procs = hosts.spawn_procs()
        caller = procs.spawn("caller", Caller, pool)
        keeping = caller.keep.call_one(str(tmp_path / "lease"))
        await wait_until(lambda: text(tmp_path / "lease"))
        asking = caller.ask.call_one(str(tmp_path / "waiting"))
        await wait_until(lambda: text(tmp_path / "waiting"))
        for call in (asking, keeping):
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert await pool.pid.call_one() > 0
        assert (await pool.status()).waiting == 0
        assert await caller.unanswered.call_one() == 0
        await procs.stop()


async def test_a_replica_that_dies_just_as_it_is_up_is_none(
    hosts: ma.HostMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited = ActorMesh.__await__

    async def up_then_dead(mesh: Any) -> Any:
        await _of(awaited(mesh))
        with pytest.raises(ma.ProcDied):
            await mesh.crash.call_one()
        return mesh

    async with ma.ActorPool(Engine, backoff=0.01) as pool:
        monkeypatch.setattr(ActorMesh, "__await__", lambda mesh: up_then_dead(mesh).__await__())
        with pytest.raises(ma.ProcDied):
            await pool.crash.call_one()
        async with asyncio.timeout(10):
            while (await pool.status()).failures < 2:
                await asyncio.sleep(0.005)
        monkeypatch.undo()
        assert await pool.pid.call_one() > 0


async def test_what_becomes_due_while_it_is_decided_is_due(hosts: ma.HostMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that ended between what was decided and the asking for the next tick had no tick, and no replica came."""
    handle, next_tick = Elastic.handle, Elastic.next_tick
    times: list[float] = []

    def handled(state: Elastic, event: Any, now: float) -> Any:
        times.append(now)
        return handle(state, event, now)

    def asked(state: Elastic, now: float) -> float | None:
        assert now in times
        return next_tick(state, now)

    monkeypatch.setattr(Elastic, "handle", handled)
    monkeypatch.setattr(Elastic, "next_tick", asked)
    async with ma.ActorPool(Engine, backoff=0.01) as pool:
        with pytest.raises(ma.ProcDied):
            await pool.crash.call_one()
        assert await pool.pid.call_one() > 0
    assert len(times) > 5


async def test_a_pool_of_an_actor_ends_with_it(hosts: ma.HostMesh, tmp_path: Path) -> None:
    procs = hosts.spawn_procs()
    keeper: Any = procs.spawn("keeper", Keeper)
    owning = keeper.own.call_one(str(tmp_path / "pid"))
    await wait_until(lambda: text(tmp_path / "pid"))
    pid = int(text(tmp_path / "pid"))
    await procs.stop()
    with pytest.raises(ma.ActorDied):
        await owning
    await wait_until(lambda: not Path(f"/proc/{pid}").exists())


async def test_a_pool_of_an_actor_is_used_from_elsewhere(hosts: ma.HostMesh) -> None:
    from pool_actors import Borrower

    procs = hosts.spawn_procs({"gpus": 2})
    keeper: Any = procs.slice(gpus=0).spawn("keeper", Keeper)
    borrower: Any = procs.slice(gpus=1).spawn("borrower", Borrower)
    assert await keeper.pool_for.call_one(borrower) > 0
    await procs.stop()


async def test_a_pool_comes_back_as_itself_and_once_it_has_ended_says_so(hosts: ma.HostMesh) -> None:
    async with ma.ActorPool(Engine) as pool:
        pickled = pickle.dumps(pool)
        assert pickle.loads(pickled) is pool
    for attempt in (pickle.loads(pickled).pid.call_one(), pool.pid.call_one(), pickle.loads(pickled).status()):
        with pytest.raises(ma.Closed, match="pool Engine is closed: its block has ended"):
            await attempt


async def test_replicas_within_a_placement_that_ends_are_none_any_more(hosts: ma.HostMesh) -> None:
    outer = await ma.cluster().place(ma.Demand([ma.Bundle(cpus=2)], name="outer"))
    demand = ma.Demand([ma.Bundle()], within=(outer.id, 0))
    async with ma.ActorPool(Engine, demand=demand, backoff=0.01) as pool:
        assert await pool.pid.call_one() > 0
        await outer.release()
        with pytest.raises(ma.Unschedulable, match="is not there"):
            async with asyncio.timeout(10):
                while True:
                    with contextlib.suppress(ma.ProcDied):
                        await pool.pid.call_one()
