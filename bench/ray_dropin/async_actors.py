"""Async actors: one to one, one to many, many to many, with arguments, with calls that wait for one another."""

import asyncio
from collections.abc import Iterator

import ray
from rows import BATCH, CLIENTS, SERVERS, Step, all_at_once, by_clients, check, end, main, one_by_one, row, start


@ray.remote(num_cpus=0)
class AsyncServer:
    """Answers with what it is given, from its event loop."""

    def __init__(self) -> None:
        self.here = 0
        self.all_here = asyncio.Event()

    async def echo(self, number: int) -> int:
        return number

    async def length(self, data: bytes) -> int:
        return len(data)

    async def meet(self, count: int) -> int:
        """Return when as many calls are under way: only calls that interleave ever do."""
        self.here += 1
        if self.here == count:
            self.here = 0
            self.all_here.set()
            self.all_here = asyncio.Event()
        else:
            await self.all_here.wait()
        return count


@ray.remote(num_cpus=0)
class AsyncClient:
    """Calls servers from a process of its own, awaiting references."""

    def __init__(self, servers: list) -> None:
        self.servers = servers

    async def call(self, each: int) -> bool:
        refs = [server.echo.remote(number) for number in range(each) for server in self.servers]
        return await asyncio.gather(*refs) == [number for number in range(each) for _ in self.servers]


@row("async_actor_1_1_sync", "calls/s")
def one_to_one_sync() -> Iterator[Step]:
    [server] = start([AsyncServer.remote()])
    yield from one_by_one(server)


@row("async_actor_1_1_async", "calls/s")
def one_to_one_async() -> Iterator[Step]:
    [server] = start([AsyncServer.remote()])
    yield from all_at_once(server)


@row("async_actor_1_1_with_args", "calls/s")
def one_to_one_with_args() -> Iterator[Step]:
    [server] = start([AsyncServer.remote()])
    data = bytes(1000)

    def step() -> float:
        lengths = ray.get([server.length.remote(data=data) for _ in range(BATCH)])
        check(lengths, [len(data)] * BATCH, "lengths of an argument by keyword")
        return BATCH

    yield step
    end([server])


@row("async_actor_meeting_100", "calls/s")
def meeting() -> Iterator[Step]:
    [server] = start([AsyncServer.remote()])

    def step() -> float:
        check(ray.get([server.meet.remote(100) for _ in range(100)]), [100] * 100, "answers of calls that met")
        return 100

    yield step
    end([server])


@row("async_actor_awaited_refs", "calls/s")
def awaited() -> Iterator[Step]:
    """References awaited by the driver's own event loop, a hundred at a time."""
    [server] = start([AsyncServer.remote()])

    async def call() -> list[int]:
        return await asyncio.gather(*[server.echo.remote(number) for number in range(100)])

    with asyncio.Runner() as runner:

        def step() -> float:
            check(runner.run(call()), list(range(100)), "answers that were awaited")
            return 100

        yield step
    end([server])


@row("async_actor_1_n_async", "calls/s")
def one_to_many() -> Iterator[Step]:
    servers = start([AsyncServer.remote() for _ in range(SERVERS)])
    yield from by_clients(servers, [AsyncClient.remote(servers)])


@row("async_actor_n_n_async", "calls/s")
def many_to_many() -> Iterator[Step]:
    servers = start([AsyncServer.remote() for _ in range(SERVERS)])
    yield from by_clients(servers, [AsyncClient.remote(servers) for _ in range(CLIENTS)])


if __name__ == "__main__":
    main()
