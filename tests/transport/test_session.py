"""The dialling end of a session: Up, Down, Lost, with the agent's own guest list at the other end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgpack
import pytest

from monarch_async.config import Config
from monarch_async.control.guests import Guest, Guests
from monarch_async.errors import HandshakeRefused, LinkBroken
from monarch_async.testing import FaultProxy
from monarch_async.transport.connection import Connection
from monarch_async.transport.dial import listening
from monarch_async.transport.session import Session
from monarch_async.transport.url import Url
from monarch_async.wire.auth import handshake_length
from monarch_async.wire.frame import CALL, HEADER, LEASE, frame_length, pack_frame

TOKEN = b"the token"
CONFIG = Config(resume_window=0.6, heartbeat=0.1)
PATIENT = Config(resume_window=30.0, heartbeat=0.1)


class Collector:
    """A consumer that keeps call ids, and tells an owner when a socket has gone."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.on_down: Callable[[Connection, Exception | None], object] = lambda *_: None

    def feed(self, connection: Connection, data: bytes) -> tuple[int, int]:
        offset = count = 0
        while (length := frame_length(data, offset)) is not None and 40 <= length <= len(data) - offset:
            if data[offset + 4] > LEASE:
                connection.take_link_frame(data[offset + 4], data, offset)
            else:
                self.calls.append(HEADER.unpack_from(data, offset)[7])
                count += 1
            offset += length
        return offset, count

    def feed_large(self, connection: Connection, pieces: list[bytes]) -> None:
        raise AssertionError("not sent here")

    def connection_down(self, connection: Connection, error: Exception | None) -> None:
        self.on_down(connection, error)

    async def wait(self, count: int) -> list[int]:
        async with asyncio.timeout(5):
            while len(self.calls) < count:
                await asyncio.sleep(0.005)
        return self.calls


def call(n: int) -> bytes:
    return pack_frame(CALL, 0, 1, 2, 3, n)


class Host:
    """The listening end: guests, ticked as an agent does."""

    def __init__(self, config: Config) -> None:
        self.heard = Collector()
        self.joined: list[Guest] = []
        self.expired: list[str] = []
        self.url = ""
        clock = asyncio.get_running_loop().time
        self.guests = Guests(
            self.heard, "host", 500 << 32, config, clock, self.joined.append, lambda _, why: self.expired.append(why)
        )
        self.heard.on_down = lambda connection, _: self.guests.connection_down(connection)


@contextlib.asynccontextmanager
async def host(config: Config = CONFIG, url: str = "tcp://127.0.0.1:0") -> AsyncIterator[Host]:
    here = Host(config)

    async def tick() -> None:
        while True:
            await asyncio.sleep(config.heartbeat / 2)
            here.guests.tick()

    guests = here.guests
    async with listening(Url.parse(url), TOKEN, guests.admit, guests.agreed, guests.refused) as real:
        here.url = real.text
        ticking = asyncio.ensure_future(tick())
        try:
            yield here
        finally:
            ticking.cancel()
            guests.close()


class Dialling:
    """A session, ticked as a client does, and what it heard and lost."""

    def __init__(self, url: str, config: Config, token: bytes, address: int = 7) -> None:
        self.heard = Collector()
        self.lost: list[str] = []
        info = {"role": "client", "address": address, "name": "client"}
        self.session = Session(
            self.heard, Url.parse(url), token, info, config, lambda _, reason: self.lost.append(reason)
        )
        self.heard.on_down = lambda _, error: self.session.went_down(error)

    async def wait_lost(self) -> str:
        async with asyncio.timeout(10):
            while not self.lost:
                await asyncio.sleep(0.005)
        assert len(self.lost) == 1
        return self.lost[0]


@contextlib.asynccontextmanager
async def dialling(url: str, config: Config = CONFIG, address: int = 7) -> AsyncIterator[Dialling]:
    here = Dialling(url, config, TOKEN, address)

    async def tick() -> None:
        while True:
            await asyncio.sleep(config.heartbeat / 2)
            here.session.tick()

    ticking = asyncio.ensure_future(tick())
    try:
        yield here
    finally:
        ticking.cancel()
        await here.session.aclose()


def proxy_to(url: str) -> FaultProxy:
    return FaultProxy(url, frame_length=frame_length, skip=handshake_length)


