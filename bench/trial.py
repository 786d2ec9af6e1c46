"""One system's process in one round: start it, collect what it prints, leave nothing of it running."""

import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
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


def environment_for(system: System, token: str, scratch: str) -> dict[str, str]:
    folder = str(system.python.parent)
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(BENCH / "workloads"),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": scratch,
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
            env=environment_for(system, token, scratch),
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
        leftovers = end_leftovers(token, GRACE)
        seconds = time.monotonic() - start
        printed.seek(0)
        results = [result for line in printed if (result := parse_line(line)) is not None]
        complaints.seek(0)
        last_words = [line.strip() for line in complaints if line.strip()]
    reason = reason or f"ended with status {status}: {last_words[-1][:200] if last_words else 'no word why'}"
    for name in system.prints:
        results += missing_workloads(results, name, system.expect(name, workloads, quick), reason)
    return Outcome(results, seconds, leftovers)
