"""The stores of real agents, asked as processes ask them."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from store_asker import MIB, Stores, started

from monarch_async.bulk.arena import open_segment
from monarch_async.errors import Error, ObjectLost, StoreFull

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: What each host may keep.
BUDGET = 64 * MIB


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[Stores]:
    async with started(3, store_bytes=BUDGET) as stores:
        yield stores


@pytest_asyncio.fixture(loop_scope="module")
async def stores(hosts: Stores) -> AsyncIterator[Stores]:
    """Three hosts; every test leaves their stores empty."""
    yield hosts
    await hosts.wait_empty()


async def test_put_open_close_and_drop(stores: Stores) -> None:
    id = await stores.put(0, b"x" * 100_000)
    assert (await stores.facts(0))["objects"] == 1
    with pytest.raises(ObjectLost):
        await stores.ask(0, "seal", id)
    token = (await stores.ask(0, "open", *stores.facts_of(id)))["segment"]
    view = open_segment(tuple(token))
    view[0] = 7  # ours alone
    assert await stores.read(0, id) == b"x" * 100_000
    await stores.drop(0, id)
    assert (await stores.facts(0))["objects"] == 1  # it is open
    del view
    await stores.ask(0, "close", id)
    await stores.wait_empty()
    with pytest.raises(ObjectLost):
        await stores.ask(0, "open", *stores.facts_of(id))


async def test_bad_requests_are_refused_and_change_nothing(stores: Stores) -> None:
    for request in [("alloc", b"short", 5), ("alloc", os.urandom(16), 0), ("alloc", os.urandom(16)),
                    ("dance", os.urandom(16)), ("open", os.urandom(16)), ("alloc", 7, 7)]:  # fmt: skip
        with pytest.raises(Error, match="bad request"):
            await stores.ask(0, *request)


async def test_a_full_store_makes_puts_wait(stores: Stores) -> None:
    with pytest.raises(StoreFull, match=f"{BUDGET:,}"):
        await stores.ask(0, "alloc", os.urandom(16), BUDGET + 1)
    first, second, third = await stores.put(0, bytes(40 * MIB)), os.urandom(16), os.urandom(16)
    large = stores.send(0, "alloc", second, 40 * MIB)
    small = stores.send(0, "alloc", third, 32 * MIB)
    await stores.wait(0, waiting_puts=2)
    assert not large.done()
    await stores.drop(0, first)
    assert "segment" in await large
    await stores.wait(0, waiting_puts=1)
    await stores.ask(0, "cancel", second)  # though it was answered: who asked did not wait for that
    assert "segment" in await small
    assert (await stores.facts(0))["used"] == 32 * MIB
    await stores.ask(0, "abort", third)


async def test_a_put_that_waits_can_be_withdrawn(stores: Stores) -> None:
    first = await stores.put(0, bytes(40 * MIB))
    id = os.urandom(16)
    waits = stores.send(0, "alloc", id, 40 * MIB)
    await stores.wait(0, waiting_puts=1)
    await stores.ask(0, "cancel", id)
    with pytest.raises(Error, match="withdrawn"):
        await waits
    await stores.drop(0, first)


async def test_one_copy_on_each_host_that_reads(stores: Stores) -> None:
    data = os.urandom(20 * MIB + 5)
    id = await stores.put(0, data)
    await stores.ask(1, "hold", *stores.facts_of(id))
    await stores.drop(0, id)
    opened = [stores.send(1, "open", *stores.facts_of(id)) for _ in range(3)]
    tokens = {tuple(answer["segment"]) for answer in await asyncio.gather(*opened)}
    assert len(tokens) == 1
    assert open_segment(tokens.pop()) == data
    assert (await stores.facts(1))["objects"] == 1
    for _ in range(3):
        await stores.ask(1, "close", id)
    await stores.drop(1, id)


async def test_a_hold_of_what_is_gone_is_refused(stores: Stores) -> None:
    id = await stores.put(0, b"x")
    await stores.drop(0, id)
    for at in (0, 1):
        for operation in ("hold", "open", "fetch"):
            with pytest.raises(ObjectLost):
                await stores.ask(at, operation, *stores.facts_of(id))


async def test_fetched_and_evicted_and_fetched_again(stores: Stores) -> None:
    id = await stores.put(0, b"x" * 40 * MIB)
    await stores.ask(1, "hold", *stores.facts_of(id))
    await stores.ask(1, "fetch", *stores.facts_of(id))
    assert (await stores.facts(1))["used"] == 40 * MIB
    mine = await stores.put(1, bytes(40 * MIB))  # its home has the other too
    assert (await stores.facts(1))["used"] == 40 * MIB
    assert await stores.read(1, id) == b"x" * 40 * MIB  # let over, once
    await stores.drop(1, id, mine)
    await stores.drop(0, id)


# -- chains ------------------------------------------------------------------------------------------------------------


async def test_a_chain_gives_all_hosts_a_copy_and_the_home_takes_them_back(stores: Stores) -> None:
    data = os.urandom(20 * MIB + 3)
    id = await stores.put(0, data)
    assert await stores.ask(1, "spread", *stores.facts_of(id), stores.agents[1:]) == {}
    for at in (1, 2):
        assert (await stores.facts(at))["used"] >= len(data)
        assert await stores.read(at, id) == data
    assert await stores.ask(0, "spread", *stores.facts_of(id), stores.agents) == {}  # all have it
    await stores.drop(0, id)


async def test_a_chain_of_something_that_is_gone_says_so_for_each(stores: Stores) -> None:
    id = await stores.put(0, b"x")
    await stores.drop(0, id)
    failed = await stores.ask(1, "spread", *stores.facts_of(id), stores.agents[1:])
    assert set(failed) == set(stores.agents[1:])
