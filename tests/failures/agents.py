"""Host agents as processes of their own, started as by hand: ``monarch-async agent``."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import monarch_async as ma

TOKEN = "a token of the tests"

#: Impatient: a host is lost after a second, an end tells that it lives five times a second.
IMPATIENT = ma.Config(resume_window=1.0, heartbeat=0.2, stop_grace=0.5)


@dataclass
class Agent:
    """One agent: its process, where it listens, and what it has written to its stderr so far."""

    process: asyncio.subprocess.Process
    url: str
    said: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait_said(self, text: str) -> str:
        """Wait until it has logged a line with ``text``; return that."""
        async with asyncio.timeout(10):
            while not (found := [line for line in self.said if text in line]):
                await asyncio.sleep(0.01)
        return found[0]


@asynccontextmanager
async def running_agent(
    listen: str = "tcp://127.0.0.1:0",
    name: str = "h",
    config: ma.Config = IMPATIENT,
    command: Sequence[str] = (),
    **environ: str,
) -> AsyncIterator[Agent]:
    """Start an agent (by ``command``, if given) and wait until it listens; end it after the block."""
    plain = [sys.executable, "-m", "monarch_async.cli.main", "agent", "--listen", listen, "--name", name]
    process = await asyncio.create_subprocess_exec(
        *(command or plain),
        env={**os.environ, "MONARCH_ASYNC_TOKEN": TOKEN, **config.as_env(), **environ},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    said: list[str] = []
    listening = asyncio.create_task(_collect(process.stderr, said))
    try:
        async with asyncio.timeout(20):
            line = (await process.stdout.readline()).decode()
        assert "listens on" in line, (line, said)
        yield Agent(process, line.split()[-1], said)
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(8):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
                raise
        await listening
        process._transport.close()  # type: ignore[attr-defined]


async def _collect(stream: asyncio.StreamReader | None, said: list[str]) -> None:
    assert stream is not None
    async for line in stream:
        said.append(line.decode(errors="replace").rstrip())


def descendants(pid: int) -> list[int]:
    """Return the pids of everything below a process, grandchildren included."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def local_agent_pid(name: str) -> int:
    """Return the pid of the agent that `ma.local_hosts` of this process started under that name."""
    for pid in descendants(os.getpid()):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"monarch_async.control.local_agent" in words and name.encode() in words:
            return pid
    raise LookupError(name)
