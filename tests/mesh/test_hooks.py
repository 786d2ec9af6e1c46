"""The hooks of an actor: `setup` before its first call, `teardown` at its end, however that comes."""

import asyncio

import pytest

import monarch_async as ma


class Hooks(ma.Actor):
    """Says on stdout how it lives and ends."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        print("init", flush=True)

    async def setup(self) -> None:
        await asyncio.sleep(0.01)
        print("setup", flush=True)
        if self.fails == "setup":
            raise OSError("no setup")

    async def teardown(self) -> None:
        await asyncio.sleep(0.01)
        print(f"teardown of {ma.context().name}", flush=True)
        if self.fails == "teardown":
            raise OSError("no teardown")

    @ma.endpoint
    async def work(self) -> str:
        return "done"

    @ma.endpoint
    async def hang(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            print("work was cancelled", flush=True)


async def printed(capfd: pytest.CaptureFixture[str], mesh: str) -> list[str]:
    return [line.split("] ", 1)[1] for line in capfd.readouterr().out.splitlines() if line.startswith(f"[{mesh} ")]


@pytest.mark.parametrize("way", ["actors", "procs", "program"])
async def test_setup_and_teardown_are_called(capfd: pytest.CaptureFixture[str], way: str) -> None:
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs(name="hooks")
        actors = await procs.spawn("actor", Hooks)
        hanging = actors.hang.call_one()
        assert await actors.work.call_one() == "done"
        if way == "actors":
            await actors.stop()
        if way != "program":
            await procs.stop()
            with pytest.raises(ma.ActorDied, match="it was stopped"):
                await hanging
    assert hanging.done()
    hanging.exception()
    assert await printed(capfd, "hooks") == ["init", "setup", "work was cancelled", "teardown of actor"]


@pytest.mark.slow
async def test_a_hook_that_fails(capfd: pytest.CaptureFixture[str]) -> None:
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs(name="failing")
        with pytest.raises(OSError, match="no setup") as caught:
            await procs.spawn("actor", Hooks, fails="setup")
        assert isinstance(caught.value, ma.RemoteError)
        assert caught.value.endpoint == "setup"
        actors = await procs.spawn("actor", Hooks, fails="teardown")
        await actors.stop()
        assert (await printed(capfd, "failing"))[-1] == "teardown of actor"
        assert await (await procs.spawn("again", Hooks)).work.call_one() == "done"
        await procs.stop()
