"""Hosts that come, go, close and open (P8)."""

from few_hosts import ask, gang, granted, handle, host, is_empty, places, rejected, scheduler, withdraw

from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import (
    Held,
    HostClosed,
    HostGone,
    HostOpened,
    HostUp,
    Lost,
    Refused,
    Reject,
    Release,
    TakenElsewhere,
    Tick,
)


def test_a_host_that_goes_takes_its_bundles_with_it():
    made = scheduler(host(2), host(2), host(2))
    ask(made, 1, gang(6))
    assert handle(made, HostGone(1)) == [Lost(1, (2, 3))]
    assert handle(made, HostGone(1)) == []
    assert withdraw(made, 1) == [Release(1, (0, 2))]
    assert is_empty(made)


def test_one_that_has_lost_all_is_still_there_until_it_is_withdrawn():
    made = scheduler(host(2), host(1))
    ask(made, 1, gang(2))
    assert handle(made, HostGone(0)) == [Lost(1, (0, 1))]
    assert withdraw(made, 1) == [Release(1, ())]


def test_a_host_that_comes_back_is_empty_and_has_its_rank():
    made = scheduler(host(2), host(2))
    ask(made, 1, gang(4))
    handle(made, HostGone(0))
    assert handle(made, HostUp(0, "host0", host(2))) == []
    assert places(ask(made, 2, gang(2)), 2) == [0, 0]
    assert withdraw(made, 1) == [Release(1, (1,))]
    assert places(ask(made, 3, gang(2)), 3) == [1, 1]


def test_a_host_that_re_joins_without_having_been_gone_is_empty_too():
    made = scheduler(host(2))
    ask(made, 1, gang(2))
    ask(made, 2)
    commands = handle(made, HostUp(0, "host0", host(2)))
    assert commands[0] == Lost(1, (0, 1))
    assert granted(commands) == [2]


def test_nothing_goes_to_a_closed_host_but_what_is_there_stays():
    made = scheduler(host(2), host(2))
    ask(made, 1)
    handle(made, HostClosed(0))
    assert places(ask(made, 2), 2) == [1]
    assert ask(made, 3, gang(2)) == []
    assert withdraw(made, 1) == [Release(1, (0,))]
    assert places(handle(made, HostOpened(0)), 3) == [0, 0]


def test_what_waits_for_hosts_that_went_is_rejected_after_a_grace():
    made = scheduler(host(2), host(8), grace=10.0, patience=1000.0)
    ask(made, 1, gang(1, 8))
    assert ask(made, 2, gang(1, 8)) == []
    assert rejected(handle(made, HostGone(1), now=5.0)) == []
    assert made.next_tick(5.0) == 15.0
    (reject,) = ask(made, 3, gang(1, 8), now=6.0)
    assert isinstance(reject, Reject)
    (reject,) = handle(made, Tick(), now=15.0)
    assert isinstance(reject, Reject)
    assert (reject.id, reject.why) == (2, "needs 8 cpus on one host; the largest, host0, has 2 cpus")
    withdraw(made, 1)
    assert is_empty(made)


def test_what_waits_for_hosts_that_come_back_in_time_is_placed():
    made = scheduler(host(2), host(8), grace=10.0)
    ask(made, 1, gang(1, 8))
    ask(made, 2, gang(1, 8))
    handle(made, HostGone(1), now=5.0)
    assert granted(handle(made, HostUp(1, "host1", host(8)), now=14.0)) == [2]
    assert rejected(handle(made, Tick(), now=16.0)) == []


def test_what_waits_within_a_bundle_that_is_lost_is_rejected():
    made = scheduler(host(2), host(2), grace=0.0)
    ask(made, 1, gang(2, 2))
    ask(made, 2, gang(1, 2, within=(1, 1)))
    assert ask(made, 3, gang(1, 2, within=(1, 1))) == []
    commands = handle(made, HostGone(1))
    assert commands[:2] == [Lost(1, (1,)), Lost(2, (0,))]
    (reject,) = commands[2:]
    assert isinstance(reject, Reject) and "was on a host that is lost" in reject.why
    withdraw(made, 1)
    assert is_empty(made)


def test_what_others_hold_on_a_host_is_forgotten_with_it():
    made = scheduler(host(2))
    handle(made, TakenElsewhere(0, Held(20_000)))
    assert ask(made, 1) == []
    handle(made, HostGone(0))
    assert granted(handle(made, HostUp(0, "host0", host(2)))) == [1]
    assert handle(made, TakenElsewhere(9, Held(1))) == []


def test_what_is_kept_on_a_host_that_goes_is_kept_elsewhere():
    made = scheduler(host(4), host(4), patience=0.0)
    ask(made, 1, gang(3)), ask(made, 2, gang(3))
    ask(made, 3, Demand([Bundle(2)] * 2, "strict_pack"))
    handle(made, Tick())
    handle(made, HostGone(0))
    assert ask(made, 4) == []
    assert granted(withdraw(made, 2)) == [3]


def test_what_waits_for_a_host_that_comes_back_with_less_is_rejected() -> None:
    """P8."""
    made = scheduler(host(4), host(1))
    ask(made, 1, gang(1, 4)), ask(made, 2, gang(1, 4))
    handle(made, HostGone(0), now=1.0)
    assert rejected(handle(made, HostUp(0, "host0", host(2)), now=2.0)) == [2]


def test_what_is_refused_when_its_hosts_have_left_is_rejected() -> None:
    """P8."""
    made = scheduler(host(1), host(1))
    assert granted(ask(made, 1, gang(2))) == [1]
    handle(made, HostGone(0), now=1.0)
    handle(made, Tick(), now=100.0)
    commands = handle(made, Refused(1, 1), now=101.0)
    assert rejected(commands) == [1] and is_empty(made)


def test_who_waits_to_be_near_one_that_waits_and_is_withdrawn_is_rejected() -> None:
    made = scheduler(host(1))
    ask(made, 1), ask(made, 2), ask(made, 3, gang(1, near=2))
    assert rejected(withdraw(made, 2)) == [3]
