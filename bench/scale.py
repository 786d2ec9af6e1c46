"""Measures what many hosts cost: real clients and agents, simulated workers, each measure over sizes, on one core.

What is measured, what of it is simulated and what the numbers mean is in bench/README.md, each measure's part in
bench/workloads/scale_*.py.

    python bench/scale.py                         everything, under 5 minutes
    python bench/scale.py --quick                 few hosts, a few seconds
    python bench/scale.py --measures cast,idle
    python bench/scale.py --plot                  also draw cost against size, into bench/results/
    python bench/scale.py --show bench/results/2030-01-31.jsonl [--plot] [--markdown]
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from report import (
    OURS,
    VERDICTS,
    Board,
    Failure,
    Result,
    Sample,
    Target,
    describe_failures,
    judge,
    medians,
    missing_workloads,
    parse_line,
)
from report import show as show_value
from rich import box
from rich.console import Console
from rich.table import Table
from rounds import QUIET_LOAD, describe_machine, last_run, record
from systems import BENCH

PATIENCE = 150.0
"""Seconds that one measure may take at one size."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A script, the sizes it is run at (what is counted), and what it prints at each: ``name_size``, in this unit."""

    script: str
    counted: str
    sizes: tuple[int, ...]
    quick_sizes: tuple[int, ...]
    prints: tuple[tuple[str, str], ...]
    limits: tuple[tuple[str, float], ...]  #: of what is printed at the largest size
    more_is_better: bool

    @property
    def workloads(self) -> dict[str, str]:
        """Every row there can be, with its unit."""
        sizes = sorted({*self.sizes, *self.quick_sizes})
        return {f"{name}_{size}": unit for name, unit in self.prints for size in sizes}

    def target(self, workload: str, unit: str) -> Target:
        name, _, size = workload.rpartition("_")
        limit = dict(self.limits).get(name) if int(size) == self.sizes[-1] else None
        return Target(workload, unit, limit, more_is_better=self.more_is_better)


MEASURES = {
    "cast": Measure(
        "scale_cast.py",
        "hosts of 32 actors",
        (64, 256, 1024, 4096),
        (4, 8),
        (
            ("cast", "s"),
            ("cast_worst", "s"),
            ("cast_cpu", "s"),
            ("cast_client_cpu", "s"),
            ("cast_attach", "s"),
            ("cast_spawn", "s"),
        ),
        (("cast", 1.5),),
        more_is_better=False,
    ),
    "idle": Measure(
        "scale_idle.py",
        "hosts",
        (250, 500, 1000),
        (8,),
        (("idle", "% of a core"), ("idle_all", "% of a core"), ("idle_gap", "ms")),
        (("idle", 3.0),),
        more_is_better=False,
    ),
    "tasks": Measure(
        "scale_tasks.py",
        "tasks",
        (1250, 2500, 5000, 10000),
        (100,),
        (
            ("tasks", "tasks/s"),
            ("tasks_cpu", "tasks/s"),
            ("tasks_cold", "tasks/s"),
            ("tasks_cold_cpu", "tasks/s"),
        ),
        (("tasks", 5000.0),),
        more_is_better=True,
    ),
    "gangs": Measure(
        "scale_gangs.py",
        "hosts",
        (64, 256, 1024),
        (16,),
        (("gangs", "rounds/s"), ("gangs_cpu", "rounds/s"), ("gangs_median", "ms"), ("gangs_worst", "ms")),
        (("gangs", 1000.0),),
        more_is_better=True,
    ),
    "hosts": Measure(
        "scale_hosts.py",
        "hosts, a tenth of which join, and are lost",
        (250, 500, 1000),
        (20,),
        (
            ("join_gap", "ms"),
            ("join_gap_cpu", "ms"),
            ("join_seconds", "s"),
            ("lose_gap", "ms"),
            ("lose_gap_cpu", "ms"),
        ),
        (("join_gap", 20.0), ("lose_gap", 20.0)),
        more_is_better=False,
    ),
}


BOARD = Board(
    "scale",
    tuple(measure.target(*row) for measure in MEASURES.values() for row in measure.workloads.items()),
    (),
    (),
)


def make_table(measure: Measure, values: Mapping[tuple[str, str], float], is_markdown: bool) -> Table | None:
    """What a measure has given, size by size; None where it has given nothing."""
    sizes = sorted({int(workload.rpartition("_")[2]) for _, workload in values if workload in measure.workloads})
    if not sizes:
        return None
    table = Table(box=box.MARKDOWN if is_markdown else box.ROUNDED, title=None if is_markdown else measure.counted)
    table.add_column(measure.counted if is_markdown else "")
    table.add_column("unit", style="dim")
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    table.add_column("to reach", justify="right")
    table.add_column("reached", justify="right")
    for name, unit in measure.prints:
        cells = [values.get((OURS, f"{name}_{size}")) for size in sizes]
        row = judge(measure.target(f"{name}_{sizes[-1]}", unit), BOARD, values)
        shown = ["-" if value is None else show_value(value) for value in cells]
        table.add_row(name, unit, *shown, row.target.describe(), VERDICTS[row.reached])
    return table


