"""Procs that outlive their client, and the next one that takes them over: real agents, one program after another."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from agents import IMPATIENT, TOKEN, Agent, is_alive, running_agent
from survivor import Counter

import monarch_async as ma

pytestmark = pytest.mark.slow  # programs and agents of their own for every test

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


async def test_what_went_wrong_meanwhile_is_put_to_the_next_owners_policies() -> None:
    async with running_agent(config=CONFIG) as agent, a_client(agent.url) as client:
        assert await client.do("counters.at(0).exit_after.call_one(0.5)") == "None"
        assert await client.do("counters.at(1).fail_after.call_one(0.5)") == "None"
        await client.kill()
        await agent.wait_said("unowned")
        await asyncio.sleep(0.3)  # 2 s have passed since
        async with attached(agent):
            [row] = await ma.cluster().detached()
            assert (row.living, row.gone) == ((1,), (0,)) and "1 of 2 procs on h with counters" in str(row)
            asked: list[str] = []

            async def policy(failure: ma.Failure) -> bool:
                asked.append(f"{failure.mesh.name}[{failure.rank}] {type(failure.error).__name__}")
                await failure.mesh.restart(failure.rank)
                return True

            async with ma.supervise(policy):
                lease = await ma.cluster().adopt("train")
                assert asked == ["procs[0] ProcDied", "counters[1] ActorDied"]
                died, failed = lease.failures
                assert "exited with status 5" in str(died.error)
                assert "lost[0], which it spawned, failed" in str(failed.error)
                assert list(await lease.actors["counters"].add.call(0)) == [10, 10]  # made anew, with their arguments
                asked.clear()
                await lease.actors["counters"].at(1).exit_after.call_one(0.0)
                async with asyncio.timeout(5):
                    while not asked:
                        await asyncio.sleep(0.01)
            await lease.release()


async def test_a_failure_from_before_ends_no_program_that_has_no_policy(wait_gone: Gone) -> None:
    async with running_agent(config=CONFIG) as agent, a_client(agent.url) as client:
        await client.do("counters.at(0).exit_after.call_one(0.5)")
        await client.leave()
        await wait_gone(client.detached[:1], within=5)
        async with attached(agent):
            lease = await ma.cluster().adopt("train")
            [failure] = lease.failures
            with pytest.raises(ma.ProcDied, match="exited with status 5"):
                await lease.actors["counters"].at(0).add.call_one(1)
            assert await lease.actors["counters"].at(1).add.call_one(1) == 11
            await lease.procs.restart(failure.rank)
            assert await lease.actors["counters"].at(0).add.call_one(1) == 11
            await lease.release()


async def test_what_they_have_spawned_lives_as_they_do(wait_gone: Gone) -> None:
    async with running_agent(config=CONFIG) as agent, a_client(agent.url) as client:
        child = int(await client.do("counters.at(0).spawn_one.call_one()"))
        await client.leave()
        await agent.wait_said("unowned")
        async with attached(agent):
            lease = await ma.cluster().adopt("train")
            counters: Counter = lease.actors["counters"]  # type: ignore[assignment]
            assert is_alive(child) and await counters.at(0).ask_child.call_one() == 101  # type: ignore[attr-defined]
            young = await counters.at(1).spawn_one.call_one()  # type: ignore[attr-defined]
        assert is_alive(child) and is_alive(young)
        async with attached(agent), ma.supervise(ma.ignore):
            lease = await ma.cluster().adopt("train")
            await lease.actors["counters"].at(0).exit_after.call_one(0.0)
            await wait_gone([child], within=5)
            assert is_alive(young)
            await lease.release()
            await wait_gone([young], within=1)


async def test_two_hosts_one_of_which_is_lost_while_nobody_owns_them() -> None:
    async with running_agent(name="a", config=CONFIG) as a, contextlib.AsyncExitStack() as stack:
        b = await stack.enter_async_context(running_agent(name="b", config=CONFIG))
        async with a_client(a.url, b.url) as client:
            await client.kill()
            await a.wait_said("unowned")
            await b.wait_said("unowned")
            async with attached(a):  # it joins the other one by itself
                lease = await ma.cluster().adopt("train")
                counters: Counter = lease.actors["counters"]  # type: ignore[assignment]
                assert [host.name for host in ma.cluster().hosts.hosts] == ["a", "b"]
                here, there = counters.slice(hosts=0, gpus=0), counters.slice(hosts=1, gpus=0)  # type: ignore[attr-defined]
                assert await here.ask.call_one(there) == 11 and await there.ask.call_one(here) == 11
            await stack.aclose()
            async with attached(a):
                [row] = await ma.cluster().detached()
                assert (row.hosts, row.living, row.gone) == (("a", "b"), (0, 1), (2, 3))
                lease = await ma.cluster().adopt("train")
                assert [(type(f.error).__name__, f.rank) for f in lease.failures] == [("HostLost", 2), ("HostLost", 3)]
                assert list(await lease.actors["counters"].slice(hosts=0).add.call(0)) == [11, 10]
                with pytest.raises(ma.HostLost):
                    await lease.actors["counters"].slice(hosts=1).at(0).add.call_one(1)
                await lease.release()
                assert await ma.cluster().detached() == []


async def test_actors_meet_on_another_host_for_the_first_time_while_nobody_owns_them() -> None:
    """Agents ask clients where others are; without any they know the hosts of the lease."""
    async with running_agent(name="a", config=CONFIG) as a, running_agent(name="b", config=CONFIG) as b:
        async with a_client(a.url, b.url) as client:
            assert await client.do("counters.at(0).ask_after.call_one(0.6, counters.at(2))") == "None"
            await client.leave()
            await a.wait_said("unowned")
            await b.wait_said("unowned")
            async with attached(a, b):
                lease = await ma.cluster().adopt("train", wait=1)
                async with asyncio.timeout(5):
                    while await lease.actors["counters"].at(2).add.call_one(0) != 11:
                        await asyncio.sleep(0.02)
                await lease.release()


async def test_a_client_that_was_frozen_for_too_long_learns_that_it_is_the_owner_no_longer() -> None:
    async with running_agent(config=CONFIG) as agent, a_client(agent.url) as client:
        assert await client.do("hosts.status()") != ""
        client.process.send_signal(signal.SIGSTOP)
        await agent.wait_said("unowned")
        async with attached(agent):
            lease = await ma.cluster().adopt("train")
            client.process.send_signal(signal.SIGCONT)
            words = f"its owner no longer; client {os.getpid()} has adopted it"
            async with asyncio.timeout(20):
                while words not in (said := await client.do("outcome(procs.restart(0))")):
                    assert said.startswith(("HostLost", "NotHolder")), said
            for order in ("procs.stop()", "procs.restart(1)"):
                assert words in await client.do(f"outcome({order})")
            assert list(await lease.actors["counters"].add.call(1)) == [11, 11]
            assert list(await lease.actors["counters"].pid.call()) == client.detached
            await lease.release()


async def test_the_status_shows_them_and_the_shell_releases_them(wait_gone: Gone) -> None:
    async def run(*arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "monarch_async.cli.main", *arguments,
            env={**os.environ, "MONARCH_ASYNC_TOKEN": TOKEN}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    async with running_agent(config=CONFIG) as agent, a_client(agent.url) as client:
        code, said = await run("release", "train", agent.url)
        assert (code, f"held by client {client.process.pid}" in said) == (1, True), said
        await client.leave()
        await agent.wait_said("unowned")
        code, said = await run("status", agent.url)
        assert code == 0 and "detached train: 2 of 2 procs on h with counters" in said and "unowned for" in said, said
        code, said = await run("release", "trian", agent.url)
        assert code == 1 and "no detached lease 'trian' on these hosts; there are: train" in said
        assert await run("release", "train", agent.url) == (0, "released train on 1 host\n")
        await wait_gone(client.detached, within=1)
        code, said = await run("release", "train", agent.url)
        assert code == 1 and "there is none at all" in said
