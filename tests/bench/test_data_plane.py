"""bench/data_plane.py: what its workloads count, what its targets are judged by, and that wrong bytes are no value."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
sys.path.insert(0, str(BENCH / "workloads"))

import bulk  # noqa: E402
import data_plane  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402
import rounds  # noqa: E402
from report import Failure, Sample, Share, Target  # noqa: E402

BOARD = data_plane.BOARD


def value(system: str, workload: str, number: float) -> Sample:
    return Sample(system, workload, number, "GB/s", 3)


def verdicts(*results: report.Result) -> dict[str, bool | None]:
    return {row.target.workload: row.reached for row in report.make_rows(results, BOARD)}


def test_every_target_of_the_issue_is_there() -> None:
    limits = {target.workload: target.limit for target in BOARD.targets if target.limit is not None}
    assert limits == {
        "fetch_256m": Share(0.8, "memcpy", "fetch_256m"),
        "fetch_256m_cma": Share(0.8, "memcpy", "fetch_256m"),
        "fetch_256m_tcp": 4,
        "fetch_4k": 120,
        "fetch_4k_raw_cma": 15,
        "fetch_4k_raw_ucx": 15,
        "argument_100mb": 5,
        "argument_100mb_8": Share(1 / 1.5, "ours", "argument_100mb"),
        "arguments_1m_64": 2,
        "put_100mb": 5,
        "get_100mb": 1,
        "control_p99_4g": Share(3, "ours", "control_p99"),
        "control_p99_4g_tcp": Share(3, "ours", "control_p99"),
        "weights_4": 3,
        "torn_in_1000": 0,
    }


def test_a_share_is_taken_of_the_median_of_the_same_run() -> None:
    ours = value("ours", "fetch_256m_cma", 12)
    assert verdicts(ours, value("memcpy", "fetch_256m", 14)) == {"fetch_256m_cma": True, "fetch_256m": None}
    assert verdicts(ours, value("memcpy", "fetch_256m", 16))["fetch_256m_cma"] is False
    assert verdicts(ours)["fetch_256m_cma"] is None


def test_of_latencies_the_share_is_the_most() -> None:
    idle = value("ours", "control_p99", 100)
    assert verdicts(idle, value("ours", "control_p99_4g", 300))["control_p99_4g"] is True
    assert verdicts(idle, value("ours", "control_p99_4g", 301))["control_p99_4g"] is False


def test_memcpy_is_no_peer_and_no_torn_read_is_no_division() -> None:
    row = report.make_rows([value("ours", "fetch_256m", 12), value("memcpy", "fetch_256m", 14)], BOARD)[0]
    assert (row.best_peer, row.ratio) == (None, None)
    assert verdicts(value("ours", "torn_in_1000", 0)) == {"torn_in_1000": True}
    assert verdicts(value("ours", "torn_in_1000", 1)) == {"torn_in_1000": False}


@pytest.mark.parametrize(
    ("workload", "shown"),
    [
        ("fetch_256m", "≥ 0.8 × memcpy"),
        ("fetch_256m_cma", "≥ 0.8 × memcpy fetch_256m"),
        ("argument_100mb_8", "≥ 0.667 × argument_100mb"),
        ("control_p99_4g", "≤ 3 × control_p99"),
        ("fetch_4k", "≤ 120"),
    ],
)
def test_a_target_says_what_it_is_a_share_of(workload: str, shown: str) -> None:
    assert next(target for target in BOARD.targets if target.workload == workload).describe() == shown


def test_systems_measure_what_they_can() -> None:
    wanted = [target.workload for target in BOARD.targets]
    selected = {system.name: system.select(wanted, False, 1, 24e9) for system in data_plane.SYSTEMS}
    assert set(selected) == set(BOARD.systems)
    assert selected["ours"] == tuple(wanted)
    for name in BOARD.systems[1:]:
        assert set(selected[name]) <= set(bulk.WORKLOADS), f"{name} would be asked for what only ours does"
    assert set(wanted) == {*bulk.WORKLOADS, *bulk.OURS_ALONE}
    assert all((BENCH / "workloads" / system.script).exists() for system in data_plane.SYSTEMS)


def test_the_last_run_of_a_comparison_is_found_among_others() -> None:
    old, calls, bulk_run = {"cores": 2}, {"cores": 4, "comparison": "calls"}, {"cores": 2, "comparison": "data_plane"}
    lines = [json.dumps(fields) for fields in (old, {"value": 1}, bulk_run, {"value": 2}, calls, {"value": 3})]
    assert rounds.last_run(lines, "data_plane") == lines[2:4]
    assert rounds.last_run(lines, "calls") == lines[4:]
    assert rounds.last_run(lines[:3], "calls") == lines[:2]
    assert rounds.last_run(lines[:2], "data_plane") == []


def test_a_state_dict_has_300_tensors_and_500_megabytes() -> None:
    shapes = bulk.state_shapes()
    assert len(shapes) == 300
    assert 495e6 < bulk.count_bytes(shapes) < 505e6


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3.0], 99, 3.0), (list(range(1, 101)), 99, 99), (list(range(100, 0, -1)), 50, 50), ([1.0, 2.0], 99, 2.0)],
)
def test_percentiles(values: list[float], percent: float, expected: float) -> None:
    assert bulk.percentile(values, percent) == expected


def test_marks_tell_a_torn_state() -> None:
    assert bulk.marks([[2.0, 0.0, 2.0], [2.0]]) == (2.0, 2.0)
    assert bulk.marks([[2.0, 0.0, 1.0], [2.0]]) == (1.0, 2.0)


def test_as_many_procs_as_the_workloads_need() -> None:
    asked: list[tuple[str, ...]] = [(), ("weights_4",), ("argument_100mb_8", "fetch_4k")]
    assert [bulk.count_procs(measure.Plan(workloads, True)) for workloads in asked] == [2, 4, 8]


class InMemory:
    """A system whose procs are this one; `delivers` is what arrives instead of the last element."""

    def __init__(self, delivers: float | None = None) -> None:
        self.delivers = delivers
        self.is_closed = False
        self.held: Any = None
        self.state: dict[str, Any] = {}

    def last(self, tensor: Any) -> float:
        return float(tensor[-1]) if self.delivers is None else self.delivers

    async def hold(self, nbytes: int) -> None:
        self.held = bulk.make_tensor(nbytes)
        self.held[-1] = bulk.MARK

    async def fetch(self, out: Any) -> None:
        out.copy_(self.held)
        out[-1] = self.last(self.held)

    async def transfer(self) -> None:
        await asyncio.sleep(0.001)

    def echo(self) -> Awaitable[object]:
        return asyncio.sleep(0, 1)

    async def sink(self, tensor: Any) -> float:
        return self.last(tensor)

    async def sink_all(self, tensor: Any) -> Sequence[float]:
        return [self.last(tensor)] * bulk.ALL

    async def put(self, tensor: Any) -> Any:
        return tensor

    async def get(self, put: Any) -> tuple[float, float]:
        return 0.001, self.last(put)

    async def subscribe(self, shapes: Any) -> None:
        assert shapes

    async def publish(self, state: Any) -> Sequence[tuple[float, float]]:
        seen = bulk.marks([tensor.view(-1) for tensor in state.values()])
        return [seen if self.delivers is None else (self.delivers, self.delivers)] * bulk.SUBSCRIBERS

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workloads, with little to move and little time."""
    for name, nbytes in (("LARGE", 4096), ("ARGUMENT", 4096), ("IN_FLIGHT_BYTES", 1024)):
        monkeypatch.setattr(bulk, name, nbytes)
    monkeypatch.setattr(bulk, "small_repeats", lambda plan: 3)
    monkeypatch.setattr(bulk, "transfer_bytes", lambda plan: 4096)
    monkeypatch.setattr(bulk, "state_shapes", lambda: {"a": (3, 4), "b": (5,)})
    monkeypatch.setattr(measure.Plan, "seconds", 0.01)


