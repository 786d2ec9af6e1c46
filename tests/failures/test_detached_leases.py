"""Procs that outlive their client, and the next one that takes them over: real agents, one program after another."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from agents import IMPATIENT, TOKEN, Agent, is_alive, running_agent
from survivor import Counter

import monarch_async as ma

HERE = Path(__file__).parent
CONFIG = replace(IMPATIENT, resume_window=2.0)
Gone = Callable[..., Awaitable[float]]


class Client:
    """Another program, which has detached ``train``: its own pid, and those of its procs."""

    def __init__(self, process: asyncio.subprocess.Process, detached: list[int], plain: list[int]) -> None:
        self.process, self.detached, self.plain = process, detached, plain

    async def do(self, code: str) -> str:
        """Have it await an expression; return what it prints of that."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(code.encode() + b"\n")
        return (await self.process.stdout.readline()).decode().strip()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def leave(self) -> None:
        """Let it end in order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(10):
            assert await self.process.wait() == 0


@contextlib.asynccontextmanager
async def a_client(*urls: str, name: str = "train", config: ma.Config = CONFIG) -> AsyncIterator[Client]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "survivor.py"), *urls, name,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, **config.as_env(), "TOKEN": TOKEN, "PYTHONPATH": str(HERE)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            detached, plain = (await process.stdout.readline()).decode().split("plain")
        yield Client(process, [int(pid) for pid in detached.split()], [int(pid) for pid in plain.split()])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def attached(*agents: Agent, config: ma.Config = CONFIG) -> AsyncIterator[ma.HostMesh]:
    async with ma.attach(*[agent.url for agent in agents], token=TOKEN, config=config) as hosts:
        yield hosts


async def test_procs_outlive_a_client_that_is_killed_and_the_next_one_owns_them(
    wait_gone: Gone, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running_agent(config=CONFIG) as agent:
        async with a_client(agent.url) as client:
            assert await client.do("counters.at(0).add.call_one(1)") == "11"
            assert await client.do("counters.at(1).say_after.call_one(0.3, 'nobody is here')") == "None"
            await client.kill()
            await wait_gone(client.plain, within=5)
            assert all(map(is_alive, client.detached))
            async with attached(agent):
                lease = await ma.cluster().adopt("train", wait=5)
                counters: Counter = lease.actors["counters"]  # type: ignore[assignment]
                assert list(await counters.add.call(1)) == [12, 11] and lease.failures == ()
                assert list(await counters.pid.call()) == client.detached
                await counters.at(0).say.call_one("somebody is")  # type: ignore[attr-defined]
                async with asyncio.timeout(5):
                    said = ""
                    while "somebody is" not in said or "nobody is here" not in said:
                        said += capfd.readouterr().out
                        await asyncio.sleep(0.01)
                assert re.search(r"^\[procs 1\] nobody is here$", said, re.M), said
                await lease.procs.restart(1)
                assert list(await counters.add.call(1)) == [13, 11]
                [row] = await ma.cluster().detached()
                assert (row.owner, row.living, row.gone) == (f"client {os.getpid()}", (0, 1), ())
                assert row.actors == ("counters",)
            left = [pid for pid in client.detached if is_alive(pid)]
            assert len(left) == 1  # the other was restarted: it lives under another pid
            async with attached(agent):
                [row] = await ma.cluster().detached()
                assert row.owner == "" and row.previous_owner == f"client {os.getpid()}" and row.living == (0, 1)
                lease = await ma.cluster().adopt("train")
                await lease.release()
                await wait_gone(client.detached, within=1)
                assert await ma.cluster().detached() == []
                with pytest.raises(ma.NoSuchLease, match="there is none at all"):
                    await ma.cluster().adopt("train")


async def test_they_outlive_one_that_leaves_and_one_block_of_supervision() -> None:
    async with running_agent(config=CONFIG) as agent:
        async with attached(agent) as hosts:
            async with ma.supervise(ma.ignore):
                procs = await hosts.spawn_procs({"gpus": 2}, detached="train")
                counters = await procs.spawn("counters", Counter, 5)
                other = await hosts.spawn_procs(name="other")
            with pytest.raises(ma.Closed):
                other.spawn("late", Counter)
            pids = list(await counters.pid.call())
        assert all(map(is_alive, pids))
        async with attached(agent):
            lease = await ma.cluster().adopt("train")
            assert list(await lease.actors["counters"].add.call(1)) == [6, 6]
            await lease.procs.stop()
            assert await ma.cluster().detached() == []


async def test_a_name_that_is_taken_and_a_lease_that_is_held() -> None:
    async with running_agent(config=CONFIG) as agent, a_client(agent.url) as client, attached(agent) as hosts:
        who = f"client {client.process.pid}"
        with pytest.raises(ma.LeaseHeld, match=f"detached lease 'train' is held by {who}"):
            await hosts.spawn_procs(detached="train")
        with pytest.raises(ma.LeaseHeld, match=f"held by {who}"):
            await ma.cluster().adopt("train", wait=1)
        [row] = await ma.cluster().detached()
        assert (row.name, row.owner, row.away, row.hosts) == ("train", who, 0.0, ("h",)) and who in str(row)
        with pytest.raises(ma.NoSuchLease, match="there are: train"):
            await ma.cluster().adopt("eval")
        await client.kill()
        await agent.wait_said("unowned")
        with pytest.raises(ma.LeaseHeld, match=r"held by nobody: its client .* is gone .*; adopt it, or release it"):
            await hosts.spawn_procs(detached="train")
        lease = await ma.cluster().adopt("train")
        await lease.release()
        procs = await hosts.spawn_procs(detached="train")
        await procs.stop()


async def test_hosts_that_end_with_their_program_keep_nothing(hosts: ma.HostMesh) -> None:
    for bad, words in [("train", "host0 ends with this program, as local_hosts"), ("", "a text of one line")]:
        with pytest.raises(ma.BadCall, match=words):
            hosts.spawn_procs(detached=bad)
