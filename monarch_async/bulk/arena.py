"""Memory that other processes of this machine can map: memfds, kept warm, with nothing to clean up after a crash.

A memfd has no name. Who is told pid and number of its descriptor opens it under ``/proc``, as the same user, and maps
it; it goes with the last process that has it. New pages cost more than copying into them, many times as much where they
are small, so segments that are given back are kept, up to a limit, and so are the mappings of those that others own.
"""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from monarch_async.bulk.mapping import map_file, populate, populate_new, unmap, view_of
from monarch_async.errors import TransferBroken, TransferError

#: (pid, descriptor there, inode, bytes): how others find a segment.
Token = tuple[int, int, int, int]

#: Segments are of no less.
_SMALLEST = 64 << 10
#: Segments that are kept though nobody uses them.
_MOST_IDLE = 512
#: Mappings of others' segments that this process keeps though nobody uses them. Their pages are not ours to count.
_MOST_MAPPINGS, _MOST_MAPPED = 8, 4 << 30


def capacity_of(size: int) -> int:
    """Return the bytes a segment of ``size`` has: the next of eight steps per power of two: few sizes, little waste."""
    size = max(size, _SMALLEST)
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Memory that others can map."""

    fd: int
    inode: int
    size: int  #: bytes asked for
    view: memoryview  #: of them, writable
    whole: memoryview  #: of all that the segment has; descriptor and mapping end with its last view
    pid: int = field(default_factory=os.getpid)

    @property
    def token(self) -> Token:
        """What others need to `open_segment`."""
        return self.pid, self.fd, self.inode, self.size

    @property
    def capacity(self) -> int:
        """Bytes that it has."""
        return len(self.whole)

    def resized(self, size: int) -> "Segment":
        """Return the same memory as a segment of another size."""
        return Segment(self.fd, self.inode, size, self.whole[:size], self.whole, self.pid)


class Arena:
    """A process's segments. Any thread may use it."""

    def __init__(self, limit: int = 256 << 20) -> None:
        """Keep up to ``limit`` bytes of segments that nobody uses, and so many that each may have a descriptor.

        Beyond, the one that is idle for longest goes.
        """
        self.limit = limit
        self.idle_bytes = 0
        self._idle: OrderedDict[int, Segment] = OrderedDict()  # by descriptor, the latest last
        self._by_capacity: dict[int, list[int]] = {}
        self._is_closed = False
        self._lock = threading.RLock()

    def take(self, size: int) -> Segment:
        """Return a segment of ``size`` bytes, whose contents are not defined.

        A new one costs 0.1 ms per MiB where the system has large pages for it, else 0.7, during which other threads
        run. Raises TransferError where there is no memory, or no descriptor.
        """
        return self.take_idle(size) or self._make(size)

    def take_idle(self, size: int) -> Segment | None:
        """Return a segment that is there already; None where there is none of that size."""
        with self._lock:
            alike = self._by_capacity.get(capacity_of(size))
            if not alike:
                return None
            segment = self._forget(alike[-1])
        return segment.resized(size)

    def give_back(self, segment: Segment) -> None:
        """Let go of a segment that nobody, in any process, reads or writes any more."""
        with self._lock:
            assert segment.fd not in self._idle, "given back twice"
            self._idle[segment.fd] = segment
            self._by_capacity.setdefault(segment.capacity, []).append(segment.fd)
            self.idle_bytes += segment.capacity
        self._evict(0 if self._is_closed else self.limit)

    def close(self) -> None:
        """Let go of all that is idle, and from now on of what is given back. Twice is fine.

        A segment that is not given back ends with the last view of it, here and elsewhere; so does one that is dropped
        without being given back while others may still use it.
        """
        self._is_closed = True
        self._evict(0)

    def _make(self, size: int) -> Segment:
        capacity = capacity_of(size)
        try:
            fd = os.memfd_create("monarch_async", os.MFD_CLOEXEC)
        except OSError as error:
            raise TransferError(f"shared memory of {size} bytes", str(error)) from error
        try:
            os.ftruncate(fd, capacity)
            address = map_file(fd, capacity, is_private=False, is_writable=True)
        except OSError as error:
            os.close(fd)
            raise TransferError(f"shared memory of {size} bytes", str(error)) from error
        whole = view_of(address, capacity, partial(_end, fd, address, capacity))
        try:
            populate_new(whole)
        except OSError as error:
            raise TransferError(f"shared memory of {size} bytes", f"this machine has none left: {error}") from error
        return Segment(fd, os.fstat(fd).st_ino, size, whole[:size], whole)

    def _forget(self, fd: int) -> Segment:
        segment = self._idle.pop(fd)
        alike = self._by_capacity[segment.capacity]
        alike.remove(fd)
        if not alike:
            del self._by_capacity[segment.capacity]
        self.idle_bytes -= segment.capacity
        return segment

    def _evict(self, limit: int) -> None:
        while True:
            with self._lock:
                if self.idle_bytes <= limit and len(self._idle) <= _MOST_IDLE:
                    return
                segment = self._forget(next(iter(self._idle)))
            os.ftruncate(segment.fd, 0)  # at once, though others may have kept their mapping of it for the next time


