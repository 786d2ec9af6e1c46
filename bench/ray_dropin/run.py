"""Runs the same scripts under Ray and under the facade of it, and prints how they compare.

Scripts alternate: each runs once under one system and then under the other, in a process of its own, the first one
changing from round to round; nothing of either is left running in between. Compared are medians over the rounds.

    python bench/ray_dropin/run.py                              three rounds of everything
    python bench/ray_dropin/run.py --scripts tasks,actors       of these scripts
    python bench/ray_dropin/run.py --rows tasks_sync,put_100mb --rounds 5 --seconds 2
    python bench/ray_dropin/run.py --json > rows.json           progress goes to stderr
    python bench/ray_dropin/run.py --show bench/results/2030-01-31.jsonl --markdown
"""

import argparse
import datetime
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from report import OURS, Failure, Result, describe_failures, missing_workloads, parse_line
from rich.console import Console
from rounds import QUIET_LOAD, describe_machine, fields_of, last_run, record
from systems import BENCH, peer_python
from trial import run_command
from verdicts import HERE, RAY, SCRIPTS, Head, all_heads, as_fields, make_table, read_line

COMMANDS = {RAY: [str(peer_python("ray"))], OURS: [sys.executable, "-m", "monarch_async.ray"]}
PATIENCE = 60.0
"""Seconds that a script may take, besides PATIENCE_PER_ROW and four times what is measured for each row."""
PATIENCE_PER_ROW = 30.0


def read_arguments(heads: Sequence[Head]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the same scripts under Ray and the facade; see bench/README.md")
    parser.add_argument("--scripts", default=",".join(SCRIPTS), help="comma-separated; default: all")
    parser.add_argument("--rows", default="", help="comma-separated; default: all of the scripts chosen")
    parser.add_argument("--systems", default=f"{RAY},{OURS}", help=f"comma-separated; default {RAY},{OURS}")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each row is measured for; default 1")
    parser.add_argument("--json", action="store_true", help="print rows as JSON instead of the table")
    parser.add_argument("--force", action="store_true", help="measure although the machine is busy")
    parser.add_argument("--list", action="store_true", help="only print scripts and rows")
    parser.add_argument("--show", type=Path, metavar="FILE", help="only print the table of an earlier run's file")
    parser.add_argument("--markdown", action="store_true", help="print the table as one for a text")
    file = BENCH / "results" / f"{datetime.date.today().isoformat()}.jsonl"
    parser.add_argument("--results", type=Path, metavar="FILE", default=file, help="default bench/results/<date>.jsonl")
    parsed = parser.parse_args()
    for option, known in (
        ("scripts", list(SCRIPTS)),
        ("rows", [head.name for head in heads]),
        ("systems", list(COMMANDS)),
    ):
        chosen = [name for name in getattr(parsed, option).split(",") if name]
        if unknown := [name for name in chosen if name not in known]:
            parser.error(f"unknown {option} {', '.join(unknown)}; known are {', '.join(known)}")
        setattr(parsed, option, chosen)
    if parsed.rounds < 1:
        parser.error(f"--rounds is {parsed.rounds}, at least 1 is needed")
    return parsed


def run_script(script: str, rows: Sequence[str], system: str, seconds: float) -> tuple[list[Result], str]:
    """Run a script once: a result for each row asked for, and a few words for the screen."""
    command = [*COMMANDS[system], str(HERE / f"{script}.py"), "--rows", ",".join(rows), "--seconds", str(seconds)]
    patience = PATIENCE + len(rows) * (PATIENCE_PER_ROW + 4 * seconds)
    ended = run_command(command, {}, patience)
    results = [result for line in ended.printed if (result := read_line(line, system)) is not None]
    failed = sum(isinstance(result, Failure) for result in results)
    lost = missing_workloads(results, system, rows, ended.reason)
    words = f"{ended.seconds:5.1f} s" + f"  {failed + len(lost)} failed" * bool(failed or lost)
    if ended.leftovers:
        words += f"  left {ended.leftovers} processes behind, killed"
    return [*results, *lost], words


def run_rounds(arguments: argparse.Namespace, heads: Sequence[Head], console: Console) -> list[Result]:
    """Run every script under every system once a round; write each result to the file as soon as it is there."""
    results: list[Result] = []
    for turn in range(1, arguments.rounds + 1):
        systems = arguments.systems if turn % 2 else arguments.systems[::-1]
        for script in SCRIPTS:
            rows = [head.name for head in heads if head.script == script]
            for system in systems if rows else ():
                load = os.getloadavg()[0]
                found, words = run_script(script, rows, system, arguments.seconds)
                for result in found:
                    record(arguments.results, {**fields_of(result), "round": turn, "load": round(load, 2)})
                results += found
                console.print(f"round {turn}/{arguments.rounds}  {script:<16} {system:<5} load {load:4.2f} {words}")
    return results


def print_report(arguments: argparse.Namespace, results: Sequence[Result], heads: Sequence[Head]) -> None:
    if arguments.json:
        print(json.dumps(as_fields(results, heads), indent=1))
        return
    console = Console()
    if arguments.markdown or not console.is_terminal:
        console = Console(width=400 if arguments.markdown else 160)
    console.print(make_table(results, heads, arguments.markdown))
    for line in describe_failures(results):
        console.print(f"failed: {line}", style="red", markup=False, highlight=False)


def main() -> int:
    every = all_heads()
    arguments = read_arguments(every)
    heads = [
        head for head in every if head.script in arguments.scripts and head.name in (arguments.rows or [head.name])
    ]
    if arguments.list:
        for head in heads:
            print(f"{head.script:<17} {head.name:<26} {head.unit:<15} {head.kind:<8} {head.target.describe()}")
        return 0
    if arguments.show:
        lines = last_run(arguments.show.read_text().splitlines(), "ray_dropin")
        print_report(arguments, [result for line in lines if (result := parse_line(line)) is not None], every)
        return 0
    console = Console(stderr=True, width=160)
    load = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} cores, load average {load:.2f} over the last minute")
    if load > QUIET_LOAD and not arguments.force:
        console.print(f"the machine is busy (load {load:.2f} > {QUIET_LOAD}): wait until it is quiet, or pass --force")
        return 2
    if RAY in arguments.systems and not (peer_python("ray").parent.parent / ".complete").exists():
        console.print("Ray is not installed: bench/peers.sh ray makes its environment")
        return 2
    arguments.results.parent.mkdir(exist_ok=True)
    about = {"comparison": "ray_dropin", "rounds": arguments.rounds, "seconds": arguments.seconds}
    record(arguments.results, {**describe_machine(load), **about})
    results = run_rounds(arguments, heads, console)
    print_report(arguments, results, heads)
    console.print(f"written to {arguments.results}; load average {os.getloadavg()[0]:.2f} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
