"""Tasks on real workers: what goes in, what comes out, where it runs."""

import asyncio
import functools
import os
from pathlib import Path

import pytest
from task_functions import (
    Adder,
    add,
    add_later,
    count_known,
    describe,
    die_times,
    environment,
    fail,
    fail_times,
    hold,
    size_and_host,
    sum_named,
    unpicklable,
    where,
    where_async,
)
from task_waits import wait_given_back, wait_noted

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_results(hosts: ma.HostMesh) -> None:
    outside = 10
    local = {
        ma.submit(add, 1): 2,
        ma.submit(add, 1, right=5): 6,
        ma.submit(add_later, 2, right=2): 4,
        ma.submit(functools.partial(add, right=7), 1): 8,
        ma.submit(functools.partial(add_later, right=7), 1): 8,
        ma.submit(Adder(3), 1): 4,
        ma.submit(Adder(4).later, 1): 5,
        ma.submit(lambda left: left + outside, 1): 11,
    }
    assert await asyncio.gather(*local) == list(local.values())


async def test_what_has_a_state_is_sent_as_it_is_now(hosts: ma.HostMesh) -> None:
    """It was pickled once, and then called with what it had been."""
    adder, named = Adder(3), {"right": 5}
    partial = functools.partial(sum_named, named)
    scheduled = ma.task(adder)
    assert [await ma.submit(adder, 1), await scheduled.submit(1), await ma.submit(partial, 1)] == [4, 4, 6]
    adder.right, named["right"] = 30, 50
    assert [await ma.submit(adder, 1), await scheduled.submit(1), await ma.submit(partial, 1)] == [31, 31, 51]
    assert [result async for result in ma.map_unordered(adder, [1], limit=1)] == [31]


