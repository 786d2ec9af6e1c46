"""bench/ray_dropin: which rows there are, what a script may import, how rows are timed, judged and shown."""

import ast
import json
import sys
import types
from pathlib import Path

import pytest
from rich.console import Console

BENCH = Path(__file__).resolve().parents[2] / "bench"
FOLDER = BENCH / "ray_dropin"
sys.path.insert(0, str(BENCH))
sys.path.append(str(FOLDER))

import run  # noqa: E402
import verdicts  # noqa: E402
from report import OURS, Failure, Result, Sample  # noqa: E402
from verdicts import RAY, SCRIPTS, Head  # noqa: E402

ROWS = [
    Head("tasks", "tasks_sync", "tasks/s", "control"),
    Head("actors", "actor_1_1_sync", "calls/s", "control"),
    Head("objects", "put_100mb", "GB/s", "bulk"),
]
SCRIPT = """
@row("tasks_sync", "tasks/s")
def first(): yield

@ray.remote(num_cpus=0)
def other(): pass

@row("put_100mb", "GB/s", kind="bulk")
def second(): yield
"""


def measured(system: str, name: str, *values: float) -> list[Result]:
    return [Sample(system, name, value, "u", 1) for value in values]


def fields_by_name(results: list[Result]) -> dict[object, dict[str, object]]:
    return {fields["name"]: fields for fields in verdicts.as_fields(results, ROWS)}


def test_rows_are_read_without_running_the_script() -> None:
    assert verdicts.read_heads("s", SCRIPT) == [
        Head("s", "tasks_sync", "tasks/s", "control"),
        Head("s", "put_100mb", "GB/s", "bulk"),
    ]


def test_every_script_is_run_and_no_row_is_there_twice() -> None:
    tools = {"rows", "run", "verdicts", "check_same"}
    assert {file.stem for file in FOLDER.glob("*.py")} - tools == set(SCRIPTS)
    heads = verdicts.all_heads()
    assert {head.script for head in heads} == set(SCRIPTS)
    assert len({head.name for head in heads}) == len(heads)
    assert {head.kind for head in heads} == {"control", "bulk"}


@pytest.mark.parametrize("script", [*SCRIPTS, "rows"])
def test_a_script_imports_ray_and_nothing_of_ours(script: str) -> None:
    imported = set()
    for node in ast.walk(ast.parse((FOLDER / f"{script}.py").read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert "ray" in imported
    assert imported - {"ray", "rows", "numpy"} <= set(sys.stdlib_module_names)


def test_lines_are_read_and_what_libraries_print_is_not() -> None:
    line = json.dumps({"name": "tasks_sync", "value": 3, "unit": "tasks/s", "kind": "control", "n": 24})
    assert verdicts.read_line(line, RAY) == Sample(RAY, "tasks_sync", 3.0, "tasks/s", 24)
    line = json.dumps({"name": "tasks_sync", "error": "TimeoutError: slow"})
    assert verdicts.read_line(line, OURS) == Failure(OURS, "tasks_sync", "TimeoutError: slow")
    for other in ("started", "3", "[1]", '{"level": "info"}'):
        assert verdicts.read_line(other, RAY) is None


@pytest.mark.parametrize(
    ("name", "ours", "reached", "ray_wins"),
    [
        ("tasks_sync", 10.0, True, False),
        ("tasks_sync", 9.9, False, True),
        ("actor_1_1_sync", 29.0, False, False),
        ("actor_1_1_sync", 30.0, True, False),
        ("put_100mb", 6.7, True, True),
        ("put_100mb", 6.6, False, True),
    ],
)
def test_a_row_is_judged_by_its_kind(name: str, ours: float, reached: bool, ray_wins: bool) -> None:
    fields = fields_by_name([*measured(RAY, name, 9, 10, 90), *measured(OURS, name, ours)])[name]
    assert (fields["ray"], fields["facade"], fields["ratio"]) == (10, ours, pytest.approx(ours / 10))
    assert (fields["reached"], fields["ray_wins"]) == (reached, ray_wins)


def test_a_row_that_failed_somewhere_is_not_judged_and_says_why() -> None:
    results = [*measured(RAY, "tasks_sync", 10), Failure(OURS, "tasks_sync", "no such task")]
    fields = fields_by_name(results)["tasks_sync"]
    assert (fields["ratio"], fields["reached"], fields["ray_wins"]) == (None, None, False)
    assert fields["errors"] == {OURS: "no such task"}


def test_the_table_marks_where_ray_wins() -> None:
    results = [*measured(RAY, "tasks_sync", 10), *measured(OURS, "tasks_sync", 5)]
    results += [*measured(RAY, "put_100mb", 10), *measured(OURS, "put_100mb", 11), Failure(OURS, "put_100mb", "full")]
    console = Console(width=160)
    with console.capture() as capture:
        console.print(verdicts.make_table(results, ROWS))
    lines = capture.get().splitlines()
    [sync] = [line for line in lines if "tasks_sync" in line]
    [put] = [line for line in lines if "put_100mb" in line]
    assert "Ray wins" in sync and " no " in sync and "0.5" in sync
    assert "Ray wins" not in put and "11 (failed)" in put


def test_what_a_script_did_not_print_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps({"name": "tasks_sync", "value": 3, "unit": "tasks/s", "kind": "control", "n": 24})
    (tmp_path / "tasks.py").write_text(f"print({line!r})\nraise SystemExit('out of luck')\n")
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setitem(run.COMMANDS, RAY, [sys.executable])
    results, words = run.run_script("tasks", ["tasks_sync", "tasks_async"], RAY, 0.1)
    assert results[0] == Sample(RAY, "tasks_sync", 3.0, "tasks/s", 24)
    assert isinstance(results[1], Failure) and "out of luck" in results[1].reason
    assert "1 failed" in words


def test_a_step_is_timed_as_a_whole_or_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    import rows

    now = iter([0.0, 1.0, 4.0, 4.0, 9.0])
    monkeypatch.setattr(rows.time, "perf_counter", lambda: next(now))
    assert rows.window(iter([7, rows.Lap(3, 0.5)]).__next__, 5.0) == (10, 3.5, 2)
    monkeypatch.delitem(sys.modules, "rows")
