"""Hosts whose connections are encrypted: agents, clients, tensors between them; and who does not fit is told why."""

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from agents import TOKEN, Agent, running_agent
from certificates import Authority, Issued, tls_record_length
from secretive import MARKER, Secretive
from taps import tap
from workload import Ledger, keep_busy

import monarch_async as ma
from monarch_async.cli.main import main
from monarch_async.testing import FaultProxy
from monarch_async.testing.proxy import Direction
from monarch_async.transport.url import Url

pytestmark = pytest.mark.slow  # agents of their own for every test

#: Processes of one machine would read each other's memory: forced to TCP, as between machines.
BETWEEN = ma.Config(resume_window=20.0, heartbeat=0.5, stop_grace=0.5, transports="local,tcp", large=16 << 10)
TLS = "tls://127.0.0.1:0"


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return Authority(tmp_path_factory.mktemp("ca")).issue("127.0.0.1")


def with_tls(config: ma.Config, issued: Issued, has_certificate: bool = True) -> ma.Config:
    cert, key = (str(issued.cert), str(issued.key)) if has_certificate else ("", "")
    return replace(config, tls_cert=cert, tls_key=key, tls_ca=str(issued.ca))


@contextlib.asynccontextmanager
async def two_hosts(config: ma.Config) -> AsyncIterator[tuple[Agent, Agent]]:
    async with running_agent(TLS, "a", config) as a, running_agent(TLS, "b", config) as b:
        yield a, b


@pytest.mark.parametrize(
    "has_certificate", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["mutual", "client without one"]
)
async def test_nothing_is_readable_between_client_agents_and_procs(issued: Issued, has_certificate: bool) -> None:
    """A client with a certificate is read from by workers; one without sends everything through its agent."""
    config = with_tls(BETWEEN, issued)
    async with two_hosts(config) as (a, b), tap(Url.parse(a.url)) as to_a, tap(Url.parse(b.url)) as to_b:
        urls = [f"tls://{between.address}" for between in (to_a, to_b)]  # agents dial each other there too
        async with ma.attach(*urls, token=TOKEN, config=with_tls(BETWEEN, issued, has_certificate)) as hosts:
            secretive = await (await hosts.spawn_procs()).spawn("secretive", Secretive)
            large = MARKER * 10_000
            assert list(await secretive.echo.call(large)) == [large, large]
            here, there = secretive.slice(hosts=0), secretive.slice(hosts=1)
            async with asyncio.timeout(10):
                assert await here.tell.call_one(there, len(large)) == len(large) + len(MARKER)
                assert await there.tell.call_one(here, len(large)) == len(large) + len(MARKER)
                ways = await here.ways.call_one()
            assert {way for _, way in ways} == {"tcp"}
            assert any(peer.startswith("procs[1]") for peer, _ in ways), ways
        heard = to_a.heard + to_b.heard
        assert len(heard) > 10_000 and MARKER[:20] not in heard and b"Secretive" not in heard


async def test_without_tls_it_is_readable() -> None:
    """So that the test above could fail."""
    async with running_agent(config=BETWEEN) as a, tap(Url.parse(a.url)) as between:
        async with ma.attach(f"tcp://{between.address}", token=TOKEN, config=BETWEEN) as hosts:
            secretive = await (await hosts.spawn_procs()).spawn("secretive", Secretive)
            await secretive.echo.call_one(MARKER)
        assert MARKER[:20] in between.heard


Fault = Callable[[FaultProxy], asyncio.Event]


def cut(way: Direction, after_records: int, after_bytes: int) -> Fault:
    return lambda proxy: proxy.cut(way, at_frame=proxy.frames[way] + after_records, after_bytes=after_bytes)


def corrupt(way: Direction, after_records: int, offset: int) -> Fault:
    return lambda proxy: proxy.corrupt(way, at_frame=proxy.frames[way] + after_records, offset=offset)


#: In the midst of calls; in the TLS handshake of the connection that follows, and in that with the token.
CUTS = [
    cut("to_listener", 9, 3),
    cut("to_listener", 1, 0),
    cut("to_dialer", 15, 700),
    cut("to_dialer", 5, 1),
    corrupt("to_listener", 20, offset=9),
]


