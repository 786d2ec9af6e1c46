"""Who is asked to give back what it holds (P7)."""

from few_hosts import ask, gang, granted, handle, host, is_empty, places, recalled, scheduler, withdraw

from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import Held, HostClosed, Lend, Recall, Tick

SPARE = Demand([Bundle()], is_spare=True, name="idle worker")


def below(count: int = 1, priority: int = 0, cpus: float = 1) -> Demand:
    """Return what may be taken back."""
    return gang(count, cpus, preemptible=True, priority=priority)


def above(count: int = 1, cpus: float = 1, **more: object) -> Demand:
    """Return what takes back."""
    return gang(count, cpus, preempts=True, priority=5, name="trainer", **more)


def test_a_spare_is_recalled_for_whoever_waits_and_goes_to_it():
    made = scheduler(host(2))
    ask(made, 1, SPARE), ask(made, 2)
    assert ask(made, 3, gang(1, priority=-5)) == [Recall(1, "placement #3")]
    assert ask(made, 4) == []
    assert granted(withdraw(made, 1)) == [4]
    assert granted(withdraw(made, 2)) == [3]


def test_only_as_many_spares_as_are_needed_and_each_once():
    made = scheduler(host(4), host(4))
    for id in range(8):
        ask(made, id, SPARE)
    commands = ask(made, 10, gang(2, 2, name="evaluation"))
    assert len(recalled(commands)) == 4
    assert recalled(ask(made, 11)) != []
    victims = recalled(commands)
    for id in victims[:-1]:
        assert withdraw(made, id)[1:] == []
    assert granted(withdraw(made, victims[-1])) == [10]


def test_spares_of_another_kind_of_host_are_left_alone():
    made = scheduler(host(2, labels={"zone": "a"}), host(2, gpus=1))
    for id in range(4):
        ask(made, id, SPARE)
    commands = ask(made, 10, gang(1, 1, 1))
    assert len(recalled(commands)) == 1
    assert granted(withdraw(made, recalled(commands)[0])) == [10]
    assert sorted(recalled(ask(made, 11, gang(1, 2, labels={"zone": "a"})))) == [0, 1]


def test_many_that_wait_recall_many_spares_at_once():
    made = scheduler(host(8))
    for id in range(8):
        ask(made, id, SPARE)
    asked = [recalled(ask(made, 10 + number)) for number in range(8)]
    assert sorted(victim for victims in asked for victim in victims) == list(range(8))
    assert all(len(victims) == 1 for victims in asked)


def test_a_spare_is_not_recalled_for_another_of_the_same_kind_and_holder():
    made = scheduler(host(1))
    ask(made, 1, SPARE)
    assert ask(made, 2, SPARE) == []
    withdraw(made, 2)
    assert recalled(ask(made, 3, SPARE, holder=7)) == [1]


def test_preemption_takes_the_lowest_and_newest_and_only_what_is_needed():
    made = scheduler(host(4))
    ask(made, 1, below(1, priority=2)), ask(made, 2, below()), ask(made, 3, below()), ask(made, 4, gang(1))
    commands = ask(made, 10, above(2))
    assert commands == [Recall(2, "trainer #10"), Recall(3, "trainer #10")]
    assert withdraw(made, 3)[1:] == []
    assert granted(withdraw(made, 2)) == [10]


def test_nothing_is_preempted_without_being_asked_for_nor_from_equals():
    made = scheduler(host(2))
    ask(made, 1, below(2, priority=5))
    assert ask(made, 2, gang(1, priority=9)) == []
    assert ask(made, 3, above()) == []
    assert recalled(ask(made, 4, gang(1, preempts=True, priority=6))) == [1]


def test_nothing_is_preempted_where_it_would_not_help():
    made = scheduler(host(2), host(2))
    ask(made, 1, below()), ask(made, 2), ask(made, 3), ask(made, 4)
    assert ask(made, 10, above(2)) == []
    assert recalled(withdraw(made, 2)) == [1]
    assert granted(withdraw(made, 1)) == [10]


def test_what_the_preempted_give_back_is_kept_for_who_preempts():
    """P7: nobody passes meanwhile, though ``passes`` would allow it."""
    made = scheduler(host(4))
    ask(made, 1, below(1, cpus=2)), ask(made, 2, below(1, cpus=2))
    assert sorted(recalled(ask(made, 10, above(1, cpus=4)))) == [1, 2]
    withdraw(made, 1)
    assert ask(made, 11) == []
    assert granted(withdraw(made, 2)) == [10]


