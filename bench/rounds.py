"""One comparison from its command line to its table: rounds that alternate the systems, every value written at once.

Systems alternate: every round runs each system once, in a process of its own, so that what disturbs the machine for a
while disturbs all of them. What is compared is medians over the rounds.
"""

import argparse
import datetime
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from report import Board, Failure, Result, describe_failures, make_table, parse_line
from rich.console import Console
from systems import BENCH, System
from trial import Outcome, run_system

QUIET_LOAD = 0.5
QUICK_SECONDS = 175.0
"""A quick run begins no round that would probably end later."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared with what."""

    board: Board
    systems: tuple[System, ...]


def read_arguments(comparison: Comparison) -> argparse.Namespace:
    names = ",".join(system.name for system in comparison.systems)
    workloads = ",".join(target.workload for target in comparison.board.targets)
    parser = argparse.ArgumentParser(description="compare monarch_async with its peers; see bench/README.md")
    parser.add_argument("--quick", action="store_true", help="three short rounds, with fewer processes and repeats")
    parser.add_argument("--rounds", type=int, help="rounds; default 5, or 3 with --quick")
    parser.add_argument("--systems", default=names, help=f"comma-separated; default {names}")
    parser.add_argument("--workloads", default=workloads, help=f"comma-separated; default {workloads}")
    file = BENCH / "results" / f"{datetime.date.today().isoformat()}.jsonl"
    parser.add_argument("--results", type=Path, metavar="FILE", default=file, help="default bench/results/<date>.jsonl")
    parser.add_argument("--force", action="store_true", help="measure although the machine is busy")
    parser.add_argument("--show", type=Path, metavar="FILE", help="only print the table of an earlier run's file")
    parser.add_argument("--markdown", action="store_true", help="with --show: print it as a Markdown table")
    parsed = parser.parse_args()
    for kind, known in (("systems", names.split(",")), ("workloads", workloads.split(","))):
        chosen = [name for name in getattr(parsed, kind).split(",") if name]
        if unknown := [name for name in chosen if name not in known]:
            parser.error(f"unknown {kind} {', '.join(unknown)}; known are {', '.join(known)}")
        setattr(parsed, kind, chosen)
    if parsed.rounds is None:
        parsed.rounds = 3 if parsed.quick else 5
    if parsed.rounds < 1:
        parser.error(f"--rounds is {parsed.rounds}, at least 1 is needed")
    return parsed


def describe_machine(load: float) -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "load": round(load, 2),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "started": datetime.datetime.now().isoformat(timespec="seconds"),
    }


def record(file: Path, fields: dict[str, object]) -> None:
    with file.open("a") as lines:
        lines.write(json.dumps(fields) + "\n")


def print_report(
    console: Console, results: Sequence[Result], board: Board, not_installed: Sequence[str], markdown: bool = False
) -> None:
    console.print(make_table(results, board, not_installed, markdown))
    for line in describe_failures(results):
        console.print(f"failed: {line}", style="red", markup=False, highlight=False)


def last_run(lines: Sequence[str], name: str) -> list[str]:
    """The lines of the last run of that comparison in a results file, the line that describes it first."""
    found: list[str] = []
    is_ours = False
    for line in lines:
        fields = json.loads(line)
        if "cores" in fields:
            is_ours = fields.get("comparison", "calls") == name
            if is_ours:
                found.clear()
        if is_ours:
            found.append(line)
    return found


def show_file(console: Console, file: Path, board: Board, markdown: bool) -> None:
    """Print the table of the last run in a results file."""
    last = last_run(file.read_text().splitlines(), board.name)
    if not last:
        console.print(f"{file} has no run of {board.name}", markup=False)
        return
    console.print(last[0], markup=False, soft_wrap=True)
    results = [result for line in last if (result := parse_line(line)) is not None]
    print_report(console, results, board, (), markdown)


def run_rounds(
    arguments: argparse.Namespace, systems: Sequence[System], console: Console, file: Path
) -> list[Result]:
    """Measure every system once a round; write each result to the file as soon as it is there."""
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    results: list[Result] = []
    start = time.monotonic()
    for turn in range(1, arguments.rounds + 1):
        begun = time.monotonic()
        for system in systems:
            workloads = system.select(arguments.workloads, arguments.quick, turn, memory)
            if not workloads:
                continue
            load = os.getloadavg()[0]
            outcome = run_system(system, workloads, arguments.quick)
            results += outcome.results
            for result in outcome.results:
                record(file, {**fields_of(result), "round": turn, "load": round(load, 2)})
            console.print(f"round {turn}/{arguments.rounds}  {system.name:<8} {describe_outcome(outcome)}")
        elapsed, last = time.monotonic() - start, time.monotonic() - begun
        if arguments.quick and turn < arguments.rounds and elapsed + last > QUICK_SECONDS:
            console.print(f"stopped after round {turn}: another one would take a quick run past 3 minutes")
            break
    return results


def fields_of(result: Result) -> dict[str, object]:
    """A result as the line that a workload file prints for it."""
    fields = asdict(result)
    if isinstance(result, Failure):
        fields["error"] = fields.pop("reason")
    return fields


def describe_outcome(outcome: Outcome) -> str:
    failed = sum(isinstance(result, Failure) for result in outcome.results)
    parts = [f"{outcome.seconds:5.1f} s"]
    if failed:
        parts.append(f"{failed} failed")
    if outcome.leftovers:
        parts.append(f"left {outcome.leftovers} processes behind, killed")
    return "  ".join(parts)


def main(comparison: Comparison) -> int:
    arguments = read_arguments(comparison)
    board = comparison.board
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    if arguments.show:
        show_file(Console(width=400) if arguments.markdown else console, arguments.show, board, arguments.markdown)
        return 0
    load = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} cores, load average {load:.2f} over the last minute")
    if load > QUIET_LOAD:
        warning = f"the machine is busy (load {load:.2f} > {QUIET_LOAD}): what is measured now means little"
        console.print(warning, style="bold red")
        if not arguments.force:
            console.print("wait until it is quiet, or pass --force")
            return 2
    chosen = [system for system in comparison.systems if system.name in arguments.systems]
    not_installed = [name for system in chosen if not system.is_installed for name in system.prints]
    file: Path = arguments.results
    file.parent.mkdir(exist_ok=True)
    about = {"comparison": board.name, "quick": arguments.quick, "rounds": arguments.rounds}
    record(file, {**describe_machine(load), **about})
    results = run_rounds(arguments, [system for system in chosen if system.is_installed], console, file)
    print_report(console, results, board, not_installed)
    console.print(f"written to {file}")
    return 0
