"""Workers that end while they run a task, before it, and after it."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from task_functions import add, die_times, hold, note, pids, square_slowly
from task_waits import wait_given_back, wait_noted

import monarch_async as ma
from monarch_async.ids import agent_of, proc_of
from monarch_async.tasks.pool import active_pool

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_death_is_tried_elsewhere(hosts: ma.HostMesh, tmp_path: Path) -> None:
    assert await ma.submit(die_times, str(tmp_path), 2) == 3
    assert len(set(pids(tmp_path))) == 3


async def test_without_retries_the_death_is_the_error(hosts: ma.HostMesh, tmp_path: Path) -> None:
    with pytest.raises(ma.ProcDied, match="killed by SIGKILL") as info:
        await ma.submit(die_times, str(tmp_path), 5, retries=0)
    assert info.value.pid in pids(tmp_path)
    with pytest.raises(ma.ProcDied, match="killed by SIGSEGV") as info:
        await ma.submit(die_times, str(tmp_path), 5, signal.SIGSEGV, retries=1, name="fragile")
    assert info.value.__notes__ == ["task fragile had begun 2 times, each time on another worker"]


async def test_poison_is_set_aside(hosts: ma.HostMesh, tmp_path: Path) -> None:
    arguments = str(tmp_path), 100
    with pytest.raises(ma.Poisoned, match=r"task deadly\(.*, 100\) is quarantined: it ended 3 workers") as info:
        await ma.submit(die_times, *arguments, name="deadly", retries=50)
    assert [death.pid for death in info.value.deaths] == pids(tmp_path)  # type: ignore[attr-defined]
    assert info.value.__cause__ is info.value.deaths[-1]
    (entry,) = ma.quarantine()
    assert entry.task == "deadly" and entry.deaths == info.value.deaths and entry.arguments.endswith(", 100)")
    with pytest.raises(ma.Poisoned, match="SIGKILL"):
        ma.submit(die_times, *arguments)
    assert len(pids(tmp_path)) == 3
    other = tmp_path / "other"
    other.mkdir()
    assert await ma.submit(die_times, str(other), 0) == 1  # the same function, with other arguments
    entry.release()
    assert ma.quarantine() == []
    assert await ma.submit(die_times, str(tmp_path), 4) > 4


async def kill_busy() -> None:
    """Have its agent kill the worker that runs a task."""
    pool = active_pool()
    (flight,) = [worker.flight for worker in pool._workers.values() if worker.flight is not None]
    assert flight.worker.path is not None
    address = flight.worker.path.dst
    await pool.domain.requests.ask(agent_of(address), "kill", [proc_of(address)], int(signal.SIGKILL), "a test")


async def test_a_death_that_somebody_asked_for_is_no_poison(hosts: ma.HostMesh, tmp_path: Path) -> None:
    future = ma.submit(hold, str(tmp_path), 0.3, poison=1, retries=5)
    for count in (1, 2, 3):
        await wait_noted(tmp_path, count)
        await kill_busy()
    assert await future == pids(tmp_path)[-1]
    future = ma.submit(hold, str(tmp_path), 30, poison=1, retries=0)
    await wait_noted(tmp_path, 5)
    await kill_busy()
    with pytest.raises(ma.ProcDied, match="a test"):
        await future
    assert ma.quarantine() == []


async def test_a_worker_that_ends_before_its_task_begins(hosts: ma.HostMesh, tmp_path: Path) -> None:
    """It is stopped when the task is sent, and killed before it has read it."""
    pid = await ma.submit(os.getpid)
    os.kill(pid, signal.SIGSTOP)
    future = ma.submit(note, str(tmp_path))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert await future == 1
    assert pids(tmp_path) != [pid]
    assert ma.quarantine() == []


async def test_deaths_before_it_begins_are_no_poison(hosts: ma.HostMesh, tmp_path: Path) -> None:
    """All idle workers are dead, which nobody knows yet."""
    found = set(await asyncio.gather(*[ma.submit(os.getpid) for _ in range(20)]))
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    for worker in active_pool()._workers.values():
        worker.heard_at = 0.0  # long ago
    assert await ma.submit(note, str(tmp_path), poison=1) == 1


async def test_idle_workers_that_end_are_nobodys_failure(hosts: ma.HostMesh) -> None:
    found = set(await asyncio.gather(*[ma.submit(os.getpid) for _ in range(20)]))
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    assert await ma.submit(add, 1) == 2
    await wait_given_back()


async def test_workers_that_cannot_start(hosts: ma.HostMesh, tmp_path: Path) -> None:
    with pytest.raises(ma.SpawnFailed, match="missing"):
        await asyncio.gather(*[ma.submit(add, 1, cwd=str(tmp_path / "missing")) for _ in range(5)])
    await wait_given_back()


@pytest.mark.slow
async def test_many_tasks_while_workers_are_killed(hosts: ma.HostMesh) -> None:
    """Every task ends, in its right value."""
    futures = [ma.submit(square_slowly, number, retries=20, poison=20) for number in range(300)]
    for _ in range(8):
        for pid in (await worker_pids(hosts))[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert await asyncio.gather(*futures) == [number * number for number in range(300)]
    await wait_given_back()


async def worker_pids(hosts: ma.HostMesh) -> list[int]:
    return [proc.pid for host in (await hosts.status()).hosts for proc in host.procs if proc.state == "up"]
