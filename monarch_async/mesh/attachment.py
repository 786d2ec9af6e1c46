"""How a program gets hosts: start agents on this machine, or attach to some that run."""

import ssl
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from monarch_async.config import Config
from monarch_async.control.cluster_token import read_token
from monarch_async.control.controller import Controller, default_name
from monarch_async.control.declared import one_each
from monarch_async.errors import Closed, ExtentError
from monarch_async.ids import AGENT, address
from monarch_async.mesh.domain import activate_domain
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.mesh.host_source import HostSource
from monarch_async.mesh.leases import announce
from monarch_async.mesh.local_source import LocalSource
from monarch_async.mesh.program import Program
from monarch_async.mesh.scope import Scope
from monarch_async.mesh.termination import end_on_sigterm
from monarch_async.scheduler.resources import Resources
from monarch_async.transport.loop import run_loop

T = TypeVar("T")

_is_running = False


class Attachment:
    """An ``async with`` block that yields a `HostMesh` and ends all that was started in it: `local_hosts`, `attach`."""

    _made_by: ClassVar[str]

    def __init__(
        self, config: Config, token: bytes, source: HostSource | None, tls: ssl.SSLContext | None = None
    ) -> None:
        """Nothing happens before the block is entered. ``source`` gives further hosts; all of them have ``token``."""
        self._config, self._token, self._source, self._tls = config, token, source, tls
        self._scope = Scope()
        self._program: Program | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{name}: enter the block that has the hosts: {self._entered()}")

        def __await__(self) -> Any:
            raise TypeError(f"it is a block, and not to be awaited: {self._entered()}")

    def _entered(self) -> str:
        return f"async with ma.{self._made_by}(...) as hosts"

    async def __aenter__(self) -> HostMesh:
        """Reach the hosts. Raises what `local_hosts` or `attach` says."""
        global _is_running
        if _is_running:
            raise Closed("a second `async with ma.local_hosts()` in one program", "use the hosts of the first")
        _is_running = True
        controller = Controller(self._config, default_name(), tls=self._tls)
        self._program = Program(controller, self._scope, self._token, self._source)
        try:
            hosts = await controller.join_all(await self._find_hosts(controller), self._token)
            self._program.home = address(hosts[0].id, AGENT)
            activate_domain(self._program)
            self._program.warm(hosts)
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
            try:
                if self._program is not None:
                    await self._program.roster.aclose()
            finally:
                await self._leave_hosts()

    async def _find_hosts(self, controller: Controller) -> Sequence[str]:
        """Return where their agents listen."""
        raise NotImplementedError

    async def _leave_hosts(self) -> None:
        raise NotImplementedError


class LocalHosts(Attachment):
    """See `local_hosts`."""

    _made_by = "local_hosts"

    def __init__(self, config: Config, resources: Sequence[Resources | None]) -> None:
        """One agent for each of ``resources``: what it has, where that is given."""
        self._local = LocalSource(config)
        super().__init__(config, self._local.token.encode(), self._local)
        self._resources = resources

    async def _find_hosts(self, controller: Controller) -> list[str]:
        self._local.follow(controller.links)
        return await self._local.start(self._resources)

    async def _leave_hosts(self) -> None:
        await self._local.aclose()


class AttachedHosts(Attachment):
    """See `attach`."""

    _made_by = "attach"

    def __init__(
        self,
        urls: Sequence[str],
        token: bytes,
        config: Config,
        tls: ssl.SSLContext | None,
        source: HostSource | None,
    ) -> None:
        """The agents' addresses."""
        super().__init__(config, token, source, tls)
        self._urls = urls

    async def __aenter__(self) -> HostMesh:
        """Reach the hosts; log, in the background, what lives there without a program."""
        hosts = await super().__aenter__()
        assert self._program is not None
        self._program.start_task(announce(self._program))
        return hosts

    async def _find_hosts(self, controller: Controller) -> Sequence[str]:
        return self._urls

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
    return LocalHosts(config or Config.from_env(), given)


def attach(
    *urls: str,
    token_file: str | None = None,
    token: str | None = None,
    config: Config | None = None,
    tls: ssl.SSLContext | None = None,
    source: HostSource | None = None,
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
        source: where `Cluster.grow` gets further hosts from: a job, say. What it gives is given back.

    Raises ValueError for bad or missing arguments, and for ``tcp://`` where settings ask for TLS; on entering,
    LinkBroken where nobody listens and HandshakeRefused where the token, the version or a certificate is wrong. Leaving
    the block ends what was started in it, but what was detached; the agents stay. What nobody owns there is logged, see
    `Cluster.adopt`.
    """
    if not urls:
        raise ValueError("attach() needs at least one address: attach('tcp://host:port', ...)")
    twice = next((url for url in urls if urls.count(url) > 1), None)
    if twice is not None:
        raise ValueError(f"attach(): {twice} is given twice")
    secret = token.encode() if token is not None else read_token(token_file)
    return AttachedHosts(urls, secret, config or Config.from_env(), tls, source)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program to its end on uvloop where it is installed, as `asyncio.run` does; return what it returns.

    SIGTERM cancels it as Ctrl-C does, so that its blocks end in order; the process ends with status 143 then.
    """
    return run_loop(end_on_sigterm(main))
