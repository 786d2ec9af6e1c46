"""xoscar: a pool of sub-processes with one actor in each, of the kind that measured faster of its two."""

import asyncio
from typing import Any

import measure
import xoscar as xo
from xoscar.backends.allocate_strategy import ProcessIndex


class Echo(xo.Actor):
    def __init__(self, with_torch: bool) -> None:
        if with_torch:
            import torch  # noqa: F401

    async def echo(self, value: int) -> int:
        return value

    async def sink(self, tensor: Any) -> float:
        return float(tensor[-1])

    async def relay(self, target: Any, depth: int, seconds: float) -> tuple[int, float]:
        return await measure.window(lambda: target.echo(1), depth, seconds)


class XoscarGroup:
    """A pool of `size` sub-processes; its main process is this one."""

    def __init__(self, pool: Any, actors: list[Any]) -> None:
        self.pool = pool
        self.actors = actors

    def echo(self) -> Any:
        return self.actors[0].echo(1)

    def echo_all(self) -> Any:
        return asyncio.gather(*[actor.echo(1) for actor in self.actors])

    def relay(self, depth: int, seconds: float) -> Any:
        return self.actors[0].relay(self.actors[1], depth, seconds)

    def sink(self, tensor: Any) -> Any:
        return self.actors[0].sink(tensor)

    async def close(self) -> None:
        await self.pool.stop()


async def spawn(size: int, with_torch: bool) -> XoscarGroup:
    pool = await xo.create_actor_pool("127.0.0.1", n_process=size)

    def make_actor(index: int) -> Any:
        where = ProcessIndex(index + 1)
        uid = f"echo-{index}"
        address = pool.external_address
        return xo.create_actor(Echo, with_torch, address=address, uid=uid, allocate_strategy=where)

    return XoscarGroup(pool, await asyncio.gather(*map(make_actor, range(size))))


def main() -> None:
    plan = measure.plan_from_arguments()
    suite = measure.Suite("xoscar", spawn, plan)
    try:
        import uvloop
    except ImportError:
        asyncio.run(suite.run())
    else:
        uvloop.run(suite.run())


if __name__ == "__main__":
    main()