async def test_what_is_sent_before_it_is_open_arrives_first() -> None:
    async with host() as there, dialling(there.url) as here:
        here.session.connection.send(call(1))
        await here.session.open()
        here.session.connection.send(call(2))
        assert await there.heard.wait(2) == [1, 2]
        assert (here.session.peer["name"], here.session.connection.address) == ("host", 500 << 32)
        there.joined[0].connection.send(call(9))
        assert await here.heard.wait(1) == [9]


async def test_it_does_not_open_where_nobody_listens_or_the_token_is_wrong() -> None:
    async with host() as there:
        here = Dialling(there.url, CONFIG, b"wrong")
        with pytest.raises(HandshakeRefused, match="wrong token"):
            await here.session.open()
        await here.session.aclose()
    async with dialling(there.url) as here:
        with pytest.raises(LinkBroken, match="cannot connect"):
            await here.session.open()
    assert here.lost == []


async def test_down_and_up_again_loses_and_repeats_nothing() -> None:
    async with host(PATIENT) as there, proxy_to(there.url) as proxy, dialling(proxy.url, PATIENT) as here:
        await here.session.open()
        for n in range(300):
            here.session.connection.send(call(n))
            there.joined[0].connection.send(call(1000 + n))
            if n % 60 == 30:
                proxy.cut_now()
                await proxy.wait_connections(proxy.connections + 1)
        assert await there.heard.wait(300) == list(range(300))
        assert await here.heard.wait(300) == list(range(1000, 1300))
        assert len(there.joined) == 1
        assert not here.lost


async def test_lost_after_the_window_with_what_the_last_attempt_met() -> None:
    async with host() as there, proxy_to(there.url) as proxy, dialling(proxy.url) as here:
        await here.session.open()
        proxy.refuse_new()
        proxy.cut_now()
        began = asyncio.get_running_loop().time()
        reason = await here.wait_lost()
        assert asyncio.get_running_loop().time() - began > 0.3
        assert reason.startswith("no sign of life for 0.")
        assert "(resume_window is 0.6 s): peer refused the handshake: connection closed during the handshake" in reason
        here.session.connection.send(call(1))
        proxy.accept_new()
        await asyncio.sleep(0.2)  # it does not dial again
        assert there.heard.calls == []
        assert len(here.lost) == 1


async def test_silence_counts_as_a_break_and_then_as_loss() -> None:
    async with host() as there, proxy_to(there.url) as proxy, dialling(proxy.url) as here:
        await here.session.open()
        proxy.freeze()
        await proxy.wait_connections(2)  # another socket, before it is given up
        assert not here.lost
        assert "no sign of life" in await here.wait_lost()
        proxy.thaw()
        async with asyncio.timeout(5):
            while not there.expired:
                await asyncio.sleep(0.01)


async def test_a_session_the_agent_no_longer_knows_is_lost_at_once() -> None:
    async with host(Config(resume_window=0.2, heartbeat=0.1)) as there, proxy_to(there.url) as proxy:
        async with dialling(proxy.url, PATIENT) as here:
            await here.session.open()
            proxy.refuse_new()
            proxy.cut_now()
            async with asyncio.timeout(5):
                while not there.expired:
                    await asyncio.sleep(0.01)
            proxy.accept_new()
            assert "no such session: its lease has run out" in await here.wait_lost()


@pytest.mark.slow
async def test_time_in_which_this_end_was_blocked_is_no_silence() -> None:
    import time

    async with host(PATIENT) as there, dialling(there.url) as here:
        await here.session.open()
        for _ in range(3):
            time.sleep(0.8)  # noqa: ASYNC251
            here.session.tick()
            assert not here.lost
            await asyncio.sleep(0.02)
        here.session.connection.send(call(1))
        assert await there.heard.wait(1) == [1]


async def test_over_a_unix_socket_the_end_of_the_connection_is_the_end(tmp_path) -> None:
    async with host(url=f"unix://{tmp_path}/a.sock") as there, dialling(there.url) as here:
        await here.session.open()
        assert here.session.connection.link is None
        there.joined[0].connection.close()
        assert await here.wait_lost() == "its agent's connection closed: the process is gone"


