"""The way from this process's UCX worker to one other: remote keys, reads, writes.

E1. A request that was begun ends: with its bytes moved, or with a failure once its endpoint has failed or was closed.
    Until then its memory is kept alive; whoever began it keeps its remote key.
E2. An endpoint that failed or was closed begins nothing any more. It is closed by force, and only when no request of it
    is on its way: UCX does not end those, and would later write to what it has freed.
"""

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

from monarch_async.bulk.ucx_library import CONNECTION_RESET, UcxFailure, UcxLibrary

#: Transports that reach memory with no help from its owner's worker: by the kernel, or a network card.
_ONE_SIDED = {"cma", "knem", "xpmem", "rc", "dc", "gga"}

#: How many transports of an endpoint are looked at.
_MOST_LANES = 32

Request = asyncio.Future[None]


class Worker(Protocol):
    """What an endpoint needs of its `ucx_worker.UcxWorker`."""

    @property
    def is_closed(self) -> bool:
        """Whether UCX has forgotten it, and all that belonged to it."""
        ...

    def begin(self, call: Callable[[Any], Any], keep: object, what: str, *, is_closing: bool = False) -> Request | None:
        """See there."""
        ...

    def forget(self, endpoint: "UcxEndpoint") -> None:
        """It has been closed."""
        ...


class UcxEndpoint:
    """See the module. On the worker's loop."""

    def __init__(self, library: UcxLibrary, worker: Worker, handle: Any) -> None:
        """``handle`` is UCX's."""
        self._library, self._ffi, self._lib = library, library.ffi, library.lib
        self._worker, self.handle = worker, handle
        self.status = 0  #: negative once it has failed
        self._is_closed = False
        self._outstanding = 0

    @property
    def is_usable(self) -> bool:
        """Whether it has neither failed nor been closed."""
        return not self.status and not self._is_closed

    @cached_property
    def is_one_sided(self) -> bool:
        """Whether memory at the other side is read with no help from its worker."""
        return any(name.partition("_")[0] in _ONE_SIDED for name in self.transports())

    def transports(self) -> list[str]:
        """Return the names of the transports it uses, as UCX calls them; none where it is too old to say.

        Raises UcxFailure.
        """
        self._check()
        ffi = self._ffi
        entries = ffi.new("ucp_transport_entry_t[]", _MOST_LANES)
        found = ffi.new(
            "ucp_ep_attr_t *",
            {"field_mask": 1 << 3, "entries": entries, "num_entries": _MOST_LANES,
             "entry_size": ffi.sizeof("ucp_transport_entry_t")},
        )  # fmt: skip
        self._library.check(self._lib.ucp_ep_query(self.handle, found), "transports of an endpoint")
        names = [entries[i].transport_name for i in range(min(found.num_entries, _MOST_LANES))]
        return [ffi.string(name).decode() for name in names if name != ffi.NULL]

    def unpack(self, key: bytes) -> Any:
        """Return a remote key for this endpoint; `destroy` it. Raises UcxFailure."""
        self._check()
        found = self._ffi.new("ucp_rkey_h *")
        status = self._lib.ucp_ep_rkey_unpack(self.handle, self._ffi.from_buffer(key), found)
        self._library.check(status, "a remote key")
        return found[0]

    def destroy(self, key: Any) -> None:
        """Give back what `unpack` returned. No request uses it any more."""
        if not self._worker.is_closed:
            self._lib.ucp_rkey_destroy(key)

    def get(self, address: int, key: Any, into: memoryview) -> Request | None:
        """Begin to read memory; return None where it is done already. Raises UcxFailure, as does the future."""
        memory = self._ffi.from_buffer(into, require_writable=True)
        call = self._lib.ucp_get_nbx
        return self._begin(lambda how: call(self.handle, memory, len(into), address, key, how), memory, "reading")

    def put(self, address: int, key: Any, source: memoryview) -> Request | None:
        """Begin to write memory; as `get`. It is there only after `flush`."""
        memory = self._ffi.from_buffer(source)
        call = self._lib.ucp_put_nbx
        return self._begin(lambda how: call(self.handle, memory, len(source), address, key, how), memory, "writing")

    def flush(self) -> Request | None:
        """Begin to wait until what was written is there; as `get`."""
        return self._begin(lambda how: self._lib.ucp_ep_flush_nbx(self.handle, how), None, "flushing")

    def _begin(self, call: Callable[[Any], Any], keep: object, what: str) -> Request | None:
        self._check()
        request = self._worker.begin(call, keep, what)
        if request is not None:
            self._outstanding += 1
            request.add_done_callback(self._ended)
        return request

    def _check(self) -> None:
        """Raise UcxFailure where UCX may have forgotten it."""
        if not self.is_usable:
            raise self._library.failure(self.status or CONNECTION_RESET, "the connection")

    def _ended(self, request: Request) -> None:
        self._outstanding -= 1
        if self.status:
            self.close()

    def fail(self, status: int) -> None:
        """UCX says that it has failed; called from within UCX."""
        self.status = status
        asyncio.get_running_loop().call_soon(self.close)

    def close(self) -> None:
        """Close it, unless something is on its way still. Twice is fine."""
        if self._is_closed or self._outstanding or self._worker.is_closed:
            return
        self._is_closed = True

        def ended(_: object) -> None:
            self._worker.forget(self)

        call = self._lib.ucp_ep_close_nbx
        try:
            request = self._worker.begin(lambda how: call(self.handle, how), None, "closing", is_closing=True)
        except UcxFailure:  # of what it still had to do; closed it is
            request = None
        if request is None:
            ended(None)
        else:
            request.add_done_callback(lambda request: (request.exception(), ended(request)))
