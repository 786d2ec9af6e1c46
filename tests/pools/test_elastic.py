"""The elastic pool as a state machine: exact commands, and any order of events."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.errors import Closed
from monarch_async.pools.elastic import NO_ROOM_PAUSE, Elastic, Stage
from monarch_async.pools.events import (
    Asked,
    CallerGone,
    Closing,
    Command,
    Died,
    Drain,
    End,
    Event,
    Fail,
    Give,
    GiveUp,
    Gone,
    Opened,
    Placed,
    Retried,
    Returned,
    Start,
    Tick,
    Unplaced,
    Up,
)
from monarch_async.pools.sizing import Sizes

BOOM = RuntimeError("boom")


def broken(failures: int, error: Exception) -> Exception:
    return Closed("pool", f"{failures} failures; the last: {error}")


def make(**sizes: Any) -> Elastic:
    return Elastic(Sizes(**{"concurrency": 2, "scale_up_after": 1.0, "idle": 10.0, **sizes}), broken)


def opened(count: int = 1, **sizes: Any) -> Elastic:
    """Return a pool of which so many replicas are up."""
    made = make(least=count, **sizes)
    assert made.handle(Opened(), 0.0) == [Start(id) for id in range(1, count + 1)]
    for id in range(1, count + 1):
        start(made, id)
    return made


def start(made: Elastic, id: int, now: float = 0.0) -> list[Command]:
    return made.handle(Placed(id), now) + made.handle(Up(id), now)


def ask(made: Elastic, number: int, key: str | None = None, now: float = 0.0, caller: int = 7) -> list[Command]:
    return made.handle(Asked((caller, number), key), now)


def give_back(made: Elastic, number: int, now: float = 0.0, caller: int = 7) -> list[Command]:
    return made.handle(Returned((caller, number)), now)


def given_to(commands: list[Command]) -> list[int]:
    return [command.replica for command in commands if isinstance(command, Give)]


def test_leases_go_to_the_least_loaded() -> None:
    """E2."""
    made = opened(2)
    assert [given_to(ask(made, number)) for number in range(4)] == [[1], [2], [1], [2]]
    give_back(made, 1)
    assert given_to(ask(made, 5)) == [2]


def test_leases_wait_in_order() -> None:
    """E1, E2."""
    made = opened(1, most=1)
    ask(made, 0), ask(made, 1)
    assert ask(made, 2) == [] and ask(made, 3) == []
    assert give_back(made, 0) == [Give((7, 2), 1)]
    assert give_back(made, 3) == []
    assert give_back(made, 1) == []
    assert made.waiting == {}


def test_a_key_stays_with_its_replica_while_that_has_room() -> None:
    """E2."""
    made = opened(2)
    assert given_to(ask(made, 0, "a")) == [1]
    assert given_to(ask(made, 1, "a")) == [1]
    assert given_to(ask(made, 2, "a")) == [2]
    assert given_to(give_back(made, 0)) == []
    assert given_to(ask(made, 3, "a")) == [2]
    for number in range(1, 4):
        give_back(made, number)
    made.handle(Drain(2), 0.0)
    assert given_to(ask(made, 4, "a")) == [1]


def test_another_is_started_when_somebody_has_waited() -> None:
    """E4."""
    made = opened(1, most=3)
    ask(made, 0), ask(made, 1)
    assert made.next_tick(0.0) is None
    assert ask(made, 2, now=5.0) == []
    assert made.next_tick(5.0) == 6.0
    assert made.handle(Tick(), 5.9) == []
    assert made.handle(Tick(), 6.0) == [Start(2)]
    assert made.next_tick(6.0) is None
    assert start(made, 2, 7.0) == [Give((7, 2), 2)]
    for number in range(3, 6):
        ask(made, number, now=8.0)
    assert made.handle(Tick(), 9.0) == [Start(3)]
    assert made.next_tick(9.0) is None
    assert start(made, 3, 9.0) == [Give((7, 4), 3), Give((7, 5), 3)]
    ask(made, 6, now=10.0)
    assert made.next_tick(10.0) is None, "there may be no more"


def test_as_many_are_started_as_those_that_wait_need() -> None:
    made = opened(1, most=10)
    for number in range(9):
        ask(made, number)
    assert made.handle(Tick(), 1.0) == [Start(2), Start(3), Start(4), Start(5)]


def test_an_empty_pool_starts_one_at_once() -> None:
    made = make(least=0)
    assert made.handle(Opened(), 0.0) == []
    assert ask(made, 0) == [Start(1)]
    assert start(made, 1) == [Give((7, 0), 1)]


def test_idle_ones_end_down_to_the_least() -> None:
    """E5."""
    made = opened(1, most=3)
    for number in range(5):
        ask(made, number)
    assert made.handle(Tick(), 1.0) == [Start(2), Start(3)]
    start(made, 2, 1.0), start(made, 3, 1.0)
    for number in range(5):
        give_back(made, number, 2.0)
    assert made.next_tick(2.0) == 12.0
    assert made.handle(Tick(), 11.9) == []
    assert made.handle(Tick(), 12.0) == [End(3), End(2)]
    assert made.count(Stage.UP) == 1 and made.members[1].stage is Stage.UP


def test_a_drained_one_ends_with_its_last_lease_and_is_replaced() -> None:
    """E5, E3."""
    made = opened(1)
    ask(made, 0), ask(made, 1)
    assert made.handle(Drain(1), 0.0) == [Start(2)]
    assert ask(made, 2) == []
    assert give_back(made, 0) == []
    assert give_back(made, 1) == [End(1)]
    assert start(made, 2) == [Give((7, 2), 2)]
    assert made.handle(Gone(1), 0.0) == []


def test_a_drained_one_is_replaced_when_it_is_gone_where_there_may_be_no_more() -> None:
    """E3."""
    made = opened(1, most=1)
    assert made.handle(Drain(1), 0.0) == [End(1)]
    assert made.handle(Gone(1), 0.0) == [Start(2)]


def test_a_dead_one_is_replaced_after_a_pause_that_doubles() -> None:
    made = opened(1, backoff=1.0)
    ask(made, 0)
    assert made.handle(Died(1, BOOM), 0.0) == [End(1)]
    assert made.next_tick(0.0) == 1.0
    assert made.handle(Gone(1), 0.5) == []
    assert made.handle(Tick(), 1.0) == [Start(2)]
    assert give_back(made, 0) == [], "the replica of this lease is gone"
    assert made.handle(Died(2, BOOM), 2.0) == [End(2)]
    assert made.next_tick(2.0) == 4.0


def test_one_whose_host_is_lost_is_replaced_at_once_and_counts_for_nothing() -> None:
    made = opened(1)
    assert made.handle(Died(1, BOOM, is_fault=False), 0.0) == [End(1), Start(2)]
    assert made.failures == 0


def test_it_gives_up_after_failures_in_a_row() -> None:
    """E6."""
    made = opened(1, failures=3, backoff=1.0)
    now = 0.0
    for id in (1, 2):
        made.handle(Died(id, BOOM), now)
        made.handle(Gone(id), now)
        now += 10.0
        assert made.handle(Tick(), now) == [Start(id + 1)]
    start(made, 3, now)
    ask(made, 0), ask(made, 1), ask(made, 2)
    _, give_up, fail = made.handle(Died(3, BOOM), now)
    assert isinstance(give_up, GiveUp) and give_up.is_delivered and give_up.failures == 3
    assert isinstance(fail, Fail) and str(fail.error) == "pool is closed: 3 failures; the last: boom"
    (fail,) = ask(made, 3)
    assert isinstance(fail, Fail)
    assert made.next_tick(now) is None
    assert made.handle(Retried(), now) == [Start(4)]


def test_a_lease_that_ends_well_begins_the_count_anew() -> None:
    """E6."""
    made = opened(1, failures=2)
    for id in range(1, 6):
        ask(made, id, now=id * 10.0)
        give_back(made, id, now=id * 10.0)
        made.handle(Died(id, BOOM), id * 10.0)
        made.handle(Gone(id), id * 10.0)
        assert made.handle(Tick(), id * 10.0 + 5) == [Start(id + 1)]
        start(made, id + 1, id * 10.0 + 5)


def test_no_room_is_told_to_those_that_wait_only_where_there_is_none_at_all() -> None:
    made = opened(1, most=2)
    for number in range(3):
        ask(made, number)
    assert made.handle(Tick(), 1.0) == [Start(2)]
    assert made.handle(Unplaced(2, BOOM), 1.0) == [End(2)]
    made.handle(Gone(2), 1.0)
    assert made.next_tick(1.0) == 1.0 + NO_ROOM_PAUSE
    assert made.handle(Tick(), 1.0 + NO_ROOM_PAUSE) == [Start(3)]
    made = make(least=0)
    made.handle(Opened(), 0.0), ask(made, 0)
    assert made.handle(Unplaced(1, BOOM), 0.0) == [End(1), Fail((7, 0), BOOM)]


def test_the_leases_of_a_process_end_with_it() -> None:
    made = opened(1, most=1)
    ask(made, 0, caller=8), ask(made, 1, caller=9), ask(made, 2, caller=8), ask(made, 3, caller=9)
    assert made.handle(CallerGone(8), 0.0) == [Give((9, 3), 1)]
    assert made.handle(CallerGone(8), 0.0) == []


def test_who_waits_gets_nothing_where_its_process_ends_together_with_its_leases() -> None:
    made = opened(1, most=1, concurrency=3)
    for number in range(9):
        ask(made, number, caller=8)
    ask(made, 0, caller=9)
    assert made.handle(CallerGone(8), 0.0) == [Give((9, 0), 1)]


def test_closing_ends_everything() -> None:
    made = opened(1, most=2)
    for number in range(3):
        ask(made, number)
    made.handle(Tick(), 1.0)
    closed = Closed("pool", "its block has ended")
    assert made.handle(Closing(closed), 2.0) == [Fail((7, 2), closed), End(1), End(2)]
    assert ask(made, 4) == [Fail((7, 4), closed)]
    assert made.handle(Died(2, BOOM), 2.0) == []
    assert made.handle(Gone(1), 3.0) == [] and made.handle(Gone(2), 3.0) == []
    give_back(made, 0), give_back(made, 1)
    assert not made.members and made.next_tick(4.0) is None


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 2), st.sampled_from([None, "a", "b"])),
        st.tuples(st.just("ask"), st.integers(0, 2), st.none()),
        st.tuples(st.just("return"), st.integers(0, 20)),
        st.tuples(st.just("caller"), st.integers(0, 2)),
        st.tuples(st.just("progress"), st.integers(0, 20)),
        st.tuples(st.just("progress"), st.integers(0, 20)),
        st.tuples(st.just("unplaced"), st.integers(0, 20)),
        st.tuples(st.just("died"), st.integers(0, 20), st.booleans()),
        st.tuples(st.just("drain"), st.integers(0, 20)),
        st.tuples(st.just("tick"), st.sampled_from([0.1, 1.0, 20.0])),
        st.tuples(st.just("retry")),
    ),
    max_size=60,
)


class Shell:
    """Does what a pool wants, and checks that it may want it."""

    def __init__(self, sizes: Sizes) -> None:
        self.made, self.sizes, self.now = Elastic(sizes, broken), sizes, 0.0
        self.live: dict[int, str] = {}
        self.waiting: list[tuple[int, int]] = []
        self.given: dict[tuple[int, int], int] = {}

    def feed(self, event: Event) -> None:
        for command in self.made.handle(event, self.now):
            match command:
                case Start(id):
                    self.live[id] = "placing"
                    assert len(self.live) <= self.sizes.most, "E3"
                case End(id):
                    assert self.live[id] != "ending"
                    self.live[id] = "ending"
                case Give(lease, id):
                    assert self.waiting.pop(0) == lease, "E2"
                    assert self.live[id] == "up", "E1"
                    self.given[lease] = id
                    assert list(self.given.values()).count(id) <= self.sizes.concurrency, "E1"
                case Fail(lease, error):
                    assert str(error)
                    self.waiting.remove(lease)
                case GiveUp(_, failures):
                    assert failures >= self.sizes.failures
        self.check_waiting()

    def check_waiting(self) -> None:
        """E4."""
        assert list(self.made.waiting) == self.waiting
        if self.waiting and not any(state in ("placing", "starting") for state in self.live.values()):
            is_full = len(self.live) >= self.sizes.most
            assert is_full or self.made.next_tick(self.now) is not None or "up" in self.live.values()

    def step(self, what: tuple[Any, ...], number: int) -> None:
        ids = sorted(self.live)
        match what:
            case ("ask", caller, key):
                self.waiting.append((caller, number))
                self.feed(Asked((caller, number), key))
            case ("return", pick):
                leases = sorted([*self.waiting, *self.given])
                if leases:
                    lease = leases[pick % len(leases)]
                    self.given.pop(lease, None)
                    if lease in self.waiting:
                        self.waiting.remove(lease)
                    self.feed(Returned(lease))
            case ("caller", caller):
                self.waiting = [lease for lease in self.waiting if lease[0] != caller]
                self.given = {lease: id for lease, id in self.given.items() if lease[0] != caller}
                self.feed(CallerGone(caller))
            case ("progress", pick) if ids:
                self.progress(ids[pick % len(ids)])
            case ("unplaced", pick) if ids and self.live[ids[pick % len(ids)]] == "placing":
                self.feed(Unplaced(ids[pick % len(ids)], BOOM))
            case ("died", pick, is_fault) if ids and self.live[ids[pick % len(ids)]] != "placing":
                self.feed(Died(ids[pick % len(ids)], BOOM, is_fault))
            case ("drain", pick) if ids:
                self.feed(Drain(ids[pick % len(ids)]))
            case ("tick", seconds):
                self.now += seconds
                self.feed(Tick())
                due = self.made.next_tick(self.now)
                assert due is None or due > self.now, "a tick that is due does what it is for"
            case ("retry",):
                self.feed(Retried())
            case _:
                pass

    def progress(self, id: int) -> None:
        match self.live[id]:
            case "placing":
                self.live[id] = "starting"
                self.feed(Placed(id))
            case "starting":
                self.live[id] = "up"
                self.feed(Up(id))
            case "ending":
                del self.live[id]
                for lease in [lease for lease, at in self.given.items() if at == id]:
                    self.given[lease] = -1
                self.feed(Gone(id))


@settings(max_examples=300, deadline=None)
@given(steps, st.integers(0, 2), st.integers(2, 4))
def test_any_order_of_events(events: list[tuple[Any, ...]], least: int, most: int) -> None:
    shell = Shell(Sizes(least, most, 2, 0.5, 10.0, 4, 0.5))
    shell.feed(Opened())
    for number, what in enumerate(events):
        shell.step(what, number)
    shell.waiting_before_close = list(shell.waiting)  # type: ignore[attr-defined]
    shell.feed(Closing(Closed("pool", "done")))
    assert not shell.waiting
    for lease in list(shell.given):
        del shell.given[lease]
        shell.feed(Returned(lease))
    for id in list(shell.live):
        assert shell.live[id] == "ending"
        shell.progress(id)
    assert not shell.made.members and not shell.made._given and not shell.made._by_caller, "E7"
