"""Gangs of bundles that differ: large ones, and what they cost."""

import pytest
from brute_force import check_grant, fits
from few_hosts import ask, granted, host, is_empty, scheduler, withdraw
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fit import demands, hosts

from monarch_async.scheduler import search
from monarch_async.scheduler.accounts import Accounts
from monarch_async.scheduler.book import Book
from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import Grant, HostUp
from monarch_async.scheduler.resources import Resources
from monarch_async.scheduler.shape import shape_of

ONE_GPU = Bundle(1, 1)


def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how often a book is looked at, in its one entry."""
    counted = [0]
    room_for = Book.room_for

    def counting(*args: object) -> int:
        counted[0] += 1
        return room_for(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Book, "room_for", counting)
    return counted


def test_more_bundles_than_python_recurses() -> None:
    made = scheduler(*[host(8, gpus=8)] * 200)
    (grant,) = ask(made, 1, Demand([Bundle(6), *[ONE_GPU] * 1500]))
    assert isinstance(grant, Grant)
    assert [spot.host for spot in grant.spots[1:]] == sorted(spot.host for spot in grant.spots[1:])
    assert len({spot.host for spot in grant.spots}) <= 189
    withdraw(made, 1)
    assert is_empty(made)


@pytest.mark.parametrize("strategy", ["pack", "spread"])
def test_the_cost_of_a_gang_with_a_leader_is_that_of_its_hosts(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = scheduler(*[host(8, gpus=8)] * 300)
    counted = looks(monkeypatch)
    assert granted(ask(made, 1, Demand([Bundle(4), *[ONE_GPU] * 256], strategy))) == [1]
    assert counted[0] < 3000
    withdraw(made, 1)
    for id in range(10, 300):
        ask(made, id, Demand([Bundle(8, 8)]))
    counted[0] = 0
    assert ask(made, 2, Demand([Bundle(4), *[ONE_GPU] * 256], strategy)) == []
    counted[0] = 0
    withdraw(made, 10)
    assert counted[0] < 300, "what is short is seen from the hosts that have some"


@settings(max_examples=200, deadline=None)
@given(hosts, st.lists(demands, max_size=3), demands)
def test_what_is_placed_in_groups_is_right(hosts: list[Resources], first: list[Demand], last: Demand) -> None:
    accounts = Accounts()
    for number, resources in enumerate(hosts):
        accounts.open_book(HostUp(number, f"host{number}", resources))
    books = list(accounts.books)
    for demand in [*first, last]:
        shape = shape_of(demand)
        free = {book.host: (book.cpus, list(book.devices.values())) for book in books}
        found = search._in_groups(shape, search.groups(shape), books)
        assert free == {book.host: (book.cpus, list(book.devices.values())) for book in books}
        if found is None or (demand.strategy == "strict_pack" and len({book.host for book, _ in found}) > 1):
            continue  # that is asked for on one host only
        assert fits(demand, free)
        check_grant(demand, Grant(0, tuple(b.spot_of(h) for b, h in found), tuple(h for _, h in found)))
        for book, held in found:
            assert book.has(held)
            accounts.take(book, held)
