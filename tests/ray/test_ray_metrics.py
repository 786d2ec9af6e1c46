"""Counters, gauges and histograms: what they refuse, how they add up over processes, and what Prometheus reads."""

import math
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async import ray
from monarch_async.ray.metric_table import Buckets, Changes, Definition, MetricTable, Series, exposition
from monarch_async.ray.util import metrics
from monarch_async.ray.util.metrics import Counter, Gauge, Histogram, Metric

CALLS = Definition("counter", "calls", "how many", ("who",))
LOAD = Definition("gauge", "load")
SECONDS = Definition("histogram", "seconds", "", (), (0.1, 1.0))


# -- the table, pure ---------------------------------------------------------------------------------------------------


def changes(*recorded: tuple[Definition, tuple[str, ...], float]) -> Changes:
    made = Changes()
    for one in recorded:
        made.add(*one)
    return made


def test_counters_and_histograms_add_up_and_gauges_are_of_a_process() -> None:
    table = MetricTable()
    for process, amount in ((1, 2.0), (2, 3.0), (1, 0.5)):
        table.record(process, changes((CALLS, ("a",), amount), (LOAD, (), amount), (SECONDS, (), amount)).take())
    assert table.series() == [
        Series(CALLS, {"who": "a"}, 5.5),
        Series(LOAD, {}, 0.5, 1),
        Series(LOAD, {}, 3.0, 2),
        Series(SECONDS, {}, Buckets([0, 1, 2], 5.5)),
    ]
    table.forget(lambda process: process == 1)
    assert [series.process for series in table.series() if series.definition == LOAD] == [2]
    assert table.series()[0].value == 5.5


def test_a_boundary_belongs_to_the_bucket_below() -> None:
    buckets = Buckets.of(SECONDS)
    for value in (0.1, 0.11, 1.0, 1.1, -5):
        buckets.observe(SECONDS, value)
    assert buckets.counts == [2, 2, 1]


numbers = st.integers(1, 1000)  # exact in any order of adding
records = st.lists(st.tuples(st.sampled_from([(CALLS, ("a",)), (CALLS, ("b",)), (LOAD, ()), (SECONDS, ())]), numbers))


@given(records, st.integers(0, 5), st.integers(0, 5))
def test_what_did_not_arrive_counts_as_if_nothing_had_happened(
    recorded: list[tuple[tuple[Definition, tuple[str, ...]], int]], first: int, second: int
) -> None:
    """Batches given back, and sent with the next, end in the same table."""
    plain, table, kept = MetricTable(), MetricTable(), Changes()
    for at, ((definition, tags), value) in enumerate(recorded):
        kept.add(definition, tags, value)
        if at in (first, second):
            taken = kept.take()
            kept.add(LOAD, (), 0) if at == second else None
            kept.give_back(taken)
    table.record(1, kept.take())
    for at, ((definition, tags), value) in enumerate(recorded):
        plain.record(1, changes((definition, tags, value)).take())
        if at == second:
            plain.record(1, changes((LOAD, (), 0)).take())
    assert table.series() == plain.series()
    assert not kept


