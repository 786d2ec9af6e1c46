"""One suite for every carrier of a `Connection`: what it promises does not depend on what lies under it.

The plain asyncio loop is here because frames are joined there before they are written, which uvloop does itself.
"""

import asyncio
import random
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from certificates import Authority
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.errors import BadFrame, FrameTooLarge, WireError
from monarch_async.testing import SimLoop
from monarch_async.transport import inproc
from monarch_async.transport.connection import Connection
from monarch_async.transport.dial import dial, listening
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url
from monarch_async.wire.frame import ACK, CALL, HEADER, HEADER_SIZE, PIECEWISE, PING, pack_frame
from monarch_async.wire.link import Link

ALICE, BOB = 1 << 32, 2 << 32
MAX_FRAME = 1 << 20


class Recorder:
    """A consumer that keeps what it gets."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.downs: list[Exception | None] = []
        self.on_frame: Callable[[bytes], None] = lambda frame: None
        self._progress = asyncio.Event()

    def feed(self, connection: Connection, data: bytes) -> tuple[int, int]:
        offset, count = 0, 0
        while len(data) - offset >= HEADER_SIZE:
            length, kind = HEADER.unpack_from(data, offset)[:2]
            if length < HEADER_SIZE or offset + length > len(data):
                break
            if kind in (PING, ACK) or kind > 11:
                connection.take_link_frame(kind, data, offset)
            else:
                self._take(data[offset : offset + length])
                count += 1
            offset += length
        return offset, count

    def feed_large(self, connection: Connection, pieces: list[bytes]) -> None:
        self._take(b"".join(pieces))

    def connection_down(self, connection: Connection, error: Exception | None) -> None:
        self.downs.append(error)
        self._progress.set()

    def _take(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.on_frame(frame)
        self._progress.set()

    async def wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._progress.clear()
            await self._progress.wait()

    async def wait_frames(self, count: int) -> None:
        await self.wait(lambda: len(self.frames) >= count)


class Duo:
    """Two connections to each other, and their consumers. ``reach`` makes the next socket under them."""

    def __init__(self, reach: "Reach", is_linked: bool = False, **limits: int) -> None:
        self.reach = reach
        self.alice, self.bob = Recorder(), Recorder()
        links = [Link(**limits), Link(**limits)] if is_linked else [None, None]
        self.to_bob = Connection(self.alice, "bob", BOB, links[0], MAX_FRAME)
        self.to_alice = Connection(self.bob, "alice", ALICE, links[1], MAX_FRAME)

    async def join(self) -> None:
        one, other = await self.reach()
        self.to_bob.attach(one)
        self.to_alice.attach(other)

    async def rejoin(self) -> None:
        """Resume both links, as the handshake does."""
        one, other = await self.reach()
        for connection in (self.to_bob, self.to_alice):
            if connection.wire is not None:
                connection.drop()
        ours, theirs = self.to_bob.link, self.to_alice.link
        assert ours is not None and theirs is not None
        ours.down(0.0)
        theirs.down(0.0)
        ours_received, theirs_received = ours.received_count, theirs.received_count
        self.to_alice.attach(other, b"", theirs.resume(ours_received, 1.0))
        self.to_bob.attach(one, b"", ours.resume(theirs_received, 1.0))

    async def aclose(self) -> None:
        for connection in (self.to_bob, self.to_alice):
            if connection.wire is not None:
                connection.drop()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


Reach = Callable[[], Awaitable[tuple[asyncio.Transport, asyncio.Transport]]]
Scenario = Callable[[Reach], Awaitable[None]]


async def in_process() -> tuple[asyncio.Transport, asyncio.Transport]:
    return inproc.connect(asyncio.Protocol(), asyncio.Protocol())


async def over_unix() -> tuple[asyncio.Transport, asyncio.Transport]:
    loop = asyncio.get_running_loop()
    socks = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    one, other = [await loop.create_unix_connection(asyncio.Protocol, sock=sock) for sock in socks]
    return one[0], other[0]


async def over_tcp() -> tuple[asyncio.Transport, asyncio.Transport]:
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[Any] = loop.create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)

    server = await loop.create_server(Accepting, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    one, _ = await loop.create_connection(asyncio.Protocol, host, port)
    other = await accepted
    server.close()
    return one, other


class OverTls:
    """TCP with TLS, set up as `dial` and `listening` do."""

    def __init__(self) -> None:
        self._tls: Tls | None = None

    async def __call__(self) -> tuple[asyncio.Transport, asyncio.Transport]:
        if self._tls is None:
            with tempfile.TemporaryDirectory() as folder:  # the first has read the files
                self._tls = Tls(Authority(Path(folder)).issue().config())
                return await self._reach(self._tls)
        return await self._reach(self._tls)

    async def _reach(self, tls: Tls) -> tuple[asyncio.Transport, asyncio.Transport]:
        agreed: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        url = Url.parse("tls://127.0.0.1:0")
        answer = lambda info: b""  # noqa: E731
        async with listening(url, b"token", answer, lambda wire, _: agreed.set_result(wire), print, tls) as real:
            one, _ = await dial(real, b"token", b"", tls)
            return one, await agreed


over_tls = OverTls()

CARRIERS: dict[str, tuple[Reach, Callable[[], asyncio.AbstractEventLoop]]] = {
    "inproc": (in_process, SimLoop),
    "unix": (over_unix, uvloop.new_event_loop),
    "tcp": (over_tcp, uvloop.new_event_loop),
    "tcp on asyncio's loop": (over_tcp, asyncio.SelectorEventLoop),
    "tls": (over_tls, uvloop.new_event_loop),
    "tls on asyncio's loop": (over_tls, asyncio.SelectorEventLoop),
}


def run(scenario: Scenario, reach: Reach, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Run one on a loop of its own; what the loop would only log fails it."""
    said: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
        async with asyncio.timeout(10):
            await scenario(reach)
        assert len(asyncio.all_tasks()) == 1

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
    assert not said


