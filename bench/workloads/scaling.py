"""What the workloads of bench/scale.py have in common: one size each, on one core, in a process of its own."""

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

import measure


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process measures: at which size, and whether briefly."""

    size: int
    is_quick: bool
    core: int  #: the one it runs on
    others: frozenset[int]  #: those that are left for helping processes

    @property
    def pause(self) -> float:
        """Seconds in which what was started comes to rest."""
        return 0.1 if self.is_quick else 1.0

    def emit(self, workload: str, value: float, unit: str, n: int) -> None:
        """Print one result as ``workload_size``."""
        measure.emit("ours", f"{workload}_{self.size}", value, unit, n)

    def end(self) -> NoReturn:
        """End the process: taking down what is simulated, object by object, would take longer than all the rest."""
        sys.stdout.flush()
        os._exit(0)


def read_plan() -> Plan:
    """Take the size from the command line, and one core for this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("size", type=int)
    parser.add_argument("--quick", action="store_true")
    parsed = parser.parse_args()
    cores = os.sched_getaffinity(0)
    core = max(cores)
    os.sched_setaffinity(0, {core})
    return Plan(parsed.size, parsed.quick, core, frozenset(cores - {core} or cores))


class Gaps:
    """The longest time that the running loop did nothing else, while the block ran.

    A timer that is due every millisecond notes how late it was. ``worst`` is by the clock, ``worst_cpu`` is how much
    of that the loop's thread was running: the rest the machine was busy with something else.
    """

    _EVERY = 0.001

    def __init__(self) -> None:
        self.worst = self.worst_cpu = 0.0
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> "Gaps":
        self._at, self._cpu_at = time.perf_counter(), time.thread_time()
        self._handle = self._loop.call_later(self._EVERY, self._tick)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._handle is not None
        self._handle.cancel()

    def _tick(self) -> None:
        now, cpu = time.perf_counter(), time.thread_time()
        self.worst = max(self.worst, now - self._at - self._EVERY)
        self.worst_cpu = max(self.worst_cpu, cpu - self._cpu_at)
        self._at, self._cpu_at = now, cpu
        self._handle = self._loop.call_later(self._EVERY, self._tick)
