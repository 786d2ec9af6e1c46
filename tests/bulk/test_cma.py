"""Reading and writing another process's memory, and what happens where that goes wrong."""

import asyncio
import ctypes
import dataclasses
import errno
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from owner import Owner, a_link, an_owner, pattern

from monarch_async.bulk import cma
from monarch_async.bulk.cma import Cma, allow_readers
from monarch_async.bulk.endpoint import Endpoint, this_machine
from monarch_async.bulk.errands import Operation
from monarch_async.bulk.grant import grant_operations
from monarch_async.bulk.region import Region, Regions, RemoteRegion
from monarch_async.errors import BadFrame, StaleHandle, TransferBroken, TransferError

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(cma._system() is None, reason="this system has no process_vm_readv"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owner() -> AsyncIterator[Owner]:
    async with an_owner() as owner:
        yield owner


class NoLink:
    """For reads, which ask nobody."""

    is_open = False

    async def ask(self, operation: str, *arguments: object) -> object:
        raise AssertionError(operation)


class Client:
    """A peer that stays."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        pass


class OwnLink:
    """To operations of this very process."""

    is_open = True

    def __init__(self, operations: dict[str, Operation], client: Client) -> None:
        self.operations, self.client = operations, client

    async def ask(self, operation: str, *arguments: object) -> object:
        return await self.operations[operation](self.client, list(arguments))


def own_region(regions: Regions, memory: bytearray, is_writable: bool = True) -> tuple[Region, RemoteRegion]:
    """A region of this very process: its own memory may be read the same way."""
    beacon = regions.beacon
    endpoint = Endpoint(b"cluster!", 1, "me", this_machine(), os.getpid(), beacon.address, beacon.nonce)
    region = regions.add([memoryview(memory)], is_writable)
    return region, RemoteRegion(endpoint, region.id, region.stamp, region.id, region.addresses(), is_writable)


def views(*sizes: int) -> list[memoryview]:
    return [memoryview(bytearray(size)) for size in sizes]


def joined(parts: list[memoryview]) -> bytes:
    return b"".join(parts)


def progress(count: int) -> None:
    pass


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4096, 65_537, (16 << 20) + 1, 40 << 20])
async def test_every_size(owner: Owner, size: int) -> None:
    region = await owner.register(3, size)
    moved = []
    (into,) = views(size)
    await Cma(region.endpoint, NoLink()).read(region, [(0, size)], [into], moved.append)
    assert into == pattern(3, size)
    assert sum(moved) == size
    await owner.ask("remove", region.id)


async def test_every_cut(owner: Owner) -> None:
    """Spans, runs and views are cut independently of each other."""
    cuts = [1, 0, 100_000, 7, 0, 300_000, 4096, 3]
    region, whole = await owner.register(4, *cuts), pattern(4, sum(cuts))
    way = Cma(region.endpoint, NoLink())
    for step in (1, 7, 4096, 33_333):
        runs = [(offset, min(step, 200)) for offset in range(5, len(whole) - 200, max(step, 150))]
        expected = b"".join(whole[offset : offset + length] for offset, length in runs)
        into = views(0, len(expected) // 3, 0, 1, len(expected) - len(expected) // 3 - 1)
        way.read_now(region, runs, into)
        assert joined(into) == expected
    await owner.ask("remove", region.id)


async def test_more_pieces_than_one_call_takes(owner: Owner) -> None:
    region, whole = await owner.register(5, 100_000), pattern(5, 100_000)
    runs = [(offset, 9) for offset in range(0, 99_000, 11)]
    expected = b"".join(whole[offset : offset + 9] for offset, _ in runs)
    into = views(*[9] * len(runs))
    Cma(region.endpoint, NoLink()).read_now(region, runs, into)
    assert joined(into) == expected
    await owner.ask("remove", region.id)


async def test_nothing_at_all(owner: Owner) -> None:
    region = await owner.register(5, 0)
    way = Cma(region.endpoint, NoLink())
    way.read_now(region, [(0, 0)], views(0))
    way.read_now(region, [], [])
    await owner.ask("remove", region.id)


async def test_runs_out_of_range(owner: Owner) -> None:
    region = await owner.register(6, 100, 100)
    for run in [(0, 201), (-1, 10), (200, 1), (150, 51)]:
        with pytest.raises(BadFrame):
            Cma(region.endpoint, NoLink()).read_now(region, [run], views(abs(run[1])))
    await owner.ask("remove", region.id)


async def test_read_only_memory_is_not_read_into(owner: Owner) -> None:
    region = await owner.register(6, 100)
    into = bytes(100)
    with pytest.raises(AssertionError):
        Cma(region.endpoint, NoLink()).read_now(region, [(0, 100)], [memoryview(into)])
    assert into == bytes(100)
    await owner.ask("remove", region.id)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=8),
    st.lists(st.integers(0, 50), min_size=1, max_size=8),
    st.integers(1, 64),
    st.integers(1, 6),
)
async def test_both_sides_are_cut_alike(here: list[int], there: list[int], most: int, pieces: int) -> None:
    """Whatever the pieces, every byte is moved once, to where it belongs, and no call moves too much."""
    total = min(sum(here), sum(there))

    def shorten(sizes: list[int]) -> list[tuple[int, int]]:
        found, at, left = [], 0, total
        for size in sizes:
            found.append((at, min(size, left)))
            at, left = at + size, left - min(size, left)
        return [(address, size) for address, size in found if size]

    ours, theirs = shorten(here), shorten(there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cma, "_SLICE", most)
        patch.setattr(cma, "_MOST_PIECES", pieces)
        calls = list(cma._cut(ours, iter(theirs)))

    def spread(pieces: list[int]) -> list[int]:
        return [at + i for at, size in zip(pieces[::2], pieces[1::2], strict=True) for i in range(size)]

    assert [at for local, _, _ in calls for at in spread(local)] == [a + i for a, size in ours for i in range(size)]
    assert [at for _, remote, _ in calls for at in spread(remote)] == [a + i for a, size in theirs for i in range(size)]
    for local, remote, size in calls:
        assert len(spread(local)) == len(spread(remote)) == size <= most
        assert len(local) == len(remote) <= 2 * pieces


async def test_from_threads(owner: Owner) -> None:
    """Nonce and words are read to memory of each thread's own."""
    regions = [await owner.register(seed, 10_000) for seed in range(8)]
    way = Cma(regions[0].endpoint, NoLink())
    wrong = []

    def read(seed: int) -> None:
        (into,) = views(10_000)
        expected = pattern(seed, 10_000)
        for _ in range(300):
            way.read_now(regions[seed], [(0, 10_000)], [into])
            if into != expected:
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert not wrong
    for region in regions:
        await owner.ask("remove", region.id)


async def test_others_have_their_turn() -> None:
    memory = bytearray(100 << 20)
    regions = Regions()
    _, remote = own_region(regions, memory)
    turns, ended = 0, False

    async def count() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await Cma(remote.endpoint, NoLink()).read(remote, [(0, 100 << 20)], views(100 << 20), progress)
    ended = True
    await counting
    assert turns >= 6


# -- handles that are good no longer -----------------------------------------------------------------------------------


async def test_a_removed_region(owner: Owner) -> None:
    region = await owner.register(7, 1000)
    await owner.ask("remove", region.id)
    with pytest.raises(StaleHandle, match=r"weights: owner\[0\] on here has closed it"):
        Cma(region.endpoint, NoLink()).read_now(region, [(0, 1000)], views(1000))


async def test_a_word_that_another_region_has_now(owner: Owner) -> None:
    region = await owner.register(7, 1000)
    await owner.ask("remove", region.id)
    other = await owner.register(8, 1000)
    assert other.id == region.id, "the word is used again"
    with pytest.raises(StaleHandle):
        Cma(region.endpoint, NoLink()).read_now(region, [(0, 1000)], views(1000))
    await owner.ask("remove", other.id)


async def test_an_epoch_that_is_over(owner: Owner) -> None:
    old = await owner.register(7, 1000)
    new = await owner.advance(old)
    way = Cma(old.endpoint, NoLink())
    with pytest.raises(StaleHandle, match="ask for a newer handle"):
        way.read_now(old, [(0, 1000)], views(1000))
    (into,) = views(1000)
    way.read_now(new, [(0, 1000)], [into])
    assert into == pattern(7, 1000)
    await owner.ask("remove", new.id)


async def test_removed_while_it_is_read() -> None:
    """Between two slices: what was read until then does not count."""
    regions, memory = Regions(), bytearray(40 << 20)
    region, remote = own_region(regions, memory)
    moved = []

    def remove(count: int) -> None:
        moved.append(count)
        regions.remove(region)

    with pytest.raises(StaleHandle):
        await Cma(remote.endpoint, NoLink()).read(remote, [(0, 40 << 20)], views(40 << 20), remove)
    assert moved == [cma._SLICE]


async def test_the_word_is_looked_at_after_the_bytes_too() -> None:
    """R1. What the call reads it writes to the word, in this process, as a remover would meanwhile."""
    regions = Regions()
    _, remote = own_region(regions, bytearray(8))
    word = (ctypes.c_char * 8).from_address(remote.word_at)
    (into,) = [memoryview(word).cast("B")]
    with pytest.raises(StaleHandle):
        Cma(remote.endpoint, NoLink()).read_now(remote, [(0, 8)], [into])


async def test_memory_that_is_not_there(owner: Owner) -> None:
    """The handle is good, the memory behind it is not: no garbage, and the error says what the kernel said."""
    region = await owner.register(7, 5000)
    missing = dataclasses.replace(region, spans=((region.spans[0][0], 4000), (64, 1000)))
    with pytest.raises(TransferBroken, match="EFAULT: only 4000 of 5000 bytes of weights could be read"):
        Cma(region.endpoint, NoLink()).read_now(missing, [(0, 5000)], views(5000))
    await owner.ask("remove", region.id)


async def test_memory_that_went_with_its_region(owner: Owner) -> None:
    region = await owner.register(7, 5000)
    await owner.ask("remove", region.id)
    missing = dataclasses.replace(region, spans=((64, 5000),))
    with pytest.raises(StaleHandle):
        Cma(region.endpoint, NoLink()).read_now(missing, [(0, 5000)], views(5000))


# -- owners that are gone, or are not who they were --------------------------------------------------------------------


async def test_another_process_with_that_pid(owner: Owner) -> None:
    region = await owner.register(7, 5000)
    endpoint = dataclasses.replace(region.endpoint, nonce=bytes(16))
    (into,) = views(5000)
    with pytest.raises(TransferBroken, match="its process is gone"):
        Cma(endpoint, NoLink()).read_now(region, [(0, 5000)], [into])
    assert Cma.probe(endpoint) == "its process is gone"
    await owner.ask("remove", region.id)


async def test_another_program_with_that_pid(owner: Owner) -> None:
    region = await owner.register(7, 5000)
    endpoint = dataclasses.replace(region.endpoint, beacon=64)
    with pytest.raises(TransferBroken, match="its process is gone"):
        Cma(endpoint, NoLink()).read_now(region, [(0, 5000)], views(5000))
    assert "EFAULT" in (Cma.probe(endpoint) or "")
    await owner.ask("remove", region.id)


async def test_killed_in_the_middle() -> None:
    async with an_owner() as owner:
        region = await owner.register(9, 48 << 20)
        moved = []

        def kill(count: int) -> None:
            moved.append(count)
            owner.process.kill()
            os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)  # it has ended

        with pytest.raises(TransferBroken, match=r"owner\[0\] on here: its process is gone"):
            await Cma(region.endpoint, NoLink()).read(region, [(0, 48 << 20)], views(48 << 20), kill)
        assert moved == [cma._SLICE]
        await owner.kill()
        assert "there is no process" in (Cma.probe(region.endpoint) or "")


