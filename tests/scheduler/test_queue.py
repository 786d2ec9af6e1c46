"""Who waits, and in what order they are served (P5, P6)."""

from few_hosts import ONE_CPU, ask, gang, granted, handle, host, is_empty, places, rejected, scheduler, withdraw

from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import (
    Declared,
    Held,
    HolderGone,
    HostUp,
    Lend,
    Reclaim,
    Refused,
    Release,
    TakenElsewhere,
    Tick,
    Warn,
)


def test_first_come_first_served():
    made = scheduler(host(2))
    for id in range(5):
        assert granted(ask(made, id)) == ([id] if id < 2 else [])
    assert granted(withdraw(made, 0)) == [2]
    assert granted(withdraw(made, 2)) == [3]
    withdraw(made, 4)
    assert granted(withdraw(made, 1)) == []


def test_a_higher_priority_is_served_first():
    made = scheduler(host(1))
    ask(made, 0)
    ask(made, 1)
    ask(made, 2, gang(1, priority=1))
    ask(made, 3, gang(1, priority=1))
    ask(made, 4, gang(1, priority=2))
    order: list[int] = []
    holder = 0
    while commands := granted(withdraw(made, holder)):
        (holder,) = commands
        order.append(holder)
    assert order == [4, 2, 3, 1]


def test_small_ones_pass_a_gang_only_so_often():
    """P5: after ``passes``, what frees is kept for the gang, and goes to nobody else."""
    made = scheduler(host(4), passes=3)
    for id in range(3):
        ask(made, id)
    assert ask(made, 100, gang(4)) == []
    running = [0, 1, 2]
    for id in range(3, 6):
        assert granted(ask(made, id)) == [id]
        running.append(id)
        withdraw(made, running.pop(0))
    assert ask(made, 6) == []
    assert ask(made, 7, gang(1, 0)) != []
    for id in running[:-1]:
        assert granted(withdraw(made, id)) == []
    assert places(withdraw(made, running[-1]), 100) == [0] * 4
    assert granted(withdraw(made, 100)) == [6]


def test_small_ones_pass_a_gang_only_so_long():
    """P5: after ``patience`` seconds, at a tick or at what comes next."""
    made = scheduler(host(2), patience=5.0)
    ask(made, 0)
    ask(made, 1, gang(2), now=1.0)
    assert granted(ask(made, 2, now=2.0)) == [2]
    assert made.next_tick(2.0) == 6.0
    assert made.handle(Tick(), 6.0) == []
    assert made.next_tick(6.0) == 31.0
    assert granted(withdraw(made, 0, now=6.5)) == []
    assert ask(made, 3, now=7.0) == []
    assert granted(withdraw(made, 2, now=8.0)) == [1]


def test_what_a_due_gang_does_not_need_goes_to_others():
    """P5: who waits for devices does not keep cpus that are left over anyway, nor other hosts."""
    made = scheduler(host(8, gpus=1), host(1), patience=0.0)
    ask(made, 0, gang(1, 1, 1))
    assert ask(made, 1, gang(1, 2, 1)) == []
    handle(made, Tick())
    assert [places(ask(made, id), id) for id in range(2, 8)] == [[1], [0], [0], [0], [0], [0]]
    assert ask(made, 8) == []
    commands = withdraw(made, 0)
    assert places(commands, 1) == [0]
    assert granted(commands) == [1, 8]


def test_nothing_is_kept_for_what_does_not_fit_the_hosts_there_are():
    """P6."""
    made = scheduler(host(2), patience=0.0)
    handle(made, Declared(((host(8), 1),)))
    assert ask(made, 0, gang(3)) == []
    handle(made, Tick())
    assert granted(ask(made, 1)) == [1]
    assert granted(ask(made, 2)) == [2]
    assert granted(handle(made, HostUp(1, "new", host(8)))) == [0]


def test_who_is_above_a_due_gang_takes_what_is_kept():
    made = scheduler(host(2), patience=0.0)
    ask(made, 0)
    ask(made, 1, gang(2))
    handle(made, Tick())
    assert ask(made, 2) == []
    assert granted(ask(made, 3, gang(1, priority=1))) == [3]


