"""Cross-memory attach: the kernel copies between two processes' memory, once, without the other one's doing anything.

``process_vm_readv`` takes its pieces in order, so one call reads nonce, word, bytes and word again: R1 of `region`.
Whether it may is found out by trying (`Cma.probe`): containers and Yama forbid it in more ways than can be listed. A
writer holds a grant (`grant`) meanwhile, and looks at nonce and word before each slice.

A slice takes about a millisecond, and others have their turn between two. Calls that move little keep the interpreter's
lock: they are shorter than waiting to get it back can be.
"""

import asyncio
import ctypes
import errno
import functools
import os
import struct
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple, NoReturn

from monarch_async.bulk.endpoint import Endpoint, this_machine
from monarch_async.bulk.errands import Link
from monarch_async.bulk.grant import Grants
from monarch_async.bulk.memory import address_of
from monarch_async.bulk.region import NONCE_BYTES, RemoteRegion
from monarch_async.bulk.transport import Progress, Run
from monarch_async.errors import BadFrame, StaleHandle, TransferBroken

#: Bytes a call moves before others have their turn.
_SLICE = 16 << 20
#: Calls of up to this size keep the interpreter's lock.
_SMALL = 64 << 10
#: Pieces per call: the kernel takes 1024, of which nonce and words are three.
_MOST_PIECES = 1021
_PR_SET_PTRACER = 0x59616D61
#: What is read beside the bytes: nonce, the word before, the word after.
_PROOF = struct.Struct(f"={NONCE_BYTES}sQQ")
_BEFORE, _AFTER = NONCE_BYTES + 8, 8

_READONLY = attrgetter("readonly")
_GONE = "its process is gone"

#: A piece of memory by address: (address, bytes).
_Piece = tuple[int, int]
_Call = Callable[[int, int, int, int, int, int], int]


class _System(NamedTuple):
    """The system calls: (pid, here, pieces here, there, pieces there, 0) -> bytes moved, or -1."""

    read: _Call
    read_small: _Call  #: keeps the interpreter's lock
    write: _Call
    prctl: Callable[[int, ctypes.c_ulong, int, int, int], int]


@functools.cache
def _system() -> _System | None:
    """Return them; None where the system has none."""
    library, held = ctypes.CDLL(None, use_errno=True), ctypes.PyDLL(None, use_errno=True)
    if not hasattr(library, "process_vm_readv"):
        return None
    calls = library.process_vm_readv, held.process_vm_readv, library.process_vm_writev
    for call in calls:
        call.restype = ctypes.c_ssize_t
        call.argtypes = [
            ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong,
        ]  # fmt: skip
    return _System(*calls, library.prctl)


@functools.cache
def allow_readers() -> None:
    """Allow all processes of this user to read and write here from now on, where Yama would forbid it."""
    system = _system()
    if system is not None:
        system.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)


class _Scratch(threading.local):
    """Where nonce and words are read to; each thread has its own."""

    def __init__(self) -> None:
        self.memory = bytearray(_PROOF.size)
        self.address = address_of(memoryview(self.memory))


_scratch = _Scratch()


