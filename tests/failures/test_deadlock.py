"""A call that waits for itself is refused at once, by name; one that does not is not."""

import asyncio

import pytest
import pytest_asyncio
from callers import Caller, Open, Pair

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def procs(hosts: ma.HostMesh) -> ma.ProcMesh:
    return await hosts.spawn_procs({"gpus": 2})


async def spawn(procs: ma.ProcMesh, name: str, cls: type[Caller]) -> Caller:
    return (await procs.spawn(name, cls)).at(0)


@pytest.mark.parametrize("endpoint", ["answer", "answer_at_once", "answer_on_thread"])
@pytest.mark.parametrize("adverb", ["call_one", "call", "choose", "stream"])
async def test_a_call_of_oneself(procs: ma.ProcMesh, endpoint: str, adverb: str) -> None:
    one = await spawn(procs, "one", Caller)
    async with asyncio.timeout(10):
        with pytest.raises(ma.WouldDeadlock) as info:
            await one.ask.call_one([one], endpoint, adverb)
    error = info.value
    assert error.actor == "one[0]"
    assert error.chain == ("one[0].ask", f"one[0].{endpoint}")
    assert str(error).split("\n")[0].startswith(
        "one[0].ask on host0 raised monarch_async.errors.WouldDeadlock: "
        f"one[0] would wait for itself: one[0].ask -> one[0].{endpoint}"
    )
    assert isinstance(error.__cause__, ma.WouldDeadlock)
    assert "max_concurrency" in str(error.__cause__)
    assert await one.answer.call_one() == 42  # nothing is stuck


async def test_a_stream_of_oneself(procs: ma.ProcMesh) -> None:
    one = await spawn(procs, "one", Caller)
    with pytest.raises(ma.WouldDeadlock, match=r"one\[0\].ask -> one\[0\].numbers"):
        await one.ask.call_one([one], "numbers", "stream_one")


async def test_through_others_on_other_procs(procs: ma.ProcMesh) -> None:
    one, two = await spawn(procs, "one", Caller), (await procs.spawn("two", Caller)).at(1)
    three = await spawn(procs, "three", Open)
    async with asyncio.timeout(10):
        with pytest.raises(ma.WouldDeadlock) as info:
            await one.ask.call_one([two, three, one], "answer")
    assert info.value.chain == ("one[0].ask", "two[1].ask", "three[0].ask", "one[0].answer")
    assert "one[0].ask -> two[1].ask -> three[0].ask -> one[0].answer" in str(info.value)
    assert [await actor.answer.call_one() for actor in (one, two, three)] == [42] * 3


async def test_several_at_a_time_may_wait_for_themselves_as_often(procs: ma.ProcMesh) -> None:
    pair = await spawn(procs, "pair", Pair)
    async with asyncio.timeout(10):
        assert await pair.ask.call_one([pair], "answer") == 42
        with pytest.raises(ma.WouldDeadlock):
            await pair.ask.call_one([pair, pair], "answer")
    everyone = await spawn(procs, "open", Open)
    async with asyncio.timeout(10):
        assert await everyone.ask.call_one([everyone] * 20, "answer") == 42


async def test_what_is_no_deadlock(procs: ma.ProcMesh) -> None:
    """Others of the same mesh, the same actor twice in a row, broadcasts in a circle, plain methods."""
    mesh = await procs.spawn("mesh", Caller)
    one, two = mesh.at(0), mesh.at(1)
    async with asyncio.timeout(10):
        assert await one.ask.call_one([two], "answer") == 42
        assert await asyncio.gather(*[one.ask.call_one([two], "answer") for _ in range(20)]) == [42] * 20
        await one.tell.call_one([two, one, two, one])
        assert await one.plainly.call_one() == 42
        assert await one.answer.call_one() == 42


async def test_a_task_that_outlives_its_call_may_call_back(procs: ma.ProcMesh) -> None:
    """It was started by a call of this actor, but that has been answered and waits for nobody."""
    one = await spawn(procs, "one", Caller)
    async with asyncio.timeout(10):
        await one.ask_later.call_one(one)
        while not await one.asked_later.call_one():
            pass
        assert await one.later_answer.call_one() == 42
