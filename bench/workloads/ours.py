"""monarch_async: procs forked from a zygote that holds torch, one actor in each, driven by eager futures.

Also what only we promise numbers for: import time, and an idle worker's private memory and threads.
"""

import asyncio
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import measure

import monarch_async as ma

EXTRA = ("import_ms", "idle_worker_private_mb", "idle_worker_threads")
IMPORT_TIMER = (
    "import time; start = time.perf_counter(); import monarch_async as ma; ma.run, ma.Actor, ma.local_hosts; "
    "print(time.perf_counter() - start)"
)


class Echo(ma.Actor):
    @ma.endpoint
    async def echo(self, value: int) -> int:
        return value

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def sink(self, tensor: Any) -> float:
        return float(tensor[-1])

    @ma.endpoint
    async def relay(self, target: Any, depth: int, seconds: float) -> tuple[int, float]:
        return await measure.window(lambda: target.echo.call_one(1), depth, seconds)


class OurGroup:
    """A proc mesh and an actor mesh on it."""

    def __init__(self, procs: Any, mesh: Any) -> None:
        self.procs = procs
        self.mesh = mesh
        self.first = mesh.slice(gpus=0)
        self.second = mesh.slice(gpus=1)

    def echo(self) -> Any:
        return self.first.echo.call_one(1)

    def echo_all(self) -> Any:
        return self.mesh.echo.call(1)

    def relay(self, depth: int, seconds: float) -> Any:
        return self.first.relay.call_one(self.second, depth, seconds)

    def sink(self, tensor: Any) -> Any:
        return self.first.sink.call_one(tensor)

    async def close(self) -> None:
        await self.procs.stop()


def measure_import() -> tuple[float, int]:
    """Milliseconds of importing what a program of one actor mesh uses: the median of five after a first one."""
    seconds = []
    for _ in range(6):
        printed = subprocess.check_output([sys.executable, "-c", IMPORT_TIMER], text=True)
        seconds.append(float(printed))
    return statistics.median(seconds[1:]) * 1e3, 5


def private_megabytes(pid: int) -> float:
    """Memory of a process that no other process shares: what it has written to since it was forked."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    fields = [line.split() for line in rollup.splitlines()]
    kibibytes = sum(int(words[1]) for words in fields if words[0] in ("Private_Clean:", "Private_Dirty:"))
    return kibibytes * 1024 / 1e6


def count_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


async def measure_idle(hosts: ma.HostMesh, plan: measure.Plan) -> None:
    """What a worker with one actor, and nothing done but telling its pid, holds for itself."""
    if not plan.wants("idle_worker_private_mb", "idle_worker_threads"):
        return
    procs = await hosts.spawn_procs({"gpus": 4}, preload=["torch"])
    mesh = await procs.spawn("echo", Echo)
    pids = list((await mesh.pid.call()).values())
    await asyncio.sleep(0.5)
    if plan.wants("idle_worker_private_mb"):
        private = statistics.median(private_megabytes(pid) for pid in pids)
        measure.emit("ours", "idle_worker_private_mb", private, "MB", len(pids))
    if plan.wants("idle_worker_threads"):
        measure.emit("ours", "idle_worker_threads", max(map(count_threads, pids)), "threads", len(pids))
    await procs.stop()


async def main() -> None:
    plan = measure.plan_from_arguments((*measure.WORKLOADS, *EXTRA))
    async with ma.local_hosts() as hosts:

        async def spawn(size: int, with_torch: bool) -> OurGroup:
            procs = await hosts.spawn_procs({"gpus": size}, preload=["torch"] if with_torch else [])
            return OurGroup(procs, await procs.spawn("echo", Echo))

        await measure.Suite("ours", spawn, plan).run()
        try:
            await measure_idle(hosts, plan)
        except Exception as error:
            measure.emit_failure("ours", "idle_worker_private_mb", error)
    if plan.wants("import_ms"):
        milliseconds, n = measure_import()
        measure.emit("ours", "import_ms", milliseconds, "ms", n)


if __name__ == "__main__":
    ma.run(main())
