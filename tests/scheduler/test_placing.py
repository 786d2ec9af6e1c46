"""Where demands go: exact commands."""

from typing import Any

import pytest
from few_hosts import ask, gang, gpus, granted, handle, host, is_empty, places, rejected, scheduler, withdraw

from monarch_async.errors import BadDemand
from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import Ask, Declared, Grant, Held, HostUp, Reject, Release, Spot
from monarch_async.scheduler.resources import Resources


def test_one_cpu_is_granted_at_once_and_released_when_it_is_withdrawn():
    made = scheduler(host(4))
    assert ask(made, 1) == [Grant(1, (Spot(0),), (Held(10_000),))]
    assert withdraw(made, 1) == [Release(1, (0,))]
    assert is_empty(made)
    assert withdraw(made, 1) == []


def test_pack_fills_a_host_before_it_opens_another_and_leaves_devices_alone():
    made = scheduler(host(2, gpus=2), host(2), host(2))
    hosts = [places(ask(made, id), id)[0] for id in range(6)]
    assert hosts == [1, 1, 2, 2, 0, 0]
    assert ask(made, 6) == []


def test_spread_goes_where_most_is_left():
    made = scheduler(host(2), host(4), host(4))
    hosts = [places(ask(made, id, gang(1, strategy="spread")), id)[0] for id in range(6)]
    assert hosts == [1, 2, 1, 2, 0, 1]


def test_a_gang_that_fits_one_host_goes_to_the_fullest_that_has_room():
    made = scheduler(host(8), host(4), host(6))
    assert places(ask(made, 1, gang(4)), 1) == [1] * 4
    assert places(ask(made, 2, gang(4)), 2) == [2] * 4


def test_a_gang_takes_the_fewest_hosts_and_its_ranks_are_contiguous():
    made = scheduler(host(2, gpus=2), host(4, gpus=4), host(4, gpus=4), host(1, gpus=1))
    commands = ask(made, 1, gang(9, gpus=1))
    assert places(commands, 1) == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert gpus(commands, 1)[:4] == [("g0",), ("g1",), ("g2",), ("g3",)]


def test_ranks_follow_the_order_of_hosts():
    made = scheduler(host(2), host(4), host(3))
    assert places(ask(made, 1, gang(9)), 1) == [0, 0, 1, 1, 1, 1, 2, 2, 2]


def test_spread_gangs_are_even():
    made = scheduler(host(4), host(4), host(4))
    assert places(ask(made, 1, gang(7, strategy="spread")), 1) == [0, 0, 0, 1, 1, 2, 2]


def test_strict_spread_is_one_a_host_or_nothing():
    made = scheduler(host(4), host(4), host(4))
    assert places(ask(made, 1, gang(3, strategy="strict_spread")), 1) == [0, 1, 2]
    why = "needs 4 hosts, one for each bundle (strict_spread); there are 3"
    (reject,) = ask(made, 2, gang(4, strategy="strict_spread"))
    assert isinstance(reject, Reject) and reject.why == why


def test_strict_pack_is_one_host_or_nothing():
    made = scheduler(host(4), host(6))
    assert places(ask(made, 1, gang(6, strategy="strict_pack")), 1) == [1] * 6
    (reject,) = ask(made, 2, gang(7, strategy="strict_pack"))
    assert isinstance(reject, Reject)
    assert reject.why == "needs 7 cpus on one host (strict_pack); the largest, host1, has 6 cpus"


def test_shares_of_a_device_fill_the_fullest_one_that_fits():
    made = scheduler(host(8, gpus=2))
    assert gpus(ask(made, 1, gang(1, 0, 0.9)), 1) == [("g0",)]
    assert gpus(ask(made, 2, gang(1, 0, 0.5)), 2) == [("g1",)]
    assert gpus(ask(made, 3, gang(1, 0, 0.01)), 3) == [("g0",)]
    assert gpus(ask(made, 4, gang(2, 0, 0.25)), 4) == [("g1",), ("g1",)]
    assert ask(made, 5, gang(1, 0, 1)) == []
    withdraw(made, 1)
    assert granted(withdraw(made, 3)) == [5]


def test_tenths_return_to_zero():
    made = scheduler(host(1, gpus=1))
    for id in range(10):
        assert granted(ask(made, id, gang(1, 0.1, 0.1))) == [id]
    assert ask(made, 10, gang(1, 0.0001)) == []
    for id in range(11):
        withdraw(made, id)
    assert is_empty(made)