async def test_a_guest_on_a_unix_socket_may_be_silent(tmp_path) -> None:
    """G4: it is stopped in a debugger, say."""
    async with host(url=f"unix://{tmp_path}/a.sock") as there:
        here = Dialling(there.url, CONFIG, TOKEN)
        await here.session.open()  # and never ticks
        await asyncio.sleep(1.0)
        assert there.expired == []
        here.session.connection.send(call(1))
        assert await there.heard.wait(1) == [1]
        await here.session.aclose()
        async with asyncio.timeout(5):
            while not there.expired:
                await asyncio.sleep(0.01)
        assert there.expired == ["its connection closed"]


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "unix://{}/a.sock"])
async def test_an_agent_that_was_frozen_expires_its_guests_before_it_hears_them(url: str, tmp_path) -> None:
    """G3: by then they have given it up."""
    now = [1000.0]
    heard, expired = Collector(), []
    guests = Guests(
        heard, "host", 500 << 32, CONFIG, lambda: now[0], lambda _: None, lambda _, why: expired.append(why)
    )
    address = Url.parse(url.format(tmp_path))
    async with listening(address, TOKEN, guests.admit, guests.agreed, guests.refused) as real:
        async with dialling(real.text) as here:
            await here.session.open()
            guests.tick()
            now[0] += 0.5
            guests.tick()
            assert expired == []
            now[0] += 0.7
            here.session.connection.send(call(1))  # waits in the socket
            guests.tick()
            assert expired == ["this agent was frozen for 0.7 s"]
            await here.wait_lost()
            assert heard.calls == []
    guests.close()


async def test_a_guest_that_comes_back_with_a_new_session_replaces_the_old_one() -> None:
    """Both have its address: when the old one ends later, what was routed to the new one must stay."""
    async with host(PATIENT) as there, dialling(there.url, PATIENT) as old, dialling(there.url, PATIENT) as new:
        await old.session.open()
        await new.session.open()
        assert there.expired == ["it has come back with a new session"]
        assert "no such session" in await old.wait_lost()
        new.session.connection.send(call(1))
        assert await there.heard.wait(1) == [1]
        assert [guest.connection for guest in there.guests] == [there.joined[1].connection]
        assert len(there.expired) == 1 and not new.lost


async def test_the_end_of_one_guest_may_end_another() -> None:
    """As when an agent is given up: the loop over all of them meets it again."""
    now, expired = [1000.0], []
    heard = Collector()

    def take_along(guest: Guest, why: str) -> None:
        expired.append(guest.connection.address)
        for address in (7, 8):
            guests.leave(address)

    guests = Guests(heard, "host", 500 << 32, PATIENT, lambda: now[0], lambda _: None, take_along)
    async with listening(Url.parse("tcp://127.0.0.1:0"), TOKEN, guests.admit, guests.agreed, guests.refused) as real:
        async with dialling(real.text, PATIENT) as one, dialling(real.text, PATIENT, address=8) as other:
            await one.session.open()
            await other.session.open()
            now[0] += 60
            guests.tick()
            assert expired == [7, 8]
            assert not list(guests)


async def test_closing_while_it_dials_again_leaves_nothing() -> None:
    async with host() as there, proxy_to(there.url) as proxy, dialling(proxy.url) as here:
        await here.session.open()
        proxy.refuse_new()
        proxy.cut_now()
        async with asyncio.timeout(5):
            while here.session._redialling is None:
                await asyncio.sleep(0.005)
        await here.session.aclose()
        await here.session.aclose()
        assert here.lost == []


@pytest.mark.parametrize(
    "introduction", [b"\xc1", msgpack.packb({"name": "host"}), {}, {"received": "all"}, {"received": 10}], ids=repr
)
async def test_an_agent_that_comes_back_with_nonsense_is_lost(introduction: object) -> None:
    """And its socket closed."""
    known = {"name": "host", "address": 500 << 32}
    wires: list[asyncio.Transport] = []
    ended = asyncio.Event()

    class Peer(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            if len(wires) == 2:
                ended.set()

    def answer(info: bytes) -> bytes:
        if not wires:
            return msgpack.packb(known)
        return introduction if isinstance(introduction, bytes) else msgpack.packb({**known, **introduction})  # type: ignore[dict-item]

    def take(wire: asyncio.Transport, _: object) -> None:
        wires.append(wire)
        wire.set_protocol(Peer())

    async with listening(Url.parse("tcp://127.0.0.1:0"), TOKEN, answer, take, lambda *_: None) as url:
        async with dialling(url.text, PATIENT) as here:
            await here.session.open()
            wires[0].abort()
            reason = await here.wait_lost()
            assert "unreadable introduction" in reason or "cannot resume" in reason
            async with asyncio.timeout(5):
                await ended.wait()
