"""``broadcast``: no reply, so what goes wrong goes to supervision."""

import asyncio

import pytest
from raisers import Raiser
from shapes import Picky

import monarch_async as ma


async def test_a_failure_ends_the_program_with_it() -> None:
    with pytest.raises(ValueError, match="bad batch") as info:
        async with ma.local_hosts() as hosts:
            mesh = await (await hosts.spawn_procs({"gpus": 2})).spawn("raisers", Raiser)
            mesh.at(1).after_a_wait.broadcast("value")
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
    error = info.value
    assert isinstance(error, ma.RemoteError)
    assert (error.actor, error.endpoint, error.rank) == ("raisers[1]", "after_a_wait", 1)
    assert "build(kind)" in error.traceback


@pytest.mark.parametrize("style", ["at_once", "after_a_wait", "on_the_thread"])
async def test_a_policy_is_told_which_member_and_why(style: str) -> None:
    heard: asyncio.Queue[ma.Failure] = asyncio.Queue()

    async def policy(failure: ma.Failure) -> bool:
        heard.put_nowait(failure)
        return True

    async with ma.local_hosts() as hosts, ma.supervise(policy):
        mesh = await (await hosts.spawn_procs({"gpus": 3})).spawn("raisers", Raiser)
        await getattr(mesh.slice(gpus=2), style).broadcast("quota")  # has begun: that says nothing of how it ends
        async with asyncio.timeout(10):
            failure = await heard.get()
        assert (failure.mesh.name, failure.rank, type(failure.error).__name__) == ("raisers", 2, "Quota")
        assert str(failure).startswith(f"raisers[2]: raisers[2].{style} on host0 raised raisers.Quota: alice is over 3")
        assert list(await mesh.alive.call()) == [True] * 3  # the actor lives on
        getattr(mesh, style).broadcast("value")
        async with asyncio.timeout(10):
            assert {(await heard.get()).rank for _ in range(3)} == {0, 1, 2}
        assert heard.empty()


@pytest.mark.slow
async def test_one_with_a_text_of_megabytes_is_told_too() -> None:
    heard: asyncio.Queue[ma.Failure] = asyncio.Queue()

    async def policy(failure: ma.Failure) -> bool:
        heard.put_nowait(failure)
        return True

    async with ma.local_hosts() as hosts, ma.supervise(policy):
        mesh = await (await hosts.spawn_procs()).spawn("raisers", Raiser)
        mesh.at_once.broadcast("huge")
        async with asyncio.timeout(20):
            error = (await heard.get()).error
        assert isinstance(error, ValueError)
        assert isinstance(error, ma.RemoteError)
        assert len(error.text) < 300_000
        assert await mesh.alive.call_one()


async def test_to_an_actor_that_did_not_come_up() -> None:
    """Nobody awaits anything, and yet it is not lost; nor does the sender's window fill up."""
    with pytest.raises(ValueError, match="no such model"):
        async with ma.local_hosts() as hosts:
            mesh = hosts.spawn_procs().spawn("picky", Picky, "setup", (0,))
            mesh.where_am_i.broadcast()
            async with asyncio.timeout(10):
                await asyncio.Event().wait()


async def test_a_broadcast_without_failures_tells_nobody() -> None:
    from monarch_async.runtime.router import active_router

    async with ma.local_hosts() as hosts:
        mesh = await (await hosts.spawn_procs({"gpus": 2})).spawn("raisers", Raiser)
        for _ in range(100):
            mesh.alive.broadcast()
        assert list(await mesh.alive.call()) == [True, True]
        async with asyncio.timeout(5):
            while active_router().pending:
                await asyncio.sleep(0.001)
