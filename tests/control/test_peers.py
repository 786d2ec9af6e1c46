"""The sessions of an agent to its peers: one per host, given up once."""

import asyncio
import logging
import socket
from collections.abc import Iterator

import pytest

from monarch_async.config import Config
from monarch_async.control.peers import ENDED, Peers
from monarch_async.ids import address
from monarch_async.transport.connection import Connection

OWN, FAR = 100, 200


class Silent:
    """A consumer of a session that never comes up."""

    def feed(self, connection: Connection, data: bytes) -> tuple[int, int]:
        raise AssertionError("nobody answers")

    def feed_large(self, connection: Connection, pieces: list[bytes]) -> None:
        raise AssertionError("nobody answers")

    def connection_down(self, connection: Connection, error: Exception | None) -> None:
        raise AssertionError("it was never up")


@pytest.fixture
def unused() -> Iterator[str]:
    """The address of a socket that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{taken.getsockname()[1]}"


async def test_a_peer_given_up_while_it_is_dialled_is_lost_once(unused: str) -> None:
    """Its dial fails later, when the next session to that host is there: which must stay."""
    lost: list[tuple[object, ...]] = []
    config = Config(resume_window=60.0)

    async def where(host: int) -> tuple[str, str]:
        return "far", unused

    def on_lost(connection: Connection, *why: str) -> None:
        lost.append((connection.address, *why))

    peers = Peers(Silent(), "here", address(OWN, 0), b"token", config, on_lost, where)
    try:
        assert peers.find(FAR) is None
        first = peers.seek(FAR)
        await asyncio.sleep(0.01)  # it knows where
        peers.lose(FAR, "it says so")
        second = peers.seek(FAR)
        assert first is not second
        async with asyncio.timeout(5):
            while len(peers._dials) > 1:
                await asyncio.sleep(0.005)
        assert peers.find(FAR) is second
        assert lost == [(address(FAR, 0), "far", "it says so")]
    finally:
        await peers.aclose()


async def test_an_agent_that_ends_in_order_is_no_warning(unused: str, caplog: pytest.LogCaptureFixture) -> None:
    """At the end of a program agents end one after the other, and each hears of those before it."""

    async def where(host: int) -> tuple[str, str]:
        return "far", unused

    peers = Peers(Silent(), "here", address(OWN, 0), b"token", Config(), lambda *_: None, where)
    try:
        for reason in (ENDED, "no sign of life"):
            peers.seek(FAR)
            await asyncio.sleep(0.01)  # it knows where
            peers.lose(FAR, reason)
        warned = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        assert warned == ["lost the agent of far: no sign of life"]
    finally:
        await peers.aclose()
