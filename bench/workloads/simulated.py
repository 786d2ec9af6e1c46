"""Simulated hosts: many real agents in one loop, whose workers are sinks of frames instead of processes.

Real: `HostAgent`s with their relays, guests, leases, books and heartbeats; handshakes; connections with links; every
byte of every frame. Not real: workers (see `sinks`), and the network, which is `inproc` (all in one loop), unless the
agents are in a process of their own (see `distant`).
"""

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sinks import Answer, SimulatedWorkers, answer_rank

from monarch_async.config import Config
from monarch_async.control import host_agent
from monarch_async.control.host_agent import HostAgent
from monarch_async.scheduler.resources import Resources
from monarch_async.transport import inproc
from monarch_async.transport.dial import listening
from monarch_async.transport.url import Url

TOKEN = "a token of the benchmark"


class Network:
    """Dialling and listening within this loop, by the host's name in the URL."""

    def __init__(self) -> None:
        self._listeners: dict[str, Callable[[], asyncio.BaseProtocol]] = {}

    def install(self) -> None:
        """Take the place of the loop's own TCP."""
        loop: Any = asyncio.get_running_loop()
        loop.create_connection, loop.create_server = self._dial, self._listen

    async def _listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, ssl: Any = None) -> Any:
        self._listeners[host] = factory
        sock = SimpleNamespace(getsockname=lambda: (host, port))
        return SimpleNamespace(sockets=[sock], close=lambda: self._listeners.pop(host))

    async def _dial(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, ssl: Any = None) -> Any:
        if host not in self._listeners:
            raise ConnectionRefusedError(111, "connection refused")
        protocol = factory()
        _, here = inproc.connect(self._listeners[host](), protocol, extra={"sockname": ("192.0.2.1", 1)})
        return here, protocol


class SimulatedHosts:
    """Agents by number. ``urls`` is what a client attaches to."""

    def __init__(
        self,
        config: Config,
        resources: Resources = Resources(cpus=8),  # noqa: B008
        is_inproc: bool = True,
        answer: Answer = answer_rank,
    ) -> None:
        self._config, self._resources, self._is_inproc = config, resources, is_inproc
        SimulatedWorkers.answer = staticmethod(answer)
        self.agents: list[HostAgent] = []
        self.urls: list[str] = []
        self._lives: list[contextlib.AsyncExitStack] = []
        self._stack = contextlib.ExitStack()

    async def add(self, count: int) -> None:
        """Start so many more."""
        for index in range(len(self.agents), len(self.agents) + count):
            agent = HostAgent(f"host{index}", TOKEN.encode(), self._config, resources=self._resources)
            url = Url.parse(f"tcp://host{index}:1" if self._is_inproc else "tcp://127.0.0.1:0")
            guests, life = agent.guests, contextlib.AsyncExitStack()
            life.push_async_callback(agent.aclose)
            life.callback(hang_up, agent)
            listener = listening(url, TOKEN.encode(), guests.admit, guests.agreed, guests.refused)
            real = await life.enter_async_context(listener)
            agent.url = real.text
            self.agents.append(agent)
            self.urls.append(real.text)
            self._lives.append(life)

    async def crash(self, count: int) -> None:
        """End the last so many, without a word to anybody: their sockets close, and nobody listens there."""
        for _ in range(count):
            await self._lives.pop().aclose()

    async def __aenter__(self) -> "SimulatedHosts":
        self._stack.enter_context(mock.patch.object(host_agent, "Workers", SimulatedWorkers))
        if self._is_inproc:
            Network().install()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.crash(len(self._lives))
        self._stack.close()


def hang_up(agent: HostAgent) -> None:
    """Close its sockets as they are."""
    for guest in agent.guests:
        guest.connection.drop()
