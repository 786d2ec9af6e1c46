"""Descriptors: an agent has as many as it may, its workers as many as its user gave them; one that has none goes on."""

import asyncio
import os
import resource
from collections.abc import Iterator

import pytest
from agents import local_agent_pid

import monarch_async as ma

LIMIT = resource.RLIMIT_NOFILE
USUAL = 500


class Limited(ma.Actor):
    @ma.endpoint
    async def limits(self) -> tuple[int, int]:
        return resource.getrlimit(LIMIT)


@pytest.fixture
def few_files() -> Iterator[int]:
    """A program with a soft limit below its hard one; the latter."""
    soft, hard = resource.getrlimit(LIMIT)
    resource.setrlimit(LIMIT, (USUAL, hard))
    yield hard
    resource.setrlimit(LIMIT, (soft, hard))


def open_files(pid: int) -> list[int]:
    return [int(fd) for fd in os.listdir(f"/proc/{pid}/fd")]


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
async def test_an_agent_raises_its_limit_and_workers_have_the_usual_one(few_files: int, start: str) -> None:
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs(start=start)
        assert resource.prlimit(local_agent_pid("host0"), LIMIT)[0] > USUAL
        assert await (await procs.spawn("limited", Limited)).limits.call_one() == (USUAL, few_files)


@pytest.mark.slow
async def test_an_agent_out_of_descriptors_refuses_workers_and_goes_on() -> None:
    async with ma.local_hosts() as hosts:
        first = await hosts.spawn_procs(name="first")
        limited = await first.spawn("limited", Limited)
        agent = local_agent_pid("host0")
        before = open_files(agent)
        _, hard = resource.prlimit(agent, LIMIT)
        unused = sorted(set(range(len(before) + 9)).difference(before))
        resource.prlimit(agent, LIMIT, (unused[5], hard))  # five are left: not enough for one
        second = hosts.spawn_procs({"gpus": 8}, name="second")
        with pytest.raises(ma.SpawnFailed, match=r"too many open files \(limit \d+\): raise `ulimit -n`"):
            await second
        await second.stop()
        assert await limited.limits.call_one()  # its client's connection is the same
        async with asyncio.timeout(5):
            while len(open_files(agent)) > len(before):
                await asyncio.sleep(0.01)
        resource.prlimit(agent, LIMIT, (hard, hard))
        third = await hosts.spawn_procs({"gpus": 2}, name="third")
        assert len(await (await third.spawn("limited", Limited)).limits.call()) == 2
        await third.stop()
        await first.stop()
