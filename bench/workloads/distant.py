"""Simulated hosts in another process, reached by TCP through the loopback device: so that what the client's own
process costs can be told from what the agents cost.
"""

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from simulated import SimulatedHosts

from monarch_async.config import Config
from monarch_async.transport.loop import run_loop


def raise_file_limit() -> None:
    """A thousand agents have more sockets than a process may have by default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class DistantHosts:
    """The same in another process, reached by TCP through the loopback device."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.urls: list[str] = []

    def add(self, count: int) -> list[str]:
        """Start so many more; return their addresses."""
        urls = self._order("add", count)
        self.urls += urls
        return urls

    def crash_later(self, count: int) -> None:
        """See `SimulatedHosts.crash`: the order is given, and not waited for."""
        self._give("crash", count)

    def _give(self, *order: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _order(self, *order: object) -> Any:
        self._give(*order)
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextlib.contextmanager
def distant_hosts(config: Config, cores: set[int]) -> Iterator[DistantHosts]:
    """Run agents in a process on these cores; ends it."""
    environ = {**os.environ, **config.as_env()}
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        os.sched_setaffinity(process.pid, cores)
        try:
            yield DistantHosts(process)
        finally:
            process.kill()


async def main() -> None:
    """Take orders: ["add", n], ["crash", n], one a line."""
    raise_file_limit()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with SimulatedHosts(Config.from_env(), is_inproc=False) as hosts:
        while line := await reader.readline():
            operation, count = json.loads(line)
            before = len(hosts.urls)
            await (hosts.add(count) if operation == "add" else hosts.crash(count))
            print(json.dumps(hosts.urls[before:]), flush=True)


if __name__ == "__main__":
    run_loop(main())
