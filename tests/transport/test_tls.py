"""TLS under the handshake with the token, with real sockets and certificates, on both loops."""

import asyncio
import contextlib
import logging
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from certificates import Authority, Issued

import monarch_async as ma
from monarch_async.errors import HandshakeRefused, LinkBroken
from monarch_async.transport.dial import dial, listening
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url
from monarch_async.wire.auth import SPEAKS_TLS, Agreed

TOKEN = b"the token"
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.SelectorEventLoop,
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other-ca"))


@pytest.fixture(scope="module")
def issued(authority: Authority) -> Issued:
    return authority.issue("127.0.0.1", "agent.test")


@dataclass
class Listening:
    """A listener and whom it has met."""

    url: Url
    agreed: list[Agreed] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    wires: list[asyncio.Transport] = field(default_factory=list)

    async def wait_refused(self, count: int = 1) -> str:
        async with asyncio.timeout(5):
            while len(self.refused) < count:
                await asyncio.sleep(0.001)
        return self.refused[-1]


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def __init__(self, wire: asyncio.Transport) -> None:
        self.wire = wire

    def data_received(self, data: bytes) -> None:
        self.wire.write(data)


class Counting(asyncio.Protocol):
    """Counts what comes."""

    def __init__(self, count: int) -> None:
        self.left, self.done = count, asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left == 0:
            self.done.set_result(None)


@contextlib.asynccontextmanager
async def listener(config: ma.Config, url: str = "tls://127.0.0.1:0") -> AsyncIterator[Listening]:
    met = Listening(Url.parse(url))

    def on_agreed(wire: asyncio.Transport, agreed: Agreed) -> None:
        met.agreed.append(agreed)
        met.wires.append(wire)
        wire.set_protocol(Echo(wire))

    def on_refused(who: str, error: HandshakeRefused) -> None:
        met.refused.append(error.reason)

    async with listening(met.url, TOKEN, lambda info: b"welcome " + info, on_agreed, on_refused, Tls(config)) as real:
        met.url = real
        yield met
    for wire in met.wires:
        wire.abort()
    await asyncio.sleep(0.01)  # the loops close sockets a step later


