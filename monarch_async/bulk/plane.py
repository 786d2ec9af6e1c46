"""One process's data plane: what it has registered, its thread, whom it serves, and how it reads and writes elsewhere.

The thread starts with the first use, and the sockets with the first registration: a process that only reads from others
on its machine listens nowhere. Everything here may be used from the process's own loop; small reads on one machine are
done right there, everything else on the plane's.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from monarch_async.bulk.arena import Arena
from monarch_async.bulk.bulk_server import BulkServer
from monarch_async.bulk.cma import allow_readers
from monarch_async.bulk.device import DeviceLanes, DeviceMemory
from monarch_async.bulk.endpoint import Endpoint, this_machine, this_network
from monarch_async.bulk.mapping import enlarge_region
from monarch_async.bulk.plane_thread import PlaneThread
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.bulk.routes import RouteFacts, Routes
from monarch_async.bulk.staged import local_operations
from monarch_async.bulk.transport import Progress, Run, ignore
from monarch_async.bulk.ucx_grants import UcxGrants
from monarch_async.bulk.ucx_worker import UcxWorker
from monarch_async.config import Config
from monarch_async.errors import Closed, ForeignHandle, HandshakeRefused, TransferBroken
from monarch_async.transport.dial import bind, bound_url, listening
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url

T = TypeVar("T")

log = logging.getLogger("monarch_async.bulk")

#: A read of up to this size takes less time than handing it to another thread.
_AT_ONCE = 2 << 20

#: From this size on registered memory is put into large pages: others then read it in half of the time.
_WORTH_ENLARGING = 8 << 20

#: How long writers are waited for when the plane is closed. Their connections end then.
_PATIENCE = 1.0


class DataPlane:
    """See the module. One per process."""

    def __init__(self, config: Config) -> None:
        """Nothing runs yet."""
        self.config = config
        self._cluster, self._address, self._name, self._bulk_host = b"", 0, f"process {os.getpid()}", ""
        self._lock = threading.RLock()
        self._thread: PlaneThread | None = None
        self._endpoint: Endpoint | None = None
        self._routes = Routes(self)
        self._serving = contextlib.AsyncExitStack()
        self.tls = Tls(config)  #: how its TCP is encrypted, if it is
        self.ucx: UcxWorker | str = "this process allows no UCX"  #: or why there is none
        self._is_closed = False
        self._enlarging: set[asyncio.Task[None]] = set()

    def identify(self, cluster: bytes, address: int, name: str, bulk_host: str) -> None:
        """Say who this process is.

        Args:
            cluster: see `endpoint.cluster_id`.
            address: of the process.
            name: for errors that others see.
            bulk_host: what other machines reach this one by; empty: they need not.
        """
        self._cluster, self._address, self._name, self._bulk_host = cluster, address, name, bulk_host

    def reach_by(self, bulk_host: str) -> None:
        """Say what other machines reach this one by; heeded until the sockets are there."""
        self._bulk_host = bulk_host

    @property
    def cluster(self) -> bytes:
        """What all processes of the cluster share; see `endpoint.cluster_id`."""
        return self._cluster

    # -- this process as others see it -----------------------------------------------------------------------------

    @cached_property
    def regions(self) -> Regions:
        """What is registered here."""
        return vars(self).setdefault("regions", Regions())  # whichever thread is first

    @cached_property
    def arena(self) -> Arena:
        """Memory to hand to other processes of this machine."""
        return vars(self).setdefault("arena", Arena())

    @cached_property
    def silent(self) -> Endpoint:
        """How processes of this machine read here with no help from this one: an endpoint without sockets."""
        if "cma" in self.config.allowed_transports:
            allow_readers()
        beacon = self.regions.beacon
        return Endpoint(
            self._cluster, self._address, self._name, this_machine(), os.getpid(), beacon.address, beacon.nonce
        )

    @property
    def endpoint(self) -> Endpoint:
        """How others reach this process. The first time its sockets are opened: OSError where that fails."""
        return self._endpoint or self.thread.call(self._listen)

    @property
    def is_listening(self) -> bool:
        """Whether this process's sockets are open."""
        return self._endpoint is not None

    def _listen(self) -> Endpoint:
        """Open the sockets, once. On the plane's thread, so that no other has to wait for that with a lock held."""
        if self._endpoint is not None:
            return self._endpoint
        key = secrets.token_bytes(32)
        urls = [Url.abstract(f"monarch-async-bulk-{os.getpid()}-{secrets.token_hex(8)}")]
        is_wanted = bool(self._bulk_host) or "tcp" in self.config.allowed_transports
        if is_wanted and self.can_listen:  # others ask for their transports' needs there
            urls.append(Url.inet(self._bulk_host or "127.0.0.1", 0, self.tls.is_on))
        sockets: list[socket.socket] = []
        try:
            tls = self._certified_name() if len(urls) > 1 else ""
            sockets += map(bind, urls)
            tcp = bound_url(urls[1], sockets[1]).text.partition("://")[2] if len(urls) > 1 else ""
            ucx = self._start_ucx()
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        self._serve(list(zip(urls, sockets, strict=True)), key)
        found = replace(self.silent, key=key, local=urls[0].name, tcp=tcp, ucx=ucx, network=this_network(), tls=tls)
        self._endpoint = found
        return found

    @property
    def can_listen(self) -> bool:
        """Whether it can listen on TCP. With TLS and no certificate it cannot; what it sends goes in messages then."""
        return self.tls.has_certificate or not self.tls.is_on

    def _certified_name(self) -> str:
        try:
            return self.tls.certificate.name if self.tls.is_on else ""
        except ValueError as error:
            raise OSError(str(error)) from None

    def _start_ucx(self) -> bytes:
        if "ucx" not in self.config.allowed_transports:
            return b""
        if self.tls.is_on and self.config.allowed_transports != ("ucx",):
            self.ucx = "UCX does not encrypt, and this process uses TLS: transports='ucx', alone, takes it all the same"
            return b""
        from monarch_async.bulk.ucx import open_worker

        self.ucx = open_worker(self.regions.beacon, is_loopback_only=not self._bulk_host)
        return b"" if isinstance(self.ucx, str) else self.ucx.address

    def _serve(self, sockets: list[tuple[Url, socket.socket]], key: bytes) -> None:
        lanes = DeviceLanes(self.regions, self.add, self.remove)
        self._serving.push_async_callback(lanes.aclose)
        operations = local_operations(self.regions, self.arena) | lanes.operations()
        if not isinstance(self.ucx, str):
            operations |= UcxGrants(self.regions, self.ucx).operations()
        server = BulkServer(self.regions, self.config, operations)
        self._serving.push_async_callback(server.aclose)

        async def serve() -> None:
            for url, sock in sockets:
                await self._serving.enter_async_context(
                    listening(url, key, lambda info: b"", server.take, _log_refusal, self.tls, sock)
                )

        self._started = asyncio.get_running_loop().create_task(serve())

    # -- registering -----------------------------------------------------------------------------------------------

    async def add(
        self,
        spans: Sequence[memoryview],
        is_writable: bool,
        keep: object = None,
        what: str = "registered memory",
        device: DeviceMemory | None = None,
    ) -> tuple[Region, RemoteRegion]:
        """Register memory: flat views of bytes, or that of a ``device``.

        ``keep`` is kept alive with it; ``what`` names it in errors.
        """
        self.endpoint  # noqa: B018  the UCX worker starts with it
        region = self.regions.add(spans, is_writable, keep, device)
        if not isinstance(worker := self.ucx, str):
            try:
                region.rkeys = await self.run(_async(lambda: worker.register(region)))
            except BaseException:
                self.regions.remove(region)
                raise
        if "cma" in self.config.allowed_transports and any(len(span) >= _WORTH_ENLARGING for span in spans):
            self.thread.call_soon(self._enlarge, region)
        return region, self.describe(region, what)

    def _enlarge(self, region: Region) -> None:
        task = asyncio.get_running_loop().create_task(enlarge_region(self.regions, region))
        self._enlarging.add(task)
        task.add_done_callback(self._enlarging.discard)

    def describe(
        self, region: Region, what: str = "registered memory", endpoint: Endpoint | None = None
    ) -> RemoteRegion:
        """Return what others need to know of a region."""
        return RemoteRegion(
            endpoint or self.endpoint, region.id, region.stamp, region.id, region.addresses(), region.is_writable,
            region.rkeys, what, region.device.device if region.device is not None else "",
        )  # fmt: skip

    async def advance(self, region: Region, what: str = "registered memory") -> RemoteRegion:
        """Begin a new epoch: what described it before is stale."""
        self.regions.advance(region)
        return self.describe(region, what)

    async def remove(self, region: Region) -> None:
        """Revoke a region at once; return when nobody uses its memory any more. Twice is fine."""
        if self.regions.remove(region) and self._thread is not None and not self._is_closed:
            await self.run(self._release(region))

    async def _release(self, region: Region) -> None:
        await region.wait_unused()
        if not isinstance(self.ucx, str):
            self.ucx.unregister(region)

    # -- moving bytes ----------------------------------------------------------------------------------------------

    async def read(
        self,
        region: RemoteRegion,
        runs: Sequence[Run],
        into: Sequence[memoryview],
        progress: Progress | None = None,
    ) -> None:
        """Copy runs of a region to local memory, by the best way there is.

        Raises ForeignHandle, StaleHandle, NoTransport and TransferBroken; what ``into`` holds then is not defined.
        """
        if self.read_now(region, runs, into):
            if progress is not None:
                progress(sum(map(len, into)))
            return
        await self.run(self._move("read", region, runs, into, progress))

    def read_now(self, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview]) -> bool:
        """Read at once, on any thread, where that is quicker than waiting; return whether it was. Raises as `read`."""
        route = self._routes.known(region)
        if route is None or route.read_now is None:
            return False
        size = sum(map(len, into))
        if size > _AT_ONCE:
            return False
        started = time.perf_counter()
        try:
            route.read_now(region, runs, into)
        except TransferBroken:
            self.thread.call_soon(self._routes.drop, route)
            raise
        route.count(size, time.perf_counter() - started)
        return True

    async def write(
        self,
        region: RemoteRegion,
        runs: Sequence[Run],
        source: Sequence[memoryview],
        progress: Progress | None = None,
    ) -> None:
        """Copy local memory to runs of a region; it is there when this returns. Raises as `read`."""
        await self.run(self._move("write", region, runs, source, progress))

    async def _move(
        self,
        what: str,
        region: RemoteRegion,
        runs: Sequence[Run],
        views: Sequence[memoryview],
        progress: Progress | None,
    ) -> None:
        if region.endpoint.cluster != self._cluster:
            raise ForeignHandle(region.what, f"it belongs to {region.endpoint.name}, which is of another cluster")
        route = await self._routes.find(region)
        move = route.transport.read if what == "read" else route.transport.write
        started = time.perf_counter()
        try:
            await move(region, runs, views, progress or ignore)
        except TransferBroken:
            self._routes.drop(route)
            raise
        route.count(sum(map(len, views)), time.perf_counter() - started)

    def routes(self) -> list[RouteFacts]:
        """Return the ways found so far, and why they are not better ones."""
        return self._routes.facts()

    # -- the thread ------------------------------------------------------------------------------------------------

    @property
    def thread(self) -> PlaneThread:
        """The plane's thread, started on first use. Raises Closed after `aclose`."""
        if self._thread is None:
            with self._lock:
                if self._is_closed:
                    raise Closed("the data plane of this process")
                if self._thread is None:
                    self._thread = PlaneThread()
        return self._thread

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the plane's loop, awaited from any other; see `PlaneThread.run`."""
        try:
            thread = self.thread
        except Closed:
            work.close()
            raise
        return await thread.run(work)

    async def aclose(self) -> None:
        """Stop serving, close every connection, end the thread. Twice is fine."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            try:
                await thread.run(self._aclose())
            finally:
                thread.close()
        if "arena" in vars(self):
            self.arena.close()

    async def _aclose(self) -> None:
        for task in self._enlarging:
            task.cancel()
        revoked = [asyncio.ensure_future(region.wait_unused()) for region in self.regions.remove_all()]
        if revoked:  # before the server goes, which knows who still writes
            _, late = await asyncio.wait(revoked, timeout=_PATIENCE)
            for waiting in late:
                waiting.cancel()
        await self._routes.aclose()
        if self._endpoint is not None:
            await self._started
        await self._serving.aclose()
        if not isinstance(self.ucx, str):
            await self.ucx.aclose()


def _log_refusal(who: str, error: HandshakeRefused) -> None:
    log.warning("data plane: refused a connection from %s: %s", who, error.reason)


async def _async(function: Any) -> Any:
    return function()
