"""monarch_async: handles, arguments, shared objects and published weights; each transport also by force."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import bulk
import measure

import monarch_async as ma
from monarch_async.bulk.ways import Ways
from monarch_async.runtime.router import active_router


class Echo(ma.Actor):
    @ma.endpoint
    async def echo(self, value: int) -> int:
        return value


class Holder(ma.Actor):
    def __init__(self) -> None:
        self.handle: Any = None
        self.into: Any = None
        self.state: dict[str, Any] = {}
        self.subscriber: Any = None

    @ma.endpoint
    async def hold(self, nbytes: int) -> Any:
        if self.handle is not None:
            await self.handle.aclose()
        self.tensor = bulk.make_tensor(nbytes)
        self.tensor[-1] = bulk.MARK
        self.handle = await ma.register(self.tensor)
        return self.handle

    @ma.endpoint
    async def hold_raw(self, nbytes: int) -> Any:
        """What is below handles: a region of the process's data plane."""
        self.tensor = bulk.make_tensor(nbytes)
        self.tensor[-1] = bulk.MARK
        self.region, remote = await active_router().plane.add([view_of(self.tensor)], False, self.tensor)
        return remote

    @ma.endpoint
    async def transfer(self, source: Any, nbytes: int) -> None:
        if self.into is None or self.into.nbytes != nbytes:
            self.into = bulk.make_tensor(nbytes)
        await source.fetch(out=self.into)

    @ma.endpoint
    async def let_go(self) -> None:
        self.into = None

    @ma.endpoint
    async def sink(self, tensor: Any) -> float:
        return float(tensor[-1])

    @ma.endpoint
    async def get(self, ref: Any) -> tuple[float, float]:
        start = time.perf_counter()
        last = float((await ref)[-1])
        return time.perf_counter() - start, last

    @ma.endpoint
    async def subscribe(self, publisher: Any, shapes: dict[str, tuple[int, ...]]) -> None:
        import torch

        self.state = {name: torch.zeros(shape) for name, shape in shapes.items()}
        self.subscriber = ma.WeightSubscriber(publisher)

    @ma.endpoint
    async def take(self) -> tuple[float, float]:
        await self.subscriber.update(self.state)
        return self.marks()

    def marks(self) -> tuple[float, float]:
        return bulk.marks([tensor.view(-1) for tensor in self.state.values()])

    @ma.endpoint
    async def watch(self, last: int) -> tuple[int, int]:
        """Move to the newest version again and again until it is the last; say how often, and how many were torn."""
        loads = torn = version = 0
        while version < last:
            version = await self.subscriber.update(self.state)
            least, newest = self.marks()
            loads += 1
            torn += not least == newest == version
        return loads, torn


def view_of(tensor: Any) -> memoryview:
    return memoryview(tensor.numpy()).cast("B")


