"""Addresses, listening and dialling, with real sockets."""

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from monarch_async.errors import HandshakeRefused, LinkBroken
from monarch_async.transport import dial as dialling
from monarch_async.transport.dial import dial, listening
from monarch_async.transport.url import Url
from monarch_async.wire.auth import Agreed, handshake_length

TOKEN = b"the token"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://127.0.0.1:80", Url("tcp://127.0.0.1:80", host="127.0.0.1", port=80)),
        ("tcp://host-07:0", Url("tcp://host-07:0", host="host-07", port=0)),
        ("tcp://[::1]:80", Url("tcp://[::1]:80", host="::1", port=80)),
        ("unix:///run/a.sock", Url("unix:///run/a.sock", path="/run/a.sock")),
    ],
)
def test_addresses(text: str, expected: Url) -> None:
    assert Url.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    "- 127.0.0.1:80 http://a:1 tcp://a tcp://:80 tcp://a:99999 tcp://a:x tcp://a:1/b unix://a/b unix:a".split(),
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected tcp://host:port or unix:///absolute/path|[Pp]ort"):
        Url.parse(text)


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ("tcp://127.0.0.1:1", True),
        ("tcp://localhost:1", True),
        ("tcp://[::1]:1", True),
        ("unix:///a", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://[::]:1", False),
        ("tcp://10.0.0.1:1", False),
        ("tcp://host-07:1", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(text: str, is_local: bool) -> None:
    assert Url.parse(text).is_local_only is is_local


@dataclass
class Listening:
    """A listener and whom it has met."""

    url: Url
    agreed: list[Agreed] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    wires: list[asyncio.Transport] = field(default_factory=list)


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def __init__(self, wire: asyncio.Transport) -> None:
        self.wire = wire

    def data_received(self, data: bytes) -> None:
        self.wire.write(data)


@contextlib.asynccontextmanager
async def listener(url: str = "tcp://127.0.0.1:0") -> AsyncIterator[Listening]:
    met = Listening(Url.parse(url))

    def on_agreed(wire: asyncio.Transport, agreed: Agreed) -> None:
        met.agreed.append(agreed)
        met.wires.append(wire)
        wire.set_protocol(echo := Echo(wire))
        if agreed.leftover:
            echo.data_received(agreed.leftover)

    def answer(info: bytes) -> bytes:
        if info == b"unwelcome":
            raise HandshakeRefused("not you")
        return b"welcome " + info

    async with listening(met.url, TOKEN, answer, on_agreed, lambda who, e: met.refused.append((who, e.reason))) as real:
        met.url = real
        yield met
    for wire in met.wires:
        wire.abort()


@pytest.fixture(params=["tcp", "unix"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "tcp://127.0.0.1:0" if request.param == "tcp" else f"unix://{tmp_path}/a.sock"


async def read(wire: asyncio.Transport, count: int) -> bytes:
    """Take over a socket and read so many bytes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    wire.set_protocol(protocol)
    protocol.connection_made(wire)
    wire.resume_reading()
    async with asyncio.timeout(5):
        data = await reader.readexactly(count)
    assert loop.is_running()
    return data


async def test_both_ends_learn_who_the_other_is_and_go_on(where: str) -> None:
    async with listener(where) as met:
        wire, agreed = await dial(met.url, TOKEN, b"me")
        assert agreed.info == b"welcome me"
        assert met.agreed[0].info == b"me"
        wire.write(b"hello")
        assert await read(wire, 5) == b"hello"
        wire.abort()


async def test_what_follows_the_handshake_at_once_is_not_lost() -> None:
    """The first frames may come in one packet with the last message of the handshake."""
    async with listener() as met:
        reader, writer = await asyncio.open_connection(met.url.host, met.url.port)
        from monarch_async.wire.auth import NONCE_BYTES, Dialer

        end = Dialer(TOKEN, os.urandom(NONCE_BYTES), b"me")
        writer.write(end.start())
        proof, _ = end.receive(await reader.read(1000))
        writer.write(proof + b"first frames")
        said = b""
        while handshake_length(said) is None or len(said) < handshake_length(said) + 12:  # type: ignore[operator]
            said += await reader.read(1000)
        assert said.endswith(b"first frames")
        assert met.agreed[0].leftover == b"first frames"
        writer.close()


async def test_who_is_refused_learns_why_and_so_does_the_log(where: str) -> None:
    async with listener(where) as met:
        with pytest.raises(HandshakeRefused, match="wrong token") as caught:
            await dial(met.url, b"another token", b"me")
        assert caught.value.side == "remote"
        with pytest.raises(HandshakeRefused, match="not you"):
            await dial(met.url, TOKEN, b"unwelcome")
        assert [why for _, why in met.refused] == ["wrong token", "not you"]
        assert all(who.startswith("127.0.0.1:" if met.url.port else "a local process") for who, _ in met.refused)
        assert met.agreed == []


class Gone(asyncio.Transport):
    """A socket of which nothing is left, as uvloop has them."""

    is_gone = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        if self.is_gone and name == "peername":
            raise ValueError("negative file descriptor")
        return ("10.0.0.1", 77) if name == "peername" else None

    def write(self, data: object) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("is_gone_at_once", [False, True])
async def test_who_is_gone_when_that_is_logged_is_refused_all_the_same(
    is_gone_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[asyncio.Protocol] = []

    async def create_server(factory: Callable[[], asyncio.Protocol], *_: object, **__: object) -> asyncio.Server:
        made.append(factory())
        return server

    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    monkeypatch.setattr(loop, "create_server", create_server)
    async with listener() as met:
        wire = Gone()
        wire.is_gone = is_gone_at_once
        made[0].connection_made(wire)
        wire.is_gone = True
        made[0].connection_lost(None)
        await asyncio.sleep(0)
        who = "somebody who has gone already" if is_gone_at_once else "10.0.0.1:77"
        assert met.refused == [(who, "connection closed during the handshake")]


async def test_a_dialer_that_says_nothing_is_let_go(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "HANDSHAKE_TIMEOUT", 0.1)
    async with listener(where) as met:
        family = socket.AF_INET if met.url.port else socket.AF_UNIX
        with socket.socket(family) as silent:
            silent.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(silent, (met.url.host, met.url.port) if met.url.port else met.url.path)
            async with asyncio.timeout(5):
                assert await loop.sock_recv(silent, 100) == b""
        assert met.refused[0][1] == "no answer within 0.1 s"


async def test_a_listener_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "HANDSHAKE_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = Url.parse(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(HandshakeRefused, match="no answer within"):
            await dial(url, TOKEN, b"me")


async def test_something_else_that_listens_is_no_peer() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP ready\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        url = Url.parse(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(HandshakeRefused, match="not a monarch_async peer") as caught:
            await dial(url, TOKEN, b"me")
        assert caught.value.side == "local"


async def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for text in (f"tcp://127.0.0.1:{port}", f"unix://{tmp_path}/none.sock"):
        with pytest.raises(LinkBroken, match=r"cannot connect: (Connection refused|No such file)"):
            await dial(Url.parse(text), TOKEN, b"me")


async def test_a_machine_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bound of ours the kernel tries for two minutes."""
    monkeypatch.setattr(dialling, "HANDSHAKE_TIMEOUT", 0.2)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        queued = [socket.socket() for _ in range(4)]  # the backlog is full: further SYNs are dropped
        for each in queued:
            each.setblocking(False)
            each.connect_ex(address)
        with pytest.raises((LinkBroken, HandshakeRefused), match=r"no answer within 0.2 s"):
            await dial(Url.parse(f"tcp://127.0.0.1:{address[1]}"), TOKEN, b"me")
        for each in queued:
            each.close()


async def test_a_dial_that_is_cancelled_leaves_no_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dialing = asyncio.ensure_future(dial(Url.parse(f"tcp://127.0.0.1:{silent.getsockname()[1]}"), TOKEN, b"me"))
        peer, _ = await asyncio.to_thread(silent.accept)
        with peer:
            peer.settimeout(5)
            assert await asyncio.to_thread(peer.recv, 1000)
            dialing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await dialing
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.to_thread(peer.recv, 1000) == b""


async def test_a_unix_socket_is_its_owners_and_goes_with_the_listener(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    before = os.umask(0)
    try:
        async with listener(f"unix://{path}"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert os.umask(0) == 0
        assert not path.exists()
    finally:
        os.umask(before)


async def test_what_a_dead_listener_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with listener(f"unix://{path}") as met:
        wire, _ = await dial(met.url, TOKEN, b"me")
        wire.abort()
