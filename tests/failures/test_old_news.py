"""The news of one death comes twice: to all who sent to a proc, and as the answer to what they send to it later."""

import asyncio
import os
import signal
from typing import Any

import pytest
from families import Child

import monarch_async as ma
from monarch_async.control.worker import Exit
from monarch_async.mesh.domain import active_domain


async def test_an_old_death_is_not_that_of_the_proc_made_anew() -> None:
    told: list[Exit] = []
    async with ma.local_hosts() as hosts, ma.supervise(ma.restart(times=1, backoff=0)):
        controller: Any = active_domain().controller  # type: ignore[attr-defined]
        controller.on_gone.append(told.append)
        procs = await hosts.spawn_procs(name="kids")
        mesh = await procs.spawn("children", Child)
        first = await mesh.pid.call_one()
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ma.ProcDied):
            await mesh.wait.call_one()
        await procs.restart(0)
        pid = await mesh.pid.call_one()
        pending = mesh.pid.call_one()
        controller._exited(told[0], 0)
        assert await pending == pid != first
        assert await mesh.counted.call_one() == 1
        assert len(told) == 1


async def test_what_was_sent_to_the_dead_one_fails_when_it_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer comes when that is old news."""
    async with ma.local_hosts() as hosts, ma.supervise(ma.ignore):
        procs = await hosts.spawn_procs(name="kids")
        mesh = await procs.spawn("children", Child)
        os.kill(await mesh.pid.call_one(), signal.SIGKILL)
        with pytest.raises(ma.ProcDied):
            await mesh.wait.call_one()
        sent = mesh.wait.call_one()
        restart = asyncio.ensure_future(procs.restart(0))
        async with asyncio.timeout(10):
            with pytest.raises(ma.ProcDied):
                await sent
        await restart
        assert await mesh.counted.call_one() == 1


async def test_what_dies_in_the_turn_in_which_its_block_ends_is_no_failure() -> None:
    async with ma.local_hosts() as hosts:
        controller: Any = active_domain().controller  # type: ignore[attr-defined]
        async with ma.supervise(ma.ignore):
            procs = await hosts.spawn_procs(name="kids")
            mesh = await procs.spawn("children", Child)
            pid = await mesh.pid.call_one()
            died = Exit(procs.addresses[0], "kids[0]", "host0", signal=9, pid=pid)
            asyncio.get_running_loop().call_soon(controller._exited, died, 0)
        await asyncio.sleep(0)


async def test_what_a_policy_was_asked_about_when_its_block_ended_is_no_failure() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def policy(failure: object) -> bool:
        asked.set()
        await go_on.wait()
        return False

    async with ma.local_hosts() as hosts:
        async with ma.supervise(policy):
            mesh = await (await hosts.spawn_procs(name="kids")).spawn("children", Child)
            os.kill(await mesh.pid.call_one(), signal.SIGKILL)
            await asked.wait()
        go_on.set()
        await asyncio.sleep(0)
        assert await (await hosts.spawn_procs()).spawn("children", Child)
