"""Machines of a test: network namespaces with addresses of their own, joined by a bridge; a host agent in each.

    async with machines(3) as net:
        async with net.attached() as hosts:
            net[0].cut()                     # its link is down, for everybody
            net[0].cut_to(net[1])            # what it sends to that one is lost; the other way stays
            net[0].slow_down(1_000_000)      # bytes a second, both ways
            net[0].freeze()                  # every process on it; freeze_agent() for its agent alone

Needs root and ``ip`` (iproute2): mark tests with `needs_machines`. The client is in the namespace of the test run,
which has the bridge's address. Everything is undone at the end, also where a test has failed: what was frozen is
thawed, what still runs in a namespace is killed, namespaces and bridge go.

Nothing here needs more of the kernel than veth, bridge and the token bucket filter. What is lost one way is sent to a
hardware address that nobody has.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import pytest
from agents import IMPATIENT, TOKEN, Agent, running_agent

import monarch_async as ma

needs_machines = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2"
)

_NOBODY = "02:00:00:00:de:ad"
_PORT = 7700


def ip(*words: str) -> str:
    """Run ``ip``; raises RuntimeError with what it said."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Machine:
    """One namespace. ``agent`` is set while one runs in it."""

    name: str
    address: str
    net: "Network"
    config: ma.Config = IMPATIENT
    agent: Agent | None = None
    _agents: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def url(self) -> str:
        return f"tcp://{self.address}:{_PORT}"

    # -- its agent -------------------------------------------------------------------------------------------------

    async def start_agent(self, *options: str) -> Agent:
        """Start one that listens at `url`, and wait until it does; `stop_agent` or the end of the test ends it."""
        agent = [sys.executable, "-m", "monarch_async.cli.main", "agent", "--listen", self.url, "--name", self.name]
        command = ["ip", "netns", "exec", self.name, *agent, *options]
        self._agents = AsyncExitStack()
        self.agent = await self._agents.enter_async_context(running_agent(command=command, config=self.config))
        return self.agent

    async def stop_agent(self) -> None:
        """End the agent in order, or reap one that was killed."""
        agent, self.agent = self.agent, None
        if agent is not None:
            await self._agents.aclose()

    def kill_agent(self) -> None:
        assert self.agent is not None
        os.kill(self.agent.pid, signal.SIGKILL)

    # -- its processes ---------------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """Every process on it."""
        return [int(pid) for pid in ip("netns", "pids", self.name).split()]

    def signal(self, signo: int) -> None:
        """Send a signal to every process on it: the agent last, so that it sees none of them end."""
        agent = [self.agent.pid] if self.agent is not None else []
        for pid in [*(pid for pid in self.pids() if pid not in agent), *agent]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signo)

    def kill(self) -> None:
        """The power is off: every process at once, in whatever order."""
        self.signal(signal.SIGKILL)

    def freeze(self) -> None:
        """Suspend the machine."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def freeze_agent(self) -> None:
        assert self.agent is not None
        os.kill(self.agent.pid, signal.SIGSTOP)

    def thaw_agent(self) -> None:
        assert self.agent is not None
        os.kill(self.agent.pid, signal.SIGCONT)

    # -- its link --------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Pull the cable: nothing comes or goes, and nobody is told."""
        ip("link", "set", f"{self.name}-v", "down")

    def mend(self) -> None:
        ip("link", "set", f"{self.name}-v", "up")

    def cut_to(self, other: "Machine | None") -> None:
        """What it sends to ``other`` (None: the client) is lost from now on; what comes from there arrives."""
        ip("-n", self.name, *_neighbour("replace", self._address_of(other), "eth0"))

    def mend_to(self, other: "Machine | None") -> None:
        ip("-n", self.name, "neigh", "del", self._address_of(other), "dev", "eth0")

    def _address_of(self, other: "Machine | None") -> str:
        return other.address if other is not None else self.net.client

    def slow_down(self, rate: int) -> None:
        """Let through ``rate`` bytes a second in each direction; what waits longer than half a second is lost."""
        shape = ["root", "tbf", "rate", f"{8 * rate}bit", "burst", "16kb", "latency", "500ms"]
        for where in ([], ["netns", "exec", self.name]):
            device = "eth0" if where else f"{self.name}-v"
            command = ["ip", *where] if where else []
            subprocess.run([*command, "tc", "qdisc", "replace", "dev", device, *shape], check=True, capture_output=True)

    def speed_up(self) -> None:
        """Back to full speed."""
        subprocess.run(["tc", "qdisc", "del", "dev", f"{self.name}-v", "root"], check=True, capture_output=True)
        ip("netns", "exec", self.name, "tc", "qdisc", "del", "dev", "eth0", "root")


def _neighbour(verb: str, address: str, device: str) -> list[str]:
    return ["neigh", verb, address, "lladdr", _NOBODY, "nud", "permanent", "dev", device]


@dataclass
class Network:
    """The machines, by index, and the bridge that joins them."""

    bridge: str
    client: str  #: the address of the test run itself
    machines: list[Machine] = field(default_factory=list)

    def __getitem__(self, index: int) -> Machine:
        return self.machines[index]

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.machines)

    def cut_from_client(self, machine: Machine) -> None:
        """What the client sends to ``machine`` is lost from now on; what comes from there arrives."""
        ip(*_neighbour("replace", machine.address, self.bridge))

    def mend_from_client(self, machine: Machine) -> None:
        ip("neigh", "del", machine.address, "dev", self.bridge)

    @asynccontextmanager
    async def attached(self, config: ma.Config | None = None) -> AsyncIterator[ma.HostMesh]:
        """Attach to every machine's agent."""
        config = config or self.machines[0].config
        async with ma.attach(*[machine.url for machine in self], token=TOKEN, config=config) as hosts:
            yield hosts


@contextmanager
def network(count: int, config: ma.Config = IMPATIENT) -> Iterator[Network]:
    """Make the bridge and the namespaces; nothing runs in them yet."""
    tag, subnet = f"ma{os.getpid() % 10000}", f"10.{os.getpid() % 200 + 20}.7"
    net = Network(tag, f"{subnet}.1")
    with ExitStack() as stack:
        ip("link", "add", tag, "type", "bridge")
        stack.callback(ip, "link", "del", tag)
        ip("addr", "add", f"{net.client}/24", "dev", tag)
        ip("link", "set", tag, "up")
        for index in range(count):
            machine = Machine(f"{tag}{chr(ord('a') + index)}", f"{subnet}.{index + 2}", net, config)
            name, device = machine.name, f"{machine.name}-v"
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
            stack.callback(machine.kill)
            ip("link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name)
            stack.callback(ip, "link", "del", device)  # at once; with its namespace it goes some time later
            ip("link", "set", device, "master", tag, "up")
            ip("-n", name, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            net.machines.append(machine)
        yield net


@asynccontextmanager
async def running_agents(net: Network) -> AsyncIterator[Network]:
    """Have an agent on every machine of ``net``; in the end they are thawed and ended."""
    async with AsyncExitStack() as stack:
        for machine in net:
            stack.push_async_callback(machine.stop_agent)
            stack.callback(machine.thaw)
            await machine.start_agent()
        yield net


@asynccontextmanager
async def machines(count: int, config: ma.Config = IMPATIENT) -> AsyncIterator[Network]:
    """Make ``count`` machines, with an agent on each."""
    with network(count, config) as net:
        async with running_agents(net):
            yield net
