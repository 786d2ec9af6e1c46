"""What a user writes, with the types an editor must see. Checked by pyright, never run."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, assert_type

import monarch_async as ma


class Trainer(ma.Actor):
    max_concurrency = 4

    def __init__(self, lr: float, *, name: str = "") -> None:
        self.lr = lr

    async def setup(self) -> None: ...

    async def teardown(self) -> None: ...

    @ma.endpoint
    async def step(self, batch: list[int], scale: float = 1.0) -> float:
        return self.lr * scale * len(batch)

    @ma.endpoint
    def save(self, path: str) -> int:
        return len(path)

    @ma.endpoint
    async def tokens(self, prompt: str) -> AsyncGenerator[str, None]:
        yield prompt

    @ma.endpoint
    async def more_tokens(self, prompt: str, *, count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield prompt.encode()

    @ma.endpoint
    async def unannotated(self, n: int):
        yield n

    @ma.endpoint
    async def nothing(self) -> None: ...

    async def helper(self) -> int:
        assert_type(ma.context().rank, int)
        return 1

    async def __supervise__(self, failure: ma.Failure) -> bool:
        assert_type(failure.rank, int)
        return isinstance(failure.error, ma.ProcDied)


async def policy(failure: ma.Failure) -> bool:
    return failure.rank > 0


async def main() -> int:
    async with ma.local_hosts(2, config=ma.Config(stop_grace=1.0)) as hosts:
        assert_type(hosts, ma.HostMesh)
        procs = await hosts.spawn_procs({"gpus": 4}, env={"A": "b"}, name="procs", preload=["torch"])
        assert_type(procs, ma.ProcMesh)
        hosts.spawn_procs(env=lambda point: {"RANK": str(point.rank)}, start="spawn", python="python3", cwd="/")
        assert_type(procs.slice(gpus=0), ma.ProcMesh)
        assert_type(procs.extent, ma.Extent)

        trainers = await procs.spawn("trainers", Trainer, 0.1)
        assert_type(trainers, Trainer)
        assert_type(await procs.spawn("trainers", Trainer, lr=0.1, name="x"), Trainer)
        early = procs.spawn("early", Trainer, lr=1e-3)
        assert_type(early.slice(gpus=slice(0, 2)), Trainer)
        assert_type(trainers.flatten("all"), Trainer)
        assert_type(trainers.split(gpus=("dp", "tp"), tp=2).rename(dp="x").at(0), Trainer)
        assert_type(trainers.size, int)

        losses = await trainers.step.call([1])
        assert_type(losses, ma.ValueMesh[float])
        assert_type(losses[0], float)
        assert_type(losses.map(str), ma.ValueMesh[str])
        for point, loss in losses.items():
            assert_type(point, ma.Point)
            assert_type(loss, float)
        assert_type(trainers.step.call([1], scale=2.0), asyncio.Future[ma.ValueMesh[float]])
        assert_type(await trainers.at(0).step.call_one([1], 2.0), float)
        assert_type(await trainers.save.choose("x"), int)
        assert_type(await trainers.step.options(first_error=True).call([]), ma.ValueMesh[float])
        assert_type(trainers.nothing.broadcast(), asyncio.Future[None])
        async for point, loss in trainers.step.stream(batch=[]):
            assert_type(point, ma.Point)
            assert_type(loss, float)

        async for token in trainers.at(0).tokens.stream_one("x"):
            assert_type(token, str)
        async for part in trainers.at(0).more_tokens.stream_one("x", count=3):
            assert_type(part, bytes)
        async for number in trainers.unannotated.choose(3):
            assert_type(number, int)
        async with trainers.tokens.stream("x") as stream:
            assert_type(stream, ma.Stream[tuple[ma.Point, str]])
            assert_type(await anext(stream), tuple[ma.Point, str])

        first, second = await asyncio.gather(trainers.at(0).step.call_one([]), trainers.at(1).save.call_one("x"))
        assert_type(first, float)
        assert_type(second, int)
        done, _ = await asyncio.wait([trainers.step.call([]), trainers.step.call([])])
        assert_type(done, set[asyncio.Future[ma.ValueMesh[float]]])

        async with ma.supervise(policy), ma.supervise(ma.restart(times=3)), ma.supervise(ma.ignore):
            await trainers.restart(0)
        await trainers.stop()
        await procs.stop()

        port: ma.Port[int]
        receiver: ma.Receiver[int]
        port, receiver = ma.channel(limit=3)
        await port.send(3)
        assert_type(await receiver.recv(), int)
        async for value in receiver:
            assert_type(value, int)

    try:
        pass
    except ma.MeshError as group:
        assert_type(group.by_rank, dict[int, Exception])
    except ma.RemoteError as error:
        assert_type(error.rank, int)
    async with ma.attach("tcp://a:1", token="x") as others:
        assert_type(others, ma.HostMesh)
    return 3


assert_type(ma.run(main()), int)


class Untyped(ma.Actor):
    """Without annotations nothing is in the way."""

    def __init__(self, x):  # type: ignore[no-untyped-def]
        self.x = x

    @ma.endpoint
    async def get(self, key=None):  # type: ignore[no-untyped-def]
        return self.x, key


async def untyped(procs: ma.ProcMesh) -> Any:
    mesh = await procs.spawn("untyped", Untyped, 3)
    await mesh.get.call(key="x")
    return await mesh.at(0).get.call_one()


def parse(text: str, base: int = 10) -> int:
    return int(text, base)


async def parse_later(text: str) -> int:
    return int(text)


@ma.task(gpus=0.5, retry_on=(OSError, ValueError))
def parse_on_gpu(text: str) -> int:
    return int(text)


async def tasks(texts: list[str]) -> None:
    assert_type(await ma.submit(parse, "1", cpus=2), int)
    assert_type(await ma.submit(parse_later, "1", retries=0), int)
    assert_type(await parse_on_gpu.submit("1"), int)
    assert_type(await ma.task(parse_later, memory=1 << 30).options(name="parser").submit("1"), int)
    assert_type(await asyncio.gather(ma.submit(parse, "1"), ma.task(parse).submit("2", base=3)), tuple[int, int])
    async for value in ma.map_unordered(parse, texts, limit=3):
        assert_type(value, int)
    async for outcome in ma.map_unordered(parse_later, texts, errors="yield", env={"A": "b"}):
        assert_type(outcome, ma.TaskOutcome)
    assert_type(ma.quarantine(), list[ma.Quarantined])
