"""Strangers, broken peers and secrets: who is not let in is told why, and nobody else notices."""

import asyncio
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from agents import IMPATIENT, TOKEN, Agent, descendants, local_agent_pid, running_agent
from victims import Victim
from workload import Ledger, keep_busy

import monarch_async as ma
from monarch_async.ids import address, random_id32
from monarch_async.transport.dial import Url, dial
from monarch_async.wire import frame
from monarch_async.wire.auth import MAGIC, REFUSAL


@asynccontextmanager
async def busy_agent() -> AsyncIterator[Agent]:
    """An agent with a client at work from beginning to end of the block, to whom nothing happens."""
    async with running_agent() as agent, ma.attach(agent.url, token=TOKEN, config=IMPATIENT) as hosts:
        ledgers = await (await hosts.spawn_procs({"gpus": 2})).spawn("ledgers", Ledger)

        async def work() -> None:
            while True:
                await keep_busy(ledgers, rounds=3, size=400_000)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(work())
            yield agent
            assert not task.done()
            task.cancel()
        await ledgers.take.call()
        await keep_busy(ledgers, rounds=3, size=400_000)


async def say(url: str, *messages: bytes) -> bytes:
    """Connect, send, and return everything that comes back until the agent closes."""
    parsed = Url.parse(url)
    reader, writer = await asyncio.open_connection(parsed.host, parsed.port)
    try:
        for message in messages:
            writer.write(message)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def reason(answer: bytes) -> str:
    """Return the text of a REFUSAL."""
    magic, _, kind, size = struct.unpack_from("!8sHBI", answer)
    assert (magic, kind, size) == (MAGIC, REFUSAL, len(answer) - 15)
    return answer[15:].decode()


async def test_a_wrong_token() -> None:
    async with busy_agent() as agent:
        with pytest.raises(ma.HandshakeRefused, match="peer refused the handshake: wrong token"):
            await dial(Url.parse(agent.url), b"another token", b"info")
        assert "127.0.0.1:" in await agent.wait_said(": wrong token")


async def test_another_version() -> None:
    async with busy_agent() as agent:
        answer = await say(agent.url, struct.pack("!8sHBI", MAGIC, 7, 1, 32) + bytes(32))
        assert reason(answer) == "wrong version: dialer speaks 7, listener speaks 1"
        await agent.wait_said("wrong version: dialer speaks 7")


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "zeros": bytes(1000),
    "much": os.urandom(100_000),
    "magic": MAGIC * 9,
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage(what: str) -> None:
    async with busy_agent() as agent:
        answer = await say(agent.url, GARBAGE[what])
        assert not answer or reason(answer).startswith(("not a monarch_async peer", "wrong version"))
        await agent.wait_said("refused a connection from 127.0.0.1:")


async def test_many_that_connect_and_say_nothing() -> None:
    async with busy_agent() as agent:
        url = Url.parse(agent.url)
        silent = [socket.create_connection((url.host, url.port)) for _ in range(100)]
        async with odd_client(agent) as send:
            send(frame.pack_frame(frame.PING, 0, 0, 0, 0, 0))
        for end in silent:
            end.close()


def introduction() -> dict[str, Any]:
    return {"session": os.urandom(16), "role": "client", "address": address(random_id32(), 1), "name": "odd client"}


@asynccontextmanager
async def odd_client(agent: Agent):
    """A client that has proved itself, and may then send whatever it likes."""
    wire, _ = await dial(Url.parse(agent.url), TOKEN.encode(), msgpack.packb(introduction()))
    try:
        yield wire.write
    finally:
        wire.abort()


def _agents_address(agent_info: bytes) -> int:
    return msgpack.unpackb(agent_info)["address"]


