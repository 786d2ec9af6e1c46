"""This process's UCX worker: what it has registered there, and what it is asked to move, on the plane's loop.

W1. The worker is progressed when its descriptor says so, for a bounded time in each turn of the loop; then the loop
    goes on, and comes back. It is armed only when nothing is left to do, and waited for only when it is armed. What an
    endpoint that failed leaves to do makes no descriptor ready (but for a timer of UCX's, after 15 s): until that
    endpoint is gone the worker is progressed now and then as well.
W2. A request that was begun ends: with its bytes moved, or with a failure once its endpoint has failed or was closed.
    Until then its memory is kept alive, and the endpoint's remote keys too.
W3. Over TCP it is the *owner's* worker that reads and writes the memory that peers name, without asking whether it is
    registered. So nobody names memory without a grant there (`ucx_grants`), and after a peer that went away in the
    middle the memory is let go of when what it had sent has been worked off (`when_quiet`).

UCX authenticates nobody: who reaches its TCP port may read and write all of this process's memory. Hence it is off
unless `Config.transports` names it, and bound to the loopback device where the plane serves only its own machine.
"""

import asyncio
import os
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from monarch_async.bulk.blocks import BlockPool
from monarch_async.bulk.memory import address_of
from monarch_async.bulk.region import Beacon, Region
from monarch_async.bulk.ucx_endpoint import Request, UcxEndpoint
from monarch_async.bulk.ucx_library import (
    BUSY,
    CANCELLED,
    CLOSE_FORCE,
    ERR_HANDLING_PEER,
    FEATURE_AM,
    FEATURE_RMA,
    FEATURE_WAKEUP,
    IN_PROGRESS,
    MEMORY_CUDA,
    MEMORY_HOST,
    OP_CALLBACK,
    OP_FLAGS,
    OP_USER_DATA,
    UcxFailure,
    UcxLibrary,
)

#: What we set where the environment (``UCX_...``) does not. Rendezvous would take gets on one machine from 15 to 1
#: GB/s; more than two rails only cost; UCX's own shared memory does not notice that a peer failed, so is never used.
_SETTINGS = {"RNDV_THRESH": "inf", "MAX_RMA_RAILS": "2", "TLS": "^posix,sysv"}

#: Seconds of progress in one turn of the loop.
_TURN = 0.5e-3

#: How often it is progressed while an endpoint that failed is left.
_CLEARING = 5e-3

#: Bytes of blocks kept warm.
_IDLE_BLOCKS = 64 << 20

#: How long after a peer went away in the middle what it had sent may still be on its way.
_QUIET_AFTER = 0.25


#: How many turns of the loop endpoints get for closing.
_LAST_TURNS = 100