def test_a_gang_that_leaves_gives_up_what_was_kept():
    made = scheduler(host(2), patience=0.0)
    ask(made, 0)
    ask(made, 1, gang(2))
    handle(made, Tick())
    assert ask(made, 2) == []
    assert granted(withdraw(made, 1)) == [2]


def test_what_was_kept_is_free_when_the_gang_finds_room_elsewhere():
    made = scheduler(host(4), host(4), host(1), patience=0.0)
    for number, cpus in enumerate([3, 4, 1]):
        ask(made, number, gang(cpus, hosts=[f"host{number}"]))
    ask(made, 10, gang(4, strategy="strict_pack"))
    handle(made, Tick())
    assert ask(made, 11) == []
    assert made.holdings(0.0).waiting[0].kept_on == ("host0",)
    commands = withdraw(made, 1)
    assert places(commands, 10) == [1] * 4
    assert places(commands, 11) == [0]


def test_room_is_kept_where_least_is_short():
    made = scheduler(host(4), host(4), host(4), patience=0.0)
    for number, cpus in enumerate([3, 1, 2]):
        ask(made, number, gang(cpus, hosts=[f"host{number}"]))
    ask(made, 10, gang(4, strategy="strict_pack"))
    handle(made, Tick())
    assert made.holdings(0.0).waiting[0].kept_on == ("host1",)


def test_two_gangs_in_a_row():
    made = scheduler(host(2), host(2), patience=0.0)
    for id in range(4):
        ask(made, id)
    ask(made, 10, gang(4)), ask(made, 11, gang(3)), ask(made, 12)
    handle(made, Tick())
    assert [granted(withdraw(made, id)) for id in range(4)] == [[], [], [], [10]]
    assert granted(withdraw(made, 10)) == [11, 12]


def test_the_end_of_a_holder_ends_what_it_has_and_what_it_waits_for():
    made = scheduler(host(2))
    ask(made, 1, holder=7), ask(made, 2, holder=8), ask(made, 3, holder=7), ask(made, 4, holder=8)
    commands = handle(made, HolderGone(7))
    assert commands[0] == Release(1, (0,))
    assert granted(commands) == [4]
    handle(made, HolderGone(8), HolderGone(9))
    assert is_empty(made)


def test_one_that_was_refused_is_back_in_its_place():
    """P9: and its host is not tried again at once."""
    made = scheduler(host(1), host(1))
    first, second = ask(made, 1), ask(made, 2)
    assert places(first, 1) == [0] and places(second, 2) == [1]
    ask(made, 3)
    assert handle(made, Refused(1, 0)) == []
    assert [waiter.id for waiter in made.holdings(0.0).waiting] == [1, 3]
    commands = withdraw(made, 2)
    assert places(commands, 1) == [1]
    assert places(commands, 3) == [0]


def test_a_refused_gang_is_released_where_it_was_reserved():
    made = scheduler(host(1), host(1), host(1))
    assert places(ask(made, 1, gang(2)), 1) == [0, 1]
    commands = handle(made, Refused(1, 1), now=1.0)
    assert commands[0] == Release(1, (0,))
    assert places(commands, 1) == [0, 2]


def test_a_host_that_refused_is_tried_again_when_it_says_what_others_hold_or_after_a_pause():
    made = scheduler(host(2))
    ask(made, 1, gang(2))
    assert handle(made, Refused(1, 0), now=1.0) == []
    assert made.next_tick(1.0) == 1.05
    assert granted(handle(made, TakenElsewhere(0, Held(10_000)), now=1.01)) == []
    assert granted(handle(made, TakenElsewhere(0, Held()), now=1.02)) == [1]
    assert handle(made, Refused(1, 0), now=2.0) == []
    assert made.next_tick(2.0) == 2.1
    assert granted(handle(made, Tick(), now=2.1)) == [1]


def test_those_behind_one_that_was_refused_are_tried_again_with_it():
    made = scheduler(host(1))
    ask(made, 1), ask(made, 2), ask(made, 3)
    handle(made, Refused(1, 0))
    assert granted(handle(made, TakenElsewhere(0, Held()))) == [1]
    handle(made, Refused(1, 0), now=1.0)
    assert granted(withdraw(made, 1)) == [2]
    assert granted(withdraw(made, 2)) == [3]


