"""Spares that wait for spares: pools of workers that share a cluster; and hosts that are preferred."""

from few_hosts import ask, gang, granted, handle, host, places, recalled, scheduler, withdraw

from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import Tick, Warn


def worker(priority: int = 0, **more: object) -> Demand:
    return Demand([Bundle()], is_spare=True, priority=priority, **more)  # type: ignore[arg-type]


def test_nobody_gives_back_what_it_asks_for() -> None:
    made = scheduler(host(1))
    ask(made, 1, worker(), holder=7)
    assert ask(made, 2, worker(), holder=7) == []
    assert recalled(ask(made, 3, worker(), holder=8)) == [1]  # another takes its turn


def test_one_of_another_kind_is_given_back_for_this() -> None:
    made = scheduler(host(2))
    ask(made, 1, worker(), holder=7), ask(made, 2, worker(kind="x"), holder=7)
    assert recalled(ask(made, 3, worker(kind="y"), holder=7)) == [2], "the younger is the cheaper one"
    assert granted(withdraw(made, 2)) == [3]


def test_what_is_deeper_in_its_work_goes_first() -> None:
    made = scheduler(host(1))
    ask(made, 1, worker(1), holder=8)
    assert ask(made, 2, worker(), holder=7) == []
    assert ask(made, 3, worker(1), holder=8) == []
    assert granted(withdraw(made, 1)) == [3]
    assert recalled(ask(made, 4, gang(1))) == [3]  # who is no spare waits for none


def test_a_preferred_host_where_it_has_room() -> None:
    made = scheduler(host(2), host(2))
    for id in (1, 2):
        assert places(ask(made, id, worker(prefers=["host1"])), id) == [1]
    assert places(ask(made, 3, worker(prefers=["host1"])), 3) == [0]
    assert places(ask(made, 4, worker(prefers=["nowhere"])), 4) == [0]


def test_a_pool_that_would_only_be_larger_is_no_news() -> None:
    made = scheduler(host(1), host(1), warn_after=1.0)
    ask(made, 1, worker(), holder=7), ask(made, 2, gang(1))
    ask(made, 3, worker(), holder=7)
    assert handle(made, Tick(), now=1.0) == []
    assert made.next_tick(1.0) == 2.0
    withdraw(made, 1, now=1.5)
    ask(made, 4, gang(1), now=1.5)
    ask(made, 5, worker(1), holder=9, now=1.5)
    assert [type(command) for command in handle(made, Tick(), now=2.5)][:1] == [Warn]
