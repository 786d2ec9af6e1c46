"""One host of four cpus, on which each test leaves nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import monarch_async as ma


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    resources = ma.Resources(cpus=4, gpus=("3", "5"))
    async with ma.local_hosts(resources=resources, config=ma.Config(cancel_grace=0.5)) as hosts:
        yield hosts


@pytest_asyncio.fixture(loop_scope="module")
async def all_given_back() -> AsyncIterator[None]:
    yield
    async with asyncio.timeout(10):
        while True:
            holdings = await ma.cluster().holdings()
            if not holdings.waiting and all(not host.holdings for host in holdings.hosts):
                return
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def nothing_held(request: pytest.FixtureRequest) -> None:
    """A fixture that is async makes a loop: only where there is one."""
    if "hosts" in request.fixturenames:
        request.getfixturevalue("all_given_back")
