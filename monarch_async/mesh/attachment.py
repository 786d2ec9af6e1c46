"""How a program gets hosts: start agents on this machine, or attach to some that run."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import ssl
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from monarch_async.config import Config
from monarch_async.control.cluster_token import TOKEN_VARIABLE, read_token
from monarch_async.control.controller import Controller, default_name
from monarch_async.control.declared import RESOURCES_VARIABLE, as_options, one_each
from monarch_async.control.host import Host
from monarch_async.errors import Closed, ExtentError, SpawnFailed
from monarch_async.ids import AGENT, address
from monarch_async.mesh.domain import activate_domain
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.mesh.proc_recipe import client_path, default_preload
from monarch_async.mesh.program import Program
from monarch_async.mesh.scope import Scope
from monarch_async.scheduler.resources import Resources
from monarch_async.transport.loop import run_loop

T = TypeVar("T")

#: How the folders in the temporary directory begin that hold the sockets and the token of `local_hosts`.
LOCAL_FOLDERS = "monarch-async-"

#: How long an agent may take to end beyond the grace its procs have.
_PATIENCE = 10.0

_is_running = False


class Attachment:
    """An ``async with`` block that yields a `HostMesh` and ends all that was started in it: `local_hosts`, `attach`."""

    def __init__(self, config: Config, tls: ssl.SSLContext | None = None) -> None:
        """Nothing happens before the block is entered."""
        self._config, self._tls = config, tls
        self._scope = Scope()
        self._program: Program | None = None

    async def __aenter__(self) -> HostMesh:
        """Reach the hosts. Raises what `local_hosts` or `attach` says."""
        global _is_running
        if _is_running:
            raise Closed("a second `async with ma.local_hosts()` in one program", "use the hosts of the first")
        _is_running = True
        controller = Controller(self._config, default_name(), tls=self._tls)
        self._program = Program(controller, self._scope)
        try:
            hosts = await self._find_hosts(controller)
            self._program.home = address(hosts[0].id, AGENT)
            activate_domain(self._program)
            if preload := default_preload():  # so that the first spawn finds it warm
                for host in hosts:
                    self._program.requests.post(address(host.id, 0), "warm", list(preload), list(client_path()))
        except BaseException:
            await self._close()
            raise
        await self._scope.__aenter__()
        return HostMesh(hosts)

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End every proc (teardown hooks, TERM, KILL), wait until all is gone; raise a failure nobody handled."""
        self._scope.leave()
        try:
            await self._close()
        finally:
            self._scope.raise_failure(error)

    async def _close(self) -> None:
        global _is_running
        try:
            if self._program is not None:
                await self._program.aclose()
        finally:
            activate_domain(None)
            _is_running = False
            await self._leave_hosts()

    async def _find_hosts(self, controller: Controller) -> list[Host]:
        raise NotImplementedError

    async def _leave_hosts(self) -> None:
        raise NotImplementedError


