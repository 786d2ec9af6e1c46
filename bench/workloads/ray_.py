"""Ray, twice: async actors driven from asyncio ("ray"), and plain actors driven by `ray.get` ("ray-sync").

The first is the shape an asyncio program has. The second is Ray at its own best: blocking, calls in batches.
"""

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

import measure

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray authenticates by default, as we do; a token given here keeps it from writing one into the home folder.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

import ray  # reads the environment when imported

SYNC = "ray-sync"
SYNC_WORKLOADS = ("call_one_1", "call_one_100", "actor_to_actor_100", "call_8", "call_32")


@ray.remote(num_cpus=0, max_concurrency=1000)
class Echo:
    def __init__(self, with_torch: bool) -> None:
        if with_torch:
            import torch  # noqa: F401

    async def echo(self, value: int) -> int:
        return value

    async def sink(self, array: Any) -> float:
        return float(array[-1])

    async def relay(self, target: Any, depth: int, seconds: float) -> tuple[int, float]:
        return await measure.window(lambda: target.echo.remote(1), depth, seconds)


@ray.remote(num_cpus=0)
class SyncEcho:
    def echo(self, value: int) -> int:
        return value

    def relay(self, target: Any, depth: int, seconds: float) -> tuple[int, float]:
        return blocking_window(lambda: [target.echo.remote(1) for _ in range(depth)], seconds)


class RayGroup:
    """`size` Ray actors, each in its own worker process."""

    def __init__(self, size: int, with_torch: bool) -> None:
        self.actors = [Echo.remote(with_torch) for _ in range(size)]

    def echo(self) -> Any:
        return self.actors[0].echo.remote(1)

    def echo_all(self) -> Any:
        return asyncio.gather(*[actor.echo.remote(1) for actor in self.actors])

    def relay(self, depth: int, seconds: float) -> Any:
        return self.actors[0].relay.remote(self.actors[1], depth, seconds)

    def sink(self, tensor: Any) -> Any:
        # As numpy, which Ray shares through its object store: a torch tensor is copied through a pickle and
        # several times slower. The setting against that would make every worker import torch.
        return self.actors[0].sink.remote(tensor.numpy())

    async def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)


async def spawn(size: int, with_torch: bool) -> RayGroup:
    return RayGroup(size, with_torch)


def blocking_window(submit: Callable[[], list[Any]], seconds: float) -> tuple[int, float]:
    """Submit a batch, `ray.get` all of it, and again until the time is up."""
    start = time.perf_counter()
    deadline = start + seconds
    done = 0
    while time.perf_counter() < deadline:
        done += len(ray.get(submit()))
    return done, time.perf_counter() - start


def blocking_rate(submit: Callable[[], list[Any]], plan: measure.Plan) -> tuple[float, int]:
    blocking_window(submit, plan.warm_up)
    done, elapsed = blocking_window(submit, plan.seconds)
    return done / elapsed, done


def attempt(workload: str, unit: str, plan: measure.Plan, body: Callable[[], tuple[float, int]]) -> None:
    if not plan.wants(workload):
        return
    try:
        value, n = body()
    except Exception as error:
        measure.emit_failure(SYNC, workload, error)
    else:
        measure.emit(SYNC, workload, value, unit, n)


def run_sync(plan: measure.Plan) -> None:
    """The workloads on plain actors; the group grows, so that no process is started twice."""
    if not plan.wants(*SYNC_WORKLOADS):
        return
    actors = [SyncEcho.remote() for _ in range(measure.PAIR)]
    ray.get([actor.echo.remote(1) for actor in actors])
    first, second = actors

    def batch(size: int) -> tuple[float, int]:
        return blocking_rate(lambda: [first.echo.remote(1) for _ in range(size)], plan)

    def relay() -> tuple[float, int]:
        ray.get(first.relay.remote(second, 100, plan.warm_up))
        done, elapsed = ray.get(first.relay.remote(second, 100, plan.seconds))
        return done / elapsed, done

    def fan_out() -> tuple[float, int]:
        return blocking_rate(lambda: [actor.echo.remote(1) for actor in actors], plan)

    attempt("call_one_1", "calls/s", plan, lambda: batch(1))
    attempt("call_one_100", "calls/s", plan, lambda: batch(100))
    attempt("actor_to_actor_100", "calls/s", plan, relay)
    for size in measure.BARE_SIZES[: 1 if plan.quick else None]:
        if plan.wants(f"call_{size}"):
            actors += [SyncEcho.remote() for _ in range(size - len(actors))]
            ray.get([actor.echo.remote(1) for actor in actors])
            attempt(f"call_{size}", "actor-calls/s", plan, fan_out)
    for actor in actors:
        ray.kill(actor)


def main() -> None:
    plan = measure.plan_from_arguments()
    files = tempfile.mkdtemp(prefix="bench-")
    try:
        ray.init(include_dashboard=False, _temp_dir=files, log_to_driver=False, logging_level="error")
        asyncio.run(measure.Suite("ray", spawn, plan).run())
        run_sync(plan)
    finally:
        ray.shutdown()
        shutil.rmtree(files, ignore_errors=True)


if __name__ == "__main__":
    main()
