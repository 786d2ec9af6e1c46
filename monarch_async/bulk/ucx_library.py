"""libucp, called without a compiler: where it is found, what of it is declared, what its answers mean.

Looked for in the folder ``UCX_LIB_DIR`` names, then among the system's libraries (which know the machine's network
cards), then in the ``libucx-cu12`` wheel (TCP, CMA and CUDA). Every structure of UCX begins with a mask of the fields
that are set, so what is declared here holds for all of UCX 1.x; older ones know fewer fields and ignore the rest.

``ucs_status_t`` is **one byte**: declared as an int, −25 reads as 231, and failures look like success.
"""

import contextlib
import ctypes
import glob
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

#: The oldest UCX that this is known to work with.
_OLDEST = (1, 13)

#: What the library reads from the environment while it is loaded. Its warnings go to the program's standard output,
#: and say nothing that its statuses do not; a program's signal handlers are not its to replace.
_QUIET = {"UCX_LOG_LEVEL": "fatal", "UCX_WARN_UNUSED_ENV_VARS": "n", "UCX_HANDLE_ERRORS": "none"}

OK, IN_PROGRESS, NO_DEVICE, BUSY, CANCELLED, CONNECTION_RESET = 0, 1, -14, -15, -16, -25

#: Values of the fields below, by UCX's names for them.
FEATURE_RMA, FEATURE_WAKEUP, FEATURE_AM = 1 << 1, 1 << 4, 1 << 6
MEMORY_HOST, MEMORY_CUDA = 0, 1
ERR_HANDLING_PEER = 1
OP_CALLBACK, OP_USER_DATA, OP_FLAGS = 1 << 1, 1 << 2, 1 << 4
CLOSE_FORCE = 1

_DECLARATIONS = """
typedef signed char ucs_status_t;
typedef void *ucs_status_ptr_t;
typedef void *ucp_context_h, *ucp_worker_h, *ucp_ep_h, *ucp_mem_h, *ucp_rkey_h;
typedef struct {
    uint64_t field_mask, features; size_t request_size; void *request_init, *request_cleanup;
    uint64_t tag_sender_mask; int mt_workers_shared; size_t estimated_num_eps, estimated_num_ppn;
    const char *name; size_t node_local_id;
} ucp_params_t;
typedef struct {
    uint64_t field_mask; size_t request_size; int thread_mode; uint64_t memory_types; char name[32];
    size_t device_counter_size;
} ucp_context_attr_t;
typedef struct {
    uint64_t field_mask; int thread_mode; unsigned long cpu_mask[16]; unsigned events; void *user_data; int event_fd;
    uint64_t flags; const char *name; size_t am_alignment; uint64_t client_id;
} ucp_worker_params_t;
typedef struct { void (*cb)(void *, ucp_ep_h, ucs_status_t); void *arg; } ucp_err_handler_t;
typedef struct { const void *addr; unsigned addrlen; } ucs_sock_addr_t;
typedef struct {
    uint64_t field_mask; const void *address; int err_mode; ucp_err_handler_t err_handler; void *user_data;
    unsigned flags; ucs_sock_addr_t sockaddr; void *conn_request; const char *name; ucs_sock_addr_t local_sockaddr;
} ucp_ep_params_t;
typedef struct { const char *transport_name, *device_name; } ucp_transport_entry_t;
typedef struct {
    uint64_t field_mask; char name[32]; char local_sockaddr[128], remote_sockaddr[128];
    ucp_transport_entry_t *entries; unsigned num_entries; size_t entry_size; void *user_data;
} ucp_ep_attr_t;
typedef struct {
    uint64_t field_mask; void *address; size_t length; unsigned flags, prot; int memory_type;
    const void *exported_memh_buffer;
} ucp_mem_map_params_t;
typedef struct {
    uint32_t op_attr_mask, flags; void *request; void (*cb)(void *, ucs_status_t, void *); uint64_t datatype;
    void *user_data, *reply_buffer; int memory_type; void *recv_info; ucp_mem_h memh; uint64_t remote_datatype;
    const void *remote; size_t remote_count;
} ucp_request_param_t;
const char *ucs_status_string(ucs_status_t);
void ucp_get_version(unsigned *, unsigned *, unsigned *);
ucs_status_t ucp_config_read(const char *, const char *, void **);
ucs_status_t ucp_config_modify(void *, const char *, const char *);
void ucp_config_release(void *);
ucs_status_t ucp_init_version(unsigned, unsigned, const ucp_params_t *, const void *, ucp_context_h *);
ucs_status_t ucp_context_query(ucp_context_h, ucp_context_attr_t *);
void ucp_cleanup(ucp_context_h);
ucs_status_t ucp_worker_create(ucp_context_h, const ucp_worker_params_t *, ucp_worker_h *);
void ucp_worker_destroy(ucp_worker_h);
ucs_status_t ucp_worker_get_address(ucp_worker_h, void **, size_t *);
void ucp_worker_release_address(ucp_worker_h, void *);
ucs_status_t ucp_worker_get_efd(ucp_worker_h, int *);
ucs_status_t ucp_worker_arm(ucp_worker_h);
unsigned ucp_worker_progress(ucp_worker_h);
ucs_status_t ucp_ep_create(ucp_worker_h, const ucp_ep_params_t *, ucp_ep_h *);
ucs_status_t ucp_ep_query(ucp_ep_h, ucp_ep_attr_t *);
ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h, const ucp_request_param_t *);
ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h, const ucp_request_param_t *);
ucs_status_t ucp_mem_map(ucp_context_h, const ucp_mem_map_params_t *, ucp_mem_h *);
ucs_status_t ucp_mem_unmap(ucp_context_h, ucp_mem_h);
ucs_status_t ucp_rkey_pack(ucp_context_h, ucp_mem_h, void **, size_t *);
void ucp_rkey_buffer_release(void *);
ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h, const void *, ucp_rkey_h *);
void ucp_rkey_destroy(ucp_rkey_h);
ucs_status_ptr_t ucp_put_nbx(ucp_ep_h, const void *, size_t, uint64_t, ucp_rkey_h, const ucp_request_param_t *);
ucs_status_ptr_t ucp_get_nbx(ucp_ep_h, void *, size_t, uint64_t, ucp_rkey_h, const ucp_request_param_t *);
void ucp_request_free(void *);
"""