def test_exposition() -> None:
    table = MetricTable()
    table.record(16, changes((CALLS, ('a "b"\n',), 2), (LOAD, (), math.inf), (SECONDS, (), 0.5)).take())
    assert exposition(table.series()) == (
        "# HELP ray_calls_total how many\n"
        "# TYPE ray_calls_total counter\n"
        'ray_calls_total{who="a \\"b\\"\\n"} 2.0\n'
        "# HELP ray_load \n"
        "# TYPE ray_load gauge\n"
        'ray_load{WorkerId="10"} +Inf\n'
        "# HELP ray_seconds \n"
        "# TYPE ray_seconds histogram\n"
        'ray_seconds_bucket{le="0.1"} 0.0\n'
        'ray_seconds_bucket{le="1.0"} 1.0\n'
        'ray_seconds_bucket{le="+Inf"} 1.0\n'
        "ray_seconds_count 1.0\n"
        "ray_seconds_sum 0.5\n"
    )


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Counter(""), ValueError),
        (lambda: Counter(5), TypeError),  # type: ignore[arg-type]
        (lambda: Counter("c", tag_keys=["a"]), TypeError),  # type: ignore[arg-type]
        (lambda: Counter("c", tag_keys="a"), TypeError),  # type: ignore[arg-type]
        (lambda: Counter("c", tag_keys=(1,)), TypeError),  # type: ignore[arg-type]
        (lambda: Histogram("h"), ValueError),
        (lambda: Histogram("h", boundaries=[]), ValueError),
        (lambda: Histogram("h", boundaries=[0, 1]), ValueError),
        (lambda: Counter("c", tag_keys=("a",)).set_default_tags({"b": "1"}), ValueError),
        (lambda: Counter("c", tag_keys=("a",)).set_default_tags({"a": 1}), TypeError),  # type: ignore[dict-item]
        (lambda: Counter("c").inc(0), ValueError),
        (lambda: Counter("c").inc(-1), ValueError),
        (lambda: Counter("c").inc("1"), TypeError),  # type: ignore[arg-type]
        (lambda: Counter("c", tag_keys=("a",)).inc(), ValueError),
        (lambda: Counter("c", tag_keys=("a",)).inc(1, {"a": 1}), TypeError),  # type: ignore[dict-item]
        (lambda: Gauge("g").set("1"), TypeError),  # type: ignore[arg-type]
        (lambda: Histogram("h", boundaries=[1.0]).observe(None), TypeError),  # type: ignore[arg-type]
    ],
)
def test_refused(make: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_another_name_warns_and_records_nothing() -> None:
    with pytest.warns(UserWarning, match="a-b"):
        counter = Counter("a-b")
    counter.inc()
    assert metrics._recorder._changes.take() == []


def test_info() -> None:
    counter = Counter("c", "what", ("a", "b"))
    assert counter.set_default_tags({"a": "1"}) is counter
    assert counter.info == {
        "name": "c", "description": "what", "tag_keys": ("a", "b"), "default_tags": {"a": "1"}
    }  # fmt: skip
    assert Histogram("h", boundaries=[2, 1]).info["boundaries"] == [2, 1]


# -- over processes ----------------------------------------------------------------------------------------------------


@ray.remote
class Worker:
    def __init__(self, name: str) -> None:
        self.calls = Counter("worker_calls", "calls of workers", ("name", "kind"))
        self.calls.set_default_tags({"name": name, "kind": "usual"})
        self.load = Gauge("worker_load")
        self.took = Histogram("worker_took", boundaries=[1, 10])

    def work(self, times: int) -> None:
        for _ in range(times):
            self.calls.inc()
        self.calls.inc(2, {"kind": "rare"})
        self.load.set(times)
        self.load.set(None)
        self.took.observe(times)


@ray.remote
def count(metric: Metric) -> None:
    assert isinstance(metric, Counter)
    metric.inc()


def found(name: str) -> list[Series]:
    return [series for series in metrics.snapshot() if series.definition.name == name]


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, metrics.snapshot()
        time.sleep(0.05)


@pytest.mark.usefixtures("driver")
def test_actors_record() -> None:
    workers = [Worker.remote(name) for name in "ab"]
    ray.get([worker.work.remote(times) for worker, times in zip(workers, (3, 20), strict=True)])
    wait_until(lambda: len(found("worker_load")) == 2 and len(found("worker_calls")) == 4)
    assert {tuple(series.tags.items()): series.value for series in found("worker_calls")} == {
        (("name", "a"), ("kind", "usual")): 3,
        (("name", "a"), ("kind", "rare")): 2,
        (("name", "b"), ("kind", "usual")): 20,
        (("name", "b"), ("kind", "rare")): 2,
    }
    assert sorted(series.value for series in found("worker_load")) == [3, 20]  # type: ignore[type-var]
    assert [series.value for series in found("worker_took")] == [Buckets([0, 1, 1], 23)]
    text = metrics.exposition()
    assert 'ray_worker_calls_total{name="a",kind="usual"} 3.0\n' in text
    assert 'ray_worker_took_bucket{le="10.0"} 1.0\n' in text
    assert len(re.findall(r"^# TYPE ray_worker_load gauge$", text, re.MULTILINE)) == 1


@pytest.mark.usefixtures("driver")
def test_the_driver_sees_its_own_at_once_and_gauges_end_with_their_process() -> None:
    Gauge("mine").set(4)
    assert [series.value for series in found("mine")] == [4]
    worker = Worker.remote("short")
    ray.get(worker.work.remote(77))
    wait_until(lambda: 77 in [series.value for series in found("worker_load")])
    ray.kill(worker)
    wait_until(lambda: 77 not in [series.value for series in found("worker_load")])
    assert 77 in [series.value for series in found("worker_calls")]


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("how", ["terminated", "out of scope"])
def test_a_process_that_ends_has_said_all(how: str) -> None:
    """Also what it recorded less than a second before."""
    worker = Worker.remote(how)
    ray.get(worker.work.remote(5))
    if how == "terminated":
        ray.wait([worker.__ray_terminate__.remote()])
    del worker
    wait_until(lambda: 5 in [series.value for series in found("worker_calls") if series.tags["name"] == how])


@pytest.mark.usefixtures("driver")
def test_a_metric_travels_with_its_tags() -> None:
    metric = Counter("travels", tag_keys=("to",)).set_default_tags({"to": "there"})
    ray.get([count.remote(metric) for _ in range(3)])
    wait_until(lambda: [series.value for series in found("travels")] == [3])
    assert found("travels")[0].tags == {"to": "there"}
