"""However a program ends, nothing of it is left: procs, what they started, agents, zygotes, the sockets' folder."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from agents import TOKEN, descendants, is_alive, running_agent

import monarch_async as ma

HERE = Path(__file__).parent


@dataclass
class Run:
    """A program under way."""

    process: asyncio.subprocess.Process
    pids: list[int]
    folder: Path
    errors: list[str] = field(default_factory=list)

    async def wait(self) -> int:
        """Wait for its end; return its status."""
        async with asyncio.timeout(20):
            assert self.process.stderr is not None
            self.errors.append((await self.process.stderr.read()).decode())
            return await self.process.wait()


@asynccontextmanager
async def running(tmp_path: Path, body: str, hosts: str = "ma.local_hosts(2)", **environ: str) -> AsyncIterator[Run]:
    """Start a program with procs and grandchildren on its hosts; wait until it runs ``body``."""
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent("""
            import asyncio, os, signal, sys, time
            import monarch_async as ma
            from victims import Victim

            async def main():
                async with HOSTS as hosts:
                    procs = await hosts.spawn_procs({"gpus": 2})
                    victims = await procs.spawn("victims", Victim)
                    pids = [pid for pids in await victims.grandchildren.call() for pid in pids]
                    print(*pids, flush=True)
                    await asyncio.to_thread(sys.stdin.readline)
                    print("begun", flush=True)
                    BODY

            ma.run(main())
        """)
        .replace("HOSTS", hosts)
        .replace("BODY", body)
    )
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp), "PYTHONPATH": _path(), **environ},
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with asyncio.timeout(20):
            line = await process.stdout.readline()
        grandchildren = [int(word) for word in line.split()]
        run = Run(process, [*descendants(process.pid), *grandchildren], tmp)
        assert len(set(run.pids)) >= 2, run
        process.stdin.write(b"go\n")
        assert await process.stdout.readline() == b"begun\n"
        yield run
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


def _path() -> str:
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


WAIT = "await asyncio.Event().wait()"

ENDS = {
    "return": ("return", None, 0, ""),
    "an error": ("raise ValueError('of the program')", None, 1, "ValueError: of the program"),
    "a call to exit": ("sys.exit(7)", None, 7, ""),
    "os._exit": ("os._exit(8)", None, 8, ""),
    "SIGINT": (WAIT, signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt"),
    "SIGINT in a call": ("await victims.wait_forever.call()", signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt"),
    "SIGTERM": (WAIT, signal.SIGTERM, 143, ""),
    "SIGTERM in a call": ("await victims.wait_forever.call()", signal.SIGTERM, 143, ""),
    "a second SIGTERM": ("signal.raise_signal(signal.SIGTERM); time.sleep(60)", signal.SIGTERM, -signal.SIGTERM, ""),
    "SIGKILL": (WAIT, signal.SIGKILL, -signal.SIGKILL, ""),
    "SIGKILL while its loop is blocked": ("time.sleep(60)", signal.SIGKILL, -signal.SIGKILL, ""),
}


#: These run by default, all of them with the slow tests.
QUICK = {"an error", "SIGINT in a call", "SIGTERM", "SIGKILL while its loop is blocked"}


@pytest.mark.parametrize(
    "end", [end if end in QUICK else pytest.param(end, marks=pytest.mark.slow) for end in ENDS]
)
async def test_a_program_ends(end: str, tmp_path: Path, wait_gone) -> None:
    body, signo, status, error = ENDS[end]
    async with running(tmp_path, body) as run:
        if signo is not None:
            os.kill(run.process.pid, signo)
        assert await run.wait() == status, run.errors
        assert error in run.errors[0]
        assert run.errors[0].count("Traceback") <= 1 + (signo == signal.SIGINT), run.errors[0]
        await wait_gone(run.pids, within=5)
        async with asyncio.timeout(5):
            while list(run.folder.iterdir()):
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_program_that_is_killed_leaves_an_attached_agent_as_it_was(tmp_path: Path, wait_gone) -> None:
    async with running_agent() as agent:
        before = set(descendants(agent.pid))
        hosts = f"ma.attach({agent.url!r})"
        async with running(tmp_path, WAIT, hosts, MONARCH_ASYNC_TOKEN=TOKEN) as run:
            workers = set(descendants(agent.pid)) - before
            assert len(workers) >= 4
            run.process.kill()
            await run.wait()
            await wait_gone([*run.pids, *workers], within=8)
        assert is_alive(agent.pid)
        await agent.wait_said("left (")


@pytest.mark.slow
async def test_a_program_that_is_terminated_says_goodbye_to_an_attached_agent(tmp_path: Path, wait_gone) -> None:
    """Its procs end now, not when the window is over."""
    async with running_agent(config=ma.Config()) as agent:
        before = set(descendants(agent.pid))
        hosts = f"ma.attach({agent.url!r})"
        async with running(tmp_path, WAIT, hosts, MONARCH_ASYNC_TOKEN=TOKEN) as run:
            workers = set(descendants(agent.pid)) - before
            run.process.terminate()
            assert await run.wait() == 143
            await wait_gone([*run.pids, *workers], within=1)


@pytest.mark.slow
async def test_a_program_and_its_agents_are_killed_at_once(tmp_path: Path, wait_gone) -> None:
    """As when a container's memory runs out: nobody is left to tidy up but the zygotes."""
    async with running(tmp_path, WAIT) as run:
        agents = [pid for pid in run.pids if b"local_agent" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(agents) == 2
        for pid in [*agents, run.process.pid]:
            os.kill(pid, signal.SIGKILL)
        await run.wait()
        await wait_gone(run.pids, within=5)
