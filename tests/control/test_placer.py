"""The placer against real books of agents, with every message delivered when the test says: B1 to B3, and races.

Two clients, whose schedulers know nothing of each other but what agents tell, over the same hosts.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.config import Config
from monarch_async.control.controller import Controller
from monarch_async.control.holder import Granted
from monarch_async.control.host import Host
from monarch_async.control.placer import Placer
from monarch_async.control.refusal import pack_refusal
from monarch_async.control.reservations import Reservations
from monarch_async.control.worker import Exit
from monarch_async.control.workers import Workers
from monarch_async.errors import Closed, Error, HostLost, Unschedulable
from monarch_async.ids import address, host_of
from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.resources import Resources
from monarch_async.testing import SimLoop

HERE = Resources(cpus=4, gpus=("0", "1"))


class Wire:
    """Messages one way between a client and an agent: in order, each when `deliver` is called."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def deliver(self) -> None:
        self.waiting.popleft()()


class NoProcs:
    """An agent's workers: none."""

    def living(self) -> list[Any]:
        return []

    def kill(self, workers: Sequence[Any], signo: int, by: str) -> None:
        assert not workers


class World:
    """Hosts with real books, and clients; everything on its way is in ``wires``."""

    def __init__(self, hosts: int = 2, resources: Resources = HERE) -> None:
        self.wires: dict[tuple[int, int], Wire] = {}  # by (from, to)
        self.clients: dict[int, Client] = {}
        self.agents: dict[int, Reservations] = {}
        self.hosts = [Host(id, f"host{id}", f"unix:///{id}", resources) for id in range(1, hosts + 1)]
        for host in self.hosts:
            self.agents[host.id] = self._agent(address(host.id, 0), resources)

    def _agent(self, own: int, resources: Resources) -> Reservations:
        def answer(dst: int, call: int, value: object) -> None:
            if call:
                data = msgpack.packb(value)
                self.send(own, dst, lambda: self.clients[dst].answered(call, data))

        def post(dst: int, operation: str, *arguments: object) -> None:
            data = msgpack.packb(arguments)
            self.send(own, dst, lambda: self.clients[dst].operations[operation](own, 0, *msgpack.unpackb(data)))

        return Reservations(resources, cast(Workers, NoProcs()), answer, post)

    def send(self, src: int, dst: int, deliver: Callable[[], None]) -> None:
        self.wires.setdefault((src, dst), Wire()).waiting.append(deliver)

    def ready(self) -> list[Wire]:
        return [wire for wire in self.wires.values() if wire.waiting]

    async def settle(self) -> None:
        """Deliver all there is, in some order."""
        while True:
            for _ in range(5):
                await asyncio.sleep(0)
            if not (ready := self.ready()):
                return
            for wire in ready:
                wire.deliver()

    def held(self) -> list[Held]:
        return [agent.ledger.elsewhere(0) for agent in self.agents.values()]