@pytest.fixture(params=CARRIERS, ids=str)
def carried(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs a scenario over one carrier."""
    return lambda scenario: run(scenario, *CARRIERS[request.param])


def frame(number: int, size: int = 0, kind: int = CALL) -> bytes:
    """A frame that says its number, with ``size`` bytes that differ from its neighbours'."""
    return pack_frame(kind, 0, BOB, ALICE, 0, number, b"", bytes([number % 251]) * size)


def numbers(frames: Sequence[bytes]) -> list[int]:
    return [HEADER.unpack_from(one)[7] for one in frames]


MIXED = [frame(n, size) for n, size in enumerate([0, 1, 100, PIECEWISE, 0, 3 * PIECEWISE, PIECEWISE - HEADER_SIZE, 7])]


def test_frames_arrive_whole_in_order_and_once_both_ways(carried: Callable[[Scenario], None]) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach)
        await duo.join()
        for one in MIXED:
            duo.to_bob.send(one)
            duo.to_alice.send(one)
        await duo.bob.wait_frames(len(MIXED))
        await duo.alice.wait_frames(len(MIXED))
        assert duo.bob.frames == duo.alice.frames == MIXED
        await duo.aclose()

    carried(scenario)


def test_many_small_frames_over_many_turns(carried: Callable[[Scenario], None]) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach)
        await duo.join()
        for number in range(2000):
            duo.to_bob.send(frame(number, number % 90))
            if number % 70 == 0:
                await asyncio.sleep(0)
        await duo.bob.wait_frames(2000)
        assert duo.bob.frames == [frame(number, number % 90) for number in range(2000)]
        await duo.aclose()

    carried(scenario)


def test_what_is_sent_before_the_first_socket_is_not_lost(carried: Callable[[Scenario], None]) -> None:
    for is_linked in (False, True):

        async def scenario(reach: Reach, is_linked: bool = is_linked) -> None:
            duo = Duo(reach, is_linked)
            duo.to_bob.send(frame(0))
            duo.to_bob.send(frame(1))
            await duo.join()
            duo.to_bob.send(frame(2))
            await duo.bob.wait_frames(3)
            assert numbers(duo.bob.frames) == [0, 1, 2]
            await duo.aclose()

        carried(scenario)


