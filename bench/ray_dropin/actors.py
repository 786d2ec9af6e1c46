"""Plain actors: one to one, one to many, many to many, on several threads, with references as arguments."""

import time
from collections.abc import Iterator

import ray
from rows import BATCH, CLIENTS, SERVERS, Step, all_at_once, by_clients, check, end, main, one_by_one, row, start


@ray.remote(num_cpus=0)
class Server:
    """Answers with what it is given; counts, so that a call that ran twice or never is seen."""

    def __init__(self) -> None:
        self.calls = 0

    def echo(self, number: int) -> int:
        return number

    def count(self) -> int:
        self.calls += 1
        return self.calls

    def nap(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


@ray.remote(num_cpus=0)
class Client:
    """Calls servers from a process of its own."""

    def __init__(self, servers: list) -> None:
        self.servers = servers

    def call(self, each: int) -> bool:
        refs = [server.echo.remote(number) for number in range(each) for server in self.servers]
        return ray.get(refs) == [number for number in range(each) for _ in self.servers]

    def call_with_ref(self, each: int) -> bool:
        argument = ray.put(each)
        refs = [server.echo.remote(argument) for _ in range(each) for server in self.servers]
        return ray.get(refs) == [each] * (each * len(self.servers))


@row("actor_1_1_sync", "calls/s")
def one_to_one_sync() -> Iterator[Step]:
    [server] = start([Server.remote()])
    yield from one_by_one(server)


@row("actor_1_1_async", "calls/s")
def one_to_one_async() -> Iterator[Step]:
    [server] = start([Server.remote()])
    called = 0

    def step() -> float:
        nonlocal called
        counts = ray.get([server.count.remote() for _ in range(BATCH)])
        check(counts, list(range(called + 1, called + BATCH + 1)), "counts of calls in order")
        called += BATCH
        return BATCH

    yield step
    end([server])


@row("actor_1_1_concurrent", "calls/s")
def one_to_one_concurrent() -> Iterator[Step]:
    [server] = start([Server.options(max_concurrency=16).remote()])
    yield from all_at_once(server)


@row("threads_16_naps", "calls/s")
def naps() -> Iterator[Step]:
    """Calls that sleep 5 ms on 16 threads: whether these really run at the same time."""
    [server] = start([Server.options(max_concurrency=16).remote()])

    def step() -> float:
        check(ray.get([server.nap.remote(0.005) for _ in range(160)]), [0.005] * 160, "answers")
        return 160

    yield step
    end([server])


@row("actor_by_name", "lookups/s")
def by_name() -> Iterator[Step]:
    [server] = start([Server.options(name="server-by-name").remote()])

    def step() -> float:
        for number in range(10):
            check(ray.get(ray.get_actor("server-by-name").echo.remote(number)), number, "answer of a named actor")
        return 10

    yield step
    end([server])


@row("actor_1_n_async", "calls/s")
def one_to_many() -> Iterator[Step]:
    servers = start([Server.remote() for _ in range(SERVERS)])
    yield from by_clients(servers, [Client.remote(servers)])


@row("actor_n_n_async", "calls/s")
def many_to_many() -> Iterator[Step]:
    servers = start([Server.remote() for _ in range(SERVERS)])
    yield from by_clients(servers, [Client.remote(servers) for _ in range(CLIENTS)])


@row("actor_n_n_with_ref", "calls/s")
def many_to_many_with_ref() -> Iterator[Step]:
    servers = start([Server.remote() for _ in range(SERVERS)])
    yield from by_clients(servers, [Client.remote(servers) for _ in range(CLIENTS)], "call_with_ref")


if __name__ == "__main__":
    main()
