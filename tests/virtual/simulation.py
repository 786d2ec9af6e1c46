"""A whole cluster in one loop of virtual time, out of the real parts.

Real: client, host agents, procs, actors, sessions, handshakes, links. Three things are not: sockets are `inproc`, so
that they can be cut at any byte and delivered in any split; a proc is a task instead of a process, with a router of its
own; clocks are the loop's. What a module keeps for "its process" is found by whose endpoint runs.

Everything that runs belongs to a machine (`machine_of`), by its context: ``client``, ``agent0``, and ``agent0 procs``
for what agent 0 has started. `Clock.freeze` stops what belongs to one, as SIGSTOP does: its tasks and timers wait, what
is sent to it waits in the kernel, and when it goes on the time is that of all.
"""

import asyncio
import heapq
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import monarch_async as ma
from monarch_async.config import Config
from monarch_async.control import host_agent
from monarch_async.control.host_agent import HostAgent
from monarch_async.control.worker import Batch, Worker
from monarch_async.control.workers import Workers
from monarch_async.ids import address
from monarch_async.mesh.domain import active_domain, find_domain
from monarch_async.mesh.worker import WorkerDomain
from monarch_async.runtime import proc as proc_module
from monarch_async.runtime.context import current_context
from monarch_async.runtime.path import Path
from monarch_async.runtime.proc import Proc, serve
from monarch_async.runtime.router import Router, active_router
from monarch_async.runtime.watchdog import Watchdog
from monarch_async.testing import SimLoop
from monarch_async.transport import inproc
from monarch_async.transport.connection import Connection
from monarch_async.transport.dial import listening
from monarch_async.transport.url import Url

for _name in ma.__all__:
    getattr(ma, _name)  # `as_processes` patches what is imported by then: public names are only when they are used

TOKEN = "a token"

CONFIG = Config(
    resume_window=10.0, heartbeat=1.0, direct_calls=False, transports="", stop_grace=1.0, block_warning=100.0
)

#: What each host has to place on.
RESOURCES = ma.Resources(cpus=4, gpus=("0", "1", "2", "3"), memory=64 << 30)

#: Virtual seconds after which a test hangs.
FOR_EVER = 400.0

_process: ContextVar["SimProc | None"] = ContextVar("process", default=None)
_machine: ContextVar[str] = ContextVar("machine", default="client")


class Clock(SimLoop):
    """A loop on which machines can be frozen.

    ``is_fifo``: tasks that are ready together run in the order they became so, as on every real loop.
    """

    def __init__(self, seed: int = 0, is_fifo: bool = False) -> None:
        super().__init__(seed)
        self.is_fifo = is_fifo
        self._frozen: dict[str, tuple[list[Any], list[Any]]] = {}  # what waits: ready, timers

    def freeze(self, machine: str) -> None:
        self._frozen.setdefault(machine, ([], []))

    def thaw(self, machine: str) -> None:
        ready, timers = self._frozen.pop(machine, ([], []))
        self._ready.extend(ready)  # type: ignore[attr-defined]
        for timer in timers:
            heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]

    def _run_once(self) -> None:
        if self._frozen:
            self._set_aside()
        if self.is_fifo:
            asyncio.SelectorEventLoop._run_once(self)  # type: ignore[attr-defined]
        else:
            super()._run_once()

    def _set_aside(self) -> None:
        for kind, handles in enumerate((self._ready, self._scheduled)):  # type: ignore[attr-defined]
            kept: list[Any] = []
            for handle in handles:
                frozen = self._frozen.get(handle._context.get(_machine, "client"))
                (kept if frozen is None else frozen[kind]).append(handle)
            if len(kept) < len(handles):
                handles.clear()
                handles.extend(kept)
        heapq.heapify(self._scheduled)  # type: ignore[attr-defined]


def machine_of(name: str) -> Context:
    """Return a context in which what is started belongs to that machine."""
    context = copy_context()
    context.run(_machine.set, name)
    return context