BROKEN = {
    "an oversized frame": (frame.HEADER.pack(1 << 30, frame.CALL, 0, 0, 1, 2, 3, 4), "over the limit of 16777216"),
    "a frame shorter than its header": (frame.HEADER.pack(5, frame.CALL, 0, 0, 1, 2, 3, 4), "less than a header"),
    "an unknown kind": (frame.pack_frame(99, 0, 1, 2, 3, 4), "unknown kind 99"),
    "a kind of no meaning": (frame.pack_frame(15, 0, 1, 2, 3, 4), "unknown kind 15"),
    "an acknowledgement of nothing": (frame.pack_frame(frame.ACK, 0, 0, 0, 0, 1 << 40), "acknowledged"),
    "text": (b"hello, is there anybody? " * 10, "over the limit"),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_breaks_the_rules_after_the_handshake_closes_that_connection(what: str) -> None:
    data, why = BROKEN[what]
    async with busy_agent() as agent:
        async with odd_client(agent) as send:
            send(data)
            assert "closed the connection to odd client" in await agent.wait_said(why)
            await agent.wait_said("odd client left")


async def test_a_cast_and_requests_that_make_no_sense() -> None:
    async with busy_agent() as agent:
        info = introduction()
        wire, agreed = await dial(Url.parse(agent.url), TOKEN.encode(), msgpack.packb(info))
        to = _agents_address(agreed.info)
        requests = [b"", b"\xc1", msgpack.packb(5), msgpack.packb(["no such"]), msgpack.packb(["spawn", 1, 2, 3])]
        requests += [msgpack.packb(["spawn", [{}], [], []]), msgpack.packb(["kill"]), msgpack.packb(["peers", {1: 2}])]
        for request in requests:
            wire.write(frame.pack_frame(frame.CONTROL, 0, to, info["address"], 0, 1, b"", request))
        await agent.wait_said("bad request from odd client")
        wire.write(frame.pack_frame(frame.CAST, 0, to, info["address"], 3, 4, b"", struct.pack("<I", 1 << 30)))
        await agent.wait_said("closed the connection to odd client: bad frame: a cast")
        wire.abort()


async def test_nobody_speaks_for_a_session_that_is_not_his() -> None:
    """A session is resumed by its id only, which is drawn at random and never shown."""
    async with busy_agent() as agent:
        for received in (0, 1 << 40, "x"):
            info = {"session": os.urandom(16), "role": "client", "address": 1, "name": "odd", "received": received}
            with pytest.raises(ma.HandshakeRefused, match="no such session"):
                await dial(Url.parse(agent.url), TOKEN.encode(), msgpack.packb(info))
        for info in ({}, [], 7, {"session": 1}, {"session": b"x", "role": "client", "address": "a", "name": 1}):
            with pytest.raises(ma.HandshakeRefused, match="unreadable introduction"):
                await dial(Url.parse(agent.url), TOKEN.encode(), msgpack.packb(info))


# -- secrets ---------------------------------------------------------------------------------------------------------


async def test_local_sockets_are_for_their_owner_only() -> None:
    async with ma.local_hosts(2) as hosts:
        for host in hosts.hosts:
            path = Path(Url.parse(host.url).path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def _environment_and_arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("start", ["fork", "spawn"])
async def test_no_worker_and_no_zygote_holds_the_token(start: str) -> None:
    async with ma.local_hosts() as hosts:
        token = (Path(Url.parse(hosts.hosts[0].url).path).parent / "token").read_text()
        procs = await hosts.spawn_procs(start=start, preload=["json"])
        victim = await procs.spawn("victim", Victim)
        for what, text in (await victim.secrets.call_one()).items():
            assert token not in text, what
            assert "MONARCH_ASYNC_TOKEN" not in text, what
        agent = local_agent_pid("host0")
        assert token.encode() not in Path(f"/proc/{agent}/cmdline").read_bytes()
        for pid in descendants(agent):
            assert token.encode() not in _environment_and_arguments(pid)


async def test_no_worker_of_an_attached_agent_holds_the_token(monkeypatch) -> None:
    monkeypatch.setenv("MONARCH_ASYNC_TOKEN", TOKEN)
    async with running_agent() as agent:
        for _ in range(2):  # a program may attach twice by the same variable
            async with ma.attach(agent.url) as hosts:
                victim = await (await hosts.spawn_procs()).spawn("victim", Victim)
                for what, text in (await victim.secrets.call_one()).items():
                    assert TOKEN not in text, what
                for pid in descendants(agent.pid):
                    assert TOKEN.encode() not in _environment_and_arguments(pid)


def _run_agent(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "MONARCH_ASYNC_TOKEN"} | environ
    command = [sys.executable, "-m", "monarch_async.cli.main", "agent", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_token_file_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(mode)
    with pytest.raises(ValueError, match=rf"can be read by others \(mode {mode:04o}\): chmod 600"):
        ma.attach("tcp://127.0.0.1:1", token_file=str(file))
    ended = _run_agent("--listen", "tcp://127.0.0.1:0", "--token-file", str(file))
    assert ended.returncode != 0
    assert "can be read by others" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_empty_or_missing_token_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("MONARCH_ASYNC_TOKEN", raising=False)
    file = tmp_path / "token"
    file.touch(mode=0o600)
    for arguments in ({"token_file": str(file)}, {"token_file": str(tmp_path / "none")}, {}):
        with pytest.raises(ValueError, match="token"):
            ma.attach("tcp://127.0.0.1:1", **arguments)


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://127.0.0.1:0"])
def test_an_agent_without_a_token_does_not_listen(listen: str) -> None:
    ended = _run_agent("--listen", listen)
    assert ended.returncode != 0
    assert "token" in ended.stderr
    assert "listens on" not in ended.stdout
    assert "Traceback" not in ended.stderr


# -- an agent never unpickles ----------------------------------------------------------------------------------------

_NEVER_UNPICKLES = """
import os, pickle, runpy, sys

def never(*_, **__):
    sys.stderr.write("the agent unpickles\\n")
    os.abort()

class Never:
    __new__ = never

pickle.load = pickle.loads = pickle._loads = never
pickle.Unpickler = pickle._Unpickler = Never
import _pickle
_pickle.load = _pickle.loads = never
_pickle.Unpickler = Never
sys.argv = ["monarch-async", "agent", "--listen", "tcp://127.0.0.1:0", "--name", "h"]
runpy.run_module("monarch_async.cli.main", run_name="__main__")
"""


async def test_an_agent_never_unpickles(wait_gone) -> None:
    """It runs a whole program (calls, errors, streams, large payloads, a death) and has no way to unpickle."""
    command = [sys.executable, "-c", _NEVER_UNPICKLES]
    async with running_agent(command=command) as agent, ma.attach(agent.url, token=TOKEN) as hosts:
        procs = await hosts.spawn_procs({"gpus": 2})
        ledgers = await procs.spawn("ledgers", Ledger)
        await keep_busy(ledgers, rounds=10, size=1_000_000)
        victims = await procs.spawn("victims", Victim)
        with pytest.raises(ma.RemoteError, match="no such"):
            await victims.at(0).fail.call_one("no such")
        with pytest.raises(ma.ProcDied):
            await victims.exit.call(1)
        assert agent.process.returncode is None


async def test_a_proc_that_is_sent_nonsense_says_so_and_ends() -> None:
    """Its client has proved itself, and could end it anyway."""
    async with running_agent() as agent, ma.attach(agent.url, token=TOKEN) as hosts:
        procs = await hosts.spawn_procs()
        victim = await procs.spawn("victim", Victim)
        waiting = victim.wait_forever.call_one()
        await victim.echo.call_one(1)
        async with odd_client(agent) as send:
            send(frame.pack_frame(frame.CALL, 0, procs.addresses[0], 1, 2, 3, b"\xc1", b""))
            with pytest.raises(ma.ProcDied, match="was not understood: bad frame: control fields of a call"):
                await waiting
        assert agent.process.returncode is None
