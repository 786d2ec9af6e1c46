"""One system's process in one round: start it, collect what it prints, leave nothing of it running."""

import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from report import Result, missing_workloads, parse_line
from systems import BENCH, System

RUN_MARK = "BENCH_RUN"
"""Environment variable that every process started by one run inherits, by which leftovers are found."""

PATIENCE = {True: 90.0, False: 600.0}
"""Seconds one system's process may take in one round, quick or not."""

GRACE = 5.0
"""Seconds that what a system started may outlive it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one system's process gave in one round."""

    results: list[Result]
    seconds: float
    leftovers: int


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command printed, and how it ended, in words for what it should have printed and did not."""

    printed: list[str]
    reason: str
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


def environment_for(python: Path, token: str, scratch: str) -> dict[str, str]:
    folder = str(python.parent)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": scratch,
        "BENCH_STARTED": str(time.time()),
        RUN_MARK: token,
    }


def run_command(command: Sequence[str], extra: Mapping[str, str], patience: float) -> Ended:
    """Run a command, an interpreter first, with `extra` in its environment; whatever it started is gone afterwards."""
    token = secrets.token_hex(8)
    start = time.monotonic()
    # Files, not pipes: a daemon that outlives its parent would hold a pipe open and keep us reading.
    with (
        tempfile.TemporaryDirectory(prefix="b-", ignore_cleanup_errors=True) as scratch,
        tempfile.TemporaryFile("w+") as printed,
        tempfile.TemporaryFile("w+") as complaints,
    ):
        process = subprocess.Popen(
            command,
            stdout=printed,
            stderr=complaints,
            stdin=subprocess.DEVNULL,
            env={**environment_for(Path(command[0]), token, scratch), **extra},
            start_new_session=True,
        )
        status = None
        try:
            status = process.wait(patience)
            reason = ""
        except subprocess.TimeoutExpired:
            reason = f"not done after {patience:.0f} s"
            end_leftovers(token, 0)
            process.wait()
        except BaseException:
            end_leftovers(token, 0)
            process.wait()
            raise
        leftovers = end_leftovers(token, GRACE)
        seconds = time.monotonic() - start
        printed.seek(0)
        lines = printed.readlines()
        complaints.seek(0)
        last_words = [line.strip() for line in complaints if line.strip()]
    reason = reason or f"ended with status {status}: {last_words[-1][:200] if last_words else 'no word why'}"
    return Ended(lines, reason, seconds, leftovers)


def run_system(system: System, workloads: Sequence[str], quick: bool) -> Outcome:
    """Run one system's file once and collect what it prints; whatever it started is gone afterwards."""
    script = str(BENCH / "workloads" / system.script)
    command = [str(system.python), script, "--workloads", ",".join(workloads), *["--quick"] * quick]
    ended = run_command(command, {"PYTHONPATH": str(BENCH / "workloads")}, PATIENCE[quick])
    results = [result for line in ended.printed if (result := parse_line(line)) is not None]
    for name in system.prints:
        results += missing_workloads(results, name, system.expect(name, workloads, quick), ended.reason)
    return Outcome(results, ended.seconds, ended.leftovers)
