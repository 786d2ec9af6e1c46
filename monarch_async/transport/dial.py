"""Listening and dialling: sockets that have passed the handshake.

A unix socket is created with mode 0600. Until the handshake of `wire.auth` has succeeded nothing else is read from a
socket; with TLS (`tls`) that handshake is the first that is said inside.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import cast

from monarch_async.config import Config
from monarch_async.errors import HandshakeRefused, LinkBroken
from monarch_async.transport.tls import Tls
from monarch_async.transport.tls_server import SHUTDOWN_TIMEOUT, TlsServer
from monarch_async.transport.url import Url
from monarch_async.wire.auth import NONCE_BYTES, Agreed, Dialer, Listener, TurnedAway, refusal

#: How long either end waits for the other during the handshake.
HANDSHAKE_TIMEOUT = 5.0

#: What is said to who dials without TLS where it is wanted.
_WANTS_TLS = "this end takes TLS only: dial it by tls://host:port, and set tls_ca to the CA that signed its certificate"


class _Shaking(asyncio.Protocol):
    """The protocol of a socket until both ends agree; then the connection takes the socket over."""

    def __init__(
        self,
        end: Dialer | Listener | TurnedAway,
        on_agreed: Callable[[asyncio.Transport, Agreed], None] | None = None,
        explain: Callable[[Exception | None], HandshakeRefused] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._on_agreed, self._explain = on_agreed, explain
        self.agreed: asyncio.Future[tuple[asyncio.Transport, Agreed]] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None  # none where no socket comes about
        self.wire: asyncio.Transport | None = None
        self.peer = "a local process"  #: for the log

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        self._timer = self._loop.call_later(HANDSHAKE_TIMEOUT, self._late)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(self._end, Dialer):
            transport.write(self._end.start())
        else:
            self.peer = _peer_name(transport)  # now: a socket that has gone does not know any more

    def data_received(self, data: bytes) -> None:
        if self.agreed.done():
            return
        assert self.wire is not None
        try:
            answer, agreed = self._end.receive(data)
        except HandshakeRefused as error:
            if error.side == "local":
                self.wire.write(refusal(error.reason))
            self._fail(error)
            return
        if answer:
            self.wire.write(answer)
        if agreed is not None:
            assert self._timer is not None
            self._timer.cancel()
            if self._on_agreed is None:
                self.wire.pause_reading()  # until who awaits us has put its own protocol there
            self.agreed.set_result((self.wire, agreed))
            if self._on_agreed is not None:
                self._on_agreed(self.wire, agreed)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._explain is not None:
            self._fail(self._explain(exc))
        else:
            why = f"connection closed during the handshake{f' ({exc})' if exc else ''}"
            self._fail(HandshakeRefused(why, "remote"))

    def _late(self) -> None:
        self._fail(HandshakeRefused(f"no answer within {HANDSHAKE_TIMEOUT:g} s", "remote"))

    def _fail(self, error: HandshakeRefused) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.agreed.done():
            self.agreed.set_exception(error)
        if self.wire is not None:
            self.wire.close()


async def dial(
    url: Url, token: bytes, info: bytes, tls: Tls | None = None, server_name: str = ""
) -> tuple[asyncio.Transport, Agreed]:
    """Connect and shake hands; with ``tls`` where ``url`` asks for it, by its defaults where there are no settings.

    ``server_name`` is what the certificate there must be for, where that is not the host of ``url``.

    Waits for both. Raises LinkBroken where nobody listens, HandshakeRefused where the ends do not agree; cancelling
    it leaves no socket open.
    """
    loop = asyncio.get_running_loop()
    end = Dialer(token, os.urandom(NONCE_BYTES), info)
    if url.is_tls:
        return await _agree(url, await _dial_tls(url, end, tls or Tls(Config()), server_name or url.host))
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            if url.name:
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                try:
                    sock.connect(f"\0{url.name}")  # at once, or not at all
                except OSError:
                    sock.close()
                    raise
                _, shaking = await loop.create_unix_connection(lambda: _Shaking(end), sock=sock)
            elif url.path:
                _, shaking = await loop.create_unix_connection(lambda: _Shaking(end), url.path)
            else:
                _, shaking = await loop.create_connection(lambda: _Shaking(end), url.host, url.port)
    except TimeoutError:
        raise _no_answer(url) from None
    except OSError as error:
        raise LinkBroken(url.text, f"cannot connect: {error.strerror or error}") from error
    return await _agree(url, shaking)


async def _dial_tls(url: Url, end: Dialer, tls: Tls, server_name: str) -> _Shaking:
    """Set up TLS. Raises LinkBroken, HandshakeRefused, and ValueError where a file of ours is not what it should be."""
    tls.reread()

    def explain(error: Exception | None) -> HandshakeRefused:
        return tls.refusal(error, url.text, server_name)

    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            _, shaking = await asyncio.get_running_loop().create_connection(
                lambda: _Shaking(end, explain=explain), url.host, url.port, ssl=tls.dialling,
                server_hostname=server_name, ssl_shutdown_timeout=SHUTDOWN_TIMEOUT,
            )  # fmt: skip
    except TimeoutError:
        raise _no_answer(url) from None
    except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError) as error:
        raise explain(error) from error
    except OSError as error:
        raise LinkBroken(url.text, f"cannot connect: {error.strerror or error}") from error
    if shaking.wire is not None:
        tls.look_at(url.text, shaking.wire.get_extra_info("peercert"))
    return shaking


def _no_answer(url: Url) -> LinkBroken:
    return LinkBroken(url.text, f"cannot connect: no answer within {HANDSHAKE_TIMEOUT:g} s")


async def _agree(url: Url, shaking: _Shaking) -> tuple[asyncio.Transport, Agreed]:
    try:
        wire, agreed = await shaking.agreed
        if wire.is_closing():  # its end came before us, and is told only once
            raise LinkBroken(url.text, "closed right after the handshake")
        return wire, agreed
    except BaseException:
        if shaking.wire is not None:
            shaking.wire.abort()
        raise


def bind(url: Url) -> socket.socket:
    """Return a socket that is bound to ``url`` and takes connections from now on. Raises OSError."""
    if not url.is_unix:
        info = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(info[4][:2], family=info[0], backlog=1024)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if url.name:
            sock.bind(f"\0{url.name}")
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(url.path)
            old = os.umask(0o177)
            try:
                sock.bind(url.path)
            finally:
                os.umask(old)
        sock.listen(1024)
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.asynccontextmanager
async def listening(
    url: Url,
    token: bytes,
    answer: Callable[[bytes], bytes],
    on_agreed: Callable[[asyncio.Transport, Agreed], None],
    on_refused: Callable[[str, HandshakeRefused], None],
    tls: Tls | None = None,
    sock: socket.socket | None = None,
) -> AsyncIterator[Url]:
    """Listen while the block runs; yields the real address.

    Raises OSError where that cannot be, and ValueError where ``url`` asks for TLS and there is no good certificate.

    ``answer`` gets an authenticated dialer's info and returns ours (or raises HandshakeRefused); ``on_agreed`` gets the
    socket that passed, and must put its own protocol on it; ``on_refused`` gets (who, why) for the log. ``sock`` is
    what `bind` returned for ``url``, where that was done before.
    """

    def refused(protocol: _Shaking, agreed: "asyncio.Future[tuple[asyncio.Transport, Agreed]]") -> None:
        error = None if agreed.cancelled() else agreed.exception()
        if isinstance(error, HandshakeRefused):
            on_refused(protocol.peer, error)

    def shaking() -> _Shaking:
        protocol = _Shaking(Listener(token, os.urandom(NONCE_BYTES), answer), on_agreed)
        protocol.agreed.add_done_callback(lambda agreed: refused(protocol, agreed))
        return protocol

    def turning_away() -> _Shaking:
        protocol = _Shaking(TurnedAway(_WANTS_TLS))
        protocol.agreed.add_done_callback(lambda agreed: refused(protocol, agreed))
        return protocol

    server, real = await _open_server(url, sock, tls, shaking, turning_away, on_refused)
    try:
        yield real
    finally:
        if isinstance(server, TlsServer):
            await server.aclose()
        else:
            server.close()
        if url.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(url.path)


async def _open_server(
    url: Url,
    sock: socket.socket | None,
    tls: Tls | None,
    shaking: Callable[[], _Shaking],
    turning_away: Callable[[], _Shaking],
    on_refused: Callable[[str, HandshakeRefused], None],
) -> tuple[asyncio.AbstractServer | TlsServer, Url]:
    loop = asyncio.get_running_loop()
    if url.is_unix:
        return await loop.create_unix_server(shaking, sock=sock or bind(url)), url
    if url.is_tls:
        sock = sock or bind(url)
        try:
            server = TlsServer(sock, tls or Tls(Config()), HANDSHAKE_TIMEOUT, shaking, turning_away, on_refused)
        except ValueError:
            sock.close()
            raise
        return server, bound_url(url, sock)
    if sock is not None:
        return await loop.create_server(shaking, sock=sock), bound_url(url, sock)
    plain = await loop.create_server(shaking, url.host, url.port)
    return plain, bound_url(url, plain.sockets[0])


def bound_url(url: Url, sock: socket.socket) -> Url:
    """Return where a socket bound to ``url`` is reached: with the port that the kernel gave."""
    return Url.inet(url.host, sock.getsockname()[1], url.is_tls)


def own_host(wire: asyncio.Transport) -> str:
    """Return this machine's address on a TCP connection; empty for others."""
    name = wire.get_extra_info("sockname")
    return name[0] if isinstance(name, tuple) else ""


def _peer_name(wire: asyncio.Transport) -> str:
    try:
        peer = wire.get_extra_info("peername")
    except (OSError, ValueError):
        return "somebody who has gone already"
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local process"
