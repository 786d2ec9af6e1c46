"""Actors that die, wait, count and start processes; in a file of their own, so that workers import no tests."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import monarch_async as ma


class Victim(ma.Actor):
    """Ends in every way there is."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def echo(self, value: object) -> object:
        return value

    @ma.endpoint
    async def note(self, value: object) -> None:
        self.seen.append(value)

    @ma.endpoint
    async def noted(self) -> list[object]:
        return self.seen

    @ma.endpoint
    async def keep(self, value: object) -> ma.Ref:
        """Put it into the store of this host."""
        return await ma.put(value)

    @ma.endpoint
    async def wait_forever(self) -> None:
        await asyncio.Event().wait()

    @ma.endpoint
    async def exit(self, status: int) -> None:
        print("about to exit", file=sys.stderr, flush=True)
        os._exit(status)

    @ma.endpoint
    def exit_from_thread(self, status: int) -> None:
        os._exit(status)

    @ma.endpoint
    async def segfault(self) -> None:
        ctypes.string_at(0)

    @ma.endpoint
    async def die_of(self, signo: int) -> None:
        signal.signal(signo, signal.SIG_DFL) if signo != signal.SIGKILL else None
        os.kill(os.getpid(), signo)
        await asyncio.sleep(10)

    @ma.endpoint
    async def exit_soon(self, seconds: float) -> None:
        """Answer, and die afterwards, when nobody calls."""
        asyncio.get_running_loop().call_later(seconds, os._exit, 9)

    @ma.endpoint
    async def ask(self, other: "Victim", endpoint: str) -> object:
        return await getattr(other, endpoint).call_one()

    @ma.endpoint
    async def describe_death_of(self, other: "Victim") -> tuple[str, str, float]:
        """Wait in a call on another actor; return what came of it."""
        try:
            await other.wait_forever.call_one()  # type: ignore[attr-defined]
        except ma.Lost as error:
            return type(error).__name__, str(error), time.monotonic()
        return "", "", 0.0

    @ma.endpoint
    async def grandchildren(self) -> list[int]:
        """Start a process that leaves its session and one that does not; return their pids."""
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        away = subprocess.Popen(["sleep", "600"], start_new_session=True, **quiet)  # noqa: ASYNC220
        near = subprocess.Popen(["sh", "-c", "sleep 600 & wait"], **quiet)  # noqa: ASYNC220
        return [away.pid, near.pid]

    @ma.endpoint
    async def count(self, n: int) -> AsyncIterator[int]:
        for index in range(n):
            yield index

    @ma.endpoint
    def secrets(self) -> dict[str, str]:
        """Everything that somebody could read a token from."""
        with open("/proc/self/environ", "rb") as file:
            environ = file.read().decode(errors="replace")
        with open("/proc/self/cmdline", "rb") as file:
            arguments = file.read().decode(errors="replace")
        return {"environ": environ, "os.environ": str(dict(os.environ)), "argv": arguments + str(sys.argv)}

    @ma.endpoint
    async def say(self, line: str) -> None:
        print(line)

    @ma.endpoint
    async def spawn_on(self, hosts: ma.HostMesh) -> "Victim":
        """Spawn a proc of this actor's own there."""
        self.procs = await hosts.spawn_procs(name="owned")
        return await self.procs.spawn("owned", Victim)

    @ma.endpoint
    async def fail(self, text: str) -> None:
        raise LookupError(text)