@pytest.fixture(params=LOOPS)
def on_loop(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Runs a scenario on one kind of loop; what the loop would only log fails it."""

    def run(scenario: Callable[[], Awaitable[None]]) -> None:
        said: list[dict[str, Any]] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
            async with asyncio.timeout(15):
                await scenario()

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(main())
        assert not said

    return run


Runs = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.mark.parametrize("shows_one", [True, False], ids=["mutual", "one-sided"])
def test_both_ends_agree_inside_and_go_on(on_loop: Runs, issued: Issued, shows_one: bool) -> None:
    async def scenario() -> None:
        async with listener(issued.config()) as met:
            config = issued.config() if shows_one else issued.client()
            wire, agreed = await dial(met.url, TOKEN, b"me", Tls(config))
            assert (agreed.info, met.agreed[0].info, met.url.text[:6]) == (b"welcome me", b"me", "tls://")
            assert bool(met.wires[0].get_extra_info("peercert")) is shows_one
            size = 3 << 20
            wire.set_protocol(counting := Counting(size))
            wire.write(os.urandom(size))
            wire.resume_reading()
            await counting.done
            wire.abort()

    on_loop(scenario)


def test_the_token_is_still_asked_for(on_loop: Runs, issued: Issued) -> None:
    async def scenario() -> None:
        async with listener(issued.config()) as met:
            with pytest.raises(HandshakeRefused, match="wrong token"):
                await dial(met.url, b"another", b"me", Tls(issued.client()))

    on_loop(scenario)


def test_who_dials_without_tls_is_told_at_once(on_loop: Runs, issued: Issued) -> None:
    async def scenario() -> None:
        async with listener(issued.config()) as met:
            began = asyncio.get_running_loop().time()
            with pytest.raises(HandshakeRefused, match="takes TLS only: dial it by tls://") as caught:
                await dial(Url.inet(met.url.host, met.url.port, False), TOKEN, b"me")
            assert caught.value.side == "remote" and asyncio.get_running_loop().time() - began < 2
            assert "takes TLS only" in await met.wait_refused()
            wire, _ = await dial(met.url, TOKEN, b"me", Tls(issued.client()))  # it goes on
            wire.abort()

    on_loop(scenario)


def test_who_dials_with_tls_where_there_is_none_is_told_at_once(on_loop: Runs, issued: Issued) -> None:
    async def scenario() -> None:
        async with listener(ma.Config(), "tcp://127.0.0.1:0") as met:
            with pytest.raises(HandshakeRefused, match="does not speak TLS: dial it by tcp://"):
                await dial(Url.inet(met.url.host, met.url.port, True), TOKEN, b"me", Tls(issued.client()))
            assert await met.wait_refused() == SPEAKS_TLS

    on_loop(scenario)


def test_a_listener_of_an_unknown_ca(on_loop: Runs, issued: Issued, stranger: Authority) -> None:
    async def scenario() -> None:
        async with listener(issued.config()) as met:
            with pytest.raises(HandshakeRefused, match=f"not signed by tls_ca={stranger.file}"):
                await dial(met.url, TOKEN, b"me", Tls(ma.Config(tls_ca=str(stranger.file))))
            assert f"perhaps it does not accept our certificate {issued.cert}" in await met.wait_refused()
            with pytest.raises(HandshakeRefused, match=r"CAs of this system \(tls_ca is not set\)"):
                await dial(met.url, TOKEN, b"me")

    on_loop(scenario)


def test_a_dialler_of_an_unknown_ca(on_loop: Runs, issued: Issued, stranger: Authority) -> None:
    async def scenario() -> None:
        theirs = stranger.issue("127.0.0.1")
        odd = ma.Config(tls_cert=str(theirs.cert), tls_key=str(theirs.key), tls_ca=str(issued.ca))
        async with listener(issued.config()) as met:
            with pytest.raises(HandshakeRefused, match=f"not accept our certificate {theirs.cert}.*its log says why"):
                await dial(met.url, TOKEN, b"me", Tls(odd))
            assert f"not signed by tls_ca={issued.ca}" in await met.wait_refused()

    on_loop(scenario)


def test_another_name(on_loop: Runs, authority: Authority) -> None:
    async def scenario() -> None:
        named = authority.issue("elsewhere.test")
        async with listener(named.config()) as met:
            with pytest.raises(HandshakeRefused, match=r"is not for 127\.0\.0\.1: .*add IP:127\.0\.0\.1"):
                await dial(met.url, TOKEN, b"me", Tls(named.client()))
            with pytest.raises(HandshakeRefused, match=r"is not for here\.test: .*add DNS:here\.test"):
                await dial(met.url, TOKEN, b"me", Tls(named.client()), "here.test")
            wire, _ = await dial(met.url, TOKEN, b"me", Tls(named.client()), "elsewhere.test")
            wire.abort()

    on_loop(scenario)


def test_a_context_that_a_program_brings_along(on_loop: Runs, issued: Issued) -> None:
    async def scenario() -> None:
        async with listener(issued.config()) as met:
            context = ssl.create_default_context(cafile=str(issued.ca))
            wire, _ = await dial(met.url, TOKEN, b"me", Tls(ma.Config(), context))
            wire.abort()
            context = ssl.create_default_context()
            with pytest.raises(HandshakeRefused, match="not signed by"):
                await dial(met.url, TOKEN, b"me", Tls(ma.Config(), context))

    on_loop(scenario)


def test_who_says_nothing_or_goes_holds_up_nobody(
    on_loop: Runs, issued: Issued, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_async.transport.dial.HANDSHAKE_TIMEOUT", 0.2)

    async def scenario() -> None:
        async with listener(issued.config()) as met:
            _, silent = await asyncio.open_connection(met.url.host, met.url.port)
            _, gone = await asyncio.open_connection(met.url.host, met.url.port)
            _, half = await asyncio.open_connection(met.url.host, met.url.port)
            half.write(b"\x16\x03\x01")
            gone.close()
            wire, _ = await dial(met.url, TOKEN, b"me", Tls(issued.client()))
            wire.abort()
            await met.wait_refused(3)
            assert sorted(reason.partition(" within")[0] for reason in met.refused) == [
                "connection closed before its first byte", "no TLS", "no TLS",
            ]  # fmt: skip
            for writer in (silent, half, gone):
                writer.transport.abort()

    on_loop(scenario)


def test_an_end_while_somebody_is_on_the_way_leaves_nothing(on_loop: Runs, issued: Issued) -> None:
    async def scenario() -> None:
        async with listener(issued.config()) as met:
            _, silent = await asyncio.open_connection(met.url.host, met.url.port)
            await asyncio.sleep(0)
        async with asyncio.timeout(2):
            with contextlib.suppress(OSError):
                assert not await asyncio.get_running_loop().create_task(_read_end(silent))
        with pytest.raises(LinkBroken):
            await dial(met.url, TOKEN, b"me", Tls(issued.client()))
        silent.transport.abort()
        await asyncio.sleep(0.01)

    on_loop(scenario)


async def _read_end(writer: asyncio.StreamWriter) -> bytes:
    return await writer.transport.get_protocol()._stream_reader.read()  # type: ignore[attr-defined]


def test_renewed_files_are_taken_up_without_a_restart(
    on_loop: Runs, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.issue("127.0.0.1")

    async def scenario() -> None:
        serial = []
        async with listener(issued.config()) as met:
            for _ in range(2):
                wire, _ = await dial(met.url, TOKEN, b"me", Tls(issued.client()))
                serial.append(wire.get_extra_info("peercert")["serialNumber"])
                wire.abort()
                authority.renew(issued)
                os.utime(issued.cert, (1, len(serial)))
            assert serial[0] != serial[1]
            issued.cert.write_text("half a file")
            wire, _ = await dial(met.url, TOKEN, b"me", Tls(issued.client()))
            wire.abort()
            assert "keeping the old one" in caplog.text

    on_loop(scenario)


def test_who_only_dials_takes_up_renewed_files_too(
    on_loop: Runs, authority: Authority, issued: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a program that runs for longer than its certificate could not even resume a session."""
    mine = authority.issue("127.0.0.1")

    async def scenario() -> None:
        tls = Tls(mine.config())
        async with listener(issued.config()) as met:
            for renewal in range(3):
                wire, _ = await dial(met.url, TOKEN, b"me", tls)
                wire.abort()
                if renewal == 0:
                    authority.renew(mine)
                else:
                    mine.cert.write_text("half a file")
                os.utime(mine.cert, (1, renewal))
            seen = [wire.get_extra_info("peercert")["serialNumber"] for wire in met.wires]
            assert seen[0] != seen[1] == seen[2]
            assert "keeping the old one" in caplog.text

    on_loop(scenario)


@pytest.mark.parametrize("has_certificate", [True, False])
def test_a_ca_that_is_replaced_is_taken_up(
    on_loop: Runs, authority: Authority, stranger: Authority, tmp_path: Path, has_certificate: bool
) -> None:
    theirs = stranger.issue("127.0.0.1")
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.file.read_bytes())
    os.utime(ca, (1, 1))
    settings = theirs.config() if has_certificate else theirs.client()

    async def scenario() -> None:
        tls = Tls(replace(settings, tls_ca=str(ca)))
        async with listener(theirs.config()) as met:
            with pytest.raises(HandshakeRefused, match="is not signed by"):
                await dial(met.url, TOKEN, b"me", tls)
            ca.write_bytes(stranger.file.read_bytes())
            wire, _ = await dial(met.url, TOKEN, b"me", tls)
            wire.abort()

    on_loop(scenario)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_certificates_near_their_end_are_warned_of(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    soon = authority.issue("127.0.0.1", days=3)
    tls = Tls(soon.config())
    assert tls.listening and f"{soon.cert} ends in 3.0 days" in caplog.text
    caplog.clear()
    for _ in range(2):
        Tls.look_at(tls, "tls://there:1", {"notAfter": "Jan  5 09:34:43 2018 GMT"})
    [record] = caplog.records
    assert "of tls://there:1 has ended on 2018-01-05 09:34" in record.getMessage()
    assert record.levelno == logging.WARNING


@pytest.mark.parametrize(
    ("days", "starts_in_days", "words"),
    [(-1, -10, "has expired: renew its file"), (30, 10, "is not valid yet: look at the clocks")],
)
def test_a_certificate_that_others_would_refuse_is_refused_at_the_start(
    authority: Authority, days: float, starts_in_days: float, words: str
) -> None:
    bad = authority.issue("127.0.0.1", days=days, starts_in_days=starts_in_days)
    with pytest.raises(ValueError, match=rf"others would refuse us: .*{bad.cert}.*{words}"):
        Tls(bad.config()).listening  # noqa: B018


def test_files_that_do_not_fit_are_named(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    good, other = authority.issue("127.0.0.1"), authority.issue("127.0.0.1")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("not PEM")
    config = good.config()
    for changed, words in [
        ({"tls_ca": str(stranger.file)}, f"{good.cert} is not signed by tls_ca={stranger.file}"),
        ({"tls_key": str(other.key)}, f"tls_key={other.key} is not the key of the certificate {good.cert}"),
        ({"tls_cert": str(garbage)}, f"tls_cert={garbage} and tls_key={good.key} cannot be read as a PEM"),
        ({"tls_cert": "/no/such"}, "tls_cert=/no/such cannot be read: No such file"),
        ({"tls_key": "/no/such"}, "tls_key=/no/such cannot be read: No such file"),
        ({"tls_ca": "/no/such"}, "tls_ca=/no/such: no such file"),
        ({"tls_ca": str(garbage)}, f"tls_ca={garbage} cannot be read as PEM certificates"),
        ({"tls_cert": "", "tls_key": ""}, "TLS needs a certificate to listen with: set tls_cert and tls_key"),
    ]:
        with pytest.raises(ValueError, match=re.escape(words)):
            Tls(replace(config, **changed)).listening  # noqa: B018
    with pytest.raises(ValueError, match="tls_key='k', but no tls_cert"):
        ma.Config(tls_key="k")


def test_an_address_and_settings_that_contradict_each_other(issued: Issued) -> None:
    tls = Tls(issued.client())
    tls.check(Url.parse("tls://a:1"))
    tls.check(Url.parse("unix:///a"))
    with pytest.raises(ValueError, match=r"tcp://a:1 is not encrypted, .*tls_ca=.*: write tls://a:1"):
        tls.check(Url.parse("tcp://a:1"))
    plain = Tls(ma.Config())
    plain.check(Url.parse("tcp://a:1"))
    plain.check(Url.parse("tls://a:1"))  # by the system's CAs
    with pytest.raises(ValueError, match="write tls://b:1"):
        plain.check(Url.parse("tcp://b:1"))


def test_files_are_found_from_any_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = ma.Config.from_env({"MONARCH_ASYNC_TLS_CERT": "a.pem", "MONARCH_ASYNC_TLS_CA": "/b.pem"})
    assert (config.tls_cert, config.tls_key, config.tls_ca) == (f"{tmp_path}/a.pem", "", "/b.pem")
    assert config.as_env() == {"MONARCH_ASYNC_TLS_CERT": f"{tmp_path}/a.pem", "MONARCH_ASYNC_TLS_CA": "/b.pem"}
