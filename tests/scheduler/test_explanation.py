"""What tables and warnings say."""

from few_hosts import ask, gang, handle, host, scheduler, withdraw

from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import Held, HostClosed, Lend, TakenElsewhere, Tick, Warn

GIB = 2**30


def test_the_table_says_who_holds_what():
    made = scheduler(host(8, gpus=2, memory=64 * GIB), host(4, custom={"tpu": 4}))
    ask(made, 1, Demand([Bundle(2, 1, 8 * GIB)] * 2, name="trainer"))
    for id in (2, 3):
        ask(made, id, Demand([Bundle(1, custom={"tpu": 0.5})], name="worker"))
    handle(made, TakenElsewhere(0, Held(10_000)), HostClosed(1), Lend(1))
    assert made.explain(gang(1, 8, name="evaluation"), 0.0) == (
        "evaluation (8 cpus)\n"
        "the only host that it may go to has less than that free\n"
        "host            cpus         gpus         memory                 tpu          held by\n"
        "host0           7 of 8 free  0 of 2 free  48 GiB of 64 GiB free  none         "
        "trainer #1 (lent): 4 cpus, 2 gpus, 16 GiB of memory; others: 1 cpu\n"
        "host1 (closed)  2 of 4 free  none         none                   3 of 4 free  2 x worker: 2 cpus, 1 tpu"
    )


def test_what_fits_is_said_to_fit():
    made = scheduler(host(4), host(4))
    assert "fits now: 4 on host0, 1 on host1\n" in made.explain(gang(5), 0.0)


def test_what_can_never_fit_is_explained_without_being_asked_for():
    made = scheduler(host(4), host(4))
    assert "can never be placed: needs 9 cpus in all; the 2 hosts together have 8 cpus\n" in made.explain(gang(9), 0.0)


def test_what_waits_before_it_is_named():
    made = scheduler(host(4), patience=0.0)
    ask(made, 1, gang(3, name="eval"))
    ask(made, 2, gang(4, name="big"))
    ask(made, 3, gang(3, name="small"))
    handle(made, Tick())
    text = made.explain(gang(2), 0.0)
    assert "before it: big #2, small #3\n" in text
    text = made.explain(gang(2, priority=1), 0.0)
    assert "there is room for 1 of its 2 bundles now\nbehind it: 2\n" in text


def test_a_warning_says_what_is_kept_and_who_was_asked():
    made = scheduler(host(4), host(1), patience=0.0, warn_after=10.0)
    ask(made, 1, Demand([Bundle(2)], is_spare=True, name="idle worker"))
    ask(made, 2, gang(2, name="eval"))
    ask(made, 3, gang(2, name="gang"))
    (warn,) = [command for command in made.handle(Tick(), 10.0) if isinstance(command, Warn)]
    assert warn.id == 3
    assert warn.text.startswith(
        "gang (2 bundles of 1 cpu; pack) has waited for 10 s\n"
        "there is room for 1 of its 2 bundles now\n"
        "what frees is kept for it on host0\n"
        "asked back: idle worker #1\n"
    )


def test_many_hosts_are_shortened():
    made = scheduler(*[host(1)] * 40)
    text = made.explain(gang(41), 0.0)
    assert text.endswith("and 8 more hosts")
    assert len(text.splitlines()) == 36
    withdraw(made, 1)


def test_waiting_for_one_that_waits():
    made = scheduler(host(1))
    ask(made, 1), ask(made, 2)
    assert "placement #2, near which it is to be, waits itself" in made.explain(gang(1, 0, near=2), 0.0)


def test_without_hosts():
    assert scheduler().explain(gang(1), 0.0).endswith("no host has joined")


def test_holdings_are_printed_as_a_table_with_those_that_wait() -> None:
    made = scheduler(host(4), host(1), patience=5.0)
    ask(made, 10_001, gang(3, name="eval"), now=1.0)
    ask(made, 10_002, gang(4, strategy="strict_pack", name="big"), now=2.0)
    handle(made, Tick(), now=10.0)
    assert str(made.holdings(12.0)) == (
        "host   cpus         held by\n"
        "host0  1 of 4 free  eval #1: 3 cpus\n"
        "host1  1 of 1 free  nobody\n"
        "waits: big #2 for 10 s, for which what frees is kept on host0"
    )


def test_of_many_hosts_those_are_shown_that_are_meant() -> None:
    made = scheduler(*[host(4)] * 40)
    text = made.explain(Demand([Bundle(5)], hosts=["host37"]), 0.0)
    assert "\nhost37  4 of 4 free" in text and text.endswith("and 8 more hosts")
    assert str(made.holdings(0.0)).endswith("and 8 more hosts")


def test_what_a_bundle_has_is_said_to_who_wants_more_of_it() -> None:
    made = scheduler(host(4))
    ask(made, 7, gang(1, cpus=2, name="outer"))
    text = made.explain(gang(3, within=(7, 0)), 0.0)
    assert "can never be placed: bundle 0 of outer #7 has 2 cpus; it needs 3 cpus\n" in text
    ask(made, 8, gang(1, cpus=1.5, within=(7, 0)))
    text = made.explain(gang(1, within=(7, 0)), 0.0)
    assert "\nbundle 0 of outer #7 has 0.5 cpus left of its 2 cpus\n" in text
