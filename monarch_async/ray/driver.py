"""The facade in a driver: `init` begins it, on a loop of its own in the background, and `shutdown` ends it."""

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

from monarch_async.control.declared import Declared
from monarch_async.control.inventory import find_resources
from monarch_async.mesh.attachment import Attachment, attach, local_hosts
from monarch_async.mesh.domain import find_domain
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.ray.hub import Hub
from monarch_async.ray.init_context import InitContext
from monarch_async.ray.runtime import Runtime, find, set_current
from monarch_async.ray.runtime_env import RuntimeEnv, check_runtime_env
from monarch_async.transport.loop import run_loop

log = logging.getLogger("monarch_async")

#: Where `init` attaches where it is told ``auto``, or nothing: addresses of agents, with commas between them.
ADDRESS_VARIABLES = ("MONARCH_ASYNC_HOSTS", "RAY_ADDRESS")


class Driver:
    """One session: the thread, its loop, and the hosts."""

    def __init__(self) -> None:
        """Not begun."""
        self.started: concurrent.futures.Future[Runtime] = concurrent.futures.Future()
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.thread = threading.Thread(target=self._run, name="monarch_async.ray", daemon=True)

    def begin(self, address: str | None, declared: Declared, runtime_env: RuntimeEnv, namespace: str) -> Runtime:
        """Start or join hosts; wait until they are there."""
        self._said = address, declared, runtime_env, namespace
        self.thread.start()
        return self.started.result()

    def end(self) -> None:
        """End all that was started; wait for that."""
        if self._loop is not None and self._stopping is not None and self.thread.is_alive():
            try:
                self._loop.call_soon_threadsafe(self._stopping.set)
            except RuntimeError:
                pass  # it has ended by itself
        self.thread.join()

    def _run(self) -> None:
        try:
            run_loop(self._serve())
        except BaseException as error:
            if not self.started.done():
                self.started.set_exception(error)
            else:
                log.error("the hosts of this program are gone: %s", error)
        if self.started.done() and self.started.exception() is None:
            self.started.result().abandon()

    async def _serve(self) -> None:
        address, declared, runtime_env, namespace = self._said
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with await _attachment(address, declared) as hosts:
            await self._serve_on(hosts, runtime_env, namespace)

    async def _serve_on(self, hosts: HostMesh, runtime_env: RuntimeEnv, namespace: str) -> None:
        domain = find_domain()
        assert domain is not None and self._stopping is not None
        hub = Hub(domain, hosts)
        runtime = Runtime(domain, hub, is_driver=True)
        runtime.namespace, runtime.runtime_env = namespace, dict(runtime_env) or None
        hub.begin(runtime)
        self.started.set_result(runtime)
        try:
            await self._stopping.wait()
        finally:
            await hub.aclose()
            await runtime.aclose()


async def _attachment(address: str | None, declared: Declared) -> Attachment:
    if address is not None:
        return attach(*address.split(","))
    return local_hosts(resources=await find_resources(declared))


_driver: Driver | None = None

#: What `init` accepts and needs not: there is no dashboard process, and no store beside it. Also names with a ``_``.
_HINTS = frozenset(
    "include_dashboard dashboard_host dashboard_port job_config configure_logging logging_format logging_config "
    "enable_resource_isolation cgroup_path system_reserved_cpu system_reserved_memory proxy_server_url".split()
)


def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    resources: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    object_store_memory: int | None = None,
    namespace: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    ignore_reinit_error: bool = False,
    local_mode: bool = False,
    log_to_driver: bool = True,
    logging_level: object = None,
    **hints: object,
) -> InitContext:
    """Begin: start a host on this machine, or join those of ``address``. Waits until they are there.

    On a host of its own all ends with this program. On hosts that were joined actors with ``lifetime="detached"`` live
    on, with what they hold: a later program that says the same ``namespace`` gets them by their names, one program at
    a time (see `hub_detached`).

    Args:
        address: addresses of running agents (``monarch-async agent``), with commas between them; ``auto``: those of the
            variable MONARCH_ASYNC_HOSTS; None: those, or else a host of its own; ``local``: a host of its own.
        num_cpus, num_gpus, resources, labels: what the host of its own has; by default this machine's.
        object_store_memory: bytes of objects that it may keep (``MONARCH_ASYNC_STORE_BYTES``).
        namespace: of named actors; where none is given it is one that no other program has.
        runtime_env: for all tasks and actors.
        ignore_reinit_error: return quietly where it was begun already.
        local_mode, log_to_driver, logging_level, hints: accepted, where they say nothing that cannot be done.

    Raises RuntimeError where it was begun already, and for an unknown name, ConnectionError where there is nothing to
    join, NotImplementedError for ``local_mode``, ``ray://``.
    """
    global _driver
    unknown = sorted(name for name in hints if name not in _HINTS and not name.startswith("_"))
    if unknown:
        raise RuntimeError(f"init() has no argument {', '.join(unknown)}")
    found = find()
    if found is not None:
        if not ignore_reinit_error and found.is_driver:
            raise RuntimeError("init() was called already: shutdown() first, or say ignore_reinit_error=True")
        return InitContext(found)
    if local_mode:
        raise NotImplementedError("local_mode is not offered: workers are forked in milliseconds, and debuggers attach")
    env = check_runtime_env(runtime_env or _job_env())
    if object_store_memory is not None:
        os.environ.setdefault("MONARCH_ASYNC_STORE_BYTES", str(int(object_store_memory)))
    declared = Declared(cpus=num_cpus, gpus=num_gpus, labels=dict(labels or {}), custom=dict(resources or {}))
    driver = Driver()
    runtime = driver.begin(_address(address), declared, env, namespace or os.urandom(16).hex())
    _driver = driver
    set_current(runtime)
    return InitContext(runtime)


def _address(address: str | None) -> str | None:
    if address == "local":
        return None
    if address is None or address == "auto":
        found = next((os.environ[name] for name in ADDRESS_VARIABLES if os.environ.get(name)), None)
        if found is None and address == "auto":
            raise ConnectionError(f"init(address='auto'): no hosts to join: {ADDRESS_VARIABLES[0]} says none")
        return None if found == "local" else found
    if address.startswith("ray://"):
        raise NotImplementedError(f"init(address={address!r}): there are no proxied clients; join hosts: tls://host:port")
    return address


def _job_env() -> Mapping[str, Any]:
    from monarch_async.ray.job_config import runtime_env_of_job

    return runtime_env_of_job()


def shutdown(_exiting_interpreter: bool = False) -> None:
    """End all that this program has started: tasks, actors, hosts of its own. Waits for that. Twice is fine.

    Detached actors on hosts that were joined stay.
    """
    global _driver
    driver, _driver = _driver, None
    if driver is not None:
        driver.end()
        set_current(None)


def is_initialized() -> bool:
    """Return whether `init` was called, here or for this worker."""
    return find() is not None


atexit.register(shutdown)