class Net:
    """The network: what listens where, and every socket that was made."""

    def __init__(self, dice: random.Random, latency: float, split: inproc.Split) -> None:
        self.latency, self.split, self._dice = latency, split, dice
        self.listeners: dict[str, tuple[Callable[[], asyncio.BaseProtocol], Context]] = {}
        self.wires: dict[str, list[inproc.Inproc]] = {}  # the dialling ends, by whom they reach
        self._ends: dict[tuple[str, str], list[inproc.Inproc]] = {}  # by whose bytes they send, and to whom
        self.unreachable: set[str] = set()  # dialling fails
        self.silent: set[str] = set()  # nothing arrives, nothing fails
        self.refused: set[tuple[str, str]] = set()  # dialling one from the other fails
        self._lossy: set[tuple[str, str]] = set()  # nothing arrives at one from the other
        self._rates: dict[tuple[str, str], float] = {}
        self._change = asyncio.Event()
        self.dials = 0

    def install(self) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.create_connection, loop.create_server = self._dial, self._listen
        self._over_sockets = loop.create_unix_connection
        loop.create_unix_connection = self._over_unix

    async def _listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, ssl: Any = None) -> Any:
        self.listeners[host] = factory, copy_context()
        sock = SimpleNamespace(getsockname=lambda: (host, port))
        return SimpleNamespace(sockets=[sock], close=lambda: self.listeners.pop(host))

    async def _dial(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, ssl: Any = None) -> Any:
        self.dials += 1
        way = _machine.get(), host
        await asyncio.sleep(self.latency)
        while self._lossy & {way, way[::-1]}:
            await self._change.wait()
        if host in self.unreachable or way in self.refused or host not in self.listeners:
            raise ConnectionRefusedError(111, "connection refused")
        protocol = factory()
        listen, context = self.listeners[host]
        there, here = inproc.connect(
            context.copy().run(listen),
            protocol,
            latency=self.latency,
            split=self.split,
            extra={"way": way},
            contexts=(context, None),
        )
        self.wires.setdefault(host, []).append(here)
        for end, (source, to) in ((here, way), (there, way[::-1])):
            self._ends.setdefault((source, to), []).append(end)
            end.rate = self._rates.get((source, to))
        if host in self.silent:
            _hush(here)
        return here, protocol

    async def _over_unix(self, factory: Callable[[], asyncio.BaseProtocol], path: Any = None, *, sock: Any) -> Any:
        if not isinstance(sock, Socketpair):
            return await self._over_sockets(factory, path, sock=sock)
        protocol = factory()
        sock.wire, _ = inproc.connect(protocol, sock.peer, split=self.split, contexts=(None, sock.context))
        return sock.wire, protocol

    def cut(self, host: str, after: int | None = None, from_listener: bool = False) -> None:
        """Break every socket to ``host``: now, or when ``after`` more bytes have gone one way."""
        for wire in self.wires.get(host, []):
            if not wire.is_closing():
                end = wire.peer if from_listener else wire
                end.cut(None if after is None else end.arrived + after)

    def ends(self, source: str, to: str) -> list[inproc.Inproc]:
        """The open sockets between two machines, as the ends that send what goes this way."""
        return [end for end in self._ends.get((source, to), []) if not end.is_closing()]

    def dialled(self, dialler: str, host: str) -> list[inproc.Inproc]:
        """The open sockets that one machine has to another because it dialled."""
        return [end for end in self.ends(dialler, host) if end.get_extra_info("way") == (dialler, host)]

    def unplug(self, machine: str) -> None:
        """Every socket of a machine breaks."""
        for way, ends in self._ends.items():
            if machine in way:
                for end in ends:
                    end.cut()

    def lose(self, source: str, to: str) -> None:
        """What ``source`` sends to ``to`` is lost until `find`: nothing arrives, nobody is told, no dial succeeds."""
        self._lossy.add((source, to))
        for end in self._ends.get((source, to), []):
            end.stall()

    def find(self, source: str, to: str) -> None:
        """The way is there again; what was sent meanwhile arrives, as TCP sees to."""
        self._lossy.discard((source, to))
        for end in self._ends.get((source, to), []):
            end.go_on()
        change, self._change = self._change, asyncio.Event()
        change.set()

    def slow_down(self, source: str, to: str, rate: float | None) -> None:
        """Let through so many bytes a second; None: all of them at once."""
        if rate is None:
            self._rates.pop((source, to), None)
        else:
            self._rates[source, to] = rate
        for end in self._ends.get((source, to), []):
            end.rate = rate

    def silence(self, host: str) -> None:
        """Nothing that goes to ``host`` or comes from there arrives any more; sockets stay."""
        self.silent.add(host)
        for wire in self.wires.get(host, []):
            _hush(wire)

    def heal(self, host: str) -> None:
        """What was silent can be dialled again; old sockets stay silent."""
        self.silent.discard(host)
        self.unreachable.discard(host)