def print_tables(console: Console, results: Sequence[Result], is_markdown: bool = False) -> None:
    values = medians(results)
    for measure in MEASURES.values():
        table = make_table(measure, values, is_markdown)
        if table is not None:
            console.print(table)
    for line in describe_failures(results):
        console.print(f"failed: {line}", style="red", markup=False, highlight=False)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="measure what many hosts cost; see bench/README.md")
    parser.add_argument("--quick", action="store_true", help="few hosts, a few seconds")
    parser.add_argument("--measures", default=",".join(MEASURES), help=f"comma-separated; default {','.join(MEASURES)}")
    file = BENCH / "results" / f"{datetime.date.today().isoformat()}.jsonl"
    parser.add_argument("--results", type=Path, metavar="FILE", default=file, help="default bench/results/<date>.jsonl")
    parser.add_argument("--plot", action="store_true", help="draw cost against size, into a PNG beside the results")
    parser.add_argument("--force", action="store_true", help="measure although the machine is busy")
    parser.add_argument("--show", type=Path, metavar="FILE", help="only show the last run in a results file")
    parser.add_argument("--markdown", action="store_true", help="with --show: print it as a Markdown table")
    parsed = parser.parse_args()
    parsed.measures = [name for name in parsed.measures.split(",") if name]
    if unknown := [name for name in parsed.measures if name not in MEASURES]:
        parser.error(f"unknown measures {', '.join(unknown)}; known are {', '.join(MEASURES)}")
    return parsed


def run_one(measure: Measure, size: int, is_quick: bool) -> list[Result]:
    """Run a measure at one size, in a process of its own: what one leaves on the heap costs the next one nothing."""
    script = str(BENCH / "workloads" / measure.script)
    command = [sys.executable, script, str(size), *["--quick"] * is_quick]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environ, check=False)
        printed, said, ended = done.stdout, done.stderr, f"ended with status {done.returncode}"
    except subprocess.TimeoutExpired as late:
        printed, said, ended = (late.stdout or b"").decode(), "", f"not done after {PATIENCE:.0f} s"
    results = [result for line in printed.splitlines() if (result := parse_line(line)) is not None]
    last_words = [line for line in said.splitlines() if line.strip() and "Warning" not in line][-1:]
    expected = [f"{name}_{size}" for name, _ in measure.prints]
    return results + missing_workloads(results, OURS, expected, ": ".join([ended, *last_words])[:200])


def run_all(arguments: argparse.Namespace, console: Console) -> list[Result]:
    """Run what is asked for, and write each result to the file as soon as it is there."""
    results: list[Result] = []
    for name in arguments.measures:
        measure = MEASURES[name]
        for size in measure.quick_sizes if arguments.quick else measure.sizes:
            load = os.getloadavg()[0]
            found = run_one(measure, size, arguments.quick)
            results += found
            for result in found:
                record(arguments.results, {**fields_of(result), "load": round(load, 2)})
            console.print(f"{name} {size}: {describe(found)}", markup=False, highlight=False)
    return results


def fields_of(result: Result) -> dict[str, object]:
    fields: dict[str, object] = {"system": result.system, "workload": result.workload}
    if isinstance(result, Failure):
        return {**fields, "error": result.reason}
    return {**fields, "value": result.value, "unit": result.unit, "n": result.n}


def describe(results: Sequence[Result]) -> str:
    for result in results:
        if isinstance(result, Sample):
            return f"{result.value:.3g} {result.unit}"
    return next((result.reason for result in results if isinstance(result, Failure)), "nothing")


def show(arguments: argparse.Namespace, console: Console) -> int:
    """Print, and draw, the last run in a results file."""
    lines = last_run(arguments.show.read_text().splitlines(), BOARD.name)
    if not lines:
        console.print(f"{arguments.show} has no run of {BOARD.name}", markup=False)
        return 2
    console.print(lines[0], markup=False, soft_wrap=True)
    results = [result for line in lines if (result := parse_line(line)) is not None]
    print_tables(console, results, arguments.markdown)
    if arguments.plot:
        draw(arguments.show, lines, results, console)
    return 0


def draw(file: Path, lines: Sequence[str], results: Sequence[Result], console: Console) -> None:
    from scale_plot import draw_sizes

    about = json.loads(lines[0])
    picture = file.with_name(f"{file.stem}-scale.png")
    draw_sizes([result for result in results if isinstance(result, Sample)], about, picture)
    console.print(f"drawn to {picture}", markup=False)


def main() -> int:
    arguments = read_arguments()
    console = Console(width=None if sys.stdout.isatty() else 160)
    if arguments.show:
        return show(arguments, Console(width=400) if arguments.markdown else console)
    load = os.getloadavg()[0]
    about = {"comparison": BOARD.name, "quick": arguments.quick, "cpu": cpu_model()}
    machine = {**describe_machine(load), **about}
    console.print(f"{machine['cores']} × {machine['cpu']}, Python {machine['python']}, load average {load:.2f}")
    if load > QUIET_LOAD and not arguments.force:
        console.print("the machine is busy: wait until it is quiet, or pass --force", style="bold red")
        return 2
    arguments.results.parent.mkdir(exist_ok=True)
    record(arguments.results, machine)
    results = run_all(arguments, console)
    print_tables(console, results)
    console.print(f"written to {arguments.results}", markup=False)
    if arguments.plot:
        draw(arguments.results, [json.dumps(machine)], results, console)
    return 1 if any(isinstance(result, Failure) for result in results) else 0


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "an unknown processor"


if __name__ == "__main__":
    sys.exit(main())