class Cma:
    """The way to one process of this machine."""

    name = "cma"

    def __init__(self, endpoint: Endpoint, link: Link) -> None:
        """``link`` reaches the owner's plane, for grants; it stays the caller's."""
        system = _system()
        assert system is not None, "the probe said so"
        self._system = system
        self._endpoint = endpoint
        self._link = link
        self._grants = Grants(link)
        self._starts: dict[tuple[int, int], list[int]] = {}

    @staticmethod
    def probe(endpoint: Endpoint) -> str | None:
        """Return None where that process's memory can be read, else why not, for a person."""
        system = _system()
        if system is None:
            return "this system has no process_vm_readv"
        if endpoint.machine != this_machine():
            return "another machine, or another pid namespace (each container has its own, unless told to share one)"
        nonce = bytearray(NONCE_BYTES)
        here = array("L", (address_of(memoryview(nonce)), NONCE_BYTES))
        there = array("L", (endpoint.beacon, NONCE_BYTES))
        got = system.read_small(endpoint.pid, here.buffer_info()[0], 1, there.buffer_info()[0], 1, 0)
        if got < 0:
            return _explain(ctypes.get_errno(), endpoint.pid)
        return None if got == NONCE_BYTES and nonce == endpoint.nonce else _GONE

    def read_now(self, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview]) -> None:
        """Read at once, however much it is; on any thread. Raises like `read`."""
        assert not any(map(_READONLY, into))  # the kernel would not mind
        for here, there, size in self._batches(region, runs, into):
            self._read(region, here, there, size)

    async def read(
        self, region: RemoteRegion, runs: Sequence[Run], into: Sequence[memoryview], progress: Progress
    ) -> None:
        """See `transport.Transport`."""
        assert not any(map(_READONLY, into))
        for here, there, size in self._batches(region, runs, into):
            self._read(region, here, there, size)
            progress(size)
            if size > _SMALL:
                await asyncio.sleep(0)

    async def write(
        self, region: RemoteRegion, runs: Sequence[Run], source: Sequence[memoryview], progress: Progress
    ) -> None:
        """See `transport.Transport`."""
        async with self._grants.of(region):
            for here, there, size in self._batches(region, runs, source):
                if not self._link.is_open:  # with it went the grant
                    raise TransferBroken(self._endpoint.name, "its connection broke during a write")
                self._read(region, [], [], 0)
                self._write(region, here, there, size)
                progress(size)
                if size > _SMALL:
                    await asyncio.sleep(0)

    async def aclose(self) -> None:
        """See `transport.Transport`."""
        await self._grants.aclose()

    def _batches(
        self, region: RemoteRegion, runs: Sequence[Run], views: Sequence[memoryview]
    ) -> Iterator[tuple[list[int], list[int], int]]:
        """Yield what one call moves: pieces here, as [address, bytes, ...], pieces there, bytes in all."""
        if len(runs) == len(views) == len(region.spans) == 1:
            (offset, length), (start, whole) = runs[0], region.spans[0]
            if length <= _SLICE and offset >= 0 and 0 < length == len(views[0]) and offset + length <= whole:
                yield [address_of(views[0]), length], [start + offset, length], length
                return
        yield from _cut(
            [(address_of(view), len(view)) for view in views if len(view)],
            _pieces(region.spans, self._starts_of(region), runs),
        )

    def _starts_of(self, region: RemoteRegion) -> list[int]:
        """Return where in the region's space each span begins; kept, as state dicts have hundreds."""
        key = region.id, region.stamp
        starts = self._starts.get(key)
        if starts is None:
            if len(self._starts) >= 1024:
                self._starts.clear()
            starts = self._starts[key] = [0, *accumulate(size for _, size in region.spans)]
        return starts

    def _read(self, region: RemoteRegion, here: list[int], there: list[int], size: int) -> None:
        """Read in one call, nonce and words around it. Raises StaleHandle, TransferBroken."""
        endpoint, scratch, word = self._endpoint, _scratch, region.word_at
        proof = scratch.address
        local = array("L", (proof, _BEFORE, *here, proof + _BEFORE, _AFTER))
        remote = array("L", (endpoint.beacon, NONCE_BYTES, word, 8, *there, word, _AFTER))
        call = self._system.read_small if size <= _SMALL else self._system.read
        got = call(
            endpoint.pid, local.buffer_info()[0], len(local) >> 1, remote.buffer_info()[0], len(remote) >> 1, 0
        )  # fmt: skip
        nonce, before, after = _PROOF.unpack(scratch.memory)
        if got == size + _PROOF.size and nonce == endpoint.nonce and before == region.stamp == after:
            return
        self._refuse(region, got, size)

    def _refuse(self, region: RemoteRegion, got: int, size: int) -> NoReturn:
        """Say why what `_read` got is not what was asked for."""
        name = self._endpoint.name
        if got < 0:
            number = ctypes.get_errno()
            if number in (errno.ESRCH, errno.EFAULT):  # EFAULT: another program has its pid
                raise TransferBroken(name, _GONE)
            raise TransferBroken(name, _explain(number, self._endpoint.pid))
        nonce, before, after = _PROOF.unpack(_scratch.memory)
        if got < _BEFORE or nonce != self._endpoint.nonce:
            raise TransferBroken(name, _GONE)
        if before != region.stamp or (got == size + _PROOF.size and after != region.stamp):
            raise StaleHandle(region.what, f"{name} has closed it, or begun a new epoch of it: ask for a newer handle")
        self._fail(region, got - _BEFORE, size, "read")

    def _fail(self, region: RemoteRegion, moved: int, size: int, what: str) -> NoReturn:
        """The call stopped in the middle: the region has gone meanwhile, or its memory is not what it seemed."""
        if size:
            self._read(region, [], [], 0)
        raise TransferBroken(
            self._endpoint.name,
            f"EFAULT: only {max(moved, 0)} of {size} bytes of {region.what} could be {what}: memory that is not mapped "
            "(any longer), or a device's, at its end or at this one",
        )

    def _write(self, region: RemoteRegion, here: list[int], there: list[int], size: int) -> None:
        local, remote = array("L", here), array("L", there)
        pid = self._endpoint.pid
        got = self._system.write(
            pid, local.buffer_info()[0], len(local) >> 1, remote.buffer_info()[0], len(remote) >> 1, 0
        )
        if got == size:
            return
        number = ctypes.get_errno()
        if got < 0 and number == errno.ESRCH:
            raise TransferBroken(self._endpoint.name, _GONE)
        if got < 0 and number != errno.EFAULT:
            raise TransferBroken(self._endpoint.name, _explain(number, pid))
        self._fail(region, got, size, "written")