def _hush(wire: inproc.Inproc) -> None:
    for end in (wire, wire.peer):
        end.pause_reading()
        end.resume_reading = lambda: None  # type: ignore[method-assign]


@dataclass
class Socketpair:
    """The control connection of a proc: the agent's end, joined when the proc has its own."""

    peer: asyncio.BaseProtocol
    context: Context
    wire: inproc.Inproc | None = None


class SimProc:
    """A proc: `serve` in a task, which ends as a process does."""

    def __init__(self, simulation: "Simulation", workers: Workers, worker: Worker) -> None:
        self.worker, self._workers, self._simulation = worker, workers, simulation
        self.control = Socketpair(worker.connection, copy_context())
        self.proc: Proc | None = None
        self.domain: WorkerDomain | None = None
        self.is_over = False
        context = machine_of(f"{_machine.get()} procs")
        self.task = asyncio.get_running_loop().create_task(self._run(), context=context)

    async def _run(self) -> None:
        _process.set(self)
        status = await serve(self.control, self.worker.spec, self._prepare)
        self._exited(status << 8)

    def _prepare(self, proc: Proc) -> None:
        self.proc, self.domain = proc, WorkerDomain(proc, self.worker.spec)
        self._simulation.procs[proc.info.address] = self

    def kill(self, wait_status: int) -> None:
        """End at once. What it has sent arrives."""
        if self.is_over:
            return
        if self.control.wire is not None:
            self.control.wire.close()
        self.task.cancel()
        if self.proc is not None:
            for connection in self.proc.router._uplinks.all():
                connection.send = lambda frame: None
            for task in self._tasks():
                task.cancel()
        self._exited(wait_status)

    def _tasks(self) -> list[asyncio.Task[Any]]:
        assert self.proc is not None and self.domain is not None
        running = [r.task for i in self.proc.instances.values() for r in i.running.values() if r.task is not None]
        return [*running, *self.proc._tasks, *self.domain._tasks]

    def _exited(self, wait_status: int) -> None:
        """The zygote tells, sooner or later than the socket does."""
        if not self.is_over:
            self.is_over = True
            if self.proc is not None:
                self.proc._lease_at = float("inf")
            delay = self._simulation.dice.choice([0, 0, 0.001, 0.02])
            told = self.worker.id, self.worker.pid, wait_status
            context = self.control.context.copy()
            asyncio.get_running_loop().call_later(delay, self._workers._exited, *told, context=context)


class Silent:
    """A proc that prints nothing."""

    last_lines: tuple[str, ...] = ()

    def drain(self) -> None:
        pass


class SimNursery:
    """In place of zygotes."""

    def __init__(self) -> None:
        self.procs: dict[int, SimProc] = {}

    async def start_zygote(self, preload: tuple[str, ...], sys_path: object = ()) -> None:
        pass

    def signal(self, id: int, signo: int) -> None:
        self.procs[id].kill(signo)

    async def aclose(self) -> None:
        for proc in self.procs.values():
            proc.kill(signal.SIGKILL)
        await asyncio.sleep(0.1)


