"""Measures monarch_async against Ray, PyTorch Monarch, xoscar and the bare floor, in one run on one machine.

Systems alternate: every round runs each system once, in a process of its own, so that what disturbs the machine
for a while disturbs all of them. What is compared is medians over the rounds. See bench/README.md.

    python bench/compare.py                         five rounds of everything
    python bench/compare.py --quick                 three short rounds, under 3 minutes
    python bench/compare.py --systems ours,floor --workloads call_one_1,call_8
    python bench/compare.py --show bench/results/2030-01-31.jsonl
"""

import argparse
import datetime
import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from report import (
    OURS_ALONE,
    TARGETS,
    Failure,
    Result,
    describe_failures,
    make_table,
    missing_workloads,
    parse_line,
)
from rich.console import Console

BENCH = Path(__file__).resolve().parent
QUIET_LOAD = 0.5
RUN_MARK = "BENCH_RUN"
"""Environment variable that every process started by one run inherits, by which leftovers are found."""

PATIENCE = {True: 90.0, False: 600.0}
"""Seconds one system's process may take in one round, quick or not."""

ONCE_IF_QUICK = ("spawn_8", "spawn_bare_8", "call_8", "spawn_bare_32", "call_32")
"""Measured on the peers in the first round only with --quick: starting their procs is what takes the time."""

NEVER_IF_QUICK = ("spawn_32", "spawn_128")
"""Not measured on the peers with --quick: every proc of theirs imports torch, over a second of a core each."""

QUICK_SECONDS = 175.0
"""A quick run begins no round that would probably end later."""

LARGE, LARGE_BYTES = "spawn_128", 48e9
"""What only fits on the peers with that much memory: 128 procs with a torch of their own each."""


@dataclass(frozen=True, slots=True)
class System:
    """A workload file, the interpreter that runs it and the names under which it prints results."""

    name: str
    script: str
    python: Path
    prints: tuple[str, ...]
    unable: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    is_peer: bool = True

    @property
    def is_installed(self) -> bool:
        return not self.is_peer or (self.python.parent.parent / ".complete").exists()

    def select(self, wanted: Sequence[str], quick: bool, turn: int, memory: float) -> tuple[str, ...]:
        """The workloads of `wanted` that this system does in this round, on so many bytes of memory."""
        skipped = {*self.unable}
        if self.is_peer and memory < LARGE_BYTES:
            skipped.add(LARGE)
        if self.is_peer and quick:
            skipped.update(NEVER_IF_QUICK, self.slow, ONCE_IF_QUICK if turn > 1 else ())
        return tuple(workload for workload in wanted if workload not in skipped)

    def expect(self, name: str, workloads: Sequence[str], quick: bool) -> list[str]:
        """Those of the workloads asked for that the file prints under `name`."""
        if name == self.name:
            return list(workloads)
        return [name for name in workloads if name in SECONDARY and not (quick and name == "call_32")]


SECONDARY = ("call_one_1", "call_one_100", "actor_to_actor_100", "call_8", "call_32")
"""The workloads of ray-sync, which ray_.py prints beside ray's own; call_32 not with --quick."""


def peer(name: str, *more_names: str, slow: tuple[str, ...] = ()) -> System:
    python = BENCH / ".envs" / name / "bin" / "python"
    return System(name, f"{name}_.py", python, (name, *more_names), OURS_ALONE, slow)


HERE = Path(sys.executable)
SYSTEMS = (
    System("ours", "ours.py", HERE, ("ours",), is_peer=False),
    peer("monarch"),
    peer("ray", "ray-sync"),
    peer("xoscar", slow=("spawn_bare_32", "call_32")),
    System("floor", "floor.py", HERE, ("floor",), (*OURS_ALONE, "tensor_100mb"), is_peer=False),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one system's process gave in one round."""

    results: list[Result]
    seconds: float
    leftovers: int


def processes_marked(token: str) -> Iterator[int]:
    """Pids of the processes that inherited this run's mark."""
    mark = f"{RUN_MARK}={token}".encode()
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # ended meanwhile, or somebody else's
                continue
            if mark in variables:
                yield int(entry.name)


def end_leftovers(token: str, grace: float) -> int:
    """Wait for what a system started to be gone; kill and count what is still there after `grace` seconds."""
    deadline = time.monotonic() + grace
    while left := list(processes_marked(token)):
        if time.monotonic() > deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            return len(left)
        time.sleep(0.05)
    return 0


def environment_for(system: System, token: str) -> dict[str, str]:
    folder = str(system.python.parent)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(BENCH / "workloads"),
        "PYTHONUNBUFFERED": "1",
        "BENCH_STARTED": str(time.time()),
        RUN_MARK: token,
    }


