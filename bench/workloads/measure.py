"""The workloads themselves, the same for every system.

Each system's file hands over one thing: how to spawn a group of procs with an echo actor in each, with torch
imported there or not. What is called, how often, how many at a time and how it is timed is decided here. Runs
under every system's interpreter, so only the standard library is used.

Rates are time-boxed: callers keep `depth` calls in flight until the deadline, then drain. A slow system makes
fewer calls, not a longer run.
"""

import argparse
import asyncio
import functools
import gc
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TENSOR_BYTES = 100_000_000
PAIR = 2
"""Size of the group on which single actors are measured: a caller and a target."""

PAIR_WORKLOADS = ("cold_start", "call_one_1", "call_one_100", "actor_to_actor_100", "tensor_100mb")
BARE_SIZES = (8, 32)
"""Groups without torch: their start is timed, then calls on all of their members."""

TORCH_SIZES = (8, 32, 128)
"""Groups with torch: only their start is timed."""

WORKLOADS = (
    *PAIR_WORKLOADS,
    *(f"call_{size}" for size in BARE_SIZES),
    *(f"spawn_bare_{size}" for size in BARE_SIZES),
    *(f"spawn_{size}" for size in TORCH_SIZES),
)


class Group(Protocol):
    """Procs of one system, an echo actor in each."""

    def echo(self) -> Awaitable[object]:
        """Send 1 to the first actor; the awaitable ends with its reply. Sent at once where the system can."""
        ...

    def echo_all(self) -> Awaitable[object]:
        """Send 1 to every actor; the awaitable ends with the last reply."""
        ...

    def relay(self, depth: int, seconds: float) -> Awaitable[tuple[int, float]]:
        """Let the first actor run `window` on the second one."""
        ...

    def sink(self, tensor: Any) -> Awaitable[float]:
        """Pass the tensor to the first actor, which answers with its last element."""
        ...

    async def close(self) -> None:
        """End the procs."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process of a workload file is to measure."""

    workloads: tuple[str, ...]
    quick: bool

    @property
    def seconds(self) -> float:
        """How long a rate is measured for."""
        return 0.4 if self.quick else 2.0

    @property
    def warm_up(self) -> float:
        """How long the same calls are made first, uncounted."""
        return self.seconds / 4

    @property
    def tensors(self) -> int:
        """How many tensors are sent, after one that warms up."""
        return 3 if self.quick else 8

    @property
    def patience(self) -> float:
        """Seconds until a workload counts as stuck."""
        return 40.0 if self.quick else 200.0

    def wants(self, *workloads: str) -> bool:
        return any(workload in self.workloads for workload in workloads)


