"""Segments that other processes map: kept warm, found again, and gone when nobody has them."""

import asyncio
import ctypes
import gc
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from owner import descriptors, open_things

from monarch_async.bulk import arena as arena_module
from monarch_async.bulk import mapping
from monarch_async.bulk.arena import Arena, Segment, forget_mappings, open_segment
from monarch_async.bulk.memory import address_of
from monarch_async.bulk.region import Regions
from monarch_async.errors import TransferBroken, TransferError

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfds")

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_mapped() -> Iterator[None]:
    """Every test here lets go of all it had."""
    gc.collect()  # of others' tests
    forget_mappings()
    before = open_things()
    yield
    gc.collect()
    forget_mappings()
    assert open_things() == before, descriptors()


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(limit=8 * MIB)
    yield arena
    arena.close()


def resident(address: int, size: int) -> int:
    """How many of these pages are mapped in this process already."""
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(address // mmap.PAGESIZE * 8)
        entries = file.read(-(-size // mmap.PAGESIZE) * 8)
    return sum(byte >> 7 for byte in entries[7::8])


# -- an arena ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40 * MIB))
def test_a_segment_is_large_enough_and_not_much_larger(size: int) -> None:
    capacity = arena_module.capacity_of(size)
    assert capacity >= size and capacity % mmap.PAGESIZE == 0
    assert capacity <= max(64 << 10, size * 9 // 8 + mmap.PAGESIZE)
    assert arena_module.capacity_of(capacity) == capacity


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 3 * MIB + 5])
def test_a_segment(arena: Arena, size: int) -> None:
    segment = arena.take(size)
    assert segment.size == len(segment.view) == size and not segment.view.readonly
    segment.view[:] = b"\x07" * size
    assert os.pread(segment.fd, size, 0) == b"\x07" * size
    assert segment.token == (os.getpid(), segment.fd, os.fstat(segment.fd).st_ino, size)
    assert not os.get_inheritable(segment.fd)
    arena.give_back(segment)


@pytest.mark.parametrize("size", [65_536, MIB, 5 * MIB])
def test_pages_are_there_when_it_is_taken(arena: Arena, size: int) -> None:
    segment = arena.take(size)
    assert resident(address_of(segment.view), size) == size // mmap.PAGESIZE
    arena.give_back(segment)


def in_large_pages(address: int) -> int:
    """How many bytes of the mapping that begins there are in large pages."""
    with open("/proc/self/smaps") as file:
        lines = iter(file)
        for line in lines:
            if line.startswith(f"{address:x}-"):
                break
        for line in lines:
            if line.startswith("ShmemPmdMapped:"):
                return int(line.split()[1]) * 1024
    return 0


def test_large_segments_are_in_large_pages(arena: Arena) -> None:
    """Also in other mappings, which begin at a multiple of their size therefore."""
    segment = arena.take(5 * MIB)
    if not in_large_pages(address_of(segment.view)):
        pytest.skip("this system has none for shared memory")
    assert in_large_pages(address_of(segment.view)) == 4 * MIB
    for is_private in (True, False):
        view = open_segment(segment.token, is_private=is_private)
        assert bytes(view) == bytes(5 * MIB)
        assert in_large_pages(address_of(view)) == 4 * MIB
        del view
    arena.give_back(segment)


def test_no_room_around_a_mapping_is_kept(arena: Arena) -> None:
    def mapped() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * mmap.PAGESIZE

    segment = arena.take(5 * MIB)
    before = mapped()
    views = [open_segment(segment.token) for _ in range(20)]
    assert mapped() - before <= 20 * 5 * MIB + 2 * MIB
    del views
    arena.give_back(segment)


def test_enlarging_keeps_what_is_there() -> None:
    memory = mmap.mmap(-1, 8 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    text = os.urandom(8 * MIB)
    memory[:] = text
    view = memoryview(memory)
    mapping.enlarge_pages(view[5:])
    mapping.enlarge_pages(view[:10])
    mapping.enlarge_pages(view[:0])
    assert view == text
    view.release()
    memory.close()


def test_the_latest_of_its_size_is_used_again(arena: Arena) -> None:
    assert arena.take_idle(MIB) is None
    first, second = arena.take(MIB), arena.take(MIB)
    arena.give_back(first)
    arena.give_back(second)
    assert arena.idle_bytes == first.capacity + second.capacity
    again = arena.take(MIB - 5000)
    assert again.fd == second.fd and len(again.view) == again.size == MIB - 5000
    assert arena.take_idle(2 * MIB) is None, "of another size"
    other = arena.take_idle(MIB)
    assert other is not None and other.fd == first.fd
    assert arena.idle_bytes == 0
    arena.give_back(again)
    arena.give_back(other)


def test_beyond_the_limit_the_one_idle_for_longest_goes(arena: Arena) -> None:
    taken = [arena.take(3 * MIB) for _ in range(3)]
    for segment in taken:
        arena.give_back(segment)
    fds = [segment.fd for segment in taken]
    del taken, segment
    assert arena.idle_bytes == 6 * MIB
    assert [fd for fd in fds if _is_memfd(fd)] == fds[1:]


def _is_memfd(fd: int) -> bool:
    try:
        return "memfd:monarch_async" in os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False


def test_one_larger_than_the_limit_is_not_kept(arena: Arena) -> None:
    segment = arena.take(9 * MIB)
    arena.give_back(segment)
    assert arena.idle_bytes == 0


def test_what_was_evicted_takes_no_memory_though_others_keep_its_mapping(arena: Arena) -> None:
    segment = arena.take(MIB)
    view = open_segment(segment.token, is_private=False)
    fd = os.dup(segment.fd)
    del view
    arena.limit = 0
    arena.give_back(segment)
    assert os.fstat(fd).st_blocks == 0
    assert arena_module._mappings._kept, "it is still mapped"
    os.close(fd)


def test_closing(arena: Arena) -> None:
    """What is idle goes at once; what is in use stays valid until its last view is gone."""
    idle, used = arena.take(MIB), arena.take(MIB)
    arena.give_back(idle)
    arena.close()
    arena.close()
    fd = idle.fd
    del idle
    assert not _is_memfd(fd)
    used.view[:5] = b"hello"
    view, fd = used.view, used.fd
    del used
    assert view[:5] == b"hello" and _is_memfd(fd)
    del view
    assert not _is_memfd(fd)


def test_given_back_after_closing(arena: Arena) -> None:
    segment = arena.take(MIB)
    arena.close()
    arena.give_back(segment)
    assert arena.idle_bytes == 0


def test_given_back_twice(arena: Arena) -> None:
    segment = arena.take(MIB)
    arena.give_back(segment)
    with pytest.raises(AssertionError):
        arena.give_back(segment)


def test_dropped_without_being_given_back(arena: Arena) -> None:
    fd = arena.take(MIB).fd
    assert not _is_memfd(fd)


async def test_a_region_in_large_pages() -> None:
    """Its spans, as far as they fill large pages; and no longer than it is registered."""

    def in_large(memory: mmap.mmap) -> int:
        at = address_of(memoryview(memory))
        with open("/proc/self/smaps") as file:
            lines = iter(file)
            for line in lines:
                bounds = line.split()[0].split("-")
                if len(bounds) == 2 and int(bounds[0], 16) <= at < int(bounds[1], 16):
                    break
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHugePages:"))

    huge = mapping.huge_page()
    regions, memory = Regions(), mmap.mmap(-1, 24 * huge, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    text = os.urandom(24 * huge)
    memory[:] = text
    memory.madvise(mmap.MADV_HUGEPAGE)
    before = in_large(memory)
    region = regions.add([memoryview(memory)[5:][: 20 * huge], memoryview(memory)[:7]], True)
    enlarging = asyncio.create_task(mapping.enlarge_region(regions, region))
    await asyncio.sleep(0)
    regions.advance(region)  # a new epoch is no reason to stop
    await enlarging
    assert memory[:] == text and not region.users
    if in_large(memory) == before:
        pytest.skip("this system has none on request")
    assert in_large(memory) - before >= 19 * huge
    regions.remove(region)
    await mapping.enlarge_region(regions, region)


@pytest.mark.parametrize("call", ["memfd_create", "ftruncate"])
def test_no_descriptors_or_memory_left(arena: Arena, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(TransferError, match=r"shared memory of 1048576 bytes: .*Too many open files"):
            arena.take(MIB)


def test_no_memory_left_when_it_is_populated(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(view: memoryview) -> None:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(arena_module, "populate_new", fail)
        with pytest.raises(TransferError, match="none left"):
            arena.take(MIB)


def test_an_older_linux_has_pages_at_the_first_touch(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(mapping, "_MADV_POPULATE_WRITE", 9999)
        patch.setattr(mapping, "_MADV_COLLAPSE", 9999)
        segment = arena.take(MIB)
    segment.view[:] = b"x" * MIB
    arena.give_back(segment)


def test_from_many_threads(arena: Arena) -> None:
    wrong = []

    def work(number: int) -> None:
        for step in range(200):
            segment = arena.take(65_536 * (1 + step % 3))
            segment.view[:8] = number.to_bytes(8, "little")
            time.sleep(0)
            if segment.view[:8] != number.to_bytes(8, "little"):
                wrong.append(number)
            arena.give_back(segment)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 0 <= arena.idle_bytes <= arena.limit


@pytest.mark.slow
def test_ten_thousand_rounds_leave_nothing(arena: Arena) -> None:
    """Warm ones, new ones, and mapped ones."""
    before = open_things()
    for step in range(10_000):
        segment = arena.take(1 if step % 10 else 65_536 * (1 + step % 7))
        if step % 5 == 0:
            view = open_segment(segment.token, is_private=step % 2 == 0)
            assert len(view) == segment.size
            del view
        arena.give_back(segment)
        if step % 1000 == 0:
            forget_mappings()
            arena.close()
            arena._is_closed = False
    del segment
    arena.close()
    forget_mappings()
    assert open_things() == before


# -- mapping one -------------------------------------------------------------------------------------------------------


def test_private_pages_are_written_here_only(arena: Arena) -> None:
    segment = arena.take(MIB)
    segment.view[:4] = b"mine"
    view = open_segment(segment.token)
    assert len(view) == MIB and view[:4] == b"mine"
    view[:5] = b"yours"
    assert segment.view[:5] == b"mine" + segment.view[4:5]
    second = open_segment(segment.token)
    assert second[:4] == b"mine"


def test_private_pages_are_shared_until_they_are_written(arena: Arena) -> None:
    segment = arena.take(MIB)
    view = open_segment(segment.token)
    segment.view[-4:] = b"late"
    assert view[-4:] == b"late"


def test_read_only_views(arena: Arena) -> None:
    segment = arena.take(MIB)
    segment.view[:4] = b"mine"
    for is_private in (True, False):
        view = open_segment(segment.token, is_private=is_private, is_writable=False)
        assert view.readonly and view[:4] == b"mine"


def test_shared_pages_are_written_for_all(arena: Arena) -> None:
    segment = arena.take(MIB)
    view = open_segment(segment.token, is_private=False)
    assert resident(address_of(view), MIB) == MIB // mmap.PAGESIZE, "all pages at once"
    view[:5] = b"yours"
    assert segment.view[:5] == b"yours"


def test_a_shared_mapping_is_kept_for_the_next_time(arena: Arena) -> None:
    segment = arena.take(MIB)
    first = open_segment(segment.token, is_private=False)
    address = address_of(first)
    second = open_segment(segment.token, is_private=False)
    assert address_of(second) == address
    del first, second
    arena.give_back(segment)
    segment = arena.take(MIB - 10_000)
    third = open_segment(segment.token, is_private=False)
    assert address_of(third) == address and len(third) == MIB - 10_000
    readable = open_segment(segment.token, is_private=False, is_writable=False)
    assert address_of(readable) != address


def test_few_mappings_are_kept(arena: Arena) -> None:
    segments = [arena.take(65_536) for _ in range(12)]
    views = [open_segment(segment.token, is_private=False) for segment in segments]
    views[0][0] = 1
    del views
    assert len(arena_module._mappings._kept) == 8
    before = [segment.inode for segment in segments[4:]]
    assert [inode for inode, _ in arena_module._mappings._kept] == before, "the latest ones"


def test_mappings_of_segments_that_are_gone_are_not_kept(arena: Arena) -> None:
    segment = arena.take(MIB)
    view = open_segment(segment.token, is_private=False)
    del view
    other = arena.take(MIB)
    del segment
    assert len(arena_module._mappings._kept) == 1
    view = open_segment(other.token, is_private=False)
    del view
    assert [inode for inode, _ in arena_module._mappings._kept] == [other.inode]


@pytest.mark.parametrize("is_private", [True, False])
def test_on_gone(arena: Arena, is_private: bool) -> None:
    """With the last view, not the first; however they were made."""
    segment, gone = arena.take(MIB), []
    view = open_segment(segment.token, is_private=is_private, on_gone=lambda: gone.append(1))
    part = view[10:20]
    other = ctypes.c_char.from_buffer(part)
    del view
    assert not gone
    del part
    assert not gone
    del other
    assert gone == [1]


def test_it_stays_as_long_as_there_is_a_view(arena: Arena) -> None:
    segment = arena.take(MIB)
    segment.view[:4] = b"mine"
    view = open_segment(segment.token)
    fd = segment.fd
    del segment
    assert not _is_memfd(fd)
    assert view[:4] == b"mine"


def test_mappings_need_no_descriptors(arena: Arena) -> None:
    segment = arena.take(MIB)
    before = len(os.listdir("/proc/self/fd"))
    views = [open_segment(segment.token) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    del views


# -- and failing to ----------------------------------------------------------------------------------------------------


def test_a_descriptor_that_is_another_file_by_now(arena: Arena) -> None:
    segment = arena.take(MIB)
    pid, fd, inode, size = segment.token
    gone: list[int] = []
    with pytest.raises(TransferBroken, match="another file by now"):
        open_segment((pid, fd, inode + 1, size), on_gone=lambda: gone.append(1))
    with pytest.raises(TransferBroken, match="another file by now"):
        open_segment((pid, fd, inode, 4 * MIB))
    with pytest.raises(TransferBroken, match="another file by now"):
        open_segment((pid, 0, inode, size))  # whatever it is, it was not opened
    assert not gone


def test_a_descriptor_that_is_closed(arena: Arena) -> None:
    segment = arena.take(MIB)
    token = segment.token
    del segment
    with pytest.raises(TransferBroken, match="gone"):
        open_segment(token)


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(TransferBroken, match="gone"):
        open_segment((process.pid, 5, 77, MIB))


def test_a_process_that_may_not_be_looked_into(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = arena.take(MIB)

    def refuse(path: str) -> os.stat_result:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        with pytest.raises(TransferError, match="may not be opened: Permission denied"):
            open_segment(segment.token)


# -- across processes --------------------------------------------------------------------------------------------------

HOLDER = """
import sys, json
sys.path[:0] = {path!r}
from monarch_async.bulk.arena import Arena
segment = Arena().take(100_000)
segment.view[:] = b"abcd" * 25_000
print(json.dumps(segment.token), flush=True)
for line in sys.stdin:
    print(bytes(segment.view[:4]).decode(), flush=True)
"""


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER.format(path=sys.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def token_of(holder: subprocess.Popen[str]) -> tuple[int, int, int, int]:
    import json

    assert holder.stdout is not None
    pid, fd, inode, size = json.loads(holder.stdout.readline())
    return pid, fd, inode, size


def test_another_process(holder: subprocess.Popen[str]) -> None:
    token = token_of(holder)
    assert holder.stdin is not None and holder.stdout is not None
    private, shared = open_segment(token), open_segment(token, is_private=False)
    assert private == b"abcd" * 25_000
    private[:4] = b"here"
    print(file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "abcd\n"
    shared[:4] = b"ours"
    print(file=holder.stdin, flush=True)
    assert holder.stdout.readline() == "ours\n"


def test_the_owner_is_killed(holder: subprocess.Popen[str]) -> None:
    """What is mapped stays good; what is not cannot be opened any more; nothing is left."""
    token = token_of(holder)
    view, shared = open_segment(token), open_segment(token, is_private=False)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert view == b"abcd" * 25_000 == shared
    with pytest.raises(TransferBroken):
        open_segment(token)
    del shared
    assert not arena_module._mappings._kept, "its memory is not kept for a next time that will not come"


def test_a_segment_has_no_name(arena: Arena) -> None:
    before = set(os.listdir("/dev/shm"))
    segment: Segment = arena.take(MIB)
    assert set(os.listdir("/dev/shm")) == before
    arena.give_back(segment)