def run_system(system: System, workloads: Sequence[str], quick: bool) -> Outcome:
    """Run one system's file once and collect what it prints; whatever it started is gone afterwards."""
    script = str(BENCH / "workloads" / system.script)
    command = [str(system.python), script, "--workloads", ",".join(workloads), *["--quick"] * quick]
    token = secrets.token_hex(8)
    start = time.monotonic()
    # Files, not pipes: a daemon that outlives its parent would hold a pipe open and keep us reading.
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command,
            stdout=printed,
            stderr=complaints,
            stdin=subprocess.DEVNULL,
            env=environment_for(system, token),
            start_new_session=True,
        )
        status = None
        try:
            status = process.wait(PATIENCE[quick])
            reason = ""
        except subprocess.TimeoutExpired:
            reason = f"not done after {PATIENCE[quick]:.0f} s"
            end_leftovers(token, 0)
            process.wait()
        except BaseException:
            end_leftovers(token, 0)
            process.wait()
            raise
        leftovers = end_leftovers(token, 5)
        seconds = time.monotonic() - start
        printed.seek(0)
        results = [result for line in printed if (result := parse_line(line)) is not None]
        complaints.seek(0)
        last_words = [line.strip() for line in complaints if line.strip()]
    reason = reason or f"ended with status {status}: {last_words[-1][:200] if last_words else 'no word why'}"
    for name in system.prints:
        results += missing_workloads(results, name, system.expect(name, workloads, quick), reason)
    return Outcome(results, seconds, leftovers)


def read_arguments() -> argparse.Namespace:
    names = ",".join(system.name for system in SYSTEMS)
    workloads = ",".join(target.workload for target in TARGETS)
    parser = argparse.ArgumentParser(description="compare monarch_async with its peers; see bench/README.md")
    parser.add_argument("--quick", action="store_true", help="three short rounds, no 128 procs for the peers")
    parser.add_argument("--rounds", type=int, help="rounds; default 5, or 3 with --quick")
    parser.add_argument("--systems", default=names, help=f"comma-separated; default {names}")
    parser.add_argument("--workloads", default=workloads, help=f"comma-separated; default {workloads}")
    parser.add_argument("--force", action="store_true", help="measure although the machine is busy")
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="only print the table of an earlier run's file"
    )
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


def print_report(console: Console, results: Sequence[Result], not_installed: Sequence[str]) -> None:
    console.print(make_table(results, not_installed))
    for line in describe_failures(results):
        console.print(f"failed: {line}", style="red", markup=False, highlight=False)


def show_file(console: Console, file: Path) -> None:
    """Print the table of the last run in a results file."""
    lines = file.read_text().splitlines()
    starts = [index for index, line in enumerate(lines) if "cores" in json.loads(line)]
    last = lines[starts[-1] :] if starts else lines
    console.print(last[0], markup=False)
    print_report(console, [result for line in last if (result := parse_line(line)) is not None], ())


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


def main() -> int:
    arguments = read_arguments()
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    if arguments.show:
        show_file(console, arguments.show)
        return 0
    load = os.getloadavg()[0]
    console.print(f"{os.cpu_count()} cores, load average {load:.2f} over the last minute")
    if load > QUIET_LOAD:
        warning = f"the machine is busy (load {load:.2f} > {QUIET_LOAD}): what is measured now means little"
        console.print(warning, style="bold red")
        if not arguments.force:
            console.print("wait until it is quiet, or pass --force")
            return 2
    chosen = [system for system in SYSTEMS if system.name in arguments.systems]
    not_installed = [name for system in chosen if not system.is_installed for name in system.prints]
    file = BENCH / "results" / f"{datetime.date.today().isoformat()}.jsonl"
    file.parent.mkdir(exist_ok=True)
    record(file, {**describe_machine(load), "quick": arguments.quick, "rounds": arguments.rounds})
    results = run_rounds(arguments, [system for system in chosen if system.is_installed], console, file)
    print_report(console, results, not_installed)
    console.print(f"written to {file.relative_to(BENCH.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
