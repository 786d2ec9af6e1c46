"""Objects: small and large puts and gets, an object full of references, waiting for a thousand."""

import time
from collections.abc import Iterator

import numpy as np
import ray
from rows import Lap, Step, check, main, row

BATCH = 100
LARGE = 100_000_000
LARGE_GB = LARGE / 1e9
MANY_REFS = 10_000
CLIENTS = 4


@ray.remote(num_cpus=0)
class Putter:
    """A process that puts, small objects or a few large ones, and hands back references."""

    def put_small(self, count: int) -> list[ray.ObjectRef]:
        return [ray.put(number) for number in range(count)]

    def put_large(self, size: int, count: int, mark: int) -> tuple[list[ray.ObjectRef], float]:
        array = np.empty(size, dtype=np.uint8)
        begun = time.perf_counter()
        refs = []
        for _ in range(count):
            array[0] = array[-1] = mark % 251
            refs.append(ray.put(array))
        return refs, time.perf_counter() - begun

    def make_large(self, mark: int) -> np.ndarray:
        return np.full(LARGE // 8, mark, dtype=np.int64)


@ray.remote
def make_refs(count: int) -> list[ray.ObjectRef]:
    return [ray.put(number) for number in range(count)]


@ray.remote
def same(number: int) -> int:
    return number


@row("put_small", "puts/s")
def put_small() -> Iterator[Step]:
    def step() -> float:
        refs = [ray.put(number) for number in range(BATCH)]
        check(len(set(refs)), BATCH, "references of as many puts")
        return BATCH

    yield step
    check(ray.get([ray.put(number) for number in range(BATCH)]), list(range(BATCH)), "what was put")


@row("get_small", "gets/s")
def get_small() -> Iterator[Step]:
    ref = ray.put(b"a small value")

    def step() -> float:
        for _ in range(BATCH):
            check(ray.get(ref), b"a small value", "what was put")
        return BATCH

    yield step


@row("put_small_4_clients", "puts/s")
def put_small_clients() -> Iterator[Step]:
    clients = [Putter.remote() for _ in range(CLIENTS)]

    def step() -> float:
        refs = ray.get([client.put_small.remote(BATCH) for client in clients])
        check(ray.get(refs[-1][-1]), BATCH - 1, "what a client put")
        return BATCH * CLIENTS

    yield step
    for client in clients:
        ray.kill(client)


@row("put_100mb", "GB/s", kind="bulk")
def put_large() -> Iterator[Step]:
    array = np.zeros(LARGE, dtype=np.uint8)
    serial = 0

    def step() -> Lap:
        nonlocal serial
        serial = (serial + 1) % 251
        array[0] = array[-1] = serial
        begun = time.perf_counter()
        ref = ray.put(array)
        seconds = time.perf_counter() - begun
        array[0] = array[-1] = 255  # what was put is not what the caller changes afterwards
        found = ray.get(ref)
        check((int(found[0]), int(found[-1])), (serial, serial), "first and last byte of what was put")
        return Lap(LARGE_GB, seconds)

    yield step


@row("put_100mb_4_clients", "GB/s", kind="bulk")
def put_large_clients() -> Iterator[Step]:
    clients = [Putter.remote() for _ in range(CLIENTS)]
    serial = 0

    def step() -> Lap:
        nonlocal serial
        serial += 1
        puts = ray.get([client.put_large.remote(LARGE // CLIENTS, 4, serial) for client in clients])
        for refs, _ in puts:
            check(int(ray.get(refs[-1])[-1]), serial % 251, "last byte of what a client put")
        return Lap(4 * LARGE_GB, max(seconds for _, seconds in puts))

    yield step
    for client in clients:
        ray.kill(client)


@row("get_100mb", "gets/s", kind="bulk")
def get_large() -> Iterator[Step]:
    yield from get_what_an_actor_made(read=False)


@row("get_100mb_and_read", "GB/s", kind="bulk")
def get_and_read_large() -> Iterator[Step]:
    yield from get_what_an_actor_made(read=True)


def get_what_an_actor_made(read: bool) -> Iterator[Step]:
    """Get an object that another process made just now and is there; each once, as a get of the same is cheaper."""
    maker = Putter.remote()
    serial = 0

    def step() -> Lap:
        nonlocal serial
        serial += 1
        ref = maker.make_large.remote(serial)
        ray.wait([ref])
        begun = time.perf_counter()
        array = ray.get(ref)
        total = int(array.sum()) if read else int(array[-1])
        seconds = time.perf_counter() - begun
        check(total, serial * (len(array) if read else 1), "the numbers of an object of 100 MB")
        return Lap(LARGE_GB if read else 1, seconds)

    yield step
    ray.kill(maker)


@row("get_object_of_10k_refs", "gets/s")
def get_refs() -> Iterator[Step]:
    def step() -> Lap:
        ref = make_refs.remote(MANY_REFS)
        ray.wait([ref])
        begun = time.perf_counter()
        refs = ray.get(ref)
        seconds = time.perf_counter() - begun
        check(len(refs), MANY_REFS, "references in an object")
        check(ray.get(refs[-1]), MANY_REFS - 1, "what the last reference in an object is of")
        return Lap(1, seconds)

    yield step


@row("wait_1k_one_by_one", "refs/s")
def wait_each() -> Iterator[Step]:
    def step() -> float:
        waiting = [same.remote(number) for number in range(1000)]
        found = set()
        while waiting:
            done, waiting = ray.wait(waiting)
            check(len(done), 1, "references that one wait returns")
            found.update(done)
        check(len(found), 1000, "references that were waited for")
        return 1000

    yield step


@row("wait_1k_ready", "waits/s")
def wait_ready() -> Iterator[Step]:
    refs = [same.remote(number) for number in range(1000)]
    ray.get(refs)

    def step() -> float:
        done, waiting = ray.wait(refs, num_returns=len(refs), timeout=30)
        check((done, waiting), (refs, []), "references that are all done, in their order")
        return 1

    yield step


if __name__ == "__main__":
    main()
