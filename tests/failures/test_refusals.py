"""Strangers, broken peers and secrets: who is not let in is told why, and nobody else notices."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
import pytest_asyncio
from agents import IMPATIENT, TOKEN, Agent, running_agent
from victims import Victim
from workload import Ledger, keep_busy

import monarch_async as ma
from monarch_async.ids import address, random_id32
from monarch_async.transport.dial import dial
from monarch_async.transport.url import Url
from monarch_async.wire import frame
from monarch_async.wire.auth import MAGIC, REFUSAL

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Busy:
    """An agent with a client at work, to whom nothing happens."""

    def __init__(self, agent: Agent, hosts: ma.HostMesh, ledgers: Ledger) -> None:
        self.agent, self.hosts, self.ledgers, self.rounds = agent, hosts, ledgers, 0

    async def work(self) -> None:
        while True:
            await keep_busy(self.ledgers, rounds=3, size=400_000)
            self.rounds += 1
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def busy() -> AsyncIterator[Busy]:
    async with running_agent() as agent, ma.attach(agent.url, token=TOKEN, config=IMPATIENT) as hosts:
        here = Busy(agent, hosts, await (await hosts.spawn_procs({"gpus": 2})).spawn("ledgers", Ledger))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(here.work())
            yield here
            task.cancel()


@pytest_asyncio.fixture(loop_scope="module")
async def agent(busy: Busy) -> AsyncIterator[Agent]:
    """The agent; after the test its client must have gone on."""
    busy.agent.said.clear()
    yield busy.agent
    async with asyncio.timeout(10):
        rounds = busy.rounds
        while busy.rounds < rounds + 2:
            await asyncio.sleep(0.01)


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


async def test_a_wrong_token(agent: Agent) -> None:
    with pytest.raises(ma.HandshakeRefused, match="peer refused the handshake: wrong token"):
        await dial(Url.parse(agent.url), b"another token", b"info")
    assert "127.0.0.1:" in await agent.wait_said(": wrong token")


async def test_another_version(agent: Agent) -> None:
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
async def test_garbage(what: str, agent: Agent) -> None:
    answer = await say(agent.url, GARBAGE[what])
    assert not answer or reason(answer).startswith(("not a monarch_async peer", "wrong version"))
    await agent.wait_said("refused a connection from 127.0.0.1:")


async def test_many_that_connect_and_say_nothing(agent: Agent) -> None:
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
async def test_what_breaks_the_rules_after_the_handshake_closes_that_connection(what: str, agent: Agent) -> None:
    data, why = BROKEN[what]
    async with odd_client(agent) as send:
        send(data)
        assert "closed the connection to odd client" in await agent.wait_said(why)
        await agent.wait_said("odd client left")


async def test_a_cast_and_requests_that_make_no_sense(agent: Agent) -> None:
    info = introduction()
    wire, agreed = await dial(Url.parse(agent.url), TOKEN.encode(), msgpack.packb(info))
    to = _agents_address(agreed.info)
    requests = [b"", b"\xc1", msgpack.packb(5), msgpack.packb(["no such"]), msgpack.packb(["spawn", 1, 2, 3])]
    requests += [msgpack.packb(["spawn", [{}], [], []]), msgpack.packb(["kill"]), msgpack.packb(["renewed", {}])]
    for request in requests:
        wire.write(frame.pack_frame(frame.CONTROL, 0, to, info["address"], 0, 1, b"", request))
    await agent.wait_said("bad request from odd client")
    wire.write(frame.pack_frame(frame.CAST, 0, to, info["address"], 3, 4, b"", struct.pack("<I", 1 << 30)))
    await agent.wait_said("closed the connection to odd client: bad frame: a cast")
    wire.abort()


async def test_nobody_speaks_for_a_session_that_is_not_his(agent: Agent) -> None:
    """A session is resumed by its id only, which is drawn at random and never shown."""
    for received in (0, 1 << 40, "x"):
        info = {"session": os.urandom(16), "role": "client", "address": 1, "name": "odd", "received": received}
        with pytest.raises(ma.HandshakeRefused, match="no such session"):
            await dial(Url.parse(agent.url), TOKEN.encode(), msgpack.packb(info))
    for info in ({}, [], 7, {"session": 1}, {"session": b"x", "role": "client", "address": "a", "name": 1}):
        with pytest.raises(ma.HandshakeRefused, match="unreadable introduction"):
            await dial(Url.parse(agent.url), TOKEN.encode(), msgpack.packb(info))


async def test_a_proc_that_is_sent_nonsense_says_so_and_ends(busy: Busy, agent: Agent) -> None:
    """Whoever sends it has proved himself, and could end it anyway."""
    procs = await busy.hosts.spawn_procs(name="nonsense")
    victim = await procs.spawn("victim", Victim)
    waiting = victim.wait_forever.call_one()
    await victim.echo.call_one(1)
    async with odd_client(agent) as send:
        send(frame.pack_frame(frame.CALL, 0, procs.addresses[0], 1, 2, 3, b"\xc1", b""))
        with pytest.raises(ma.ProcDied, match="was not understood: bad frame: control fields of a call"):
            await waiting
    assert agent.process.returncode is None
