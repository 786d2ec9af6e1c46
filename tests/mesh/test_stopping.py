"""Stopping a mesh, also one that was never awaited."""

import asyncio

import pytest

import monarch_async as ma


class Slow(ma.Actor):
    async def setup(self) -> None:
        await asyncio.sleep(30)

    @ma.endpoint
    async def ping(self) -> str:
        return "pong"


class Quick(ma.Actor):
    @ma.endpoint
    async def ping(self) -> str:
        return "pong"


async def test_a_mesh_stopped_before_it_is_up_is_no_failure() -> None:
    async with ma.local_hosts() as hosts:
        procs = hosts.spawn_procs({"gpus": 2})
        procs.spawn("slow", Slow)
        await procs.stop()
        await asyncio.sleep(0)


@pytest.mark.slow
async def test_actors_stopped_before_they_are_up_are_no_failure() -> None:
    async with ma.local_hosts() as hosts:
        procs = hosts.spawn_procs({"gpus": 2})
        slow = procs.spawn("slow", Slow)
        await slow.stop()
        quick = await procs.spawn("quick", Quick)
        assert list(await quick.ping.call()) == ["pong", "pong"]


@pytest.mark.slow
async def test_a_call_answered_means_that_the_start_is_known() -> None:
    """A mesh used before it is awaited, and stopped right after its first answer."""
    async with ma.local_hosts() as hosts:
        for _ in range(10):
            procs = hosts.spawn_procs({"gpus": 8})
            quick = procs.spawn("quick", Quick)
            assert list(await quick.ping.call()) == ["pong"] * 8
            await procs.stop()