# -- probing -----------------------------------------------------------------------------------------------------------


async def test_a_probe_that_works(owner: Owner) -> None:
    region = await owner.register(1, 10)
    assert Cma.probe(region.endpoint) is None
    await owner.ask("remove", region.id)


async def test_another_machine(owner: Owner) -> None:
    region = await owner.register(1, 10)
    assert "another machine" in (Cma.probe(dataclasses.replace(region.endpoint, machine=b"elsewher")) or "")
    await owner.ask("remove", region.id)


PROBE = """
import os, sys
sys.path[:0] = {path!r}
from monarch_async.bulk.errands import Operation
from monarch_async.bulk.grant import grant_operations
from monarch_async.bulk.region import RemoteRegion
from monarch_async.bulk.cma import Cma
from monarch_async.bulk.staged import Staged
region = RemoteRegion.unpack(bytes.fromhex(sys.argv[1]))
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
print(Cma.probe(region.endpoint), Staged.probe(region.endpoint), sep="\\n")
try:
    Cma(region.endpoint, None).read_now(region, [(0, 10)], [memoryview(bytearray(10))])
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
async def test_another_user(owner: Owner) -> None:
    region = await owner.register(1, 10)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROBE.format(path=sys.path), region.pack().hex()],
        capture_output=True,
        text=True,
    )
    cma_says, staged_says, error = done.stdout.splitlines()
    assert cma_says.startswith(f"EPERM: the kernel does not let this process read the memory of process {owner.pid}")
    assert "it is user 0's" in cma_says and "user 65534's" in cma_says and "CAP_SYS_PTRACE" in cma_says
    assert "may not be opened" in staged_says
    assert error.startswith("TransferBroken") and cma_says in error
    await owner.ask("remove", region.id)


@pytest.mark.parametrize(
    ("number", "scope", "words"),
    [
        (errno.EPERM, "2", "kernel.yama.ptrace_scope is 2; set it to 1"),
        (errno.EPERM, "3", "after a reboot"),
        (errno.EPERM, "1", "docker run --cap-add=SYS_PTRACE"),
        (errno.EPERM, None, "docker run --cap-add=SYS_PTRACE"),
        (errno.ENOSYS, None, "gVisor"),
        (errno.ENOMEM, None, "ENOMEM: Cannot allocate memory"),
    ],
)
async def test_what_is_said_of_what_the_kernel_says(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, tmp_path, number: int, scope: str | None, words: str
) -> None:
    region = await owner.register(1, 10)

    def refuse(*arguments: object) -> int:
        ctypes.set_errno(number)
        return -1

    system = cma._system()
    assert system is not None
    monkeypatch.setattr(cma, "_system", lambda: system._replace(read=refuse, read_small=refuse))
    file = tmp_path / "scope"
    if scope is not None:
        file.write_text(scope)
    real = open
    monkeypatch.setattr(cma, "open", lambda name: real(file if "yama" in name else name), raising=False)
    said = Cma.probe(region.endpoint) or ""
    assert words in said
    with pytest.raises(TransferBroken) as caught:
        Cma(region.endpoint, NoLink()).read_now(region, [(0, 10)], views(10))
    assert caught.value.why == said
    await owner.ask("remove", region.id)


async def test_without_the_system_call(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    region = await owner.register(1, 10)
    monkeypatch.setattr(cma, "_system", lambda: None)
    assert "no process_vm_readv" in (Cma.probe(region.endpoint) or "")
    allow_readers.__wrapped__()
    await owner.ask("remove", region.id)


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4096, (16 << 20) + 1])
async def test_writes_of_every_size(owner: Owner, size: int) -> None:
    region = await owner.register(3, size // 2, size - size // 2)
    source, moved = pattern(10, size), []
    async with a_link(region.endpoint) as link:
        way = Cma(region.endpoint, link)
        await way.write(region, [(0, size)], [memoryview(source)], moved.append)  # read-only memory may be written from
        assert await owner.ask("digest", region.id) == hashlib.sha256(source).hexdigest()
        assert sum(moved) == size
        await asyncio.wait_for(owner.ask("remove", region.id), 5)
        await way.aclose()


async def test_writes_of_runs(owner: Owner) -> None:
    region, expected = await owner.register(3, 1000, 1000), bytearray(pattern(3, 2000))
    source = pattern(11, 300)
    expected[100:200], expected[950:1050], expected[1990:] = source[:100], source[100:200], source[200:210]
    async with a_link(region.endpoint) as link:
        way = Cma(region.endpoint, link)
        runs = [(100, 100), (950, 100), (1990, 10)]
        await way.write(region, runs, [memoryview(source)[:150], memoryview(source)[150:210]], progress)
        await way.aclose()
    assert await owner.ask("digest", region.id) == hashlib.sha256(expected).hexdigest()
    await owner.ask("remove", region.id)


async def test_read_only_regions_are_not_written(owner: Owner) -> None:
    region = await owner.register(3, 1000, is_writable=False)
    async with a_link(region.endpoint) as link:
        with pytest.raises(TransferError, match="read-only"):
            await Cma(region.endpoint, link).write(region, [(0, 1000)], views(1000), progress)
    assert await owner.ask("digest", region.id) == hashlib.sha256(pattern(3, 1000)).hexdigest()
    await owner.ask("remove", region.id)


async def test_stale_handles_are_not_written(owner: Owner) -> None:
    region = await owner.register(3, 1000)
    newer = await owner.advance(region)
    async with a_link(region.endpoint) as link:
        way = Cma(region.endpoint, link)
        with pytest.raises(StaleHandle):
            await way.write(region, [(0, 1000)], views(1000), progress)
        await owner.ask("remove", newer.id)
        with pytest.raises(StaleHandle):
            await way.write(newer, [(0, 1000)], views(1000), progress)


async def test_removal_waits_for_the_writer(owner: Owner) -> None:
    """R3; and the writer hears at its next slice that it is no longer wanted."""
    size = 64 << 20
    region = await owner.register(3, size)
    removal: list[asyncio.Future] = []
    async with a_link(region.endpoint) as link:
        way = Cma(region.endpoint, link)
        await link.ask("release", 0)  # connected

        def remove(count: int) -> None:
            if not removal:
                removal.append(owner.ask("remove", region.id))
                return
            while True:  # it has been sent by now
                way.read_now(region, [(0, 1)], views(1))

        with pytest.raises(StaleHandle):
            await way.write(region, [(0, size)], views(size), remove)
        await asyncio.wait_for(removal[0], 5)
        with pytest.raises(StaleHandle):
            await way.write(region, [(0, size)], views(size), progress)
        await way.aclose()


async def test_a_writer_hears_at_its_next_slice() -> None:
    regions, memory = Regions(), bytearray(40 << 20)
    region, remote = own_region(regions, memory)
    link = OwnLink(grant_operations(regions), Client())
    way = Cma(remote.endpoint, link)

    def remove(count: int) -> None:
        regions.remove(region)
        assert region.users == 1

    with pytest.raises(StaleHandle):
        await way.write(remote, [(0, 40 << 20)], [memoryview(b"x" * (40 << 20))], remove)
    await way.aclose()
    await region.wait_unused()
    assert memory[cma._SLICE - 1] == ord("x") and memory[cma._SLICE] == 0


async def test_removal_waits_for_a_writer_that_takes_its_time(owner: Owner) -> None:
    region = await owner.register(3, 100)
    async with a_link(region.endpoint) as link:
        number = await link.ask("grant", region.id, region.stamp)
        removal = owner.ask("remove", region.id)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(removal), 0.1)
        await link.ask("release", number)
        await asyncio.wait_for(removal, 5)
        await link.ask("release", number)  # twice is fine


async def test_a_writer_whose_connection_ends(owner: Owner) -> None:
    region = await owner.register(3, 100)
    async with a_link(region.endpoint) as link:
        await link.ask("grant", region.id, region.stamp)
        removal = owner.ask("remove", region.id)
    await asyncio.wait_for(removal, 5)


WRITER = """
import asyncio, sys
sys.path[:0] = {path!r}
from owner import a_link
from monarch_async.bulk.errands import Operation
from monarch_async.bulk.grant import grant_operations
from monarch_async.bulk.region import RemoteRegion
async def main():
    region = RemoteRegion.unpack(bytes.fromhex(sys.argv[1]))
    async with a_link(region.endpoint) as link:
        await link.ask("grant", region.id, region.stamp)
        print("granted", flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


async def test_a_writer_that_is_killed_in_the_middle(owner: Owner) -> None:
    region = await owner.register(3, 100)
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER.format(path=sys.path), region.pack().hex(), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    assert await writer.stdout.readline() == b"granted\n"
    assert await owner.ask("users", region.id) == 1
    writer.kill()
    await writer.wait()
    await asyncio.wait_for(owner.ask("remove", region.id), 5)


async def test_cancelled_writes_hold_no_grant(owner: Owner) -> None:
    """Whenever it is: while the grant is asked for, between slices, or before it began."""
    region = await owner.register(3, 40 << 20)
    source = views(40 << 20)
    async with a_link(region.endpoint) as link:
        way = Cma(region.endpoint, link)
        await link.ask("release", 0)  # connected
        for turns in range(12):
            writing = asyncio.create_task(way.write(region, [(0, 40 << 20)], source, progress))
            for _ in range(turns):
                await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait([writing])
        await way.aclose()
        assert await owner.ask("users", region.id) == 0
    await owner.ask("remove", region.id)


async def test_a_link_that_breaks_stops_the_writer() -> None:
    """With it went the grant: nothing more is written, though the memory is still there."""
    regions, memory = Regions(), bytearray(40 << 20)
    _, remote = own_region(regions, memory)
    link = OwnLink(grant_operations(regions), Client())
    way = Cma(remote.endpoint, link)

    def cut(count: int) -> None:
        link.is_open = False

    with pytest.raises(TransferBroken, match="connection broke"):
        await way.write(remote, [(0, 40 << 20)], [memoryview(b"x" * (40 << 20))], cut)
    await way.aclose()
    assert memory[cma._SLICE - 1] == ord("x") and memory[cma._SLICE] == 0


async def test_an_owner_that_is_killed_while_it_is_written() -> None:
    async with an_owner() as owner:
        region = await owner.register(9, 48 << 20)
        async with a_link(region.endpoint) as link:

            def kill(count: int) -> None:
                owner.process.kill()
                os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)

            with pytest.raises(TransferBroken):
                await Cma(region.endpoint, link).write(region, [(0, 48 << 20)], views(48 << 20), kill)
        await owner.kill()


async def test_writing_where_nothing_is_mapped(owner: Owner) -> None:
    region = await owner.register(7, 5000)
    missing = dataclasses.replace(region, spans=((region.spans[0][0], 4000), (64, 1000)))
    async with a_link(region.endpoint) as link:
        way = Cma(region.endpoint, link)
        with pytest.raises(TransferBroken, match="EFAULT: only 4000 of 5000 bytes of weights could be written"):
            await way.write(missing, [(0, 5000)], views(5000), progress)
        await way.aclose()
    await owner.ask("remove", region.id)


async def test_a_link_is_not_needed_to_read() -> None:
    """Small things are read without the owner's having a thread for it, or sockets."""
    memory = bytearray(b"hello")
    regions = Regions()
    _, remote = own_region(regions, memory)
    (into,) = views(5)
    Cma(remote.endpoint, NoLink()).read_now(remote, [(0, 5)], [into])
    assert into == b"hello"