def test_labels_and_names_choose_hosts():
    made = scheduler(host(4), host(4, labels={"zone": "a"}), host(4, labels={"zone": "b"}))
    assert places(ask(made, 1, gang(1, labels={"zone": "b"})), 1) == [2]
    assert places(ask(made, 2, gang(2, hosts=["host1"])), 2) == [1, 1]
    assert places(ask(made, 3, gang(7, hosts=["host0", "host2"])), 3) == [0] * 4 + [2] * 3
    (reject,) = ask(made, 4, gang(1, labels={"zone": "c"}))
    assert isinstance(reject, Reject) and reject.why == "no host has the labels zone=c"
    (reject,) = ask(made, 5, gang(1, hosts=["host9"]))
    assert isinstance(reject, Reject)
    assert reject.why == "no host is called host9; there are host0, host1, host2"


def test_preferred_hosts_come_first_where_they_have_room():
    made = scheduler(host(4), host(2), host(2))
    preferring = gang(1, prefers=["host2", "elsewhere"])
    assert [places(ask(made, id, preferring), id)[0] for id in range(4)] == [2, 2, 1, 1]
    assert places(ask(made, 5, gang(2, prefers=["host0"], hosts=["host0", "host1"])), 5) == [0, 0]


def test_near_and_apart_follow_another_placement():
    made = scheduler(host(4), host(4), host(4))
    assert places(ask(made, 1, gang(2, hosts=["host1"])), 1) == [1, 1]
    assert places(ask(made, 2, gang(2, near=1)), 2) == [1, 1]
    assert places(ask(made, 3, gang(8, apart=1)), 3) == [0] * 4 + [2] * 4
    assert ask(made, 4, gang(1, near=1)) == []
    assert granted(withdraw(made, 2)) == [4]


def test_what_waits_to_be_near_something_that_ends_is_rejected():
    made = scheduler(host(2), host(2))
    ask(made, 1, gang(2))
    assert ask(made, 2, gang(1, near=1)) == []
    commands = withdraw(made, 1)
    assert rejected(commands) == [2]
    (reject,) = ask(made, 3, gang(1, near=1))
    assert (
        isinstance(reject, Reject) and reject.why == "placement #1, near which it is to be, is not there (or no longer)"
    )


def test_near_one_that_waits_waits_with_it():
    made = scheduler(host(2), host(2))
    ask(made, 1, gang(2)), ask(made, 2, gang(1))
    assert ask(made, 3, gang(2, strategy="strict_pack")) == []
    assert ask(made, 4, gang(1, 0, near=3)) == []
    commands = withdraw(made, 1)
    assert granted(commands) == [3, 4]
    assert places(commands, 4) == places(commands, 3)[:1]


def test_within_takes_from_what_a_bundle_holds():
    made = scheduler(host(4, gpus=4), host(4, gpus=4))
    ask(made, 1, Demand([Bundle(4, 2), Bundle(2, 1)], "strict_spread"))
    assert gpus(ask(made, 2, gang(2, 1, 0.5, within=(1, 1))), 2) == [("g0",), ("g0",)]
    assert ask(made, 3, gang(1, 1, within=(1, 1))) == []
    assert granted(withdraw(made, 2)) == [3]
    (reject,) = ask(made, 4, gang(1, 3, within=(1, 1)))
    assert isinstance(reject, Reject)
    (reject,) = ask(made, 5, gang(1, within=(1, 2)))
    assert isinstance(reject, Reject) and reject.why == "placement #1 has 2 bundles; there is no bundle 2"
    ask(made, 6, gang(1, 2, within=(1, 1)))
    assert withdraw(made, 1)[:2] == [Release(3, (1,)), Release(1, (0, 1))]
    assert is_empty(made)