def test_pieces_and_runs_keep_their_place(carried: Callable[[Scenario], None]) -> None:
    for is_linked in (False, True):

        async def scenario(reach: Reach, is_linked: bool = is_linked) -> None:
            duo = Duo(reach, is_linked)
            await duo.join()
            whole = frame(1, 300)
            duo.to_bob.send(frame(0))
            duo.to_bob.send_pieces([whole[:HEADER_SIZE], memoryview(whole)[HEADER_SIZE:]])
            duo.to_bob.send_run([frame(2), frame(3)])
            duo.to_bob.send(frame(4))
            await duo.bob.wait_frames(5)
            assert numbers(duo.bob.frames) == [0, 1, 2, 3, 4] and duo.bob.frames[1] == whole
            await duo.aclose()

        carried(scenario)


def test_close_lets_what_was_sent_arrive(carried: Callable[[Scenario], None]) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach)
        await duo.join()
        for one in MIXED:
            duo.to_bob.send(one)
        duo.to_bob.close()
        duo.to_bob.close()
        duo.to_bob.send(frame(99))
        await duo.bob.wait(lambda: bool(duo.bob.downs))
        await duo.alice.wait(lambda: bool(duo.alice.downs))
        assert duo.bob.frames == MIXED
        assert duo.bob.downs == [None] and duo.alice.downs == [None]
        assert duo.to_bob.is_closed and duo.to_alice.is_closed
        duo.to_alice.send(frame(99))  # into nothing
        duo.to_alice.ping()
        await asyncio.sleep(0)

    carried(scenario)


def test_a_closed_connection_takes_no_socket(carried: Callable[[Scenario], None]) -> None:
    """Given up while it was being dialled: the socket that comes too late ends at once."""

    async def scenario(reach: Reach) -> None:
        duo = Duo(reach)
        duo.to_bob.send(frame(0))
        duo.to_bob.close()
        await duo.join()
        await duo.bob.wait(lambda: bool(duo.bob.downs))
        assert duo.to_bob.wire is None and not duo.bob.frames and not duo.alice.downs

    carried(scenario)


def test_drop_tells_both_ends_once_and_hears_no_late_words(carried: Callable[[Scenario], None]) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach)
        await duo.join()
        duo.to_alice.send(frame(0))
        reason = ConnectionAbortedError("enough")
        duo.to_bob.drop(reason)
        duo.to_bob.drop(reason)
        assert duo.alice.downs == [reason]
        await duo.bob.wait(lambda: bool(duo.bob.downs))
        await asyncio.sleep(0)
        assert len(duo.bob.downs) == 1 and duo.alice.downs == [reason] and not duo.alice.frames

    carried(scenario)


def test_ping_is_heard_and_is_no_frame(carried: Callable[[Scenario], None]) -> None:
    for is_linked in (False, True):

        async def scenario(reach: Reach, is_linked: bool = is_linked) -> None:
            duo = Duo(reach, is_linked)
            await duo.join()
            assert not duo.to_alice.was_heard
            duo.to_bob.ping()
            duo.to_bob.send(frame(0))
            await duo.bob.wait_frames(1)
            assert duo.to_alice.was_heard and len(duo.bob.frames) == 1
            assert not is_linked or duo.to_alice.link.received_count == 1  # type: ignore[union-attr]
            await duo.aclose()

        carried(scenario)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (HEADER.pack(MAX_FRAME + 1, CALL, 0, 0, BOB, ALICE, 0, 0), FrameTooLarge),
        (HEADER.pack(HEADER_SIZE - 1, CALL, 0, 0, BOB, ALICE, 0, 0), BadFrame),
        (b"\0\0\0\0", BadFrame),
        (HEADER.pack(HEADER_SIZE, 77, 0, 0, BOB, ALICE, 0, 0), BadFrame),
    ],
    ids=["too large", "too small", "nothing", "unknown kind"],
)
def test_a_frame_that_breaks_the_rules_ends_the_connection(
    carried: Callable[[Scenario], None], bad: bytes, error: type[WireError]
) -> None:
    for is_linked in (False, True):

        async def scenario(reach: Reach, is_linked: bool = is_linked) -> None:
            duo = Duo(reach, is_linked)
            await duo.join()
            duo.to_bob.send(frame(0))
            duo.to_bob.send(bad)
            await duo.bob.wait(lambda: bool(duo.bob.downs))
            assert len(duo.bob.frames) == 1 and type(duo.bob.downs[0]) is error
            assert duo.to_alice.is_closed
            await duo.alice.wait(lambda: bool(duo.alice.downs))
            await duo.aclose()

        carried(scenario)