def test_spares_go_before_what_is_preempted():
    made = scheduler(host(2))
    ask(made, 1, below()), ask(made, 2, SPARE)
    assert recalled(ask(made, 10, above())) == [2]


def test_the_host_with_the_fewest_victims_is_chosen():
    made = scheduler(host(4), host(4))
    for id in range(4):
        ask(made, id, below(1))
    ask(made, 5, below(1, cpus=4))
    assert recalled(ask(made, 10, above(1, cpus=4))) == [5]


def test_a_gang_is_recalled_as_a_whole():
    made = scheduler(host(2), host(2))
    ask(made, 1, below(4))
    assert ask(made, 10, above()) == [Recall(1, "trainer #10")]
    commands = withdraw(made, 1)
    assert places(commands, 10) == [0]


def test_a_lent_spare_gives_back_only_what_it_has_not_lent():
    made = scheduler(host(2, gpus=1))
    ask(made, 1, Demand([Bundle(2, 1)], is_spare=True))
    handle(made, Lend(1))
    ask(made, 2, gang(1, 2))
    assert ask(made, 3, gang(1, 1)) == []
    assert recalled(ask(made, 4, gang(1, 0, 1))) == [1]
    assert granted(withdraw(made, 1)) == [4]
    withdraw(made, 2), withdraw(made, 3), withdraw(made, 4)
    assert is_empty(made)


def test_spares_on_closed_hosts_are_not_asked():
    made = scheduler(host(1), host(1))
    ask(made, 1, SPARE), ask(made, 2)
    handle(made, HostClosed(0))
    assert ask(made, 3) == []


def test_spares_within_a_bundle_are_recalled_for_others_within_it():
    made = scheduler(host(2), host(2))
    ask(made, 1, gang(1, 2))
    ask(made, 2, Demand([Bundle(2)], is_spare=True, within=(1, 0)))
    ask(made, 3, gang(1, 2))
    assert ask(made, 4) == []
    assert recalled(ask(made, 5, gang(1, 1, within=(1, 0)))) == [2]
    assert granted(withdraw(made, 2)) == [5]


def test_a_spare_is_recalled_where_something_is_kept_for_another():
    """What is kept for a gang does not count as free for who comes later, so a spare elsewhere is asked for."""
    made = scheduler(host(2), host(2), host(1), patience=0.0)
    ask(made, 5, SPARE)
    assert ask(made, 1, gang(3)) != []
    assert ask(made, 10, gang(2, 2, name="gang")) == []
    handle(made, Tick())
    assert made.holdings(0.0).hosts[1].free == Held(10_000)
    assert recalled(ask(made, 11)) == [5]
    assert granted(withdraw(made, 5)) == [11]
    assert granted(withdraw(made, 1)) == [10]


def test_who_waits_for_what_no_recall_brings_does_not_keep_others_from_theirs() -> None:
    made = scheduler(host(2, gpus=1))
    ask(made, 1, gang(1, cpus=0, gpus=1))
    ask(made, 2, gang(1, cpus=2, is_spare=True))
    for id in range(10, 40):
        assert ask(made, id, gang(1, cpus=0, gpus=1)) == []
    assert recalled(ask(made, 50, gang(1, cpus=2))) == [2]


def test_what_is_recalled_anew_for_one_whose_betters_took_the_first_is_kept_until_all_of_it_is_there() -> None:
    """P7."""
    made = scheduler(host(2), host(2))
    ask(made, 1, gang(1, cpus=2, is_spare=True)), ask(made, 2, SPARE), ask(made, 3, SPARE)
    assert recalled(ask(made, 4, gang(1, cpus=2))) == [1]
    assert sorted(recalled(ask(made, 5, gang(1, priority=1)))) == [2, 3]
    assert granted(withdraw(made, 1)) == [5]
    assert granted(withdraw(made, 2)) == []
    assert places(ask(made, 6, gang(1)), 6) == [0]
    assert granted(ask(made, 7, gang(1))) == [], "what has come back on host1 is for 4"
    assert granted(withdraw(made, 3)) == [4]