class UcxWorker:
    """See the module. Made and used on one loop."""

    def __init__(self, library: UcxLibrary, beacon: Beacon, *, is_loopback_only: bool) -> None:
        """Open it. Raises UcxFailure.

        Args:
            library: see `find_library`.
            beacon: of this process's regions.
            is_loopback_only: whether to listen for processes of this machine alone.
        """
        self.library, self._beacon = library, beacon
        self.blocks = BlockPool(_IDLE_BLOCKS)  #: for what goes over TCP
        self._ffi, self._lib = library.ffi, library.lib
        self._loop = asyncio.get_running_loop()
        self._endpoints: dict[Any, UcxEndpoint] = {}  # by handle
        self._ways: dict[bytes, UcxEndpoint] = {}  # by address: those that may be usable
        self._requests: dict[int, tuple[Request, object, str]] = {}
        self._last_request = 0
        self._maps: dict[Region, list[Any]] = {}
        self._pages: dict[int, tuple[Any, bytes]] = {}  # registered pages of the beacon, by address
        self._is_scheduled = False
        self._clearing: asyncio.TimerHandle | None = None
        self.is_closed = False
        self._when_idle: list[Callable[[], None]] = []
        self._on_failed = self._ffi.callback("void(void *, void *, signed char)", self._endpoint_failed)
        self._on_done = self._ffi.callback("void(void *, signed char, void *)", self._request_done)
        self._parameters = self._ffi.new(
            "ucp_request_param_t *", {"op_attr_mask": OP_CALLBACK | OP_USER_DATA, "cb": self._on_done}
        )
        self._closing = self._ffi.new(
            "ucp_request_param_t *",
            {"op_attr_mask": OP_CALLBACK | OP_USER_DATA | OP_FLAGS, "cb": self._on_done, "flags": CLOSE_FORCE},
        )
        self._context = self._open_context(is_loopback_only)
        try:
            self._handle = self._open_handle()
        except UcxFailure:
            self._lib.ucp_cleanup(self._context)
            raise
        self.address = self._read_address()
        self._progress, self._arm = self._lib.ucp_worker_progress, self._lib.ucp_worker_arm
        self._fd = self._read_descriptor()
        self._loop.add_reader(self._fd, self._turn)
        self._turn()

    def _open_context(self, is_loopback_only: bool) -> Any:
        ffi, lib, check = self._ffi, self._lib, self.library.check
        settings = _SETTINGS | ({"NET_DEVICES": "lo"} if is_loopback_only else {})
        config = ffi.new("void **")
        check(lib.ucp_config_read(ffi.NULL, ffi.NULL, config), "settings of UCX in the environment")
        try:
            for name, value in settings.items():
                if f"UCX_{name}" not in os.environ:
                    check(lib.ucp_config_modify(config[0], name.encode(), value.encode()), f"UCX_{name}={value}")
            features = FEATURE_RMA | FEATURE_AM | FEATURE_WAKEUP
            parameters = ffi.new("ucp_params_t *", {"field_mask": 1 << 0, "features": features})
            context = ffi.new("ucp_context_h *")
            major, minor, _ = self.library.version
            check(lib.ucp_init_version(major, minor, parameters, config[0], context), "a UCX context")
        finally:
            lib.ucp_config_release(config[0])
        return context[0]

    def _open_handle(self) -> Any:
        parameters = self._ffi.new("ucp_worker_params_t *", {"field_mask": 1 << 0, "thread_mode": 0})  # one thread
        handle = self._ffi.new("ucp_worker_h *")
        self.library.check(self._lib.ucp_worker_create(self._context, parameters, handle), "a UCX worker")
        return handle[0]

    def _read_address(self) -> bytes:
        where, size = self._ffi.new("void **"), self._ffi.new("size_t *")
        self.library.check(self._lib.ucp_worker_get_address(self._handle, where, size), "the worker's address")
        address = bytes(self._ffi.buffer(where[0], size[0]))
        self._lib.ucp_worker_release_address(self._handle, where[0])
        return address

    def _read_descriptor(self) -> int:
        fd = self._ffi.new("int *")
        self.library.check(self._lib.ucp_worker_get_efd(self._handle, fd), "the worker's descriptor")
        return fd[0]

    @property
    def has_cuda(self) -> bool:
        """Whether this UCX moves the memory of CUDA devices of this machine."""
        found = self._ffi.new("ucp_context_attr_t *", {"field_mask": 1 << 2})
        self.library.check(self._lib.ucp_context_query(self._context, found), "types of memory")
        return bool(found.memory_types & 1 << MEMORY_CUDA)

    # -- memory ----------------------------------------------------------------------------------------------------

    def register(self, region: Region) -> tuple[bytes, ...]:
        """Register a region's memory; return the keys to it: one for each span, and one for the word of its stamp.

        There are none where it is memory of a device that this UCX does not move. Raises UcxFailure. With network cards
        this pins the memory, which takes about a tenth of a second per GB.
        """
        maps: list[Any] = []
        keys: list[bytes] = []
        device = region.device
        if device is None:
            places = [(address, size, "cpu") for address, size in region.addresses()]
        elif self.has_cuda and all(where == "cpu" or where.startswith("cuda") for _, _, where in device.places):
            places = list(device.places)
        else:
            return ()
        try:
            for address, size, where in places:
                kind = MEMORY_HOST if where == "cpu" else MEMORY_CUDA
                keys.append(self._map(address, size, kind, maps) if size else b"")
            keys.append(self._page_key(region.id))
        except UcxFailure:
            self._unmap(maps)
            if device is None:
                raise
            return ()  # such as memory that CUDA has put together of several pieces: pinned memory does
        except BaseException:
            self._unmap(maps)
            raise
        self._maps[region] = maps
        return tuple(keys)

    def unregister(self, region: Region) -> None:
        """Let go of a region's memory. Twice is fine."""
        self._unmap(self._maps.pop(region, []))

    def _map(self, address: int, size: int, kind: int, maps: list[Any]) -> bytes:
        ffi, lib, check = self._ffi, self._lib, self.library.check
        parameters = ffi.new(
            "ucp_mem_map_params_t *",
            {"field_mask": 1 << 0 | 1 << 1 | 1 << 4, "address": ffi.cast("void *", address), "length": size,
             "memory_type": kind},
        )  # fmt: skip
        handle = ffi.new("ucp_mem_h *")
        check(lib.ucp_mem_map(self._context, parameters, handle), f"registering {size} bytes")
        maps.append(handle[0])
        key, length = ffi.new("void **"), ffi.new("size_t *")
        check(lib.ucp_rkey_pack(self._context, handle[0], key, length), "a key to registered memory")
        try:
            return bytes(ffi.buffer(key[0], length[0]))
        finally:
            lib.ucp_rkey_buffer_release(key[0])

    def _unmap(self, maps: list[Any]) -> None:
        while maps:
            self._lib.ucp_mem_unmap(self._context, maps.pop())

    def _page_key(self, word: int) -> bytes:
        """Return the key to the page of the beacon that a word is in."""
        for page in self._beacon.pages[len(self._pages) :]:
            maps: list[Any] = []
            address = address_of(memoryview(page))
            key = self._map(address, len(page), MEMORY_HOST, maps)
            self._pages[address] = maps[0], key
        starts = sorted(self._pages)
        return self._pages[starts[bisect_right(starts, word) - 1]][1]

    # -- endpoints and requests ------------------------------------------------------------------------------------

    def connect(self, address: bytes) -> UcxEndpoint:
        """Return the endpoint to the worker at ``address``; whether that is there shows with the first request.

        There is one at a time, and it stays until it fails: where a peer's worker has answered reads, UCX keeps a
        connection of the two beyond the end of the endpoint, and a new one for each further endpoint.

        Raises UcxFailure.
        """
        known = self._ways.get(address)
        if known is not None and known.is_usable:
            return known
        ffi = self._ffi
        handle = ffi.new("ucp_ep_h *")
        memory = ffi.from_buffer(address)
        parameters = ffi.new(
            "ucp_ep_params_t *",
            {"field_mask": 1 << 0 | 1 << 1 | 1 << 2, "address": memory, "err_mode": ERR_HANDLING_PEER},
        )
        parameters.err_handler.cb = self._on_failed
        self.library.check(self._lib.ucp_ep_create(self._handle, parameters, handle), "an endpoint")
        endpoint = UcxEndpoint(self.library, self, handle[0])
        self._endpoints[handle[0]] = self._ways[address] = endpoint
        self.soon()
        return endpoint

    def forget(self, endpoint: UcxEndpoint) -> None:
        """It has been closed."""
        self._endpoints.pop(endpoint.handle, None)
        self._ways = {address: way for address, way in self._ways.items() if way is not endpoint}

    def begin(self, call: Callable[[Any], Any], keep: object, what: str, *, is_closing: bool = False) -> Request | None:
        """Begin a request: return None where it ended at once, else a future of its end.

        Args:
            call: given the parameters, calls UCX and returns its status pointer.
            keep: what must stay alive until it has ended.
            what: for errors, in words.
            is_closing: whether it is the closing of an endpoint, by force.

        Raises UcxFailure.
        """
        self._last_request += 1
        number = self._last_request
        parameters = self._closing if is_closing else self._parameters
        parameters.user_data = self._ffi.cast("void *", number)
        status = self.library.status_of(call(parameters))
        if status != IN_PROGRESS:
            self.library.check(status, what)
            return None
        future = self._loop.create_future()
        self._requests[number] = future, keep, what
        self.soon()
        return future

    def _request_done(self, request: Any, status: int, number: Any) -> None:
        future, _, what = self._requests.pop(int(self._ffi.cast("uintptr_t", number)))
        self._lib.ucp_request_free(request)
        if future.done():
            return
        if status < 0:
            future.set_exception(self.library.failure(status, what))
        else:
            future.set_result(None)

    def _endpoint_failed(self, _: Any, handle: Any, status: int) -> None:
        endpoint = self._endpoints.get(handle)
        if endpoint is not None:
            endpoint.fail(status)
            if self._clearing is None:
                self._clearing = self._loop.call_later(_CLEARING, self._clear)

    # -- progress (W1) ---------------------------------------------------------------------------------------------

    def soon(self) -> None:
        """Progress in the loop's next turn."""
        if not self._is_scheduled and not self.is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._scheduled)

    def _scheduled(self) -> None:
        self._is_scheduled = False
        if not self.is_closed:
            self._turn()

    def _clear(self) -> None:
        self._clearing = None
        if any(endpoint.status for endpoint in self._endpoints.values()):
            self.soon()
            self._clearing = self._loop.call_later(_CLEARING, self._clear)

    def progress(self, rounds: int) -> None:
        """Progress now, as long as there is something to do, but not for longer than so many rounds."""
        while rounds and self._progress(self._handle):
            rounds -= 1

    def _turn(self) -> None:
        progress, handle = self._progress, self._handle
        end = time.perf_counter() + _TURN
        while progress(handle):
            if time.perf_counter() > end:
                self.soon()
                return
        status = self._arm(handle)
        if status == BUSY:
            self.soon()
            return
        self.library.check(status, "waiting for the worker")
        if self._when_idle:
            ready, self._when_idle = self._when_idle, []
            for callback in ready:
                callback()

    def when_quiet(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when nothing that a peer sent before it went away is left to do here (W3)."""
        if self.is_closed:
            callback()
            return

        def once_more() -> None:
            if self.is_closed:
                callback()
            else:
                self._when_idle.append(callback)
                self.soon()

        def later() -> None:
            if self.is_closed:
                callback()
            else:
                self._loop.call_later(_QUIET_AFTER, once_more)

        self._when_idle.append(later)
        self.soon()

    async def aclose(self) -> None:
        """Close the endpoints, let go of all memory. Twice is fine."""
        if self.is_closed:
            return
        for endpoint in list(self._endpoints.values()):
            endpoint.close()  # so that the others hear of it; what is on its way ends with the worker
        for _ in range(_LAST_TURNS):
            if not self._endpoints:
                break
            self._turn()
            await asyncio.sleep(0)
        self.is_closed = True
        if self._clearing is not None:
            self._clearing.cancel()
        self._loop.remove_reader(self._fd)
        for region in list(self._maps):
            self.unregister(region)
        self._unmap([handle for handle, _ in self._pages.values()])
        self._lib.ucp_worker_destroy(self._handle)
        self._lib.ucp_cleanup(self._context)
        for callback in self._when_idle:
            callback()
        for future, _, what in self._requests.values():
            if not future.done():
                future.set_exception(self.library.failure(CANCELLED, what))