class Payload:
    """A source of ``count`` chunks that notes how far it got."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size, self.handed = count, size, 0
        self.allowed = count

    def next_chunk(self) -> tuple[bytes, bytes] | None:
        if self.handed >= self.allowed:
            return None
        self.handed += 1
        whole = frame(1000 + self.handed, self.size)
        return whole[:HEADER_SIZE], whole[HEADER_SIZE:]

    @property
    def is_done(self) -> bool:
        return self.handed >= self.count


def test_other_frames_overtake_bulk_and_bulk_is_kept_in_order(carried: Callable[[Scenario], None]) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach)
        await duo.join()
        one, two = Payload(24, 512 << 10), Payload(4, 1000)
        duo.to_bob.bulk(one)
        duo.to_bob.bulk(two)
        duo.to_bob.send(frame(0))
        await duo.bob.wait_frames(29)
        seen = numbers(duo.bob.frames)
        assert seen.index(0) < 24, "it waited for all of the payload"
        assert sorted(seen) == [0, *sorted([*range(1001, 1025), *range(1001, 1005)])]
        assert numbers([f for f in duo.bob.frames if len(f) > 2000]) == list(range(1001, 1025))
        await duo.aclose()

    carried(scenario)


def test_bulk_stops_while_the_other_end_does_not_read(carried: Callable[[Scenario], None]) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach)
        await duo.join()
        assert duo.to_alice.wire is not None
        duo.to_alice.wire.pause_reading()
        source = Payload(64, 512 << 10)
        duo.to_bob.bulk(source)
        for _ in range(50):
            await asyncio.sleep(0)
        handed = source.handed
        assert not source.is_done and not duo.to_bob.is_writable and not duo.to_bob.has_room
        assert handed * source.size < 16 << 20, "it is kept in memory"
        duo.to_alice.wire.resume_reading()
        await duo.bob.wait_frames(64)
        assert duo.to_bob.has_room
        await duo.aclose()

    carried(scenario)


def test_bulk_without_credit_goes_on_when_it_comes(carried: Callable[[Scenario], None]) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach)
        await duo.join()
        starved, fed = Payload(5, 10), Payload(5, 10)
        starved.allowed = 2
        duo.to_bob.bulk(starved)
        duo.to_bob.bulk(fed)
        await duo.bob.wait_frames(7)
        assert fed.is_done and starved.handed == 2
        starved.allowed = 5
        duo.to_bob.resume_bulk()
        await duo.bob.wait_frames(10)
        await duo.aclose()

    carried(scenario)


# -- links -----------------------------------------------------------------------------------------------------------


def test_a_link_outlives_its_sockets(carried: Callable[[Scenario], None]) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach, True, ack_every_frames=3)
        await duo.join()
        dice = random.Random(5)
        total = 120
        for number in range(total):
            duo.to_bob.send(frame(number, dice.choice([0, 10, 2 * PIECEWISE])))
            duo.to_alice.send(frame(number, 5))
            if dice.random() < 0.1:
                await asyncio.sleep(0)
            if dice.random() < 0.08 and duo.to_bob.wire is not None:
                wire = dice.choice([duo.to_bob, duo.to_alice]).wire
                assert wire is not None
                wire.abort()
                before = len(duo.alice.downs), len(duo.bob.downs)
                await duo.alice.wait(lambda n=before[0]: len(duo.alice.downs) > n)
                await duo.bob.wait(lambda n=before[1]: len(duo.bob.downs) > n)
                duo.to_bob.send(frame(1000 + number))  # while it is down
                await duo.rejoin()
        await duo.bob.wait(lambda: total - 1 in numbers(duo.bob.frames))
        await duo.alice.wait_frames(total)
        sent = numbers(duo.bob.frames)
        assert [n for n in sent if n < 1000] == list(range(total)) == numbers(duo.alice.frames)
        assert len(set(sent)) == len(sent) and len(sent) > total
        await duo.aclose()

    carried(scenario)


def test_a_full_link_holds_frames_back_and_lets_them_go_in_order(carried: Callable[[Scenario], None]) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach, True, max_unacked_bytes=1000, ack_every_bytes=500)
        await duo.join()
        link = duo.to_bob.link
        assert link is not None
        for number in range(100):
            duo.to_bob.send(frame(number, 60))
            assert link.unacked_bytes < 1000 + 100
        assert not duo.to_bob.has_room
        await duo.bob.wait_frames(100)
        assert numbers(duo.bob.frames) == list(range(100))
        duo.to_alice.ping()
        duo.to_alice.send(frame(0))
        await duo.alice.wait_frames(1)
        assert link.unacked_bytes == 0 and duo.to_bob.has_room
        await duo.aclose()

    carried(scenario)


def test_what_a_full_link_held_back_survives_a_cut(carried: Callable[[Scenario], None]) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach, True, max_unacked_bytes=1000, ack_every_bytes=500)
        await duo.join()
        for number in range(50):
            duo.to_bob.send(frame(number, 60))
        duo.to_bob.drop()
        await duo.bob.wait(lambda: bool(duo.bob.downs))
        duo.to_bob.send(frame(50, 60))
        await duo.rejoin()
        await duo.bob.wait_frames(51)
        assert numbers(duo.bob.frames) == list(range(51))
        await duo.aclose()

    carried(scenario)


# -- what only this carrier can do -----------------------------------------------------------------------------------


def splitter(cuts: Sequence[int]) -> inproc.Split:
    """Cuts everything that arrives into pieces of these sizes, over and over."""

    def split(data: bytes) -> list[bytes]:
        pieces, start, turn = [], 0, 0
        while start < len(data):
            pieces.append(data[start : start + cuts[turn % len(cuts)]])
            start, turn = start + cuts[turn % len(cuts)], turn + 1
        return pieces

    return split


@given(
    cuts=st.lists(st.integers(1, 70) | st.sampled_from([HEADER_SIZE, 40_000, 70_000]), min_size=1, max_size=5),
    sizes=st.lists(st.integers(0, 100) | st.sampled_from([PIECEWISE, 70_000]), min_size=1, max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_any_split_gives_the_same_frames(cuts: list[int], sizes: list[int]) -> None:
    sent = [frame(number, size) for number, size in enumerate(sizes)]
    if max(sizes) > 1000:
        cuts = [max(cut, 900) for cut in cuts]

    async def reach() -> tuple[asyncio.Transport, asyncio.Transport]:
        return inproc.connect(asyncio.Protocol(), asyncio.Protocol(), split=splitter(cuts))

    async def scenario(reach: Reach) -> None:
        duo = Duo(reach)
        await duo.join()
        for one in sent:
            duo.to_bob.send(one)
        await duo.bob.wait_frames(len(sent))
        assert duo.bob.frames == sent
        await duo.aclose()

    run(scenario, reach, SimLoop)


@given(at=st.integers(1, 700), back=st.integers(1, 700))
@settings(max_examples=40, deadline=None)
def test_a_link_broken_at_any_byte_loses_and_doubles_nothing(at: int, back: int) -> None:
    async def scenario(reach: Reach) -> None:
        duo = Duo(reach, True, ack_every_frames=2)
        await duo.join()
        one, other = duo.to_bob.wire, duo.to_alice.wire
        assert isinstance(one, inproc.Inproc) and isinstance(other, inproc.Inproc)
        one.cut(at)
        other.cut(back)
        for number in range(10):
            duo.to_bob.send(frame(number, number))
            duo.to_alice.send(frame(number, number))
            await asyncio.sleep(0)
        await duo.alice.wait(lambda: bool(duo.alice.downs) or len(duo.alice.frames) == len(duo.bob.frames) == 10)
        await duo.rejoin()
        await duo.alice.wait_frames(10)
        await duo.bob.wait_frames(10)
        assert numbers(duo.alice.frames) == numbers(duo.bob.frames) == list(range(10))
        await duo.aclose()

    run(scenario, in_process, SimLoop)