class OurBulk:
    """A proc mesh with a holder in each proc, and one actor for calls."""

    def __init__(self, procs: Any, mesh: Any, echoing: Any) -> None:
        self.procs = procs
        self.mesh = mesh
        self.echoing = echoing
        self.first = mesh.slice(gpus=0)
        self.second = mesh.slice(gpus=1)
        self.handle: Any = None
        self.nbytes = 0

    async def hold(self, nbytes: int) -> None:
        self.handle, self.nbytes = await self.first.hold.call_one(nbytes), nbytes
        await self.second.let_go.call_one()

    async def fetch(self, out: Any) -> None:
        await self.handle.fetch(out=out)

    async def transfer(self) -> None:
        await self.second.transfer.call_one(self.handle, self.nbytes)

    def echo(self) -> Any:
        return self.echoing.echo.call_one(1)

    def sink(self, tensor: Any) -> Any:
        return self.first.sink.call_one(tensor)

    async def sink_all(self, tensor: Any) -> Sequence[float]:
        return list((await self.mesh.sink.call(tensor)).values())

    async def put(self, tensor: Any) -> Any:
        return await ma.put(tensor)

    async def get(self, put: Any) -> tuple[float, float]:
        return await self.second.get.call_one(put)

    async def subscribe(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.publisher = ma.WeightPublisher()
        self.subscribers = self.mesh.slice(gpus=slice(0, bulk.SUBSCRIBERS))
        await self.subscribers.subscribe.call(self.publisher, dict(shapes))

    async def publish(self, state: Mapping[str, Any]) -> Sequence[tuple[float, float]]:
        await self.publisher.publish(state)
        return list((await self.subscribers.take.call()).values())

    async def close(self) -> None:
        await self.procs.stop()


async def spawn_on(hosts: ma.HostMesh, size: int) -> OurBulk:
    procs = await hosts.spawn_procs({"gpus": size}, preload=["torch"])
    mesh = await procs.spawn("holder", Holder)
    echoing = await procs.spawn("echo", Echo)
    await mesh.let_go.call()
    return OurBulk(procs, mesh, echoing.slice(gpus=1))


async def raw_seconds(group: OurBulk, transport_name: str, repeats: int) -> tuple[float, int]:
    """Microseconds of 4 KiB read by a transport itself, on the data plane's own loop."""
    region = await group.first.hold_raw.call_one(bulk.SMALL)
    plane = active_router().plane
    out = bulk.make_tensor(bulk.SMALL)

    async def fetches() -> tuple[float, int]:
        ways = Ways(plane)
        transport, why = await ways.open(transport_name, region.endpoint)
        if transport is None:
            raise RuntimeError(f"no {transport_name}: {why}")
        into = [view_of(out)]
        runs = [(0, bulk.SMALL)]

        async def read() -> None:
            await transport.read(region, runs, into, lambda nbytes: None)

        try:
            return await bulk.median_seconds(read, out, repeats)
        finally:
            await ways.close(transport, region.endpoint)

    return await plane.run(fetches())


async def measure_torn(group: OurBulk, plan: measure.Plan) -> tuple[float, int]:
    """Torn versions that 4 subscribers saw of 1,000 (100 with --quick) of a small state dict, and how many they saw."""
    import torch

    state = {f"layers.{index}": torch.zeros(1024) for index in range(300)}
    await group.subscribe(dict.fromkeys(state, (1024,)))
    versions = bulk.VERSIONS // 10 if plan.quick else bulk.VERSIONS
    watching = None
    for version in range(1, versions + 1):
        for tensor in state.values():
            tensor.fill_(float(version))
        await group.publisher.publish(state)
        watching = watching or group.subscribers.watch.call(versions)
    assert watching is not None
    seen = list((await watching).values())
    return float(sum(torn for _, torn in seen)), sum(loads for loads, _ in seen)


async def measure_transport(name: str, plan: measure.Plan) -> None:
    """What is measured of a transport that is the only one allowed."""
    fetch, raw, busy = f"fetch_256m_{name}", f"fetch_4k_raw_{name}", f"control_p99_4g_{name}"
    if not plan.wants(fetch, raw, busy):
        return
    try:
        async with ma.local_hosts(config=ma.Config(transports=name)) as hosts:
            group = await spawn_on(hosts, 2)

            async def read_raw() -> tuple[float, int]:
                seconds, n = await raw_seconds(group, name, bulk.small_repeats(plan))
                return seconds * 1e6, n

            await measure.attempt("ours", plan, fetch, "GB/s", lambda: bulk.measure_fetch(group, plan))
            await measure.attempt("ours", plan, raw, "µs", read_raw)
            await measure.attempt("ours", plan, busy, "µs", lambda: bulk.measure_busy_control(group, plan))
    except Exception as error:
        for workload in (fetch, raw, busy):
            if plan.wants(workload):
                measure.emit_failure("ours", workload, error)


async def main() -> None:
    plan = measure.plan_from_arguments((*bulk.WORKLOADS, *bulk.OURS_ALONE))
    if plan.wants(*bulk.WORKLOADS):
        async with ma.local_hosts() as hosts:
            await bulk.run("ours", lambda size: spawn_on(hosts, size), plan)
    if plan.wants("torn_in_1000"):
        async with ma.local_hosts() as hosts:
            group = await spawn_on(hosts, bulk.SUBSCRIBERS)
            await measure.attempt("ours", plan, "torn_in_1000", "torn reads", lambda: measure_torn(group, plan))
    for name in bulk.TRANSPORTS:
        await measure_transport(name, plan)


if __name__ == "__main__":
    ma.run(main())