def test_bundles_that_differ_fit_though_the_first_choice_is_wrong():
    made = scheduler(host(6, gpus=1), host(5))
    demand = Demand([Bundle(3), Bundle(3), Bundle(5), Bundle(0, 1)])
    commands = ask(made, 1, demand)
    assert places(commands, 1) == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("demand", "why"),
    [
        (gang(1, gpus=9), "needs 9 gpus on one host; the largest, host0, has 8 gpus"),
        (gang(3, gpus=4), "needs 12 gpus in all; the 2 hosts together have 8 gpus"),
        (gang(1, cpus=5), "needs 5 cpus on one host; the largest, host0, has 4 cpus"),
        (gang(3, cpus=3), "needs 9 cpus in all; the 2 hosts together have 8 cpus"),
        (
            Demand([Bundle(2), Bundle(0, custom={"tpu": 1})]),
            "needs 1 tpu on one host; the largest, host0, has none",
        ),
        (
            Demand([Bundle(1, memory=2**40)]),
            "needs 1 TiB of memory on one host; the largest, host0, has 4 GiB of memory",
        ),
        (
            gang(2, cpus=3, gpus=1),
            "needs room for 2 bundles of 3 cpus, 1 gpu; the 2 hosts together have room for 1, "
            "even when nothing else runs there",
        ),
    ],
)
def test_what_can_never_fit_is_rejected_at_once_with_what_is_short(demand: Demand, why: str):
    made = scheduler(host(4, gpus=8, memory=2**32), host(4))
    (reject,) = ask(made, 1, demand)
    assert isinstance(reject, Reject)
    assert reject.why == why
    assert "host0" in reject.table and "4 of 4 free" in reject.table
    assert is_empty(made)


def test_no_hosts_at_all():
    made = scheduler()
    (reject,) = ask(made, 1)
    assert isinstance(reject, Reject) and reject.why == "no host has joined and none is declared"


def test_what_a_declared_host_could_fit_waits_for_it():
    made = scheduler(host(4))
    handle(made, Declared(((host(8, gpus=8), 2),)))
    assert ask(made, 1, gang(2, gpus=8)) == []
    (reject,) = ask(made, 2, gang(3, gpus=8))
    assert isinstance(reject, Reject)
    assert reject.why == "needs 24 gpus in all; the 3 hosts (2 of them only declared) together have 16 gpus"
    assert granted(handle(made, HostUp(1, "a", host(8, gpus=8)))) == []
    assert granted(handle(made, HostUp(2, "b", host(8, gpus=8)))) == [1]


def test_what_waits_only_for_a_declared_host_is_rejected_when_that_is_no_longer_so():
    made = scheduler(host(4))
    handle(made, Declared(((host(8, gpus=8), 1),)))
    ask(made, 1, gang(1, gpus=8))
    assert rejected(handle(made, Declared(()))) == [1]


def test_demands_that_make_no_sense():
    with pytest.raises(BadDemand, match=r"gpus=1\.5 of a bundle"):
        Bundle(gpus=1.5)
    with pytest.raises(BadDemand, match="strategy='loose'"):
        Demand([Bundle()], "loose")
    with pytest.raises(BadDemand):
        Demand([])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"bundles": Bundle()}, "expected a list of one monarch_async.Bundle"),
        ({"hosts": "host0"}, "hosts='host0': expected a list of names"),
        ({"prefers": [3]}, r"prefers=\[3\]: expected a list of names"),
        ({"labels": {"zone": 1}}, "labels=.*: expected texts by name"),
        ({"near": "trainer"}, "near='trainer': expected the id of a placement"),
        ({"within": 5}, r"within=5: expected \(the id of a placement, the index"),
        ({"priority": "high"}, "priority='high': expected a whole number"),
        ({"axis": ""}, "axis='': expected a text"),
    ],
)
def test_demands_of_the_wrong_kind_are_refused_before_they_are_asked_for(changes: dict[str, Any], why: str):
    with pytest.raises(BadDemand, match=why):
        Demand(**{"bundles": [Bundle()], **changes})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cpus": "4"}, "cpus='4' of a host: expected an amount"),
        ({"gpus": 2}, "gpus=2 of a host: expected the ids"),
        ({"gpus": "01"}, "gpus='01' of a host: expected the ids"),
        ({"gpus": ("1", 1)}, "an id stands there twice"),
        ({"labels": ["a"]}, "expected texts by name"),
        ({"custom": {"gpus": 1}}, "'gpus' is no name for a resource"),
    ],
)
def test_hosts_of_the_wrong_kind(changes: dict[str, Any], why: str):
    with pytest.raises(BadDemand, match=why):
        Resources(**changes)


def test_a_demand_of_nothing_is_granted():
    made = scheduler(host(0))
    assert made.handle(Ask(1, gang(3, 0)), 0.0) == [Grant(1, (Spot(0),) * 3, (Held(),) * 3)]