def plan_from_arguments(known: Sequence[str] = WORKLOADS, arguments: Sequence[str] | None = None) -> Plan:
    """Read --workloads and --quick; `known` names the workloads that this system has."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workloads", default=",".join(known), help="comma-separated; default: all")
    parser.add_argument("--quick", action="store_true", help="shorter measurements")
    parsed = parser.parse_args(arguments)
    wanted = tuple(name for name in parsed.workloads.split(",") if name)
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"unknown workloads {', '.join(unknown)}; known are {', '.join(known)}")
    return Plan(wanted, parsed.quick)


def emit(system: str, workload: str, value: float, unit: str, n: int) -> None:
    """Print one result; `n` says how many calls, procs or tensors the value stands on."""
    line = {"system": system, "workload": workload, "value": value, "unit": unit, "n": n}
    print(json.dumps(line), flush=True)


def emit_failure(system: str, workload: str, error: BaseException) -> None:
    """Print that a workload failed, with the first line of why."""
    text = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    print(json.dumps({"system": system, "workload": workload, "error": reason[:300]}), flush=True)


async def window(call: Callable[[], Awaitable[object]], depth: int, seconds: float) -> tuple[int, float]:
    """Keep `depth` calls in flight for `seconds`; give the calls that ended and the seconds they took."""
    clock = time.perf_counter
    start = clock()
    deadline = start + seconds
    done = 0

    async def lane() -> None:
        nonlocal done
        while clock() < deadline:
            await call()
            done += 1

    if depth == 1:
        await lane()
    else:
        await asyncio.gather(*[lane() for _ in range(depth)])
    return done, clock() - start


async def measure_rate(call: Callable[[], Awaitable[object]], depth: int, plan: Plan) -> tuple[float, int]:
    """Calls per second, after a warm-up, and how many calls were made."""
    await window(call, depth, plan.warm_up)
    gc.collect()
    done, elapsed = await window(call, depth, plan.seconds)
    return done / elapsed, done


async def measure_tensor(group: Group, count: int) -> tuple[float, int]:
    """GB/s of `count` tensors sent one after the other, each with new contents, after one not counted."""
    import torch

    tensor = torch.ones(TENSOR_BYTES // 4, dtype=torch.float32)
    elapsed = 0.0
    for turn in range(count + 1):
        tensor[-1] = float(turn)
        start = time.perf_counter()
        answer = await group.sink(tensor)
        if turn:
            elapsed += time.perf_counter() - start
        if answer != float(turn):
            raise AssertionError(f"the actor saw {answer} in tensor {turn}")
    return count * TENSOR_BYTES / elapsed / 1e9, count


async def attempt(
    system: str, plan: Plan, workload: str, unit: str, body: Callable[[], Awaitable[tuple[float, int]]]
) -> None:
    """Run one workload if it is wanted; its failure becomes a line, not the end of the run."""
    if not plan.wants(workload):
        return
    try:
        async with asyncio.timeout(plan.patience):
            value, n = await body()
    except Exception as error:
        emit_failure(system, workload, error)
    else:
        emit(system, workload, value, unit, n)


Spawn = Callable[[int, bool], Awaitable[Group]]
"""Spawn so many procs with an actor in each, which has imported torch if the second argument says so."""


class Suite:
    """Runs a plan's workloads on one system."""

    def __init__(self, system: str, spawn: Spawn, plan: Plan) -> None:
        self.system = system
        self.spawn = spawn
        self.plan = plan

    async def run(self) -> None:
        """Measure everything asked for, from the small groups to the large ones, one group at a time.

        The pair comes first whether or not anything is measured on it: it warms up what a system keeps for
        later groups.
        """
        await self.run_group(PAIR, True, PAIR_WORKLOADS, self.measure_pair)
        for size in BARE_SIZES:
            await self.run_group(size, False, (f"spawn_bare_{size}", f"call_{size}"), self.measure_mesh)
        for size in TORCH_SIZES:
            await self.run_group(size, True, (f"spawn_{size}",))

    async def run_group(
        self,
        size: int,
        with_torch: bool,
        names: Sequence[str],
        measure: Callable[[Group, int], Awaitable[None]] | None = None,
    ) -> None:
        """Spawn a group, time it until every actor has replied, measure on it, end it. It is for `names`."""
        if size != PAIR and not self.plan.wants(*names):
            return
        group: Group | None = None
        try:
            start = time.perf_counter()
            async with asyncio.timeout(self.plan.patience):
                group = await self.spawn(size, with_torch)
                await group.echo_all()
            seconds = time.perf_counter() - start
        except Exception as error:
            for name in names:
                if self.plan.wants(name):
                    emit_failure(self.system, name, error)
        else:
            if names[0].startswith("spawn") and self.plan.wants(names[0]):
                emit(self.system, names[0], seconds, "s", size)
            if measure is not None:
                await measure(group, size)
        finally:
            if group is not None:
                async with asyncio.timeout(self.plan.patience):
                    await group.close()

    async def measure_pair(self, group: Group, size: int) -> None:
        plan = self.plan
        if plan.wants("cold_start") and "BENCH_STARTED" in os.environ:
            emit(self.system, "cold_start", time.time() - float(os.environ["BENCH_STARTED"]), "s", size)

        async def relay() -> tuple[float, int]:
            await group.relay(100, plan.warm_up)
            done, elapsed = await group.relay(100, plan.seconds)
            return done / elapsed, done

        run = functools.partial(attempt, self.system, plan)
        await run("call_one_1", "calls/s", lambda: measure_rate(group.echo, 1, plan))
        await run("call_one_100", "calls/s", lambda: measure_rate(group.echo, 100, plan))
        await run("actor_to_actor_100", "calls/s", relay)
        await run("tensor_100mb", "GB/s", lambda: measure_tensor(group, plan.tensors))

    async def measure_mesh(self, group: Group, size: int) -> None:
        async def fan_out() -> tuple[float, int]:
            rate, rounds = await measure_rate(group.echo_all, 1, self.plan)
            return rate * size, rounds * size

        await attempt(self.system, self.plan, f"call_{size}", "actor-calls/s", fan_out)