async def test_workers_forget_functions_that_were_not_called_for_long(
    hosts: ma.HostMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that makes closures made its workers grow for ever."""
    monkeypatch.setattr("monarch_async.tasks.warm_worker.MOST_KNOWN", 3)
    first = functools.partial(add, right=1000)
    for right in range(10):
        assert await ma.submit(functools.partial(add, right=right), 1) == right + 1
        assert await ma.submit(first, 1) == 1001
    assert await ma.submit(functools.partial(add, right=0), 1) == 1
    assert await ma.submit(count_known) <= 3


async def test_functions_run_on_a_thread_and_coroutines_on_the_loop(hosts: ma.HostMesh) -> None:
    (_, pid, thread), (_, _, loop) = await asyncio.gather(ma.submit(where), ma.submit(where_async))
    assert thread == "actor tasks" and loop == "MainThread" and pid != os.getpid()


async def test_workers_are_kept_warm_and_then_given_back(hosts: ma.HostMesh) -> None:
    first = await ma.submit(where)
    assert await ma.submit(where) == first
    await wait_given_back()
    assert (await ma.submit(where))[1] != first[1]


async def test_what_a_function_raises(hosts: ma.HostMesh) -> None:
    with pytest.raises(ValueError, match="no good") as info:
        await ma.submit(fail, "no good")
    error = info.value
    assert isinstance(error, ma.RemoteError)
    assert str(error).startswith("task.fail on host") and "raised ValueError: no good" in str(error)
    assert "raise ValueError(text)" in error.traceback and "runner.py" not in error.traceback
    with pytest.raises(ma.PicklingError, match=r"result\['lock'\] of task unpicklable"):
        await ma.submit(unpicklable)
    with pytest.raises(ma.PicklingError, match=r"argument args\[0\] of task describe"):
        ma.submit(describe, asyncio.get_running_loop())


async def test_errors_of_the_caller_are_said_at_once(hosts: ma.HostMesh) -> None:
    with pytest.raises(ma.BadDemand, match="cpus=-1"):
        ma.submit(add, 1, cpus=-1)
    with pytest.raises(ma.BadDemand, match="retries=-1"):
        ma.submit(add, 1, retries=-1)
    with pytest.raises(ma.BadDemand, match="gpu= of a task"):
        ma.task(add, gpu=1)  # type: ignore[call-arg]
    with pytest.raises(ma.BadCall, match="is no function"):
        ma.submit(3, 1)  # type: ignore[arg-type]
    with pytest.raises(ma.BadCall, match="task add: it has no argument 'num_cpus', and there is no such option"):
        ma.submit(add, 1, 2, num_cpus=1)
    with pytest.raises(ma.BadCall, match="a plain generator cannot stream"):
        ma.submit(eval("lambda: (yield)"))
    with pytest.raises(ma.BadCall, match="cwd"):
        ma.submit(add, 1, cwd="")


async def test_what_no_host_has(hosts: ma.HostMesh) -> None:
    with pytest.raises(ma.Unschedulable, match="gpus"):
        await ma.submit(add, 1, gpus=2)
    with pytest.raises(ma.Unschedulable):
        await asyncio.gather(*[ma.submit(add, 1, labels={"kind": "none"}) for _ in range(3)])


async def test_a_task_has_its_options_apart_from_arguments(hosts: ma.HostMesh) -> None:
    @ma.task(env={"COLOUR": "red"})
    def show(name: str, env: str) -> tuple[str, str | None]:
        return f"{name} {env}", os.environ.get("COLOUR")

    assert show("called", env="here") == ("called here", None)
    assert await show.submit("run", env="there") == ("run there", "red")
    assert await show.options(env={"COLOUR": "blue"}).submit("run", env="there") == ("run there", "blue")


async def test_environment_and_folder(hosts: ma.HostMesh, tmp_path: Path) -> None:
    shown = await ma.submit(environment, "COLOUR", "SHAPE", env={"COLOUR": "red"}, cwd=str(tmp_path))
    assert shown == ["red", None, str(tmp_path)]
    assert await ma.submit(environment, "COLOUR") == [None, os.getcwd()]


async def test_devices(hosts: ma.HostMesh) -> None:
    name = "CUDA_VISIBLE_DEVICES"
    assert (await ma.submit(environment, name, gpus=1))[0] == "7"
    halves = await asyncio.gather(*[ma.submit(environment, name, cpus=0, gpus=0.5) for _ in range(2)])
    assert [half[0] for half in halves] == ["7", "7"]


async def test_affinity(hosts: ma.HostMesh) -> None:
    assert (await ma.submit(where, labels={"kind": "gpu"}))[0] == "host1"
    assert (await ma.submit(where, hosts=["host0"]))[0] == "host0"
    assert (await ma.submit(where, custom={"license": 1}))[0] == "host1"


async def test_as_many_at_once_as_there_are_cpus(hosts: ma.HostMesh, tmp_path: Path) -> None:
    held = [ma.submit(hold, str(tmp_path), 0.2, cpus=2) for _ in range(3)]
    await wait_noted(tmp_path, 2)
    status = ma.task_status()
    (holding,) = [function for function in status.functions if function.name == "hold"]
    assert holding.queued == 1 and {run.host for run in holding.running} == {"host0", "host1"}
    assert "hold" in str(status)
    shown = str(await hosts.status())
    assert "task hold" in shown
    assert len(set(await asyncio.gather(*held))) == 2


async def test_on_a_placement(hosts: ma.HostMesh) -> None:
    demand = ma.Demand([ma.Bundle(cpus=1), ma.Bundle(cpus=1, gpus=1)])
    async with ma.cluster().place(demand) as placement:
        assert (await ma.submit(environment, "CUDA_VISIBLE_DEVICES", placement=placement, bundle=1, gpus=1))[0] == "7"
        assert (await ma.submit(environment, "CUDA_VISIBLE_DEVICES", placement=placement, gpus=1))[0] == "7"
        with pytest.raises(ma.BadDemand, match="has 2, from 0 on"):
            ma.submit(where, placement=placement, bundle=2)
        with pytest.raises(ma.BadDemand, match="large enough"):
            ma.submit(where, placement=placement, cpus=2)


async def test_references_become_values(hosts: ma.HostMesh) -> None:
    ref = await ma.put([1, 2, 3])
    assert await ma.submit(describe, ref, [ref], named=ref) == ["list", "list", "list"]
    assert await ma.submit(describe, [ref][0]) == ["list"]
    assert await ma.submit(lambda inside: type(inside[0]).__name__, [ref]) == "Ref"


async def test_tasks_go_where_their_arguments_are(hosts: ma.HostMesh) -> None:
    for name in ("host1", "host0", "host1"):
        await wait_given_back()  # there is room on both
        ref = await ma.submit(bytes, 2 << 20, hosts=[name], as_ref=True)
        assert await ma.submit(size_and_host, ref, cpus=0.5) == (2 << 20, name)


async def test_results_that_stay_where_they_are(hosts: ma.HostMesh) -> None:
    ref = await ma.submit(add, 1, as_ref=True)
    assert isinstance(ref, ma.Ref) and await ref == 2
    one, two = await ma.submit(lambda: [1, "two"], as_ref=True, returns=2)
    assert isinstance(one, ma.Ref) and isinstance(two, ma.Ref)
    assert [await one, await two] == [1, "two"]
    assert await ma.submit(add, ref) == 3
    with pytest.raises(ma.BadCall, match="returned 2 values, where returns=3"):
        await ma.submit(lambda: (1, 2), returns=3)


async def test_arguments_are_taken_as_they_were(hosts: ma.HostMesh, tmp_path: Path) -> None:
    """What waits in the queue is not changed by what its caller does meanwhile."""
    held = [ma.submit(hold, str(tmp_path), 0.1) for _ in range(4)]
    block = bytearray(b"a" * (128 << 10))
    future = ma.submit(lambda data: (len(data), data[:1]), block)
    block[:] = b"b" * len(block)
    assert await future == (128 << 10, b"a")
    await asyncio.gather(*held)


async def test_errors_worth_another_try(hosts: ma.HostMesh, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("retried", "not", "too-often")]
    for folder in folders:
        folder.mkdir()
    assert await ma.submit(fail_times, str(folders[0]), 2, retry_on=ConnectionError) == 3
    with pytest.raises(ConnectionError, match="try 1"):
        await ma.submit(fail_times, str(folders[1]), 2)
    with pytest.raises(ConnectionError, match="try 2"):
        await ma.submit(fail_times, str(folders[2]), 5, retry_on=(ConnectionError,), retries=1)


async def test_warm_workers_make_room_for_others(hosts: ma.HostMesh) -> None:
    await asyncio.gather(*[ma.submit(add, number) for number in range(50)])
    async with asyncio.timeout(5), ma.cluster().place(ma.Demand([ma.Bundle(cpus=2)] * 2)) as placement:
        assert len(placement.spots) == 2
        waiting = ma.submit(add, 1)
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
    assert await waiting == 2


async def test_warm_workers_of_other_environments_make_room(hosts: ma.HostMesh) -> None:
    """What they hold of the host is the same; all the same it is another worker that is wanted."""
    async with asyncio.timeout(4):  # one without a task is given back after 5 s
        for number in range(8):
            found = await ma.submit(environment, "KIND", cpus=2, env={"KIND": str(number)})
            assert found == [str(number), os.getcwd()]


async def test_two_shapes_take_turns(hosts: ma.HostMesh, tmp_path: Path) -> None:
    """Tasks that need something else get it, though more of the first kind wait than could ever run."""
    many = [ma.submit(hold, str(tmp_path), 0.02) for _ in range(200)]
    async with asyncio.timeout(5):
        assert await ma.submit(environment, "KIND", cpus=2, env={"KIND": "other"}) == ["other", os.getcwd()]
    assert not all(future.done() for future in many)
    for future in many:
        future.cancel()
    await asyncio.wait(many)


async def test_died_and_retried_and_given_back(hosts: ma.HostMesh, tmp_path: Path) -> None:
    assert await ma.submit(die_times, str(tmp_path), 2) == 3
    await wait_given_back()
