"""``ma.restart(times, backoff)``, with real deaths."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from families import Child
from shapes import FromFile

import monarch_async as ma


async def test_a_policy_restarts_what_dies_and_what_fails() -> None:
    async with ma.local_hosts() as hosts, ma.supervise(ma.restart(times=3, backoff=0)):
        mesh = await (await hosts.spawn_procs({"gpus": 2})).spawn("children", Child)
        assert list(await mesh.counted.call()) == [1, 1]
        for dies in (mesh.at(1).exit_soon.call_one, mesh.at(1).fail.broadcast):
            await dies()
            async with asyncio.timeout(10):
                while await _count(mesh.at(1)) != 1:
                    await asyncio.sleep(0.001)
        assert await mesh.at(0).counted.call_one() == 2


async def test_a_policy_whose_restarts_are_used_up_lets_the_failure_through() -> None:
    with pytest.raises(ma.ProcDied, match=r"proc kids\[1\]") as info:
        async with ma.local_hosts() as hosts, ma.supervise(ma.restart(times=2, backoff=0)):
            mesh = await (await hosts.spawn_procs({"gpus": 2}, name="kids")).spawn("children", Child)
            for _ in range(2):
                pid = await mesh.at(1).pid.call_one()
                os.kill(pid, signal.SIGKILL)
                async with asyncio.timeout(10):
                    while await _pid(mesh.at(1)) in (pid, None):
                        await asyncio.sleep(0.001)
            await mesh.at(0).exit_soon.call_one()  # another member has restarts of its own
            await mesh.at(1).exit_soon.call_one()
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
    assert info.value.__notes__ == ["not restarted: 2 restarts of this member are used up"]


async def test_a_policy_whose_restarts_fail_says_so(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with pytest.raises(ma.ProcDied, match="killed by SIGKILL") as info:
        async with ma.local_hosts() as hosts, ma.supervise(ma.restart(times=2, backoff=0.01)):
            mesh = await (await hosts.spawn_procs(name="kids")).spawn("loaders", FromFile, str(flag))
            flag.touch()
            os.kill(await mesh.pid.call_one(), signal.SIGKILL)
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
    [note] = info.value.__notes__
    assert note.startswith(
        "not restarted: 2 restarts of this member are used up; the last one failed: "
        "loaders.__init__ on host0 raised OSError: "
    )


async def _count(child: Child) -> int | None:
    try:
        return await child.counted.call_one()
    except ma.Lost:
        return None


async def _pid(child: Child) -> int | None:
    try:
        return await child.pid.call_one()
    except ma.Lost:
        return None


async def test_what_is_stopped_while_it_restarts_does_not_come_back() -> None:
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs({"gpus": 2}, name="kids")
        mesh = await procs.spawn("children", Child)
        restart = asyncio.ensure_future(procs.restart(0))
        await asyncio.sleep(0)  # its request is on its way
        await procs.stop()
        with pytest.raises((ma.Closed, asyncio.CancelledError)):
            await restart
        with pytest.raises(ma.Closed):
            await procs.restart(0)
        with pytest.raises(ma.Lost):
            await mesh.at(0).pid.call_one()