class LocalAgent:
    """An agent process started by this program. It hangs on its lifeline: when that closes, it ends with its procs."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, lifeline: socket.socket) -> None:
        """Started, not yet ready."""
        self.name, self.process, self._lifeline = name, process, lifeline

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


class LocalHosts(Attachment):
    """See `local_hosts`."""

    def __init__(self, n: int, config: Config, resources: Sequence[Resources | None]) -> None:
        """``n`` agents, and what each of them has, where that is given."""
        super().__init__(config)
        self._n, self._resources = n, resources
        self._agents: list[LocalAgent] = []
        self._folder = ""
        self._watches: list[asyncio.Task[None]] = []

    async def _find_hosts(self, controller: Controller) -> list[Host]:
        token = secrets.token_hex(32)
        self._folder = _make_folder(token)
        for index in range(self._n):
            url = f"unix://{self._folder}/{index}.sock"
            resources, share = self._resources[index], (index, self._n)
            self._agents.append(await LocalAgent.start(f"host{index}", url, token, self._config, resources, share))
        hosts = []
        for agent in self._agents:
            hosts.append(await controller.join(await agent.wait_ready(), token.encode()))
        for agent, host in zip(self._agents, hosts, strict=True):
            self._watches.append(asyncio.get_running_loop().create_task(_watch(agent, host, controller)))
        agents = {host.id: agent for agent, host in zip(self._agents, hosts, strict=True)}
        controller.links.watched.update(agents)
        controller.on_host_lost = lambda host: agents[host.id].kill()
        return hosts

    async def _leave_hosts(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*[agent.aclose(2 * self._config.stop_grace + _PATIENCE) for agent in self._agents])
        self._watches.clear()
        self._agents.clear()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _make_folder(token: str) -> str:
    """Make the folder of the sockets, which only this user can enter; `monarch-async status` finds the token there."""
    folder = tempfile.mkdtemp(prefix=LOCAL_FOLDERS)
    with open(os.open(f"{folder}/token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(token)
    return folder


async def _watch(agent: LocalAgent, host: Host, controller: Controller) -> None:
    """An agent that ends before its program is known dead at once."""
    code = await agent.process.wait()
    how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
    controller.links.declare_lost(host, f"its agent (pid {agent.process.pid}) {how}")


class AttachedHosts(Attachment):
    """See `attach`."""

    def __init__(self, urls: Sequence[str], token: bytes, config: Config, tls: ssl.SSLContext | None) -> None:
        """The agents' addresses."""
        super().__init__(config, tls)
        self._urls, self._token = urls, token

    async def _find_hosts(self, controller: Controller) -> list[Host]:
        return [await controller.join(url, self._token) for url in self._urls]

    async def _leave_hosts(self) -> None:
        """The agents stay; what was started on them is gone."""


def local_hosts(
    n: int = 1, *, resources: Resources | Sequence[Resources] | None = None, config: Config | None = None
) -> LocalHosts:
    """Return an ``async with`` block that starts ``n`` host agents on this machine and yields their `HostMesh`.

    Each behaves as a separate host, with its own procs. ``resources`` says what each of them has to place on, one for
    all or a sequence of one per host; where not given, each has all of this machine's cpus and memory, and a part of
    its devices: no two have the same. The variable ``MONARCH_ASYNC_RESOURCES`` may say otherwise, see the command
    ``monarch-async agent``. Leaving the block ends everything started in it: procs, what they started, agents. A
    failure nobody handled cancels the body and is raised here.

    Raises ExtentError where ``n`` is not positive, ValueError where ``resources`` are not those of ``n`` hosts; on
    entering, SpawnFailed where an agent cannot be started.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ExtentError(f"local_hosts(n={n!r}): expected a positive number of hosts")
    given = [None] * n if resources is None else one_each(resources, n)
    return LocalHosts(n, config or Config.from_env(), given)


def attach(
    *urls: str,
    token_file: str | None = None,
    token: str | None = None,
    config: Config | None = None,
    tls: ssl.SSLContext | None = None,
) -> AttachedHosts:
    """Return an ``async with`` block that joins running agents (``monarch-async agent``) and yields their `HostMesh`.

    Args:
        urls: ``tls://host:port``, ``tcp://host:port`` or ``unix:///path`` of each agent; they become the axis ``hosts``
            in this order.
        token_file: file of mode 0600 with the cluster token; by default the variable ``MONARCH_ASYNC_TOKEN``.
        token: the token itself.
        config: settings; by default from the environment. For ``tls://`` addresses: ``tls_ca`` says by which CAs the
            agents' certificates are signed (by default one of the system's); with ``tls_cert`` and ``tls_key`` this
            program shows one too, and agents read large arguments straight from its memory, by TLS. Without, those
            go in pieces through the connection to the agent.
        tls: a client's context that says all of that instead.

    Raises ValueError for bad or missing arguments, and for ``tcp://`` where settings ask for TLS; on entering,
    LinkBroken where nobody listens and HandshakeRefused where the token, the version or a certificate is wrong. Leaving
    the block ends what was started in it; the agents stay.
    """
    if not urls:
        raise ValueError("attach() needs at least one address: attach('tcp://host:port', ...)")
    secret = token.encode() if token is not None else read_token(token_file)
    return AttachedHosts(urls, secret, config or Config.from_env(), tls)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program to its end on uvloop where it is installed, as `asyncio.run` does; return what it returns."""
    return run_loop(main)