class UcxFailure(Exception):
    """A call of UCX failed. Transports turn it into an error of this package, with the other process's name."""

    def __init__(self, status: int, what: str) -> None:
        """``status`` is UCX's, ``what`` says in words what failed."""
        super().__init__(status, what)
        self.status, self.what = status, what

    def __str__(self) -> str:
        return f"{self.what} (status {self.status})"


class UcxLibrary:
    """A loaded libucp: ``lib`` has its functions, ``ffi`` makes their arguments."""

    def __init__(self, ffi: Any, lib: Any, path: str) -> None:
        """``path``: what was loaded."""
        self.ffi, self.lib, self.path = ffi, lib, path
        numbers = [ffi.new("unsigned *") for _ in range(3)]
        lib.ucp_get_version(*numbers)
        self.version: tuple[int, int, int] = (numbers[0][0], numbers[1][0], numbers[2][0])

    def check(self, status: int, what: str) -> None:
        """Raise UcxFailure where a call failed."""
        if status < 0:
            raise self.failure(status, what)

    def failure(self, status: int, what: str) -> UcxFailure:
        """Return the error of a status."""
        return UcxFailure(status, f"{what}: {self.ffi.string(self.lib.ucs_status_string(status)).decode().lower()}")

    def status_of(self, pointer: Any) -> int:
        """Return the status that a "status pointer" is; IN_PROGRESS where it is a request instead."""
        value = int(self.ffi.cast("intptr_t", pointer))
        return value if -100 < value <= 0 else IN_PROGRESS


@cache
def find_library() -> UcxLibrary | str:
    """Return the library, loaded once per process, or why there is none."""
    return load_library(os.environ)


def load_library(environ: Mapping[str, str]) -> UcxLibrary | str:
    """Load the library as ``environ`` says; return it, or why that does not work."""
    if sys.platform != "linux":
        return f"UCX is for Linux, this is {sys.platform}"
    try:
        from cffi import FFI  # first use: it takes tens of milliseconds
    except ImportError:
        return "cffi is not installed: pip install 'monarch-async[ucx]'"
    if why := _settings_that_cannot_work(environ):
        return why
    ffi = FFI()
    ffi.cdef(_DECLARATIONS)
    reasons = []
    for name, folder in _places(environ):
        try:
            with _quiet():
                library = UcxLibrary(ffi, *_open(ffi, folder))
        except OSError as error:
            reasons.append(f"{name}: {error}")
            continue
        if library.version < _OLDEST or library.version[0] != 1:
            found = ".".join(map(str, library.version))
            reasons.append(f"{name}: UCX {found}; this needs 1.{_OLDEST[1]} or a later 1.x")
            continue
        return library
    return "libucp is not there: pip install 'monarch-async[ucx]', or set UCX_LIB_DIR (" + "; ".join(reasons) + ")"


def _settings_that_cannot_work(environ: Mapping[str, str]) -> str:
    """Say why no transport of ``UCX_TLS`` notices that a peer has failed: empty where one does."""
    chosen = [name.strip() for name in environ.get("UCX_TLS", "all").split(",")]
    if chosen[0].startswith("^") or any(name in ("all", "tcp", "ib") or name[:2] in ("rc", "dc") for name in chosen):
        return ""
    return f"UCX_TLS={','.join(chosen)}: only tcp, rc and dc notice the failure of a peer; add tcp"


def _places(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (name, folder) of where the library may be; no folder: wherever the system's loader looks."""
    if folder := environ.get("UCX_LIB_DIR"):
        yield f"UCX_LIB_DIR={folder}", folder
        return  # who names one wants no other
    yield "the system's", ""
    wheel = importlib.util.find_spec("libucx")
    if wheel is not None and wheel.origin is not None:
        yield "the wheel", os.path.join(os.path.dirname(wheel.origin), "lib")


def _open(ffi: Any, folder: str) -> tuple[Any, str]:
    """Load it; return it and its path. By ctypes first: cffi starts a compiler to look for what it does not find."""
    if folder:
        for name in ("libucs.so.0", "libuct.so.0"):  # the loader then takes them for what libucp asks for
            if os.path.exists(path := os.path.join(folder, name)):
                ctypes.CDLL(path)
        renamed = sorted(glob.glob(os.path.join(glob.escape(folder), "libucp-*.so*")))  # as some wheels have it
        path = renamed[0] if renamed else os.path.join(folder, "libucp.so.0")
    else:
        path = "libucp.so.0"
    ctypes.CDLL(path)
    return ffi.dlopen(path, ffi.RTLD_NOW | ffi.RTLD_LOCAL), path


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within, `_QUIET` is in the environment, but for what the user has set."""
    ours = {name: value for name, value in _QUIET.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
