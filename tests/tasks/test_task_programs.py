"""Whole programs with tasks: how they end, and hosts that are lost."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from task_functions import add, deep, fail, hold, pids
from task_waits import wait_noted

import monarch_async as ma


@pytest.mark.slow
async def test_failures_that_nobody_looks_at_end_the_program() -> None:
    with pytest.raises(ValueError, match="nobody looks"):
        async with ma.local_hosts():
            ma.submit(fail, "nobody looks")
            async with asyncio.timeout(10):
                await asyncio.Event().wait()


@pytest.mark.slow
async def test_a_host_that_is_lost(tmp_path: Path) -> None:
    """Its tasks run again elsewhere; that is no poison."""
    async with ma.local_hosts(2, resources=ma.Resources(cpus=1)) as hosts:
        held = [ma.submit(hold, str(tmp_path), 0.5, poison=1) for _ in range(2)]
        await wait_noted(tmp_path, 2)
        lost = (await hosts.status()).hosts[1].pid
        os.kill(lost, signal.SIGKILL)
        assert len(await asyncio.gather(*held)) == 2
        assert len(pids(tmp_path)) == 3


async def test_leaving_the_hosts_ends_everything(tmp_path: Path) -> None:
    began = time.monotonic()
    async with ma.local_hosts(resources=ma.Resources(cpus=1)):
        futures = [ma.submit(hold, str(tmp_path)) for _ in range(3)]
        await wait_noted(tmp_path)
    assert time.monotonic() - began < 5
    for future in futures:
        assert isinstance(future.exception(), ma.Closed)
    with pytest.raises(ma.Closed):
        ma.submit(add, 1)


@pytest.mark.slow
async def test_a_hundred_levels_on_two_cpus() -> None:
    async with ma.local_hosts(resources=ma.Resources(cpus=2)):
        async with asyncio.timeout(50):
            assert await ma.submit(deep, 100) == 100
