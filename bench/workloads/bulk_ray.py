"""Ray: its object store, by put and get and by arguments. Tensors travel as numpy arrays, which procs share.

Blocking where that is faster: plain actors, and `ray.get` of what has been put.
"""

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import bulk
import measure
import numpy as np

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray authenticates by default, as we do; a token given here keeps it from writing one into the home folder.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

import ray  # reads the environment when imported


@ray.remote(num_cpus=0)
class Holder:
    def ready(self) -> None:
        return None

    def hold(self, nbytes: int) -> list[Any]:
        array = np.ones(nbytes // 4, dtype=np.float32)
        array[-1] = bulk.MARK
        self.ref = ray.put(array)
        return [self.ref]

    def sink(self, array: Any) -> float:
        return float(array[-1])

    def get(self, wrapped: list[Any]) -> tuple[float, float]:
        start = time.perf_counter()
        last = float(ray.get(wrapped[0])[-1])
        return time.perf_counter() - start, last

    def subscribe(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.state = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}

    def take(self, state: dict[str, Any]) -> tuple[float, float]:
        for name, array in state.items():
            np.copyto(self.state[name], array)
        return bulk.marks([array.reshape(-1) for array in self.state.values()])


class RayBulk:
    """`size` Ray actors, each in its own worker process."""

    def __init__(self, size: int) -> None:
        self.actors = [Holder.remote() for _ in range(size)]
        self.held: list[Any] = []

    async def hold(self, nbytes: int) -> None:
        self.held = await self.actors[0].hold.remote(nbytes)

    async def fetch(self, out: Any) -> None:
        np.copyto(out.numpy(), ray.get(self.held[0]))

    async def transfer(self) -> None:
        raise NotImplementedError("not measured on Ray")

    def echo(self) -> Any:
        raise NotImplementedError("not measured on Ray")

    def sink(self, tensor: Any) -> Any:
        return self.actors[0].sink.remote(tensor.numpy())

    async def sink_all(self, tensor: Any) -> Sequence[float]:
        ref = ray.put(tensor.numpy())  # once for all, which passing the array to each of them would not be
        return await asyncio.gather(*[actor.sink.remote(ref) for actor in self.actors])

    async def put(self, tensor: Any) -> Any:
        return [ray.put(tensor.numpy())]

    async def get(self, put: Any) -> tuple[float, float]:
        return await self.actors[0].get.remote(put)

    async def subscribe(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.subscribers = self.actors[: bulk.SUBSCRIBERS]
        await asyncio.gather(*[actor.subscribe.remote(dict(shapes)) for actor in self.subscribers])

    async def publish(self, state: Mapping[str, Any]) -> Sequence[tuple[float, float]]:
        ref = ray.put({name: tensor.numpy() for name, tensor in state.items()})
        return await asyncio.gather(*[actor.take.remote(ref) for actor in self.subscribers])

    async def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)


async def spawn(size: int) -> RayBulk:
    group = RayBulk(size)
    await asyncio.gather(*[actor.ready.remote() for actor in group.actors])
    return group


def main() -> None:
    plan = measure.plan_from_arguments(bulk.WORKLOADS)
    files = tempfile.mkdtemp(prefix="bench-")
    try:
        ray.init(include_dashboard=False, _temp_dir=files, log_to_driver=False, logging_level="error")
        asyncio.run(bulk.run("ray", spawn, plan))
    finally:
        ray.shutdown()
        shutil.rmtree(files, ignore_errors=True)


if __name__ == "__main__":
    main()