async def test_cuts_at_any_record_are_not_noticed(issued: Issued) -> None:
    config = replace(with_tls(BETWEEN, issued), transports="", chunk=32 << 10)
    async with running_agent(TLS, config=config) as agent:
        async with FaultProxy(agent.url, frame_length=tls_record_length) as proxy:
            async with ma.attach(proxy.url, token=TOKEN, config=config) as hosts:
                ledgers = await (await hosts.spawn_procs({"gpus": 2})).spawn("ledgers", Ledger)
                async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                    group.create_task(keep_busy(ledgers, rounds=60, size=200_000))
                    for fault in CUTS:
                        connections = proxy.connections
                        await fault(proxy).wait()
                        await proxy.wait_connections(connections + 1)  # each fault has one to itself


async def test_a_plain_client_and_a_plain_agent_are_told_at_once(issued: Issued) -> None:
    plain, secure = BETWEEN, with_tls(BETWEEN, issued)
    async with running_agent(TLS, config=secure) as agent, running_agent(config=plain) as open_agent:
        async with asyncio.timeout(3):
            with pytest.raises(ma.HandshakeRefused, match="this end takes TLS only: dial it by tls://"):
                async with ma.attach(agent.url.replace("tls:", "tcp:"), token=TOKEN, config=plain):
                    pass
            with pytest.raises(ma.HandshakeRefused, match="does not speak TLS: dial it by tcp://"):
                async with ma.attach(open_agent.url.replace("tcp:", "tls:"), token=TOKEN, config=secure):
                    pass
            with pytest.raises(ValueError, match=r"is not encrypted, and this process uses TLS .*: write tls://"):
                async with ma.attach(open_agent.url, token=TOKEN, config=secure):
                    pass
            with pytest.raises(ma.HandshakeRefused, match=r"by the CAs of this system \(tls_ca is not set\)"):
                async with ma.attach(agent.url, token=TOKEN, config=plain):
                    pass
        assert "takes TLS only" in await agent.wait_said("refused a connection")
        assert "speaks TLS, and this one does not" in await open_agent.wait_said("refused a connection")
        context = ssl.create_default_context(cafile=str(issued.ca))
        async with ma.attach(agent.url, token=TOKEN, config=plain, tls=context) as hosts:
            assert len(hosts) == 1


async def test_status_asks_by_tls(issued: Issued) -> None:
    async with running_agent(TLS, name="secure", config=with_tls(BETWEEN, issued)) as agent:
        command = [sys.executable, "-m", "monarch_async.cli.main", "status", agent.url, "--tls-ca", str(issued.ca)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "MONARCH_ASYNC_TOKEN": TOKEN}
        )
        out, err = await process.communicate()
        assert (process.returncode, err) == (0, b"") and b"secure" in out


@pytest.mark.parametrize(
    ("listen", "options", "complaint"),
    [
        ("tls://127.0.0.1:0", [], "TLS needs a certificate to listen with: set tls_cert and tls_key"),
        ("tls://127.0.0.1:0", ["--tls-cert", "/no/such"], "tls_cert=/no/such cannot be read: No such file"),
        ("tcp://127.0.0.1:0", ["--tls-ca", "/ca.pem"], "tcp://127.0.0.1:0 is not encrypted, and this process uses TLS"),
        ("tcp://127.0.0.1:0", ["--tls-key", "/a.key"], "tls_key='/a.key', but no tls_cert"),
    ],
)
def test_an_agent_that_cannot_set_it_up_says_why_in_a_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    listen: str,
    options: list[str],
    complaint: str,
) -> None:
    monkeypatch.setenv("MONARCH_ASYNC_TOKEN", TOKEN)
    assert main(["agent", "--listen", listen, *options]) == 1
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1


def test_an_agent_does_not_start_with_a_certificate_that_others_would_refuse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MONARCH_ASYNC_TOKEN", TOKEN)
    ended = Authority(tmp_path / "ca").issue("127.0.0.1", days=-1)
    options = ["--tls-cert", str(ended.cert), "--tls-key", str(ended.key), "--tls-ca", str(ended.ca)]
    assert main(["agent", *options]) == 1  # whose default address has TLS then
    said = capsys.readouterr().err
    assert f"tls_cert={ended.cert}, or one that signed it, has expired: renew its file" in said