def _pieces(spans: Sequence[_Piece], starts: list[int], runs: Sequence[Run]) -> Iterator[_Piece]:
    """Yield where in the owner's memory runs are. Raises BadFrame where one is out of range."""
    for offset, length in runs:
        if offset < 0 or length < 0 or offset + length > starts[-1]:
            raise BadFrame(f"bytes {offset} to {offset + length} of a region of {starts[-1]}")
        index = bisect_right(starts, offset) - 1
        while length:
            address, size = spans[index]
            inside = offset - starts[index]
            count = min(size - inside, length)
            if count:
                yield address + inside, count
            offset += count
            length -= count
            index += 1


def _cut(here: Sequence[_Piece], there: Iterator[_Piece]) -> Iterator[tuple[list[int], list[int], int]]:
    """Cut both alike, into calls of at most `_SLICE` bytes and `_MOST_PIECES` pieces."""
    local, remote, total = list[int](), list[int](), 0
    ours = iter(here)
    at, left = 0, 0
    for address, size in there:
        while size:
            if not left:
                at, left = next(ours)
            count = min(size, left, _SLICE - total)
            local += at, count
            remote += address, count
            total += count
            at, left, address, size = at + count, left - count, address + count, size - count
            if total == _SLICE or len(local) == 2 * _MOST_PIECES:
                yield local, remote, total
                local, remote, total = [], [], 0
    if total:
        yield local, remote, total
    assert not left and next(ours, None) is None, "runs and views are of the same length"


def _explain(number: int, pid: int) -> str:
    """Say what an error of these calls means, and what to do about it."""
    name = errno.errorcode.get(number, str(number))
    match number:
        case errno.ESRCH:
            return f"{name}: there is no process {pid} any more"
        case errno.EFAULT:
            return f"{name}: process {pid} is another program than the one that was meant, or {_GONE}"
        case errno.ENOSYS:
            return f"{name}: this system (a sandbox such as gVisor?) does not have process_vm_readv"
        case errno.EPERM | errno.EACCES:
            return f"{name}: the kernel does not let this process read the memory of process {pid}: {_forbidden(pid)}"
    return f"{name}: {os.strerror(number)}"


def _forbidden(pid: int) -> str:
    """Say what forbids it, as far as can be seen from here."""
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        owner = None
    if owner is not None and owner != os.geteuid() != 0:
        return (
            f"it is user {owner}'s (or not dumpable: setuid, or file capabilities), this one user {os.geteuid()}'s; "
            "run both as one user, or give this one CAP_SYS_PTRACE"
        )
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope >= 2:
        return (
            f"kernel.yama.ptrace_scope is {scope}; set it to 1 (sysctl kernel.yama.ptrace_scope=1)"
            + (" after a reboot, as 3 cannot be undone" if scope > 2 else "")
            + (", or give this process CAP_SYS_PTRACE" if scope == 2 else "")
        )
    return (
        "a container's seccomp profile or a missing capability (docker run --cap-add=SYS_PTRACE; in Kubernetes "
        "securityContext.capabilities.add: [SYS_PTRACE]), a user namespace, SELinux (deny_ptrace) or AppArmor does"
    )