class SimWorkers(Workers):
    """Starts tasks instead of processes; everything else is the real thing's."""

    simulation: "Simulation"

    def _fork(self, owner: int, spec: dict[str, Any], preload: object, sys_path: list[str], batch: Batch) -> None:
        if not isinstance(self.nursery, SimNursery):
            self.nursery = SimNursery()  # type: ignore[assignment]
        config = self._config
        spec = {
            **spec,
            "root": spec.get("root") or owner,
            "address": address(self._relay.host, spec["id"]),
            "host": self._name,
            "config": {name: getattr(config, name) for name in Config.__slots__},
            "is_lifelined": False,
            "cluster": self._cluster,
            "bulk_host": self.bulk_host,
            "is_root_near": True,
        }
        label = f"{spec['mesh']}[{spec['rank']}]"
        connection = Connection(self._relay, label, spec["address"], None, config.max_frame)
        worker = Worker(spec, connection, owner, spec["root"], batch)
        worker.output, worker.pid = Silent(), 1000 + len(self._living)  # type: ignore[assignment]
        self._living[worker.id] = worker
        self._exits.pop(worker.id, None)
        self._relay.routes[worker.address] = connection
        self.nursery.procs[worker.id] = SimProc(self.simulation, self, worker)  # type: ignore[attr-defined]


@dataclass
class Simulation:
    """One cluster. ``hosts`` is what the client got from `monarch_async.attach`."""

    net: Net
    dice: random.Random
    config: Config
    agents: list[HostAgent] = field(default_factory=list)
    procs: dict[int, SimProc] = field(default_factory=dict)
    hosts: ma.HostMesh = field(init=False)
    _listening: dict[int, AsyncExitStack] = field(default_factory=dict)

    @property
    def client(self) -> Router:
        return active_router()

    @property
    def session(self) -> Any:
        """The client's session to the first host."""
        return next(iter(active_domain().controller.links)).session  # type: ignore[attr-defined]

    @property
    def routers(self) -> list[Router]:
        return [self.client, *[p.proc.router for p in self.procs.values() if p.proc is not None and not p.is_over]]

    def url(self, index: int) -> str:
        return f"tcp://agent{index}:1"

    @property
    def clock(self) -> Clock:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Clock)
        return loop

    async def start_agent(self, index: int) -> None:
        """Start one, in the place of one that has ended if there was one."""
        before = _machine.set(f"agent{index}")
        agent = HostAgent(f"host{index}", TOKEN.encode(), self.config, resources=RESOURCES)
        agent.workers.simulation = self  # type: ignore[attr-defined]
        self.agents[index:] = [agent, *self.agents[index + 1 :]]
        self._listening[index] = AsyncExitStack()
        guests, url = agent.guests, Url.parse(self.url(index))
        await self._listening[index].enter_async_context(
            listening(url, TOKEN.encode(), guests.admit, guests.agreed, guests.refused)
        )
        _machine.reset(before)

    async def stop_agent(self, index: int) -> None:
        """End one, and its procs. Twice is fine."""
        self.thaw(index)
        listening = self._listening.pop(index, None)
        if listening is not None:
            await listening.aclose()
            await self.agents[index].aclose()

    async def stop_agents(self) -> None:
        """End all of them, those too that were started later."""
        for index in range(len(self.agents)):
            await self.stop_agent(index)

    async def crash(self, index: int) -> None:
        """An agent's process is killed: its sockets break at once, its procs end."""
        self.net.unplug(f"agent{index}")
        await self.stop_agent(index)

    def is_up(self, index: int) -> bool:
        """Whether its agent's process is there."""
        return index in self._listening

    def freeze(self, index: int, is_whole: bool = False) -> None:
        """Stop an agent; with its procs where the whole machine is suspended."""
        self.clock.freeze(f"agent{index}")
        if is_whole:
            self.clock.freeze(f"agent{index} procs")

    def thaw(self, index: int) -> None:
        self.clock.thaw(f"agent{index}")
        self.clock.thaw(f"agent{index} procs")

    async def settle(self) -> None:
        """Let what is under way come to its end."""
        await asyncio.sleep(60.0)

    def assert_nothing_pending(self) -> None:
        """No side waits for, runs, or holds anything."""
        for router in self.routers:
            assert not router.pending, f"{router.name} waits for {router.pending}"
            assert not router.delivery.held and not router.delivery._inbound, router.name
            assert not router.outgoing._sending and not router.outgoing._offered, router.name
            for path in router._paths.values():
                assert idle(path), f"{router.name}: {path.inflight} calls, {path.inflight_bytes} bytes in flight"
        for proc in self.procs.values():
            if proc.proc is None or proc.is_over:
                continue
            assert not proc.proc.producers
            for instance in proc.proc.instances.values():
                assert not instance.running and not instance.mailbox and instance._slots == 0, instance.label
        for agent in self.agents:
            assert not agent.relay._gatherings


