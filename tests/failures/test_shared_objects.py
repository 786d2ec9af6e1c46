"""Shared objects of a client that is elsewhere, and what is left of them when clients end."""

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import TOKEN, running_agent

import monarch_async as ma
from monarch_async.mesh.domain import active_domain

pytestmark = pytest.mark.slow  # hosts of their own for every test


class Maker(ma.Actor):
    """Puts, and reads."""

    @ma.endpoint
    async def make(self, size: int) -> ma.Ref[Any]:
        return await ma.put(np.ones(size))

    @ma.endpoint
    async def total(self, ref: ma.Ref[Any]) -> float:
        return float((await ref).sum())


async def has_nothing() -> None:
    """Wait until the host's store is empty."""
    gc.collect()
    domain = active_domain()
    async with asyncio.timeout(10):
        while (await domain.requests.ask(domain.hosts[0].id << 32, "status"))["store"]["objects"]:
            await asyncio.sleep(0.01)


async def test_a_client_over_tcp() -> None:
    """It maps no memory of that host: it reads and writes over its data plane."""
    async with running_agent() as agent:
        async with ma.attach(agent.url, token=TOKEN) as hosts:
            maker = await (await hosts.spawn_procs({"gpus": 1})).spawn("maker", Maker)
            for size in (10, 1_000_000):
                ref = await ma.put({"ones": np.ones(size), "refs": [await ma.put(1)]})
                value, again = await asyncio.gather(ref, ref)
                assert value["ones"].sum() == again["ones"].sum() == size and await value["refs"][0] == 1
                assert size == 10 or not value["ones"].flags.writeable
                mine = await maker.make.call_one(size)
                assert (await mine).sum() == size == await maker.total.call_one(mine)
                assert (await ma.wait([ref, mine]))[1] == []
            del ref, value, again, mine
            await has_nothing()


async def test_a_client_that_leaves_or_dies_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, sys, numpy, monarch_async as ma\n"
        "async def main():\n"
        f"    async with ma.attach(sys.argv[1], token={TOKEN!r}):\n"
        "        ref = await ma.put(numpy.ones(1000000))\n"
        "        value = await ref\n"
        "        if sys.argv[2] == 'die': os._exit(0)\n"
        "    assert value.sum() == 1000000\n"
        "asyncio.run(main())\n"
    )
    for listen, how in (("tcp://127.0.0.1:0", "die"), (f"unix://{tmp_path}/agent.sock", "leave")):
        async with running_agent(listen) as agent:
            command = [sys.executable, "-c", code, agent.url, how]
            await asyncio.to_thread(subprocess.run, command, check=True)
            async with ma.attach(agent.url, token=TOKEN):
                await has_nothing()
