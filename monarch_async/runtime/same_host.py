"""Large payloads between processes of one machine: the receiver reads the sender's memory itself.

``process_vm_readv`` (cross-memory attach, Linux) moves bytes at the speed of one copy, past the agent and the sockets.
The sender puts the payload into memory that stays where it is and says in the control frame where that is; the receiver
reads it on a thread and acknowledges. Whether it may is found out by trying: the offer carries a nonce, and its
address, and only who reads the right nonce there reads on. Otherwise (another pid namespace, no permission, another
system) it asks for chunks, and is sent them. Receivers elsewhere are offered nothing.
"""

import ctypes
import os
from collections.abc import Sequence

_IOV_MAX_BYTES = 1 << 30
_PR_SET_PTRACER = 0x59616D61
_ANY = ctypes.c_ulong(-1)


class _Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


class Offer:
    """This process's half of the proof: a nonce at a fixed address. Made on first use."""

    def __init__(self) -> None:
        """Allow processes of this user to read here where Yama would forbid it."""
        self.nonce = os.urandom(16)
        self._memory = ctypes.create_string_buffer(self.nonce, 16)
        libc = _libc()
        if libc is not None:
            libc.prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)

    def of(self, parts: Sequence[memoryview]) -> list[object]:
        """Return where the parts are: ``[pid, address of the nonce, nonce, [address, ...]]``."""
        return [os.getpid(), ctypes.addressof(self._memory), self.nonce, [address_of(part) for part in parts]]


def can_offer() -> bool:
    """Return whether this system has cross-memory attach at all."""
    return _libc() is not None


def address_of(view: memoryview) -> int:
    """Return where writable memory begins; 0 where it is empty."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if len(view) else 0


def read_parts(offer: Sequence[object], views: Sequence[memoryview]) -> bool:
    """Fill ``views`` from what was offered; return False where that is not possible. Blocks: call it on a thread."""
    pid, nonce_at, nonce, addresses = offer
    assert isinstance(pid, int) and isinstance(nonce_at, int) and isinstance(addresses, list)
    probe = bytearray(16)
    if not _read(pid, nonce_at, memoryview(probe)) or bytes(probe) != nonce:
        return False
    return all(_read(pid, address, view) for address, view in zip(addresses, views, strict=True))


def _read(pid: int, address: int, view: memoryview) -> bool:
    libc = _libc()
    if libc is None:
        return False
    here, size, done = address_of(view), len(view), 0
    while done < size:
        count = min(size - done, _IOV_MAX_BYTES)
        local, remote = _Span(here + done, count), _Span(address + done, count)
        got = libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if got <= 0:
            return False
        done += got
    return True


_loaded: ctypes.CDLL | None = None
_is_tried = False


def _libc() -> ctypes.CDLL | None:
    global _loaded, _is_tried
    if not _is_tried:
        _is_tried = True
        library = ctypes.CDLL(None, use_errno=True)
        if hasattr(library, "process_vm_readv"):
            library.process_vm_readv.restype = ctypes.c_ssize_t
            library.process_vm_readv.argtypes = [
                ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong,
            ]  # fmt: skip
            _loaded = library
    return _loaded
