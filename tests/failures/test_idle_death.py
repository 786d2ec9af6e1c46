"""Deaths that no call carries to anybody."""

import asyncio

import pytest
from victims import Victim

import monarch_async as ma


async def test_a_death_nobody_waits_for_ends_the_owning_scope() -> None:
    with pytest.raises(ma.ProcDied, match="exited with status 9"):
        async with ma.local_hosts() as hosts:
            victim = await (await hosts.spawn_procs()).spawn("victim", Victim)
            await victim.exit_soon.call_one(0.01)
            async with asyncio.timeout(10):
                await asyncio.Event().wait()


async def test_a_policy_hears_of_a_death_nobody_waits_for() -> None:
    heard: asyncio.Future[ma.Failure] = asyncio.get_running_loop().create_future()

    async def policy(failure: ma.Failure) -> bool:
        heard.set_result(failure)
        return True

    async with ma.local_hosts() as hosts, ma.supervise(policy):
        victims = await (await hosts.spawn_procs({"gpus": 2})).spawn("victims", Victim)
        await victims.at(1).exit_soon.call_one(0.01)
        async with asyncio.timeout(10):
            failure = await heard
        assert isinstance(failure.error, ma.ProcDied)
        assert failure.rank == 1
        assert await victims.at(0).echo.call_one(1) == 1
