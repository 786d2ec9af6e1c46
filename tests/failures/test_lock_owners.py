"""Locks that two programs share by name, of which one is killed, or frozen for longer than the window."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from agents import IMPATIENT, TOKEN, running_agent

import monarch_async as ma

pytestmark = pytest.mark.slow  # programs of their own for every test; the same in virtual time runs always

_OTHER = """
import asyncio, sys
import monarch_async as ma

async def main():
    async with ma.attach(sys.argv[1], token=sys.argv[2]):
        async with ma.Lock("of both") as token:
            print(token, flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            try:
                await ma.Lock("of both").check(token)
            except ma.Error as error:
                print(type(error).__name__, flush=True)
        print("left", flush=True)

try:
    asyncio.run(main())
except BaseException as error:
    print(type(error).__name__, flush=True)
"""


@asynccontextmanager
async def other_program(url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Another program that holds the lock ``of both``, and its token."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OTHER, url, TOKEN,
        env={**os.environ, **IMPATIENT.as_env()}, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            yield process, int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_program_that_is_killed_holds_nothing(kind: str, tmp_path: object) -> None:
    listen = "tcp://127.0.0.1:0" if kind == "tcp" else f"unix://{tmp_path}/agent.sock"
    async with running_agent(listen) as agent, other_program(agent.url) as (other, token):
        async with ma.attach(agent.url, token=TOKEN, config=IMPATIENT):
            waits = asyncio.create_task(ma.Lock("of both").acquire())
            async with asyncio.timeout(5):
                while not any(row.waiting for row in (await ma.cluster().locks()).rows):
                    pass
                other.kill()
                later = await waits  # over TCP when its window has passed
            assert later > token
            ma.Lock("of both").release(later)


async def test_a_program_that_was_frozen_for_too_long_is_out_of_date() -> None:
    """Another holds the lock by then; the token of the first is refused."""
    async with running_agent() as agent, other_program(agent.url) as (other, token):
        async with ma.attach(agent.url, token=TOKEN, config=IMPATIENT):
            lock = ma.Lock("of both")
            other.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(10), lock as later:
                assert later > token
                with pytest.raises(ma.NotHolder):
                    await lock.check(token)
                other.send_signal(signal.SIGCONT)
                assert other.stdin is not None and other.stdout is not None
                other.stdin.write(b"\n")
                said = (await other.stdout.read()).decode().split()
            assert said[0] in ("NotHolder", "HostLost", "Closed") and "left" not in said
