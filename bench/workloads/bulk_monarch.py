"""PyTorch Monarch: RDMABuffer, over TCP where there is no card for it, and tensors as arguments."""

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import bulk
import measure
from monarch.actor import Actor, endpoint, shutdown_context, this_host
from monarch.rdma import RDMAAction, RDMABuffer

warnings.simplefilter("ignore")  # that it falls back to TCP


class Echo(Actor):
    @endpoint
    async def echo(self, value: int) -> int:
        return value


class Holder(Actor):
    def __init__(self) -> None:
        import torch  # noqa: F401

        warnings.simplefilter("ignore")
        self.into: Any = None
        self.state: list[Any] = []

    @endpoint
    async def ready(self) -> None:
        return None

    @endpoint
    async def hold(self, nbytes: int) -> Any:
        self.tensor = bulk.make_tensor(nbytes)
        self.tensor[-1] = bulk.MARK
        return RDMABuffer(self.tensor)

    @endpoint
    async def transfer(self, source: Any) -> None:
        if self.into is None or self.into.nbytes != source.size():
            self.into = bulk.make_tensor(source.size())
        await source.read_into(self.into, timeout=120)

    @endpoint
    async def let_go(self) -> None:
        self.into = None

    @endpoint
    async def sink(self, tensor: Any) -> float:
        return float(tensor[-1])

    @endpoint
    async def subscribe(self, shapes: Any) -> None:
        import torch

        self.state = [torch.zeros(shape).view(-1) for shape in shapes.values()]

    @endpoint
    async def take(self, buffers: Any) -> tuple[float, float]:
        action = RDMAAction()
        for into, source in zip(self.state, buffers, strict=True):
            action.read_remote(into, source)
        await action.submit(timeout=120)
        return bulk.marks(self.state)


class MonarchBulk:
    """`size` procs of this host with one actor each, and one for calls."""

    def __init__(self, size: int) -> None:
        self.procs = this_host().spawn_procs(per_host={"gpus": size})
        self.mesh: Any = self.procs.spawn("holder", Holder)
        self.first: Any = self.mesh.slice(gpus=0)
        self.second: Any = self.mesh.slice(gpus=1)
        self.echoing: Any = self.procs.spawn("echo", Echo).slice(gpus=1)
        self.buffer: Any = None
        self.buffers: list[Any] = []

    async def hold(self, nbytes: int) -> None:
        self.buffer = await self.first.hold.call_one(nbytes)
        await self.second.let_go.call_one()

    async def fetch(self, out: Any) -> None:
        await self.buffer.read_into(out)

    async def transfer(self) -> None:
        await self.second.transfer.call_one(self.buffer)

    def echo(self) -> Any:
        return self.echoing.echo.call_one(1)

    def sink(self, tensor: Any) -> Any:
        return self.first.sink.call_one(tensor)

    async def sink_all(self, tensor: Any) -> Sequence[float]:
        return list((await self.mesh.sink.call(tensor)).values())

    async def put(self, tensor: Any) -> Any:
        raise NotImplementedError("Monarch keeps no objects")

    async def get(self, put: Any) -> tuple[float, float]:
        raise NotImplementedError("Monarch keeps no objects")

    async def subscribe(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.subscribers: Any = self.mesh.slice(gpus=slice(0, bulk.SUBSCRIBERS))
        await self.subscribers.subscribe.call(dict(shapes))

    async def publish(self, state: Mapping[str, Any]) -> Sequence[tuple[float, float]]:
        # The tensors are registered once, as its example for reinforcement learning does it.
        self.buffers = self.buffers or [RDMABuffer(tensor.view(-1)) for tensor in state.values()]
        return list((await self.subscribers.take.call(self.buffers)).values())

    async def close(self) -> None:
        await self.procs.stop()


async def spawn(size: int) -> MonarchBulk:
    group = MonarchBulk(size)
    await group.mesh.ready.call()
    return group


async def main() -> None:
    plan = measure.plan_from_arguments(bulk.WORKLOADS)
    try:
        await bulk.run("monarch", spawn, plan)
    finally:
        await shutdown_context()


if __name__ == "__main__":
    asyncio.run(main())