class Client:
    """What a placer sees of a controller."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.address = world, address(1000 + number, 1)
        self.config = Config(warn_after=1e6)
        self.on_gone: list[Callable[[Exit], None]] = []
        self.operations: dict[str, Callable[..., None]] = {}
        self.requests = self
        self.own_address = "10.0.0.9"
        self.sent: list[tuple[Any, ...]] = []  #: (host, operation, *arguments)
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._asked: dict[int, int] = {}  # call -> host
        world.clients[self.address] = self
        self.placer = Placer(cast(Controller, self))
        for host in world.hosts:
            world.agents[host.id].joined(self.address)
            self.placer.host_up(host)

    def call(self, dst: int, operation: str, *arguments: Any) -> "asyncio.Future[bytes]":
        call = len(self._calls) + 1
        self._calls[call] = answer = asyncio.get_running_loop().create_future()
        self._asked[call] = host_of(dst)
        self._send(dst, call, operation, arguments)
        return answer

    def post(self, dst: int, operation: str, *arguments: Any) -> None:
        self._send(dst, 0, operation, arguments)

    def _send(self, dst: int, call: int, operation: str, arguments: tuple[Any, ...]) -> None:
        self.sent.append((host_of(dst), operation, *arguments))
        data = msgpack.packb(arguments)
        agent = self.world.agents[host_of(dst)]
        take = agent.operations[operation]
        self.world.send(self.address, dst, lambda: take(self.address, call, *msgpack.unpackb(data)))

    def answered(self, call: int, data: bytes) -> None:
        if not self._calls[call].done():
            self._calls[call].set_result(data)

    def lose(self, host: int) -> None:
        """A host is lost, as the controller tells it: first whoever listens, then what waits for it."""
        for told in self.on_gone:
            told(Exit.host_lost(address(host, 0), f"host{host}", "gone"))
        for call, answer in self._calls.items():
            if self._asked[call] == host and not answer.done():
                answer.set_exception(HostLost(f"host{host}", "gone"))


@dataclass
class Holder:
    """Writes down what it is told."""

    told: list[Any] = field(default_factory=list)

    def take_grant(self, granted: Granted) -> None:
        self.told.append(granted)

    def take_refusal(self, error: Error) -> None:
        self.told.append(error)

    def take_loss(self, bundles: Sequence[int]) -> None:
        self.told.append(("lost", tuple(bundles)))

    def take_recall(self, by: str) -> None:
        self.told.append(("recalled", by))

    def take_end(self, why: str) -> None:
        self.told.append(("ended", why))

    @property
    def hosts(self) -> list[int]:
        (granted,) = [told for told in self.told if isinstance(told, Granted)]
        return [host.id for host, _ in granted.spots]


def gang(count: int, cpus: float = 1, gpus: float = 0, **changes: Any) -> Demand:
    return Demand([Bundle(cpus=cpus, gpus=gpus)] * count, **changes)


def asked(client: Client, id: int, demand: Demand, owner: int = 0) -> Holder:
    holder = Holder()
    client.placer.ask(id, demand, holder, owner)
    return holder


async def test_a_gang_is_told_when_the_last_agent_has_agreed_by_one_frame_per_host() -> None:
    world = World()
    ann = Client(world, 1)
    holder = asked(ann, 7, gang(8))
    assert [(host, operation, id) for host, operation, id, *_ in ann.sent] == [(1, "reserve", 7), (2, "reserve", 7)]
    there, back = world.wires[ann.address, address(1, 0)], (address(1, 0), ann.address)
    there.deliver()
    await asyncio.sleep(0)
    world.wires[back].deliver()
    await asyncio.sleep(0)
    assert not holder.told
    await world.settle()
    assert holder.hosts == [1, 1, 1, 1, 2, 2, 2, 2]
    ann.placer.withdraw(7)
    assert ann.sent[2:] == [(1, "free", [7]), (2, "free", [7])]
    await world.settle()
    assert world.held() == [Held(), Held()]


async def test_ports_and_addresses_come_with_the_grant() -> None:
    world = World()
    ann = Client(world, 1)
    holder = asked(ann, 1, gang(2, strategy="spread"))
    await world.settle()
    (granted,) = holder.told
    assert granted.addresses == {1: "127.0.0.1", 2: "127.0.0.1"}  # unix sockets: all is on this machine
    assert [len(ports) for ports in granted.ports.values()] == [2, 1]
    assert all(1024 < port < 65536 for ports in granted.ports.values() for port in ports)


@pytest.mark.parametrize(
    ("urls", "addresses"),
    [
        (["tcp://10.1.0.1:7", "tcp://10.1.0.2:7"], ["10.1.0.1", "10.1.0.2"]),
        (["unix:///a", "tls://10.1.0.2:7"], ["10.0.0.9", "10.1.0.2"]),  # the first is the client's own machine
        (["tcp://127.0.0.1:7", "tcp://[fd00::2]:7"], ["10.0.0.9", "fd00::2"]),
        (["tcp://127.0.0.1:7", "tcp://localhost:8"], ["127.0.0.1", "127.0.0.1"]),
    ],
)
async def test_hosts_are_met_where_the_others_reach_them(urls: list[str], addresses: list[str]) -> None:
    world = World()
    world.hosts = [Host(id, f"host{id}", url, HERE) for id, url in enumerate(urls, 1)]
    ann = Client(world, 1)
    holder = asked(ann, 1, gang(2, strategy="strict_spread"))
    await world.settle()
    (granted,) = holder.told
    assert list(granted.addresses.values()) == addresses


async def test_who_comes_second_waits_and_gets_it_when_the_first_is_done() -> None:
    world = World(hosts=1)
    ann, bob = Client(world, 1), Client(world, 2)
    first, second = asked(ann, 1, gang(3)), asked(bob, 2, gang(3))
    await world.settle()
    assert [len(first.told), len(second.told)] == [1, 0]
    assert bob.placer.scheduler.holdings(0.0).hosts[0].elsewhere == Held(30_000)
    ann.placer.withdraw(1)
    await world.settle()
    assert second.hosts == [1, 1, 1]
    assert world.held() == [Held(30_000)]


async def test_a_gang_that_one_agent_refuses_frees_the_others() -> None:
    world = World()
    ann, bob = Client(world, 1), Client(world, 2)
    first, second = asked(ann, 1, gang(1, cpus=3, hosts=["host2"])), asked(bob, 2, gang(8))
    await world.settle()
    assert first.hosts == [2]
    assert not second.told
    assert world.held() == [Held(), Held(30_000)]
    assert (1, "free", [2]) in bob.sent
    ann.placer.withdraw(1)
    await world.settle()
    assert len(second.hosts) == 8


@pytest.mark.parametrize("small", [0, 1])
async def test_b4_of_two_gangs_that_meet_on_all_hosts_one_gets_them(small: int) -> None:
    world = World(hosts=3)
    ann, bob = Client(world, 1), Client(world, 2)
    asked((ann, bob)[small], 1, gang(1))
    gangs = [asked(ann, 2, gang(8)), asked(bob, 3, gang(8))]
    async with asyncio.timeout(5):
        await world.settle()
    assert sum(bool(holder.told) for holder in gangs) == 1
    (ann if gangs[0].told else bob).placer.withdraw(2 if gangs[0].told else 3)
    await asyncio.sleep(0.2)  # refused agents are asked again after a pause
    await world.settle()
    assert all(holder.told for holder in gangs)
    for client in (ann, bob):
        client.placer.close(Closed("this program"))


async def test_b1_what_is_withdrawn_while_agents_are_asked_is_freed_and_told_nothing() -> None:
    world = World()
    ann = Client(world, 1)
    holder = asked(ann, 1, gang(8))
    world.wires[ann.address, address(1, 0)].deliver()
    ann.placer.withdraw(1)
    await world.settle()
    assert not holder.told
    assert world.held() == [Held(), Held()]


async def test_a_host_that_is_lost_while_it_is_asked_is_replaced() -> None:
    world = World(hosts=3)
    ann = Client(world, 1)
    holder = asked(ann, 1, gang(8))
    first, second = (host for host, *_ in ann.sent)
    ann.lose(second)
    await world.settle()
    assert set(holder.hosts) == {first, 6 - first - second}
    assert len(holder.told) == 1


async def test_bundles_on_a_host_that_is_lost_later_are_told_and_the_rest_is_held() -> None:
    world = World()
    ann = Client(world, 1)
    holder = asked(ann, 1, gang(8))
    await world.settle()
    ann.lose(2)
    assert holder.told[1:] == [("lost", (4, 5, 6, 7))]
    assert world.held()[0] == Held(40_000)
    ann.placer.withdraw(1)
    await world.settle()
    assert world.held()[0] == Held()
    assert (2, "free", [1]) not in ann.sent


@pytest.mark.parametrize("turns", range(3))
async def test_b1_what_is_asked_for_within_a_placement_that_ends_meanwhile_is_refused(turns: int) -> None:
    world = World(hosts=1)
    ann = Client(world, 1)
    asked(ann, 1, gang(2))
    await world.settle()
    inner = asked(ann, 2, gang(1, within=(1, 0)))
    for _ in range(turns):  # the request and its answer are on their way
        for wire in world.ready():
            wire.deliver()
    ann.placer.withdraw(1)
    await world.settle()
    assert [type(told) for told in inner.told] == [Unschedulable]
    assert "what it was to be placed within has ended" in str(inner.told[0])
    ann.placer.withdraw(2)
    await world.settle()
    assert world.held() == [Held()] and not world.agents[1].ledger.entries


async def test_an_agent_that_cannot_say_yes_is_asked_again_later(caplog: pytest.LogCaptureFixture) -> None:
    world = World(hosts=1)
    ann = Client(world, 1)
    take = world.agents[1].operations["reserve"]
    broken = msgpack.packb(pack_refusal(Error("no")))
    world.agents[1].operations["reserve"] = lambda src, call, *_: ann.answered(call, broken)
    holder = asked(ann, 1, gang(1))
    await world.settle()
    assert not holder.told
    assert "placement was not reserved on host1: no" in caplog.text
    world.agents[1].operations["reserve"] = take
    await asyncio.sleep(1)
    await world.settle()
    assert holder.hosts == [1]


async def test_what_a_proc_holds_and_waits_for_ends_with_it() -> None:
    world = World(hosts=1)
    ann = Client(world, 1)
    proc = address(1, 77)
    held, waiting = asked(ann, 1, gang(4), owner=proc), asked(ann, 2, gang(4), owner=proc)
    other = asked(ann, 3, gang(4))
    await world.settle()
    for told in ann.on_gone:
        told(Exit.unknown(proc, "host1"))
    await world.settle()
    assert other.hosts == [1] * 4
    assert len(held.told) == 1 and not waiting.told


async def test_procs_on_a_lost_host_hold_nothing_elsewhere() -> None:
    world = World()
    ann = Client(world, 1)
    asked(ann, 1, gang(4, hosts=["host2"]), owner=address(1, 77))
    await world.settle()
    ann.lose(1)
    await world.settle()
    assert world.held()[1] == Held()


async def test_lent_cpus_are_others_at_the_agents_too() -> None:
    world = World(hosts=1)
    ann, bob = Client(world, 1), Client(world, 2)
    asked(ann, 1, gang(4))
    await world.settle()
    ann.placer.lend(1)
    theirs = asked(bob, 2, gang(2))
    await world.settle()
    assert theirs.hosts == [1, 1]
    ann.placer.reclaim(1)
    await world.settle()
    assert world.held() == [Held(60_000)]
    assert bob.placer.scheduler.holdings(0.0).hosts[0].elsewhere == Held(40_000)


async def test_what_is_placed_within_ends_with_what_it_was_placed_in() -> None:
    world = World(hosts=1)
    ann = Client(world, 1)
    asked(ann, 1, gang(1, cpus=2))
    inner = asked(ann, 2, gang(2, within=(1, 0)))
    await world.settle()
    assert world.held() == [Held(20_000)]
    assert world.agents[1].ledger.has(2)
    ann.placer.withdraw(1)
    await world.settle()
    assert inner.told[1:] == [("ended", "what it was placed within has ended")]
    assert not world.agents[1].ledger.entries
    ann.placer.withdraw(2)  # its holder gives it back, which it need not


async def test_what_others_hold_is_known_before_a_host_is_up() -> None:
    world = World(hosts=1)
    ann = Client(world, 1)
    asked(ann, 1, gang(3))
    await world.settle()
    host = world.hosts.pop()
    bob = Client(world, 2)  # it joins no host yet
    world.agents[1].joined(bob.address)
    await world.settle()
    bob.placer.host_up(host)
    assert bob.placer.scheduler.holdings(0.0).hosts[0].elsewhere == Held(30_000)


async def test_what_can_never_be_is_refused_and_forgotten() -> None:
    ann = Client(World(), 1)
    holder = asked(ann, 1, gang(9))
    (error,) = holder.told
    assert isinstance(error, Unschedulable)
    assert ann.placer.holder_of(1) is None


async def test_b3_a_holder_that_acts_while_it_is_told_is_heard_afterwards() -> None:
    ann = Client(World(hosts=1), 1)
    other = Holder()

    class Impatient(Holder):
        def take_refusal(self, error: Error) -> None:
            super().take_refusal(error)
            ann.placer.ask(2, gang(9), other)
            assert not other.told

    holder = Impatient()
    ann.placer.ask(1, gang(9), holder)
    assert [type(told) for told in (*holder.told, *other.told)] == [Unschedulable, Unschedulable]


async def test_who_waits_when_the_program_ends_is_told_so() -> None:
    world = World(hosts=1)
    ann = Client(world, 1)
    held, waiting = asked(ann, 1, gang(4)), asked(ann, 2, gang(1))
    await world.settle()
    ann.placer.close(Closed("this program"))
    late = asked(ann, 3, gang(1))
    assert len(held.told) == 1
    assert [str(told) for told in (*waiting.told, *late.told)] == ["this program is closed"] * 2


async def test_a_wait_is_warned_of_when_it_is_long(caplog: pytest.LogCaptureFixture) -> None:
    world = World(hosts=1)
    ann = Client(world, 1)
    ann.placer.scheduler.warn_after = 0.05
    asked(ann, 1, gang(4))
    asked(ann, 2, gang(1, name="late"))
    with caplog.at_level(logging.WARNING, "monarch_async"):
        async with asyncio.timeout(5):
            while not caplog.records:
                await asyncio.sleep(0.01)
    assert caplog.records[0].getMessage().startswith("late (1 cpu) has waited")
    ann.placer.close(Closed("this program"))


# -- any order ---------------------------------------------------------------------------------------------------------

_DEMANDS = [
    gang(1), gang(3), gang(8), gang(2, strategy="strict_spread"), gang(2, gpus=1), gang(1, gpus=0.5), gang(4, cpus=0.5),
]  # fmt: skip

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 1), st.integers(0, len(_DEMANDS) - 1)),
        st.tuples(st.just("withdraw"), st.integers(0, 1), st.integers(0, 7)),
        st.tuples(st.just("lend"), st.integers(0, 1), st.integers(0, 7)),
        st.tuples(st.just("reclaim"), st.integers(0, 1), st.integers(0, 7)),
        st.tuples(st.just("deliver"), st.integers(0, 7), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 1), st.integers(1, 3)),
    ),
    max_size=40,
)


@given(_steps)
@settings(max_examples=60, deadline=None)
def test_whatever_comes_in_whatever_order_books_agree_and_return_to_zero(steps: list[tuple[str, int, int]]) -> None:
    with asyncio.Runner(loop_factory=lambda: SimLoop(0)) as runner:
        runner.run(_play(steps))


async def _play(steps: list[tuple[str, int, int]]) -> None:
    world = World(hosts=3)
    clients = [Client(world, 1), Client(world, 2)]
    asks: list[list[tuple[int, Holder]]] = [[], []]
    withdrawn: set[int] = set()
    ids = iter(range(1, 1000))
    for kind, first, second in steps:
        if kind == "deliver":
            if ready := world.ready():
                ready[first % len(ready)].deliver()
                await asyncio.sleep(0)
        elif kind == "ask":
            id = next(ids)
            asks[first].append((id, asked(clients[first], id, _DEMANDS[second])))
        elif kind == "lose":
            clients[first].lose(second)
            world.agents[second].left(clients[first].address)
            for pair in ((clients[first].address, address(second, 0)), (address(second, 0), clients[first].address)):
                world.wires.pop(pair, None)
        elif asks[first]:
            id, _ = asks[first][second % len(asks[first])]
            getattr(clients[first].placer, kind)(id)
            withdrawn |= {id} if kind == "withdraw" else set()
        await asyncio.sleep(0)
    await world.settle()
    await asyncio.sleep(30)  # refused ones are tried again after a pause; nothing is due after that
    await world.settle()
    for client, mine in zip(clients, asks, strict=True):
        _check_agreement(world, client)
        for id, holder in mine:
            answers = [told for told in holder.told if isinstance(told, Granted | Error)]
            assert len(answers) <= 1  # B1
            assert answers or id in withdrawn or client.placer.holder_of(id) is not None
            client.placer.withdraw(id)
    await world.settle()
    for agent in world.agents.values():
        assert not agent.ledger.entries
    for client in clients:
        for host in client.placer.scheduler.holdings(0.0).hosts:
            assert host.free == host.total
        client.placer.close(Closed("this program"))


def _check_agreement(world: World, client: Client) -> None:
    """B2: what agents have booked for a client is what its scheduler says it holds."""
    for host in client.placer.scheduler.holdings(0.0).hosts:
        entries = world.agents[host.host].ledger.entries
        mine = {entry.placement: entry.held for entry in entries if entry.client == client.address}
        assert mine == {holding.id: holding.held for holding in host.holdings}
