"""A host's books, with their invariants (L1 to L4), and against a plain count after any sequence of requests."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from monarch_async.control.ledger import Ledger
from monarch_async.scheduler.amounts import UNIT
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.resources import Resources

THERE = Resources(4, ("0", "1"), 100, custom={"tokens": 2})
WHOLE = {
    ("cpus", ""): 4 * UNIT, ("memory", ""): 100, ("gpu", "0"): UNIT, ("gpu", "1"): UNIT, ("custom", "tokens"): 2 * UNIT
}  # fmt: skip
ANN, BOB, NOBODY = 1, 2, 99


def cpus(amount: float) -> Held:
    return Held(round(amount * UNIT))


@pytest.mark.parametrize(
    "held",
    [cpus(4), Held(memory=100), Held(gpus=(("0", UNIT), ("1", UNIT))), Held(custom=(("tokens", 2 * UNIT),)), Held()],
)
def test_all_of_a_host_can_be_had_and_given_back(held: Held) -> None:
    ledger = Ledger(THERE)
    assert ledger.reserve(ANN, 7, held, "all")
    assert ledger.free(ANN, 7)
    assert ledger.reserve(BOB, 8, held, "all")


@pytest.mark.parametrize(
    "held",
    [
        cpus(4.0001), Held(memory=101), Held(gpus=(("2", 1),)), Held(gpus=(("0", UNIT + 1),)),
        Held(custom=(("tokens", 2 * UNIT + 1),)), Held(custom=(("coins", 1),)),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_nothing_is_booked(held: Held) -> None:
    ledger = Ledger(THERE)
    assert not ledger.reserve(ANN, 7, held, "too much")
    assert not ledger.entries
    assert ledger.reserve(BOB, 8, cpus(4), "all")


def test_l1_who_comes_second_is_refused_beside_what_others_and_he_himself_hold() -> None:
    ledger = Ledger(THERE)
    assert ledger.reserve(ANN, 1, cpus(2), "a")
    assert ledger.reserve(BOB, 2, cpus(1), "b")
    assert not ledger.reserve(BOB, 3, cpus(2), "b")
    assert ledger.elsewhere(BOB) == cpus(2)
    assert ledger.elsewhere(ANN) == cpus(1)


def test_a_share_of_a_device_leaves_the_rest_to_others() -> None:
    ledger = Ledger(THERE)
    assert ledger.reserve(ANN, 1, Held(gpus=(("0", 6_000),)), "a")
    assert not ledger.reserve(BOB, 2, Held(gpus=(("0", 4_001),)), "b")
    assert ledger.reserve(BOB, 2, Held(gpus=(("0", 4_000),)), "b")


def test_a_reservation_that_is_made_again_takes_the_place_of_the_former() -> None:
    ledger = Ledger(THERE)
    assert ledger.reserve(ANN, 1, cpus(3), "a")
    assert ledger.reserve(ANN, 1, cpus(4), "a")
    assert not ledger.reserve(ANN, 1, cpus(5), "a")
    assert ledger.elsewhere(BOB) == cpus(4)
    assert not ledger.reserve(BOB, 1, cpus(0), "an id of Ann's")


def test_l2_lent_cpus_are_others_until_they_are_reclaimed_which_never_fails() -> None:
    ledger = Ledger(THERE)
    ledger.reserve(ANN, 1, Held(4 * UNIT, (("0", UNIT),)), "a")
    assert ledger.lend(ANN, 1, True)
    assert not ledger.lend(ANN, 1, True)
    assert ledger.elsewhere(BOB) == Held(0, (("0", UNIT),))
    assert ledger.reserve(BOB, 2, cpus(4), "b")
    assert ledger.lend(ANN, 1, False)
    assert ledger.elsewhere(NOBODY) == Held(8 * UNIT, (("0", UNIT),))
    assert not ledger.reserve(BOB, 3, cpus(0.1), "b")


def test_only_who_holds_it_frees_lends_or_keeps_it() -> None:
    ledger = Ledger(THERE)
    ledger.reserve(ANN, 1, cpus(1), "a")
    assert not ledger.free(BOB, 1)
    assert not ledger.lend(BOB, 1, True)
    assert not ledger.keep(BOB, 1, "lease")
    assert ledger.elsewhere(BOB) == cpus(1)


def test_l3_what_a_client_holds_ends_with_it_but_not_what_a_lease_keeps() -> None:
    ledger = Ledger(THERE)
    ledger.reserve(ANN, 1, cpus(1), "a")
    ledger.reserve(ANN, 2, cpus(2), "service")
    ledger.reserve(BOB, 3, cpus(1), "b")
    assert ledger.keep(ANN, 2, "nightly")
    assert ledger.elsewhere(ANN) == cpus(3)  # it is Ann's no longer, though she lives
    assert ledger.forget(ANN) == [1]
    assert ledger.elsewhere(BOB) == cpus(2)
    assert ledger.forget(BOB) == [3]
    assert [entry.placement for entry in ledger.entries] == [2]


def test_l3_a_lease_that_ends_frees_what_it_keeps() -> None:
    ledger = Ledger(THERE)
    ledger.reserve(ANN, 1, cpus(2), "service")
    ledger.keep(ANN, 1, "nightly")
    assert ledger.release_lease("other") == []
    assert ledger.release_lease("nightly") == [1]
    assert ledger.elsewhere(NOBODY) == Held()


def test_l3_what_two_leases_use_is_kept_until_the_last_ends() -> None:
    ledger = Ledger(THERE)
    ledger.reserve(ANN, 1, cpus(2), "a group of two")
    ledger.reserve(ANN, 2, cpus(1), "one alone")
    assert ledger.keep(ANN, 1, "first") and ledger.keep(ANN, 2, "first")
    assert ledger.release_lease("first", {1: "second", 2: ""}.__getitem__) == [2]
    assert ledger.elsewhere(NOBODY) == cpus(2)
    assert ledger.release_lease("first") == []
    assert ledger.release_lease("second") == [1]
    assert ledger.elsewhere(NOBODY) == Held()


def test_the_client_that_is_no_client_holds_nothing() -> None:
    ledger = Ledger(THERE)
    ledger.reserve(ANN, 1, cpus(2), "service")
    ledger.keep(ANN, 1, "nightly")
    assert ledger.forget(0) == []
    assert ledger.has(1)


_amounts = st.builds(
    lambda cpu, gpu, share, memory, tokens: Held(
        cpu, ((gpu, share),) if share else (), memory, (("tokens", tokens),) if tokens else ()
    ),
    st.sampled_from([0, 1, 3_333, UNIT, 2 * UNIT]), st.sampled_from(["0", "1"]), st.sampled_from([0, 3_000, UNIT]),
    st.integers(0, 60), st.sampled_from([0, UNIT]),
)  # fmt: skip
_clients, _placements = st.integers(1, 3), st.integers(1, 6)


class Books(RuleBasedStateMachine):
    """Any requests in any order: L1 in the sums, L4 against a plain count."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(THERE)
        self.is_reclaimed = False

    @rule(client=_clients, placement=_placements, held=_amounts)
    def reserve(self, client: int, placement: int, held: Held) -> None:
        before = self.ledger.entries
        if not self.ledger.reserve(client, placement, held, "x"):
            assert sorted(e.placement for e in self.ledger.entries) == sorted(e.placement for e in before)

    @rule(client=_clients, placement=_placements)
    def free(self, client: int, placement: int) -> None:
        self.ledger.free(client, placement)

    @rule(client=_clients, placement=_placements, is_lent=st.booleans())
    def lend(self, client: int, placement: int, is_lent: bool) -> None:
        self.is_reclaimed |= self.ledger.lend(client, placement, is_lent) and not is_lent

    @rule(client=_clients)
    def forget(self, client: int) -> None:
        self.ledger.forget(client)
        assert not self.ledger.placements_of(client)

    @rule(client=_clients, placement=_placements)
    def keep(self, client: int, placement: int) -> None:
        if self.ledger.keep(client, placement, "lease"):
            self.is_reclaimed = True  # as a lease waits for nothing, it has its cpus

    @rule()
    def release(self) -> None:
        self.ledger.release_lease("lease")

    @invariant()
    def l4_the_totals_are_those_of_the_entries(self) -> None:
        count: Counter[Any] = Counter()
        for entry in self.ledger.entries:
            count["cpus", ""] += 0 if entry.is_lent else entry.held.cpus
            count["memory", ""] += entry.held.memory
            count.update({("gpu", id): amount for id, amount in entry.held.gpus})
            count.update({("custom", name): amount for name, amount in entry.held.custom})
        book = self.ledger._book
        left = {("cpus", ""): book.cpus, ("memory", ""): book.memory}
        left |= {("gpu", id): amount for id, amount in book.devices.items()}
        left |= {("custom", name): amount for name, amount in book.custom.items()}
        assert left == {what: amount - count[what] for what, amount in WHOLE.items()}

    @invariant()
    def l1_nothing_is_given_twice(self) -> None:
        held = self.ledger.elsewhere(NOBODY)
        assert held.memory <= 100
        assert all(amount <= UNIT for _, amount in held.gpus)
        assert self.is_reclaimed or held.cpus <= 4 * UNIT


Books.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBooks = Books.TestCase


@given(st.lists(_amounts, max_size=8))
@settings(max_examples=50, deadline=None)
def test_l4_everything_freed_leaves_exactly_nothing(helds: list[Held]) -> None:
    ledger = Ledger(THERE)
    booked = [id for id, held in enumerate(helds, 1) if ledger.reserve(ANN, id, held, "x")]
    for id in reversed(booked):
        ledger.free(ANN, id)
    assert ledger.elsewhere(NOBODY) == Held()
    assert (ledger._book.cpus, ledger._book.memory) == (4 * UNIT, 100)
    assert ledger._book.devices == {"0": UNIT, "1": UNIT} and ledger._book.custom == {"tokens": 2 * UNIT}
