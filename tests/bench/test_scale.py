"""bench/scale.py: its targets, its table, its picture, and that every measure runs with a few hosts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import report  # noqa: E402
import scale  # noqa: E402
from report import Sample  # noqa: E402
from rich.console import Console  # noqa: E402


def run(folder: Path, *arguments: str) -> tuple[str, list[report.Result]]:
    """Run it with few hosts; return what it printed and what it wrote."""
    file = folder / "results.jsonl"
    command = [sys.executable, str(BENCH / "scale.py"), "--quick", "--force", "--results", str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    about, *lines = file.read_text().splitlines()
    assert json.loads(about)["comparison"] == "scale"
    return done.stdout, [result for line in lines if (result := report.parse_line(line)) is not None]


def test_every_target_of_the_issue_is_there() -> None:
    limits = {target.workload: target.describe() for target in scale.BOARD.targets if target.limit is not None}
    assert limits == {
        "cast_4096": "≤ 1.5",
        "idle_1000": "≤ 3",
        "tasks_10000": "≥ 5000",
        "gangs_1024": "≥ 1000",
        "join_gap_1000": "≤ 20",
        "lose_gap_1000": "≤ 20",
    }


def test_sizes_stand_side_by_side_and_the_largest_is_judged() -> None:
    results = [Sample("ours", f"cast_{size}", seconds, "s", 1) for size, seconds in ((64, 0.01), (4096, 1.6))]
    console = Console(width=200)
    with console.capture() as capture:
        scale.print_tables(console, [*results, report.Failure("ours", "idle_8", "too idle")])
    text = capture.get()
    (line,) = [line for line in text.splitlines() if " cast " in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["cast", "s", "0.01", "1.6", "≤ 1.5", "no"]
    assert "failed: ours: idle_8: too idle" in text


def test_a_cost_is_drawn_against_its_size() -> None:
    plot = pytest.importorskip("scale_plot", exc_type=ImportError)
    samples = [Sample("ours", "tasks_100", 50.0, "tasks/s", 1), Sample("ours", "tasks_10", 20.0, "tasks/s", 1)]
    assert plot.points_of(plot.Curve("tasks", "", is_rate=True), samples) == [(10, 0.5), (100, 2.0)]
    assert plot.points_of(plot.Curve("cast", ""), samples) == []


@pytest.mark.slow
def test_casts_and_gangs_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    printed, results = run(tmp_path, "--measures", "cast,gangs", "--plot")
    values = {result.workload: result.value for result in results if isinstance(result, Sample)}
    assert {"cast_4", "cast_8", "cast_client_cpu_8", "gangs_16", "gangs_median_16"} <= values.keys()
    assert all(value > 0 for value in values.values())
    assert "hosts of 32 actors" in printed
    assert (tmp_path / "results-scale.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_every_measure_runs(tmp_path: Path) -> None:
    _, results = run(tmp_path)
    given = {result.workload for result in results if isinstance(result, Sample)}
    expected = {f"{name}_{size}" for m in scale.MEASURES.values() for name, _ in m.prints for size in m.quick_sizes}
    assert given == expected
