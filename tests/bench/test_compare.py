"""bench/: reading results, medians, verdicts, the table, who measures what; nothing keeps running."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import report  # noqa: E402
import systems  # noqa: E402
import trial  # noqa: E402
from report import Failure, Sample, Target  # noqa: E402

RATE = Target("call_one_1", "calls/s", 10_000, 1.7)
START = Target("spawn_8", "s", 0.25, more_is_better=False)


def rate(system: str, value: float, workload: str = "call_one_1") -> Sample:
    return Sample(system, workload, value, "calls/s", 1)


def render(results: list[report.Result], not_installed: tuple[str, ...] = ()) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(report.make_table(results, report.CALLS, not_installed))
    return capture.get()


def row_of(text: str, workload: str) -> list[str]:
    line = next(line for line in text.splitlines() if f" {workload} " in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_a_result_line_is_read() -> None:
    line = json.dumps({"system": "ray", "workload": "call_8", "value": 3, "unit": "actor-calls/s", "n": 24})
    assert report.parse_line(line) == Sample("ray", "call_8", 3.0, "actor-calls/s", 24)


def test_an_error_line_is_read() -> None:
    line = json.dumps({"system": "ray", "workload": "call_8", "error": "TimeoutError: too slow"})
    assert report.parse_line(line) == Failure("ray", "call_8", "TimeoutError: too slow")


@pytest.mark.parametrize(
    "line", ["", "(raylet) WARNING: 8 workers", "7", "[1]", '{"cores": 2}', '{"system": "a"']
)
def test_what_libraries_print_is_skipped(line: str) -> None:
    assert report.parse_line(line) is None


def test_the_median_ignores_one_disturbed_round_and_failures() -> None:
    results = [
        rate("ours", 10),
        rate("ours", 500),
        rate("ours", 12),
        Failure("ours", "call_8", "x"),
        rate("ray", 2),
    ]
    assert report.medians(results) == {("ours", "call_one_1"): 12, ("ray", "call_one_1"): 2}


def judge(target: Target, values: dict[str, float]) -> report.Row:
    here = {(system, target.workload): value for system, value in values.items()}
    return report.judge(target, report.CALLS, here)


def test_a_limit_and_a_ratio_must_both_be_reached() -> None:
    assert judge(RATE, {"ours": 12_000, "xoscar": 6_000, "ray": 900}).reached is True
    assert judge(RATE, {"ours": 9_999, "xoscar": 1_000}).reached is False
    beaten = judge(RATE, {"ours": 12_000, "xoscar": 8_000, "ray": 900})
    assert (beaten.best_peer, beaten.ratio, beaten.reached) == ("xoscar", 1.5, False)


def test_of_times_the_least_wins() -> None:
    row = judge(START, {"ours": 0.2, "monarch": 0.8, "ray": 1.5, "floor": 0.04})
    assert (row.best_peer, row.ratio, row.reached) == ("monarch", 4.0, True)
    assert judge(START, {"ours": 0.26, "monarch": 0.8}).reached is False


def test_the_floor_is_no_peer_and_nothing_is_judged_without_our_number() -> None:
    row = judge(RATE, {"floor": 18_000})
    assert (row.best_peer, row.ratio, row.reached) == (None, None, None)
    assert judge(RATE, {"ours": 12_000}).reached is True


def test_the_table_shows_values_failures_and_verdicts() -> None:
    results = [rate("ours", 12_345), rate("xoscar", 6_000), Failure("ray", "call_one_1", "boom")]
    text = render(results)
    assert row_of(text, "call_one_1") == [
        *("call_one_1", "calls/s", "12.3k", "-", "failed", "-", "6000", "-"),
        *("2.06", "≥ 10.0k, 1.7 × peers", "yes"),
    ]
    assert "call_8" not in text
    assert report.describe_failures(results) == ["ray: call_one_1: boom"]


def test_the_table_says_what_is_not_installed() -> None:
    text = render([rate("ours", 1)], ("monarch",))
    assert "not installed" in text
    assert "(bench/peers.sh)" in text
    assert "not installed" not in render([rate("ours", 1)])


def test_failures_of_one_cause_take_one_line() -> None:
    results = [
        Failure("ray", "call_8", "gone"),
        Failure("ray", "call_32", "gone"),
        Failure("ray", "call_8", "later"),
    ]
    assert report.describe_failures(results) == ["ray: call_8, call_32: gone"]


def test_every_target_of_the_issue_is_there() -> None:
    limits = {
        target.workload: (target.limit, target.times_best_peer) for target in report.CALL_TARGETS if target.limit
    }
    assert limits == {
        "call_one_1": (10_000, 1.7),
        "call_one_100": (60_000, 5.0),
        "actor_to_actor_100": (40_000, None),
        "call_8": (25_000, None),
        "call_32": (35_000, None),
        "spawn_8": (0.25, None),
        "spawn_32": (0.6, None),
        "spawn_128": (2.5, None),
        "tensor_100mb": (2.0, None),
        "import_ms": (150, None),
        "idle_worker_private_mb": (15, None),
        "idle_worker_threads": (3, None),
    }


def test_what_was_asked_for_and_not_printed_counts_as_failed() -> None:
    missing = report.missing_workloads(
        [rate("ray", 1)], "ray", ["call_one_1", "call_8"], "ended with status 1"
    )
    assert missing == [Failure("ray", "call_8", "ended with status 1")]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0423, "0.0423"), (2.5, "2.5"), (9870.4, "9870"), (61_240, "61.2k"), (123_456, "123k")],
)
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert report.show(value) == shown


def test_peers_skip_what_takes_too_long_and_we_never_do() -> None:
    ours, monarch = systems.SYSTEMS[0], systems.SYSTEMS[1]
    wanted = ["call_one_1", "spawn_8", "spawn_128", "import_ms"]
    assert ours.select(wanted, quick=True, turn=2, memory=8e9) == tuple(wanted)
    assert monarch.select(wanted, quick=True, turn=1, memory=64e9) == ("call_one_1", "spawn_8")
    assert monarch.select(wanted, quick=True, turn=2, memory=64e9) == ("call_one_1",)
    assert monarch.select(wanted, quick=False, turn=2, memory=64e9) == ("call_one_1", "spawn_8", "spawn_128")
    assert monarch.select(wanted, quick=False, turn=2, memory=24e9) == ("call_one_1", "spawn_8")


def system_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> systems.System:
    """A system whose workload file is `text`."""
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "fake.py").write_text(text)
    monkeypatch.setattr(trial, "BENCH", tmp_path)
    return systems.System("fake", "fake.py", Path(sys.executable), ("fake",), is_peer=False)


def test_a_workload_file_that_dies_gives_its_results_and_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps({"system": "fake", "workload": "call_8", "value": 1.0, "unit": "s", "n": 1})
    text = f"import sys\nprint({line!r})\nprint('noise')\nsys.exit('no more memory')\n"
    outcome = trial.run_system(system_of(tmp_path, monkeypatch, text), ["call_8", "call_32"], quick=True)
    assert outcome.results == [
        Sample("fake", "call_8", 1.0, "s", 1),
        Failure("fake", "call_32", "ended with status 1: no more memory"),
    ]
    assert outcome.leftovers == 0


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by /proc")
def test_a_process_left_behind_is_ended_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "GRACE", 0.2)
    text = (
        "import subprocess, sys\n"
        "idle = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        "child = subprocess.Popen(idle, start_new_session=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
    )
    outcome = trial.run_system(system_of(tmp_path, monkeypatch, text), [], quick=True)
    assert outcome.leftovers == 1
    wait_until_gone(int((tmp_path / "pid").read_text()))


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # ended; whoever adopted it has not looked yet
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} still runs")


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = "import os, sys; os.getloadavg = lambda: (3.0, 0, 0)"
    program = f"{busy}; import compare; sys.exit(compare.main(compare.COMPARISON))"
    environment = {**os.environ, "PYTHONPATH": str(BENCH)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert "the machine is busy (load 3.00 > 0.5)" in done.stdout