def test_refusals_of_what_has_ended_do_nothing():
    made = scheduler(host(2))
    ask(made, 1)
    withdraw(made, 1)
    assert handle(made, Refused(1, 0), Lend(1), Reclaim(1)) == []


def test_others_may_over_commit_and_nothing_is_below_zero():
    made = scheduler(host(2, gpus=2))
    ask(made, 1, gang(2, 1, 1))
    assert handle(made, TakenElsewhere(0, Held(10_000, (("g0", 10_000),)))) == []
    (entry,) = made.holdings(0.0).hosts
    assert entry.free == Held()
    withdraw(made, 1)
    (entry,) = made.holdings(0.0).hosts
    assert entry.free == Held(10_000, (("g1", 10_000),))
    assert handle(made, TakenElsewhere(0, Held())) == [] and is_empty(made)


def test_cpus_that_are_lent_are_used_and_reclaimed_over_committed():
    made = scheduler(host(2, gpus=1))
    ask(made, 1, gang(1, 2, 1))
    assert ask(made, 2) == []
    assert granted(handle(made, Lend(1))) == [2]
    assert handle(made, Lend(1)) == []
    assert ask(made, 3, gang(1, 2)) == []
    assert handle(made, Reclaim(1), Reclaim(1)) == []
    assert granted(withdraw(made, 2)) == []
    assert granted(withdraw(made, 1)) == [3]
    withdraw(made, 3)
    assert is_empty(made)


def test_one_that_ends_while_its_cpus_are_lent():
    made = scheduler(host(2))
    ask(made, 1, gang(1, 2))
    handle(made, Lend(1))
    ask(made, 2, gang(1, 2))
    withdraw(made, 1)
    assert ask(made, 3) == []
    assert granted(withdraw(made, 2)) == [3]
    withdraw(made, 3)
    assert is_empty(made)


def test_what_placements_within_use_is_not_lent():
    made = scheduler(host(4))
    ask(made, 1, gang(1, 4))
    ask(made, 2, gang(1, 1, within=(1, 0)))
    handle(made, Lend(1))
    assert granted(ask(made, 3, gang(1, 3))) == [3]
    assert ask(made, 4) == []
    assert ask(made, 5, gang(1, 1, within=(1, 0))) == []
    assert granted(handle(made, Reclaim(1))) == [5]
    withdraw(made, 3)
    for id in (1, 4):
        withdraw(made, id)
    assert is_empty(made)


def test_warnings_come_after_a_stall_and_then_more_rarely():
    made = scheduler(host(2), warn_after=30.0, patience=1000.0)
    ask(made, 0, gang(2)), ask(made, 1, Demand([Bundle()], name="evaluation")), ask(made, 2, Demand([Bundle()]))
    assert made.next_tick(0.0) == 30.0
    (warn,) = made.handle(Tick(), 30.0)
    assert isinstance(warn, Warn) and warn.id == 1
    assert warn.text.startswith(
        "evaluation (1 cpu) has waited for 30 s\nthe only host that it may go to has less than that free"
    )
    assert made.handle(Tick(), 31.0) == []
    assert made.next_tick(31.0) == 60.0
    assert len(made.handle(Tick(), 60.0)) == 1
    assert made.next_tick(60.0) == 120.0
    withdraw(made, 0, now=61.0)
    assert made.next_tick(61.0) is None


def test_a_line_that_moves_is_not_warned_of():
    made = scheduler(host(1), warn_after=30.0, patience=1000.0)
    for id in range(100):
        ask(made, id)
    for id in range(99):
        assert granted(withdraw(made, id, now=id * 20.0)) == [id + 1]
        assert not any(isinstance(command, Warn) for command in made.handle(Tick(), id * 20.0 + 19))


def test_a_demand_that_is_asked_for_again_stands_in_line():
    made = scheduler(host(1))
    ask(made, 0, ONE_CPU), ask(made, 1, ONE_CPU), ask(made, 2, Demand([Bundle()]))
    assert [waiter.id for waiter in made.holdings(0.0).waiting] == [1, 2]
    assert rejected(withdraw(made, 1)) == []
    assert granted(withdraw(made, 0)) == [2]
