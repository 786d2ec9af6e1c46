"""PyTorch Monarch: a proc mesh on this host, an actor mesh on it, endpoints that are coroutines."""

import asyncio
from typing import Any

import measure
from monarch.actor import Actor, endpoint, shutdown_context, this_host


class Echo(Actor):
    def __init__(self, with_torch: bool) -> None:
        if with_torch:
            import torch  # noqa: F401

    @endpoint
    async def echo(self, value: int) -> int:
        return value

    @endpoint
    async def sink(self, tensor: Any) -> float:
        return float(tensor[-1])

    @endpoint
    async def relay(self, target: Any, depth: int, seconds: float) -> tuple[int, float]:
        return await measure.window(lambda: target.echo.call_one(1), depth, seconds)


class MonarchGroup:
    """`size` procs of this host with one actor each."""

    def __init__(self, size: int, with_torch: bool) -> None:
        self.procs = this_host().spawn_procs(per_host={"gpus": size})
        self.mesh: Any = self.procs.spawn("echo", Echo, with_torch)
        self.first: Any = self.mesh.slice(gpus=0)
        self.second: Any = self.mesh.slice(gpus=1)

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


async def spawn(size: int, with_torch: bool) -> MonarchGroup:
    return MonarchGroup(size, with_torch)


async def main() -> None:
    plan = measure.plan_from_arguments()
    try:
        await measure.Suite("monarch", spawn, plan).run()
    finally:
        await shutdown_context()


if __name__ == "__main__":
    asyncio.run(main())
