"""Hosts that fail all the time: agents behind proxies, and what is done to them.

Everything that runs on a host carries a mark in its environment, so that what is left of it in the end is found.
"""

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

from agents import Agent, descendants, running_agent
from chronicle import Chronicle

import monarch_async as ma
from monarch_async.testing import FaultProxy
from monarch_async.testing.proxy import Direction
from monarch_async.wire.auth import handshake_length
from monarch_async.wire.frame import frame_length

MARK = "CHAOS_MARK"


class Site:
    """A host: an agent that can be ended and started again, behind a proxy through which all links to it go."""

    def __init__(self, name: str, config: ma.Config, chronicle: Chronicle, mark: str) -> None:
        self.name, self.config, self.chronicle, self.mark = name, config, chronicle, mark
        self.agent: Agent | None = None
        self.is_busy = False  # a fault is under way
        self._listen = "tcp://127.0.0.1:0"
        self._life = AsyncExitStack()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Site":
        await self.start()
        self.proxy = FaultProxy(self._listen, frame_length=frame_length, skip=handshake_length)
        await self._stack.enter_async_context(self.proxy)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.heal()
        try:
            await self.stop()
        finally:
            await self._stack.aclose()

    async def start(self) -> None:
        """Start an agent where the last one listened."""
        running = running_agent(self._listen, self.name, self.config, **{MARK: self.mark})
        self.agent = agent = await self._life.enter_async_context(running)
        self._listen = f"tcp://127.0.0.1:{urlsplit(agent.url).port}"

    async def stop(self) -> None:
        """End it in order, or reap it."""
        agent, self.agent = self.agent, None
        await self._life.aclose()
        if agent is not None and any("Traceback" in line for line in agent.said):
            self.chronicle.note(f"{self.name} said: {chr(10).join(agent.said[-60:])}")
            raise AssertionError(f"{self.name} said: {agent.said[-60:]}")

    def heal(self) -> None:
        self.proxy.accept_new()
        self.proxy.thaw()
        self.proxy.delay(0)
        self.signal(signal.SIGCONT)

    def pids(self) -> list[int]:
        """Everything on the host, the agent first."""
        with suppress(FileNotFoundError, ProcessLookupError):
            if self.agent is not None:
                return [self.agent.pid, *descendants(self.agent.pid)]
        return []

    def signal(self, signo: int) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signo)


class Havoc:
    """Does something bad every few hundred milliseconds."""

    def __init__(self, sites: list[Site], dice: random.Random, chronicle: Chronicle, window: float) -> None:
        self.sites, self.dice, self.chronicle, self.window = sites, dice, chronicle, window
        self.counts: dict[str, int] = {}

    async def run(self, seconds: float) -> None:
        """Returns once everything is healed."""
        faults = {
            self.kill_proc: 5, self.cut: 5, self.cut_at_a_frame: 4, self.corrupt: 2, self.refuse: 3, self.silence: 3,
            self.delay: 2, self.freeze_agent: 3, self.freeze_host: 2, self.kill_agent: 2, self.end_agent: 1,
            self.freeze_proc: 2,
        }  # fmt: skip
        until = self.chronicle.now + seconds
        async with asyncio.TaskGroup() as group:
            while self.chronicle.now < until:
                await asyncio.sleep(self.dice.uniform(0.1, 0.6))
                free = [site for site in self.sites if not site.is_busy]
                if free:
                    (fault,) = self.dice.choices(list(faults), list(faults.values()))
                    group.create_task(self._do(fault, self.dice.choice(free)))

    async def _do(self, fault: object, site: Site) -> None:
        name = fault.__name__  # type: ignore[attr-defined]
        self.counts[name] = self.counts.get(name, 0) + 1
        site.is_busy = True
        try:
            await fault(site)  # type: ignore[operator]
        finally:
            site.is_busy = False

    def _span(self) -> float:
        """Shorter than the window, twice as often as longer."""
        short = self.dice.random() < 0.67
        return self.dice.uniform(0.1, 0.7) * self.window if short else self.dice.uniform(1.2, 2.0) * self.window

    def _note(self, site: Site, what: str) -> None:
        self.chronicle.note(f"-- {site.name}: {what}")

    async def kill_proc(self, site: Site) -> None:
        """A worker, or a zygote."""
        pids = site.pids()[1:]
        if pids:
            pid = self.dice.choice(pids)
            self._note(site, f"kill proc {pid}")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def freeze_proc(self, site: Site) -> None:
        pids, seconds = site.pids()[1:], self._span()
        if pids:
            pid = self.dice.choice(pids)
            self._note(site, f"freeze proc {pid} for {seconds:.1f} s")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(seconds)
                os.kill(pid, signal.SIGCONT)

    async def cut(self, site: Site) -> None:
        self._note(site, "cut")
        site.proxy.cut_now()

    async def cut_at_a_frame(self, site: Site) -> None:
        way: Direction = self.dice.choice(["to_listener", "to_dialer"])
        frame, after = site.proxy.frames[way] + self.dice.randint(1, 40), self.dice.choice([0, 1, 3, 4, 39])
        self._note(site, f"cut {way} at frame {frame} after {after} bytes")
        site.proxy.cut(way, at_frame=frame, after_bytes=after)

    async def corrupt(self, site: Site) -> None:
        """Where it must be noticed: no checksum guards a payload but TCP's own, and that of TLS."""
        way: Direction = self.dice.choice(["to_listener", "to_dialer"])
        frame, offset = site.proxy.frames[way] + self.dice.randint(1, 40), self.dice.choice([3, 4])
        self._note(site, f"corrupt {way} frame {frame} at {offset}")
        site.proxy.corrupt(way, at_frame=frame, offset=offset)

    async def refuse(self, site: Site) -> None:
        seconds = self._span()
        self._note(site, f"refuse for {seconds:.1f} s")
        site.proxy.refuse_new()
        site.proxy.cut_now()
        await asyncio.sleep(seconds)
        site.proxy.accept_new()

    async def silence(self, site: Site) -> None:
        seconds = self._span()
        self._note(site, f"silence for {seconds:.1f} s")
        site.proxy.freeze()
        await asyncio.sleep(seconds)
        site.proxy.thaw()

    async def delay(self, site: Site) -> None:
        self._note(site, "delay")
        site.proxy.delay(self.dice.uniform(0.01, 0.2))
        await asyncio.sleep(self.dice.uniform(0.2, 1.0))
        site.proxy.delay(0)

    async def freeze_agent(self, site: Site) -> None:
        seconds = self._span()
        assert site.agent is not None
        self._note(site, f"freeze agent for {seconds:.1f} s")
        os.kill(site.agent.pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(site.agent.pid, signal.SIGCONT)

    async def freeze_host(self, site: Site) -> None:
        seconds = self._span()
        self._note(site, f"freeze host for {seconds:.1f} s")
        frozen = site.pids()
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def kill_agent(self, site: Site) -> None:
        assert site.agent is not None
        self._note(site, "kill agent")
        os.kill(site.agent.pid, signal.SIGKILL)
        await self._start_again(site)

    async def end_agent(self, site: Site) -> None:
        self._note(site, "end agent")
        await self._start_again(site)

    async def _start_again(self, site: Site) -> None:
        await site.stop()
        await asyncio.sleep(self._span() / 2)
        await site.start()
        self._note(site, "has a new agent")


def marked(mark: str) -> dict[int, str]:
    """Return the processes that carry a mark, with what they are."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    return found
