"""Two hosts of two cpus, one with a device."""

from collections.abc import AsyncIterator

import pytest_asyncio

import monarch_async as ma

HOSTS = [ma.Resources(cpus=2), ma.Resources(cpus=2, gpus=("7",), labels={"kind": "gpu"}, custom={"license": 1})]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    async with ma.local_hosts(2, resources=HOSTS, config=ma.Config(task_idle=0.3, cancel_grace=0.5)) as hosts:
        yield hosts
