"""The scheduler survives any order of events: P1 to P7 hold after each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from brute_force import check_grant, fits
from few_hosts import gang, host, is_empty
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.scheduler.demand import STRATEGIES, Bundle, Demand
from monarch_async.scheduler.events import (
    Ask,
    Command,
    Event,
    Grant,
    Held,
    HolderGone,
    HostClosed,
    HostGone,
    HostOpened,
    HostUp,
    Lend,
    Lost,
    Recall,
    Reclaim,
    Refused,
    Reject,
    Release,
    TakenElsewhere,
    Tick,
    Warn,
    Withdraw,
)
from monarch_async.scheduler.scheduler import Scheduler

HOSTS = (host(4, gpus=2), host(3), host(4, gpus=1))
NOTHING = Held()


@dataclass
class Model:
    """What a shell would know of placements: an independent book."""

    made: Scheduler
    asked: dict[int, Demand] = field(default_factory=dict)
    holders: dict[int, int] = field(default_factory=dict)
    granted: dict[int, Grant] = field(default_factory=dict)
    lost: dict[int, set[int]] = field(default_factory=dict)
    lent: set[int] = field(default_factory=set)
    up: set[int] = field(default_factory=lambda: set(range(len(HOSTS))))
    closed: set[int] = field(default_factory=set)
    elsewhere: dict[int, Held] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    recalled: set[int] = field(default_factory=set)
    now: float = 0.0

    def handle(self, event: Event) -> None:
        """Give it an event, and check what it says."""
        for command in self.made.handle(event, self.now):
            self.check(command)

    def check(self, command: Command) -> None:
        """Check one command and write it down."""
        match command:
            case Grant(id):
                assert id in self.asked and id not in self.granted
                check_grant(self.asked[id], command)
                assert all(spot.host in self.up and spot.host not in self.closed for spot in command.spots)
                self.granted[id] = command
                self.lost[id] = set()
                if self.asked[id].within is None:
                    for held_on in {spot.host for spot in command.spots}:
                        self.check_host(held_on, command)
            case Reject(id, _, why):
                assert why and id in self.asked and id not in self.granted
                self.forget(id)
            case Release(id, hosts):
                if id in self.granted:
                    assert set(hosts) <= self.up
                    self.forget(id)
            case Lost(id, bundles):
                assert id in self.granted and bundles
                self.lost[id].update(bundles)
            case Recall(id):
                assert id in self.granted and id not in self.recalled
                assert self.asked[id].is_spare or self.asked[id].preemptible
                self.recalled.add(id)
            case Warn(id, text):
                assert id in self.asked and text

    def forget(self, id: int) -> None:
        """A placement has ended."""
        del self.asked[id]
        for known in (self.granted, self.lost, self.holders):
            known.pop(id, None)
        self.lent.discard(id)
        self.recalled.discard(id)

    def free(self, number: int) -> tuple[int, list[int]]:
        """Return what is left on a host."""
        cpus = round(HOSTS[number].cpus * 10_000)
        devices = dict.fromkeys(HOSTS[number].gpus, 10_000)
        parts = [self.elsewhere.get(number, NOTHING)]
        for id, grant in self.granted.items():
            if self.asked[id].within is None:
                parts += [
                    Held(0 if id in self.lent else held.cpus, held.gpus)
                    for bundle, (spot, held) in enumerate(zip(grant.spots, grant.held, strict=True))
                    if spot.host == number and bundle not in self.lost[id]
                ]
        for held in parts:
            cpus -= held.cpus
            for device, amount in held.gpus:
                devices[device] -= amount
        return cpus, list(devices.values())

    def check_host(self, number: int, grant: Grant) -> None:
        """Check that a grant took no more than there was (P2)."""
        cpus, devices = self.free(number)
        mine = [held for spot, held in zip(grant.spots, grant.held, strict=True) if spot.host == number]
        assert cpus >= 0 or not any(held.cpus for held in mine)
        for device, left in zip(HOSTS[number].gpus, devices, strict=True):
            assert left >= 0 or not any(name == device for held in mine for name, _ in held.gpus)

    def check_waiting(self) -> None:
        """Check that the first in the queue really does not fit, nor, where nothing is kept, anybody (P5)."""
        waiting = self.made.holdings(0.0).waiting
        assert {waiter.id for waiter in waiting} == set(self.asked) - set(self.granted)
        free = {number: self.free(number) for number in sorted(self.up - self.closed)}
        for waiter in waiting if not any(waiter.kept_on for waiter in waiting) else waiting[:1]:
            demand = self.asked[waiter.id]
            is_plain = demand.within is None and demand.near is None and demand.apart is None
            refused = [self.asked[id] for id in self.refused if id in self.asked]
            if is_plain and demand not in refused:  # those behind it in line wait with it (P9)
                assert not free or not fits(demand, free)

    def check_books(self) -> None:
        """Check that what the scheduler calls free is what is left here."""
        for entry in self.made.holdings(0.0).hosts:
            cpus, devices = self.free(entry.host)
            assert entry.free.cpus == max(cpus, 0)
            assert dict(entry.free.gpus) == {
                device: left for device, left in zip(HOSTS[entry.host].gpus, devices, strict=True) if left > 0
            }


bundles = st.builds(Bundle, st.sampled_from([0, 0.5, 1, 1, 2, 3]), st.sampled_from([0, 0, 0, 0.3, 0.5, 1, 2]))
demands = st.builds(
    Demand,
    st.one_of(
        st.lists(bundles, min_size=1, max_size=3),
        st.builds(lambda bundle, count: [bundle] * count, bundles, st.integers(1, 4)),
    ),
    st.sampled_from(STRATEGIES),
    priority=st.integers(0, 2),
    preempts=st.booleans(),
    preemptible=st.booleans(),
    is_spare=st.booleans(),
    near=st.one_of(st.none(), st.none(), st.integers(0, 8)),
    apart=st.one_of(st.none(), st.none(), st.integers(0, 8)),
)
steps = st.one_of(
    st.tuples(st.just("ask"), demands),
    st.tuples(st.just("ask"), demands),
    st.tuples(st.just("within"), st.integers(0, 30), st.sampled_from([0.5, 1, 2])),
    st.tuples(st.just("withdraw"), st.integers(0, 30)),
    st.tuples(st.just("withdraw"), st.integers(0, 30)),
    st.tuples(st.just("recalled"), st.integers(0, 30)),
    st.tuples(st.just("holder"), st.integers(0, 3)),
    st.tuples(st.just("gone"), st.integers(0, 2)),
    st.tuples(st.just("up"), st.integers(0, 2)),
    st.tuples(st.just("close"), st.integers(0, 2)),
    st.tuples(st.just("open"), st.integers(0, 2)),
    st.tuples(st.just("elsewhere"), st.integers(0, 2), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("refuse"), st.integers(0, 30)),
    st.tuples(st.just("lend"), st.integers(0, 30)),
    st.tuples(st.just("reclaim"), st.integers(0, 30)),
    st.tuples(st.just("tick"), st.sampled_from([0.01, 1.0, 20.0])),
)


def pick(ids: Sequence[int], number: int) -> int | None:
    """Return one of the ids, or None where there is none."""
    return ids[number % len(ids)] if ids else None


def step(model: Model, what: tuple, id: int) -> None:
    """Do one thing."""
    match what:
        case ("ask", demand):
            model.asked[id], model.holders[id] = demand, id % 4
            model.handle(Ask(id, demand, id % 4))
        case ("within", number, cpus):
            parent = pick(sorted(model.granted), number)
            if parent is not None:
                model.asked[id] = Demand([Bundle(cpus)], within=(parent, 0), is_spare=bool(number % 2))
                model.holders[id] = id % 4
                model.handle(Ask(id, model.asked[id], id % 4))
        case ("withdraw", number):
            if (chosen := pick(sorted(model.asked), number)) is not None:
                if chosen not in model.granted:
                    model.forget(chosen)
                model.handle(Withdraw(chosen))
                assert chosen not in model.asked
        case ("recalled", number):
            if (chosen := pick(sorted(model.recalled), number)) is not None:
                model.handle(Withdraw(chosen))
        case ("holder", holder):
            for chosen in [one for one, of in model.holders.items() if of == holder and one not in model.granted]:
                model.forget(chosen)
            model.handle(HolderGone(holder))
            assert holder not in model.holders.values()
        case ("gone", number):
            model.up.discard(number)
            model.elsewhere.pop(number, None)
            model.handle(HostGone(number))
        case ("up", number):
            model.elsewhere.pop(number, None)
            model.closed.discard(number)
            model.up.add(number)
            # What was there is lost before anything new is granted.
            model.handle(HostUp(number, f"host{number}", HOSTS[number]))
        case ("close", number):
            if number in model.up:
                model.closed.add(number)
                model.handle(HostClosed(number))
        case ("open", number):
            model.closed.discard(number)
            model.handle(HostOpened(number))
        case ("elsewhere", number, cpus, has_gpu):
            if number in model.up:
                gpus = ((HOSTS[number].gpus[0], 10_000),) if has_gpu and HOSTS[number].gpus else ()
                model.elsewhere[number] = Held(cpus * 10_000, gpus)
                model.refused = {id: at for id, at in model.refused.items() if at != number}
                model.handle(TakenElsewhere(number, model.elsewhere[number]))
        case ("refuse", number):
            if (chosen := pick(sorted(model.granted), number)) is not None and not model.lost[chosen]:
                at = model.granted.pop(chosen).spots[0].host
                model.lent.discard(chosen), model.recalled.discard(chosen)
                model.refused[chosen] = at
                model.handle(Refused(chosen, at))
        case ("lend", number):
            if (chosen := pick(sorted(model.granted), number)) is not None:
                if any(of.within and of.within[0] == chosen for of in model.asked.values()):
                    return
                if model.asked[chosen].within is None:
                    model.lent.add(chosen)
                    model.handle(Lend(chosen))
        case ("reclaim", number):
            if (chosen := pick(sorted(model.lent), number)) is not None:
                model.lent.discard(chosen)
                model.handle(Reclaim(chosen))
        case ("tick", seconds):
            model.now += seconds
            due = model.made.next_tick(model.now)
            assert due is None or due >= model.now
            model.refused.clear() if seconds > 10 else None
            model.handle(Tick())


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40))
def test_any_order_of_events(events: list[tuple]):
    model = Model(Scheduler(warn_after=5.0, passes=3, patience=15.0, grace=5.0))
    for number, resources in enumerate(HOSTS):
        model.handle(HostUp(number, f"host{number}", resources))
    for id, what in enumerate(events):
        step(model, what, id)
        model.check_waiting()
        model.check_books()
        assert model.made.explain(gang(2), model.now)
    for number in range(len(HOSTS)):
        model.elsewhere.pop(number, None)
        model.handle(TakenElsewhere(number, NOTHING))
    for id in list(model.asked):
        if id not in model.asked:
            continue
        if id not in model.granted:
            model.forget(id)
        model.handle(Withdraw(id))
    assert not model.asked and is_empty(model.made)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=60, max_size=120),
    st.sampled_from(["pack", "strict_pack", "strict_spread", "spread"]),
)
def test_a_gang_is_served_within_a_bound_whatever_comes_after_it(small: list[tuple[int, int]], strategy: str):
    """P5: each small one runs for some turns; the gang has its hosts once those that passed have ended."""
    made = Scheduler(passes=5, patience=1e9)
    for number in range(2):
        made.handle(HostUp(number, f"host{number}", host(3)), 0.0)
    wanted = gang(2, 3, strategy=strategy) if strategy != "strict_pack" else gang(3, 1, strategy=strategy)
    ends: dict[int, int] = {}
    durations = {id: turns for id, (_, turns) in enumerate(small)}

    def granted_gang(commands: Sequence[Command], turn: int) -> bool:
        for command in commands:
            if isinstance(command, Grant):
                if command.id == -2:
                    return True
                ends[command.id] = turn + durations[command.id]
        return False

    for turn, (cpus, _) in enumerate(small):
        commands = made.handle(Ask(turn, gang(1, cpus)), 0.0)
        if turn == 3:
            commands += made.handle(Ask(-2, wanted), 0.0)
        for id in [id for id, end in ends.items() if end <= turn]:
            del ends[id]
            commands += made.handle(Withdraw(id), 0.0)
        if granted_gang(commands, turn):
            return
    raise AssertionError("the gang starves")
