"""A pool of procs for the tests of a module, and what is left after each."""

from collections.abc import AsyncIterator

import pytest_asyncio
from sharers import Sharer

import monarch_async as ma


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sharers(hosts: ma.HostMesh) -> Sharer:
    """Three actors on three procs of one host."""
    return await (await hosts.spawn_procs({"p": 3})).spawn("sharers", Sharer)


@pytest_asyncio.fixture(loop_scope="module")
async def nothing_in_use() -> AsyncIterator[None]:
    """After the test no lock or queue is in use. For tests with ``hosts``."""
    yield
    assert not (await ma.cluster().locks()).rows
