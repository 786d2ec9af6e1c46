"""A worker process ends: who is told, what they are told, how soon."""

import asyncio
import os
import signal
import statistics
import time

import pytest
from victims import Victim

import monarch_async as ma

module_loop = pytest.mark.asyncio(loop_scope="module")

#: The design's figure is 100 ms; tests on a busy machine only rule out timers and polling.
SOON = 1.0


@pytest.mark.parametrize("endpoint", ["exit", "exit_from_thread"])
@module_loop
async def test_an_exit_during_a_call(hosts: ma.HostMesh, endpoint: str) -> None:
    procs = await hosts.spawn_procs({"gpus": 2}, name="trainers")
    victims = await procs.spawn("victims", Victim)
    pids = await victims.pid.call()
    with pytest.raises(ma.ProcDied) as caught:
        await getattr(victims.slice(hosts=0, gpus=1), endpoint).call_one(3)
    died = caught.value
    assert (died.exit_code, died.signal, died.out_of_memory, died.killed_by) == (3, None, False, "")
    assert (died.proc, died.host, died.pid) == ("trainers[1]", "host0", pids[1])
    assert str(died).startswith(f"proc trainers[1] on host0 (pid {pids[1]}) died: exited with status 3")
    if endpoint == "exit":
        assert died.stderr == ("about to exit",)
        assert str(died).endswith("its last lines on stderr:\n  | about to exit")
    assert await victims.slice(hosts=0, gpus=0).echo.call_one(1) == 1
    await procs.stop()


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
@module_loop
async def test_a_signal_during_a_call(hosts: ma.HostMesh, signo: signal.Signals) -> None:
    procs = await hosts.spawn_procs()
    victim = await procs.spawn("victim", Victim)
    with pytest.raises(ma.ProcDied, match=f"killed by {signo.name}") as caught:
        await victim.die_of.call_one(signo)
    assert (caught.value.signal, caught.value.exit_code) == (signo, None)
    await procs.stop()


@module_loop
async def test_a_segmentation_fault(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs()
    victim = await procs.spawn("victim", Victim)
    with pytest.raises(ma.ProcDied, match="killed by SIGSEGV"):
        await victim.segfault.call_one()
    await procs.stop()


@module_loop
async def test_every_pending_call_fails_and_later_ones_at_once(hosts: ma.HostMesh) -> None:
    """Also of the other workers; nobody waits for what is dead."""
    procs = await hosts.spawn_procs({"gpus": 3})
    victims = await procs.spawn("victims", Victim)
    doomed, first, second = (victims.at(rank) for rank in range(3))
    pending = [doomed.wait_forever.call_one() for _ in range(20)]
    mesh_call = victims.wait_forever.call()
    stories = [first.describe_death_of.call_one(doomed), second.describe_death_of.call_one(doomed)]
    stream = doomed.count.stream_one(1 << 40)
    assert await anext(stream) == 0
    await first.echo.call_one(0)  # so that the stories' calls are on their way
    await second.echo.call_one(0)
    await doomed.echo.call_one(0)

    os.kill(await doomed.pid.call_one(), signal.SIGKILL)
    async with asyncio.timeout(5):
        for failed in await asyncio.gather(*pending, mesh_call, return_exceptions=True):
            assert isinstance(failed, ma.ProcDied), failed
            assert failed.signal == signal.SIGKILL
        for story in stories:
            name, text, _ = await story
            assert name == "ProcDied"
            assert "procs[0] on host0" in text
            assert "killed by SIGKILL" in text
        with pytest.raises(ma.ProcDied):
            async for _ in stream:
                pass
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(ma.ProcDied, match="killed by SIGKILL"):
                await doomed.echo.call_one(1)
            assert time.monotonic() - began < SOON
        with pytest.raises(ma.ProcDied, match="killed by SIGKILL"):
            await victims.echo.call(1)
        with pytest.raises(ma.RemoteError, match="killed by SIGKILL") as caught:
            await second.ask.call_one(doomed, "pid")
        assert isinstance(caught.value, ma.ProcDied) or caught.value.type_name.endswith("ProcDied")
    assert await first.echo.call_one(2) == 2
    await procs.stop()


@module_loop
async def test_a_death_is_noticed_soon(hosts: ma.HostMesh) -> None:
    """Here and in another worker (one machine, one clock)."""
    here, there = [], []
    for _ in range(5):
        procs = await hosts.spawn_procs({"gpus": 2})
        victims = await procs.spawn("victims", Victim)
        doomed, witness = victims.at(0), victims.at(1)
        pid = await doomed.pid.call_one()
        story = witness.describe_death_of.call_one(doomed)
        await witness.echo.call_one(0)
        waiting = doomed.wait_forever.call_one()
        await doomed.echo.call_one(0)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ma.ProcDied):
            await waiting
        here.append(time.monotonic() - killed)
        there.append((await story)[2] - killed)
        await procs.stop()
    print(f"noticed after {1e3 * statistics.median(here):.1f} ms here, {1e3 * statistics.median(there):.1f} ms there")
    assert statistics.median(here) < SOON
    assert statistics.median(there) < SOON


@module_loop
async def test_who_killed_it_is_said(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs()
    victim = await procs.spawn("victim", Victim)
    waiting = victim.wait_forever.call_one()
    await victim.echo.call_one(0)
    await procs.kill(signal.SIGKILL)
    with pytest.raises(ma.ProcDied, match=r"killed by SIGKILL \(asked for by client \d+") as caught:
        await waiting
    assert str(os.getpid()) in caught.value.killed_by
    await procs.stop()


@module_loop
async def test_what_was_said_before_the_death_arrives_before_it(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs()
    victim = await procs.spawn("victim", Victim)
    answers = [victim.echo.call_one(n) for n in range(200)]
    end = victim.exit.call_one(1)
    assert await asyncio.gather(*answers) == list(range(200))
    with pytest.raises(ma.ProcDied):
        await end
    await procs.stop()


@module_loop
async def test_nothing_a_dead_proc_started_is_left(hosts: ma.HostMesh, wait_gone) -> None:
    procs = await hosts.spawn_procs()
    victim = await procs.spawn("victim", Victim)
    pids = await victim.grandchildren.call_one()
    with pytest.raises(ma.ProcDied):
        await victim.exit.call_one(1)
    await wait_gone(pids, within=5)
    await procs.stop()
