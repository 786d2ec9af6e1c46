"""The floor: what two uvloop processes can do with one relaying process between them, and nothing else.

No actor, no error path, no authentication, no order beyond the socket's: a frame of twelve header bytes
(length, destination, source) and a msgpack body that holds a call number and a pickle; the relay forwards by
the header and does not look inside. One write per loop turn, at every process. A framework that sends its
calls through a host agent cannot be faster than this; how close it comes is its own overhead.

The relay, the workers and the client that measures are forked from this process, which has imported torch and
stays single-threaded. The client asks it for workers by a line on a pipe.
"""

import asyncio
import functools
import itertools
import os
import pickle
import signal
import struct
import sys
import tempfile
from collections.abc import Callable
from typing import TextIO, cast

import measure
import msgpack
import torch  # once, for every fork
import uvloop

HEADER = struct.Struct("<III")
CLIENT = 1
FIRST_WORKER = 10
HELLO = 0xFFFFFFFF
CALL, REPLY, RELAY = 0, 1, 2
UNABLE = ("tensor_100mb",)


class Peer(asyncio.Protocol):
    """One end of a connection: cuts frames out of what arrives, joins what is sent within one loop turn."""

    def __init__(self, on_frame: Callable[["Peer", int, int, bytes], None]) -> None:
        self.on_frame = on_frame
        self.rest = b""
        self.outgoing: list[bytes] = []
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's does not derive from asyncio's

    def data_received(self, data: bytes) -> None:
        if self.rest:
            data = self.rest + data
        start, end = 0, len(data)
        while end - start >= HEADER.size:
            length, target, source = HEADER.unpack_from(data, start)
            stop = start + HEADER.size + length
            if stop > end:
                break
            self.on_frame(self, target, source, data[start:stop])
            start = stop
        self.rest = data[start:]

    def send(self, frame: bytes) -> None:
        if not self.outgoing:
            self.loop.call_soon(self.flush)
        self.outgoing.append(frame)

    def flush(self) -> None:
        self.transport.write(b"".join(self.outgoing))
        self.outgoing.clear()


def make_frame(target: int, source: int, body: bytes) -> bytes:
    return HEADER.pack(len(body), target, source) + body


class Station:
    """A process that makes calls, answers them and can be told to call another: a worker, or the client."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.numbers = itertools.count()
        self.pending: dict[int, asyncio.Future[object]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def connect(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        _, self.peer = await loop.create_unix_connection(lambda: Peer(self.on_frame), path)
        self.peer.send(make_frame(HELLO, self.address, b""))

    def on_frame(self, peer: Peer, target: int, source: int, frame: bytes) -> None:
        kind, number, body = msgpack.unpackb(memoryview(frame)[HEADER.size :])
        if kind == REPLY:
            self.pending.pop(number).set_result(pickle.loads(body))
        elif kind == CALL:
            (value,) = pickle.loads(body)
            self.post(source, REPLY, number, pickle.dumps(value, 5))
        else:
            task = asyncio.ensure_future(self.relay(source, number, *pickle.loads(body)))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def post(self, target: int, kind: int, number: int, body: bytes) -> None:
        self.peer.send(make_frame(target, self.address, msgpack.packb([kind, number, body])))

    def call(self, target: int, kind: int, *arguments: object) -> asyncio.Future[object]:
        number = next(self.numbers)
        future = self.pending[number] = self.peer.loop.create_future()
        self.post(target, kind, number, pickle.dumps(arguments, 5))
        return future

    async def relay(self, source: int, number: int, target: int, depth: int, seconds: float) -> None:
        counted = await measure.window(lambda: self.call(target, CALL, 1), depth, seconds)
        self.post(source, REPLY, number, pickle.dumps(counted, 5))


class FloorGroup:
    """Forked workers. They may be called at once: the relay holds what comes before their hello."""

    def __init__(self, client: Station, workers: list[int], end: Callable[[], None]) -> None:
        self.client = client
        self.workers = workers
        self.end = end

    def echo(self) -> asyncio.Future[object]:
        return self.client.call(self.workers[0], CALL, 1)

    def echo_all(self) -> asyncio.Future[list[object]]:
        return asyncio.gather(*[self.client.call(worker, CALL, 1) for worker in self.workers])

    async def relay(self, depth: int, seconds: float) -> tuple[int, float]:
        counted = await self.client.call(self.workers[0], RELAY, self.workers[1], depth, seconds)
        assert isinstance(counted, tuple)
        return counted

    async def sink(self, tensor: torch.Tensor) -> float:
        raise NotImplementedError("the floor moves no tensors")

    async def close(self) -> None:
        self.end()


async def run_relay(path: str, ready: int) -> None:
    """Forward frames by their destination; hold what is for a worker that has not said hello yet."""
    peers: dict[int, Peer] = {}
    early: dict[int, list[bytes]] = {}

    def on_frame(peer: Peer, target: int, source: int, frame: bytes) -> None:
        if target == HELLO:
            peers[source] = peer
            for waiting in early.pop(source, ()):
                peer.send(waiting)
        elif target in peers:
            peers[target].send(frame)
        else:
            early.setdefault(target, []).append(frame)

    server = await asyncio.get_running_loop().create_unix_server(lambda: Peer(on_frame), path, backlog=512)
    os.write(ready, b"r")
    await server.serve_forever()


async def run_worker(path: str, address: int) -> None:
    await Station(address).connect(path)
    await asyncio.Event().wait()


def work(path: str, address: int) -> None:
    uvloop.run(run_worker(path, address))


async def run_client(path: str, asking: TextIO, plan: measure.Plan) -> None:
    addresses = itertools.count(FIRST_WORKER)
    client = Station(CLIENT)
    await client.connect(path)

    def end() -> None:
        asking.write("end\n")
        asking.flush()

    async def spawn(size: int, with_torch: bool) -> FloorGroup:
        workers = list(itertools.islice(addresses, size))
        asking.write(f"{workers[0]} {size}\n")
        asking.flush()
        return FloorGroup(client, workers, end)

    await measure.Suite("floor", spawn, plan).run()


def fork(body: Callable[[], object]) -> int:
    """Run `body` in a child of this process; give the child's pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        body()
        status = 0
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(status)


def end_children(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    pids.clear()


def main() -> int:
    plan = measure.plan_from_arguments()
    plan = measure.Plan(tuple(name for name in plan.workloads if name not in UNABLE), plan.quick)
    workers: list[int] = []
    services: list[int] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = os.path.join(folder, "relay.sock")
        ready_read, ready_write = os.pipe()
        try:
            services.append(fork(lambda: uvloop.run(run_relay(path, ready_write))))
            os.read(ready_read, 1)
            asking_read, asking_write = os.pipe()

            def measure_here() -> None:
                os.close(asking_read)
                uvloop.run(run_client(path, os.fdopen(asking_write, "w"), plan))

            client = fork(measure_here)
            os.close(asking_write)
            for line in os.fdopen(asking_read):
                if line == "end\n":
                    end_children(workers)
                    continue
                first, size = map(int, line.split())
                for address in range(first, first + size):
                    workers.append(fork(functools.partial(work, path, address)))
            return os.waitstatus_to_exitcode(os.waitpid(client, 0)[1])
        finally:
            end_children(workers)
            end_children(services)


if __name__ == "__main__":
    sys.exit(main())
