"""Fits agree with trying everything, on small hosts."""

from brute_force import check_grant, fewest_hosts, fits
from few_hosts import ask, granted, host, scheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.scheduler.accounts import Accounts
from monarch_async.scheduler.demand import STRATEGIES, Bundle, Demand
from monarch_async.scheduler.events import Grant, HostUp
from monarch_async.scheduler.fit import fit
from monarch_async.scheduler.resources import Resources
from monarch_async.scheduler.shape import shape_of

bundles = st.builds(Bundle, st.sampled_from([0, 0.5, 1, 2, 3]), st.sampled_from([0, 0, 0.3, 0.5, 1, 2]))
demands = st.one_of(
    st.builds(Demand, st.lists(bundles, min_size=1, max_size=4), st.sampled_from(STRATEGIES)),
    st.builds(
        lambda bundle, count, strategy: Demand([bundle] * count, strategy),
        bundles,
        st.integers(1, 4),
        st.sampled_from(STRATEGIES),
    ),
)
hosts = st.lists(st.builds(host, st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=3)


@settings(max_examples=250, deadline=None)
@given(hosts, st.lists(demands, max_size=4), demands)
def test_whether_it_fits_is_what_trying_everything_says(hosts: list[Resources], first: list[Demand], last: Demand):
    accounts = Accounts()
    for number, resources in enumerate(hosts):
        accounts.open_book(HostUp(number, f"host{number}", resources))
    for demand in [*first, last]:
        free = {book.host: (book.cpus, list(book.devices.values())) for book in accounts.books}
        indexed = fit(shape_of(demand), accounts.books, None)
        listed = fit(shape_of(demand), accounts.books, list(accounts.books))
        assert free == {book.host: (book.cpus, list(book.devices.values())) for book in accounts.books}
        assert (indexed is not None) == (listed is not None) == fits(demand, free)
        if indexed is None:
            continue
        used = len({book.host for book, _ in indexed})
        if demand.strategy == "pack" and all(bundle == demand.bundles[0] for bundle in demand.bundles):
            assert used == fewest_hosts(demand, free)
        if demand.strategy == "spread" and all(bundle == demand.bundles[0] for bundle in demand.bundles):
            able = sum(1 for one in free if fits(Demand(demand.bundles[:1]), {one: free[one]}))
            assert used == min(len(demand.bundles), able)
        check_grant(demand, Grant(0, tuple(b.spot_of(h) for b, h in indexed), tuple(h for _, h in indexed)))
        for book, held in indexed:
            assert book.has(held)
            accounts.take(book, held)
            assert book.cpus >= 0 and all(left >= 0 for left in book.devices.values())


@settings(max_examples=100, deadline=None)
@given(hosts, demands)
def test_what_is_rejected_at_once_is_what_empty_hosts_could_not_fit(hosts: list[Resources], demand: Demand):
    made = scheduler(*hosts)
    free = {number: (round(r.cpus * 10_000), [10_000] * len(r.gpus)) for number, r in enumerate(hosts)}
    commands = ask(made, 1, demand)
    assert granted(commands) == ([1] if fits(demand, free) else [])
    if not granted(commands):
        (reject,) = commands
        assert reject.why and reject.table