def _end(fd: int, address: int, size: int) -> None:
    unmap(address, size)
    os.close(fd)


@dataclass(slots=True)
class _Kept:
    """A mapping of somebody else's segment."""

    address: int
    size: int
    path: str
    inode: int
    users: int = 0


class _Mappings:
    """Shared mappings of others' segments; some are kept when nobody uses them any more."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a view may die while it is held
        self._kept: OrderedDict[tuple[int, bool], _Kept] = OrderedDict()  # by (inode, is_writable); the latest last

    def enter(self, fd: int, inode: int, size: int, path: str, is_writable: bool) -> tuple[int, bool]:
        """Map a segment, or use the mapping that there is; return (address, whether it is new)."""
        key = inode, is_writable
        with self._lock:
            kept = self._kept.get(key)
            is_new = kept is None
            if kept is None:
                address = map_file(fd, size, is_private=False, is_writable=is_writable)
                kept = self._kept[key] = _Kept(address, size, path, inode)
            kept.users += 1
            self._kept.move_to_end(key)
        return kept.address, is_new

    def leave(self, inode: int, is_writable: bool) -> None:
        """One user less."""
        with self._lock:
            self._kept[inode, is_writable].users -= 1
        self.trim(_MOST_MAPPINGS, _MOST_MAPPED)

    def trim(self, most: int, most_bytes: int) -> None:
        """Keep no more of those that nobody uses, and none whose segment its owner has let go of."""
        with self._lock:
            unused = [(key, kept) for key, kept in self._kept.items() if not kept.users]
            count, total = len(unused), sum(kept.size for _, kept in unused)
            for key, kept in unused:
                if count > most or total > most_bytes or not _is_still_there(kept):
                    del self._kept[key]
                    unmap(kept.address, kept.size)
                    count, total = count - 1, total - kept.size


_mappings = _Mappings()


def forget_mappings() -> None:
    """Unmap what `open_segment` has kept for the next time, and nobody uses."""
    _mappings.trim(0, 0)


def open_segment(
    token: Token, *, is_private: bool = True, is_writable: bool = True, on_gone: Callable[[], None] | None = None
) -> memoryview:
    """Map a segment of another process (or this one); the mapping ends with the last view of it.

    Args:
        token: of the segment.
        is_private: what is written stays here, page by page; the pages that are not written to are the owner's, so the
            owner may not let others write, nor take it back, before ``on_gone``. Otherwise what is written, others see:
            all pages are mapped at once then, and the mapping is kept for the next time.
        is_writable: False: a read-only view. Where it is private too it is the same pages as for all others.
        on_gone: called, on any thread, when the last view has died. Must not raise.

    Raises TransferBroken where that segment is not there any more, TransferError where it may not be opened.
    """
    pid, fd, inode, size = token
    path = f"/proc/{pid}/fd/{fd}"
    capacity = capacity_of(size)
    what = f"shared memory of process {pid}"
    try:
        if not _is_there(path, inode, capacity):  # looked at before it is opened: it may be anything by now
            raise TransferBroken(what, f"descriptor {fd} is another file by now")
        here = os.open(path, os.O_CLOEXEC | (os.O_RDWR if is_writable and not is_private else os.O_RDONLY))
    except (FileNotFoundError, ProcessLookupError):
        raise TransferBroken(what, "the process, or the segment, is gone") from None
    except OSError as error:
        raise TransferError(what, f"may not be opened: {error.strerror}") from error
    try:
        found = os.fstat(here)
        if (found.st_ino, found.st_size) != (inode, capacity):
            raise TransferBroken(what, f"descriptor {fd} is another file by now")
        if is_private:
            address = map_file(here, capacity, is_private=True, is_writable=is_writable)
            end, is_new = partial(unmap, address, capacity), False
        else:
            address, is_new = _mappings.enter(here, inode, capacity, path, is_writable)
            end = partial(_mappings.leave, inode, is_writable)
    except OSError as error:
        raise TransferError(what, f"cannot be mapped: {error.strerror}") from error
    finally:
        os.close(here)
    view = view_of(address, capacity, end if on_gone is None else partial(_both, end, on_gone))[:size]
    if not is_writable:
        view = view.toreadonly()
    if is_new:
        with contextlib.suppress(OSError):  # then at the first touch of each page
            populate(view)
    return view


def _both(end: Callable[[], None], on_gone: Callable[[], None]) -> None:
    end()
    on_gone()


def _is_there(path: str, inode: int, size: int) -> bool:
    """Return whether that descriptor is that segment. Raises OSError, also where there is no such descriptor."""
    found = os.stat(path)
    return (found.st_ino, found.st_size) == (inode, size)


def _is_still_there(kept: _Kept) -> bool:
    try:
        return _is_there(kept.path, kept.inode, kept.size)
    except OSError:
        return False
