"""xoscar: arrays as arguments and results of calls, which is all it has."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import bulk
import measure
import numpy as np
import xoscar as xo
from xoscar.backends.allocate_strategy import ProcessIndex


class Holder(xo.Actor):
    async def hold(self, nbytes: int) -> None:
        self.array = np.ones(nbytes // 4, dtype=np.float32)
        self.array[-1] = bulk.MARK

    async def give(self) -> Any:
        return self.array

    async def sink(self, array: Any) -> float:
        return float(array[-1])

    async def subscribe(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.state = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}

    async def take(self, state: dict[str, Any]) -> tuple[float, float]:
        for name, array in state.items():
            np.copyto(self.state[name], array)
        return bulk.marks([array.reshape(-1) for array in self.state.values()])


class XoscarBulk:
    """A pool of sub-processes; its main process is this one."""

    def __init__(self, pool: Any, actors: list[Any]) -> None:
        self.pool = pool
        self.actors = actors

    async def hold(self, nbytes: int) -> None:
        await self.actors[0].hold(nbytes)

    async def fetch(self, out: Any) -> None:
        np.copyto(out.numpy(), await self.actors[0].give())

    async def transfer(self) -> None:
        raise NotImplementedError("not measured on xoscar")

    def echo(self) -> Any:
        raise NotImplementedError("not measured on xoscar")

    def sink(self, tensor: Any) -> Any:
        return self.actors[0].sink(tensor.numpy())

    async def sink_all(self, tensor: Any) -> Sequence[float]:
        array = tensor.numpy()
        return await asyncio.gather(*[actor.sink(array) for actor in self.actors])

    async def put(self, tensor: Any) -> Any:
        raise NotImplementedError("xoscar keeps no objects")

    async def get(self, put: Any) -> tuple[float, float]:
        raise NotImplementedError("xoscar keeps no objects")

    async def subscribe(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.subscribers = self.actors[: bulk.SUBSCRIBERS]
        await asyncio.gather(*[actor.subscribe(dict(shapes)) for actor in self.subscribers])

    async def publish(self, state: Mapping[str, Any]) -> Sequence[tuple[float, float]]:
        arrays = {name: tensor.numpy() for name, tensor in state.items()}
        return await asyncio.gather(*[actor.take(arrays) for actor in self.subscribers])

    async def close(self) -> None:
        await self.pool.stop()


async def spawn(size: int) -> XoscarBulk:
    pool = await xo.create_actor_pool("127.0.0.1", n_process=size)

    def make_actor(index: int) -> Any:
        where = ProcessIndex(index + 1)
        return xo.create_actor(Holder, address=pool.external_address, uid=f"holder-{index}", allocate_strategy=where)

    return XoscarBulk(pool, await asyncio.gather(*map(make_actor, range(size))))


def main() -> None:
    plan = measure.plan_from_arguments(bulk.WORKLOADS)
    try:
        import uvloop
    except ImportError:
        asyncio.run(bulk.run("xoscar", spawn, plan))
    else:
        uvloop.run(bulk.run("xoscar", spawn, plan))


if __name__ == "__main__":
    main()