async def results_of(system: InMemory, capsys: pytest.CaptureFixture[str]) -> list[report.Result]:
    async def spawn(size: int) -> InMemory:
        assert size == bulk.ALL
        return system

    await bulk.run("fake", spawn, measure.Plan(bulk.WORKLOADS, True))
    assert system.is_closed
    return [result for line in capsys.readouterr().out.splitlines() if (result := report.parse_line(line)) is not None]


@pytest.mark.usefixtures("small")
async def test_every_workload_gives_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    results = await results_of(InMemory(), capsys)
    assert [result.workload for result in results] == list(bulk.WORKLOADS)
    units = {target.workload: target.unit for target in BOARD.targets}
    for result in results:
        assert isinstance(result, Sample), result
        assert result.value > 0 and result.unit == units[result.workload]


@pytest.mark.usefixtures("small")
async def test_who_delivers_wrong_bytes_gets_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    results = await results_of(InMemory(delivers=0.5), capsys)
    values = {result.workload for result in results if isinstance(result, Sample)}
    assert values == {"control_p99", "control_p99_4g"}  # which deliver nothing
    failure = next(result for result in results if isinstance(result, Failure))
    assert failure.reason == f"AssertionError: the last element fetched is 0.5, expected {bulk.MARK}"


async def test_procs_that_cannot_be_spawned_fail_every_workload(capsys: pytest.CaptureFixture[str]) -> None:
    async def spawn(size: int) -> InMemory:
        raise OSError("no more of them")

    await bulk.run("fake", spawn, measure.Plan(("fetch_4k", "put_100mb"), True))
    found = [report.parse_line(line) for line in capsys.readouterr().out.splitlines()]
    assert found == [Failure("fake", name, "OSError: no more of them") for name in ("fetch_4k", "put_100mb")]


def test_a_limit_that_is_no_share_is_one_whatever_was_measured() -> None:
    assert Target("fetch_4k", "µs", 120).limit_in({}) == 120
