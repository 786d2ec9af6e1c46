"""Host agents that a program starts on its own machine, and ends: what `local_hosts` and its `grow` stand on."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence

from monarch_async.config import Config
from monarch_async.control.cluster_token import TOKEN_VARIABLE
from monarch_async.control.declared import RESOURCES_VARIABLE, as_options
from monarch_async.control.host import Host
from monarch_async.control.host_links import HostLinks
from monarch_async.control.membership import HostEvent
from monarch_async.errors import SpawnFailed
from monarch_async.scheduler.resources import Resources

#: How the folders in the temporary directory begin that hold the sockets and the token of `local_hosts`.
LOCAL_FOLDERS = "monarch-async-"

#: How long an agent may take to end beyond the grace its procs have.
_PATIENCE = 10.0


class LocalAgent:
    """An agent process started by this program. It hangs on its lifeline: when that closes, it ends with its procs."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, lifeline: socket.socket) -> None:
        """Started, not yet ready."""
        self.name, self.process, self._lifeline = name, process, lifeline
        self.watch: asyncio.Task[None] | None = None  #: tells of its end

    @classmethod
    async def start(
        cls, name: str, url: str, token: str, config: Config, resources: Resources | None, share: tuple[int, int]
    ) -> "LocalAgent":
        """Start one. Its token goes through the environment, which others cannot read.

        Where ``resources`` are not given it has what it finds; of the machine's devices its ``share``, (i, n).
        """
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            environ = {**os.environ, **config.as_env(), TOKEN_VARIABLE: token}
            arguments = ["--lifeline", str(fd), "--listen", url, "--name", name, "--share", *map(str, share)]
            if resources is not None:
                arguments += as_options(resources)
                environ.pop(RESOURCES_VARIABLE, None)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "monarch_async.control.local_agent", *arguments,
                stdin=asyncio.subprocess.DEVNULL, pass_fds=[fd], env=environ, start_new_session=True,
            )  # fmt: skip
        ours.setblocking(False)
        return cls(name, process, ours)

    async def wait_ready(self) -> str:
        """Wait for its address. Raises SpawnFailed with what it said."""
        loop = asyncio.get_running_loop()
        said = b""
        while not said.endswith(b"\n"):
            more = await loop.sock_recv(self._lifeline, 4096)
            if not more:
                raise SpawnFailed("host agent", self.name, f"it ended at once; it said: {said.decode()!r}")
            said += more
        ready = json.loads(said)
        if "error" in ready:
            raise SpawnFailed("host agent", self.name, ready["error"])
        return ready["url"]

    async def aclose(self, patience: float) -> None:
        """Close the lifeline and wait until the process is gone; one that hangs is killed after ``patience`` seconds.

        Its procs end with it either way: their zygote notices.
        """
        if self.watch is not None:
            self.watch.cancel()
            await asyncio.gather(self.watch, return_exceptions=True)
        self._lifeline.close()
        try:
            async with asyncio.timeout(patience):
                await self.process.wait()
        except TimeoutError:
            self.kill()
            await self.process.wait()

    def kill(self) -> None:
        """End it at once, and so everything on it: one that was given up (frozen, say) must not come back."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class LocalSource:
    """A `HostSource`: further agents on this machine. They bring no cpus or memory that were not there before."""

    def __init__(self, config: Config) -> None:
        """None is started yet. ``token`` is theirs."""
        self._config = config
        self.token = secrets.token_hex(32)
        self._links: HostLinks | None = None
        self._agents: dict[str, LocalAgent] = {}  # by URL
        self._folder = ""
        self._count = 0

    def declared(self) -> Sequence[tuple[Resources, int]]:
        """Nothing is worth waiting for: what this machine has, its hosts have already."""
        return ()

    async def request(self, count: int, resources: Resources | None = None) -> Sequence[str]:
        """Start ``count`` agents; without ``resources`` each has this machine's cpus and memory, and no devices.

        Waits until they listen. Raises SpawnFailed; then none of them is left.
        """
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return await self.start([resources or Resources(cpus=os.cpu_count() or 1, memory=memory)] * count)

    async def start(self, resources: Sequence[Resources | None]) -> list[str]:
        """Start one agent for each; those without have what they find, and a share of the devices. As `request`."""
        folder = self._folder = self._folder or _make_folder(self.token)
        started: dict[str, LocalAgent] = {}
        try:
            for index, its in enumerate(resources):
                number, self._count = self._count, self._count + 1
                url, share = f"unix://{folder}/{number}.sock", (index, len(resources))
                self._agents[url] = started[url] = await LocalAgent.start(
                    f"host{number}", url, self.token, self._config, its, share
                )
            return [await agent.wait_ready() for agent in started.values()]
        except BaseException:
            await asyncio.gather(*[self._end(url) for url in started])
            raise

    def follow(self, links: HostLinks) -> None:
        """An agent's end is told to ``links`` at once; one that these have given up is killed."""
        self._links = links
        links.listeners.append(self._heard)

    def _heard(self, event: HostEvent) -> None:
        agent = self._agents.get(event.host.url)
        assert self._links is not None
        if agent is None:
            return
        if event.kind == "joining":
            self._links.watched.add(event.host.id)
            agent.watch = asyncio.get_running_loop().create_task(self._watch(agent, event.host, self._links))
        elif event.kind == "lost":
            agent.kill()

    async def _watch(self, agent: LocalAgent, host: Host, links: HostLinks) -> None:
        """An agent that ends before its program is known dead at once."""
        code = await agent.process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
        links.declare_lost(host, f"its agent (pid {agent.process.pid}) {how}")

    async def give_back(self, host: Host) -> None:
        """End its agent, and wait for that."""
        await self._end(host.url)

    async def _end(self, url: str) -> None:
        agent = self._agents.pop(url, None)
        if agent is not None:
            await agent.aclose(2 * self._config.stop_grace + _PATIENCE)

    async def aclose(self) -> None:
        """End all of them. Twice is fine."""
        await asyncio.gather(*[self._end(url) for url in list(self._agents)])
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _make_folder(token: str) -> str:
    """Make the folder of the sockets, which only this user can enter; `monarch-async status` finds the token there."""
    folder = tempfile.mkdtemp(prefix=LOCAL_FOLDERS)
    with open(os.open(f"{folder}/token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(token)
    return folder