def idle(path: Path) -> bool:
    return not (path.inflight or path.inflight_bytes or path.queue)


@asynccontextmanager
async def cluster(
    hosts: int = 1,
    config: Config | None = None,
    latency: float = 0.0,
    split: inproc.Split = lambda data: [data],
    seed: int = 0,
    patience: float = FOR_EVER,
) -> AsyncIterator[Simulation]:
    """Run agents and a client that has attached to them; ends them, and checks that no task is left."""
    dice = random.Random(seed)
    config = config or CONFIG
    simulation = Simulation(Net(dice, latency, split), dice, config)
    simulation.net.install()
    said: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: said.append(context))
    with as_processes(simulation):
        async with asyncio.timeout(patience), AsyncExitStack() as stack:
            stack.push_async_callback(simulation.stop_agents)
            for index in range(hosts):
                await simulation.start_agent(index)
            urls = [simulation.url(index) for index in range(hosts)]
            async with ma.attach(*urls, token=TOKEN, config=config) as simulation.hosts:
                yield simulation
    for proc in simulation.procs.values():
        await asyncio.gather(proc.task, return_exceptions=True)
    await asyncio.sleep(1)
    assert not said, said
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left


@contextmanager
def as_processes(simulation: Simulation) -> Iterator[None]:
    """Give each proc its own of what a module has once per process; and the loop's clock to all."""
    clock = asyncio.get_running_loop().time

    def exit_process(status: int) -> None:
        process = _process.get()
        assert process is not None
        process.kill(status << 8)

    def of_process(found: Callable[[], Any], pick: Callable[[WorkerDomain], Any]) -> Callable[[], Any]:
        def find() -> Any:
            context = current_context()
            if context is None:
                return found()
            domain = simulation.procs[context.proc.address].domain
            assert domain is not None
            return pick(domain)

        return find

    finders = {
        "active_router": of_process(active_router, lambda domain: domain.router),
        "active_domain": of_process(active_domain, lambda domain: domain),
        "find_domain": of_process(find_domain, lambda domain: domain),
    }
    with ExitStack() as stack:

        def patch(target: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(target, name, value))

        for name, module in list(sys.modules.items()):
            if name.startswith(("monarch_async.mesh.", "monarch_async.sync.")):
                for finder, replacement in finders.items():
                    if finder in vars(module) and vars(module)[finder].__module__ != name:
                        patch(module, finder, replacement)
        patch(host_agent, "boot_time", clock)
        patch(host_agent, "Workers", SimWorkers)
        patch(proc_module, "boot_time", clock)
        patch(proc_module, "os", SimpleNamespace(**{**vars(os), "_exit": exit_process}))
        patch(proc_module, "sys", SimpleNamespace(stderr=SimpleNamespace(write=lambda text: None, flush=lambda: None)))
        patch(Watchdog, "wake", lambda watchdog: setattr(watchdog, "is_awake", True))
        yield


def run(main: Coroutine[Any, Any, Any], seed: int = 0, is_fifo: bool = False) -> Any:
    """Run on a loop of virtual time; the seed says in which order tasks run that are ready together."""
    with asyncio.Runner(loop_factory=lambda: Clock(seed, is_fifo)) as runner:
        return runner.run(main)
