"""Tasks that nobody wants any more."""

import asyncio
import time
from pathlib import Path

import pytest
from task_functions import Submitter, add, hold, hold_async, hold_on, pids
from task_waits import wait_given_back, wait_noted, wait_until

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_thousands(hosts: ma.HostMesh, tmp_path: Path) -> None:
    futures = [ma.submit(hold, str(tmp_path)) for _ in range(5000)]
    await wait_noted(tmp_path)
    began = time.monotonic()
    for future in futures:
        future.cancel()
    await asyncio.wait(futures)
    assert time.monotonic() - began < 1
    assert all(future.cancelled() for future in futures)
    assert ma.task_status().functions == ()
    await wait_given_back()


async def test_a_coroutine_sees_it(hosts: ma.HostMesh, tmp_path: Path) -> None:
    future = ma.submit(hold_async, str(tmp_path))
    await wait_noted(tmp_path)
    future.cancel()
    with pytest.raises(asyncio.CancelledError):
        await future
    first, second = pids(tmp_path)
    assert first == second  # it has ended when the future has
    assert await ma.submit(add, 1) == 2


async def test_a_plain_function_is_ended_with_its_worker(hosts: ma.HostMesh, tmp_path: Path) -> None:
    future = ma.submit(hold, str(tmp_path))
    await wait_noted(tmp_path)
    (pid,) = pids(tmp_path)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await future
    await wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert ma.quarantine() == []
    assert await ma.submit(add, 1) == 2


async def test_one_that_ignores_it_is_ended_with_its_worker(hosts: ma.HostMesh, tmp_path: Path) -> None:
    future = ma.submit(hold_on, str(tmp_path))
    await wait_noted(tmp_path)
    future.cancel()
    await asyncio.wait([future])
    assert future.cancelled()
    (pid,) = set(pids(tmp_path))
    assert len(pids(tmp_path)) > 1
    await wait_until(lambda: not Path(f"/proc/{pid}").exists())


async def test_what_an_actor_has_submitted_ends_with_it(hosts: ma.HostMesh, tmp_path: Path) -> None:
    procs = await hosts.slice(hosts=0).spawn_procs()
    submitter = await procs.spawn("submitter", Submitter)
    assert await submitter.add.call_one(4) == 5
    await submitter.leave.call_one(str(tmp_path))
    await wait_noted(tmp_path)
    await submitter.stop()
    await wait_noted(tmp_path, 2)
    await procs.stop()
    await wait_given_back()


async def test_what_a_call_of_an_actor_awaits_is_cancelled_with_it(hosts: ma.HostMesh, tmp_path: Path) -> None:
    async with ma.supervise(ma.escalate):
        procs = await hosts.slice(hosts=0).spawn_procs()
        submitter = await procs.spawn("submitter", Submitter)
        call = submitter.hold.call_one(str(tmp_path))
        await wait_noted(tmp_path)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await wait_noted(tmp_path, 2)
    await wait_given_back()
