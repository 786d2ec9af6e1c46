"""Two hosts of two cpus, one with a device, on which each test leaves nothing."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from task_waits import wait_given_back

import monarch_async as ma

HOSTS = [ma.Resources(cpus=2), ma.Resources(cpus=2, gpus=("7",), labels={"kind": "gpu"}, custom={"license": 1})]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    async with ma.local_hosts(2, resources=HOSTS, config=ma.Config(task_idle=0.1, cancel_grace=0.5)) as hosts:
        yield hosts


@pytest_asyncio.fixture(loop_scope="module")
async def all_given_back() -> AsyncIterator[None]:
    yield
    await wait_given_back()


@pytest.fixture(autouse=True)
def nothing_held(request: pytest.FixtureRequest) -> None:
    """A fixture that is async makes a loop: only where there is one."""
    if "hosts" in request.fixturenames:
        request.getfixturevalue("all_given_back")
