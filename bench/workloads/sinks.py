"""Simulated workers: in the place of processes, sinks that answer each frame with the bytes a real worker would send.

A sink unpickles no arguments, runs nothing and forks nothing. It answers in the next turn of the loop, by a call in the
place of a socket: what its agent would read from it there, is what it gets.
"""

import asyncio
import pickle
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import msgpack

from monarch_async.control.worker import Worker
from monarch_async.control.workers import Workers
from monarch_async.ids import address
from monarch_async.runtime.answers import NOTHING
from monarch_async.runtime.delivery import SPAWN
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import CALL, CONTROL, EAGER, GATHERED, HEADER, HEADER_SIZE, LEASE, REPLY, pack_frame
from monarch_async.wire.message import parse_call_fields

#: What a worker answers a call with: (its rank, endpoint, the pickled arguments) -> a pickled result; None: nothing.
Answer = Callable[[int, str, bytes], bytes | None]

_PROTOCOL = 5
_KEPT = GATHERED | EAGER


_ranks: dict[int, bytes] = {}


def answer_rank(rank: int, endpoint: str, arguments: bytes) -> bytes | None:
    """Every endpoint returns the rank of its actor: that shows where each answer came from. `hang` never returns."""
    if endpoint == "hang":
        return None
    answer = _ranks.get(rank)
    if answer is None:
        answer = _ranks[rank] = pickle.dumps(rank, _PROTOCOL)
    return answer


class Switch:
    """In place of the kernel: what an agent's workers were sent in one turn of the loop they get in the next."""

    __slots__ = ("_frames", "_loop", "_sinks", "answer")

    def __init__(self, answer: Answer) -> None:
        self._loop = asyncio.get_running_loop()
        self.answer = answer
        self._sinks: list[Sink] = []  # two lists, as no pairs are then made, which the collector would look at
        self._frames: list[bytes] = []

    def send(self, sink: "Sink", data: bytes) -> None:
        if not self._sinks:
            self._loop.call_soon(self._deliver)
        self._sinks.append(sink)
        self._frames.append(data)

    def _deliver(self) -> None:
        sinks, frames = self._sinks, self._frames
        self._sinks, self._frames = [], []
        for sink, data in zip(sinks, frames, strict=True):
            sink.take(data)


class Sink:
    """A worker without a process: the other end of its agent's connection, in the place of a transport."""

    __slots__ = ("_actors", "_is_over", "_last", "_switch", "_worker", "_workers", "connection")

    def __init__(self, workers: "SimulatedWorkers", worker: Worker, switch: Switch) -> None:
        self._workers, self._worker, self._switch = workers, worker, switch
        self.connection = worker.connection
        self._actors: dict[int, int] = {}  # rank by actor id
        self._last: tuple[int, bytes] = (-1, b"")
        self._is_over = False

    # -- what a connection wants of a transport --------------------------------------------------------------------

    def get_protocol(self) -> Connection:
        return self.connection

    def get_extra_info(self, name: str) -> None:
        pass

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_reading(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self._is_over

    def write(self, data: bytes) -> None:
        if data[4] != LEASE:
            self._switch.send(self, data)

    def close(self) -> None:
        self._is_over = True

    abort = close

    # -- the worker ------------------------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Take whole frames, answer them."""
        offset, end = 0, len(data)
        while offset < end:
            length, kind, flags, control, _, src, target, call = HEADER.unpack_from(data, offset)
            if kind == CALL:
                start = offset + HEADER_SIZE + control
                endpoint = parse_call_fields(data[start - control : start]).endpoint
                if endpoint == SPAWN:
                    self._make_actor(target, data[start : offset + length])
                    payload = NOTHING.skeleton
                else:
                    payload = self._switch.answer(self._actors[target], endpoint, data[start : offset + length])
                if payload is None:
                    offset += length
                    continue
                connection, rank = self.connection, self._actors[target]
                size, me = HEADER_SIZE + len(payload), connection.address
                connection.data_received(HEADER.pack(size, REPLY, flags & _KEPT, 0, src, me, call, rank) + payload)
            elif kind == CONTROL:
                self._take_request(data[offset + HEADER_SIZE + control : offset + length])
            offset += length

    def _make_actor(self, actor: int, order: bytes) -> None:
        rank = self._workers.orders(order).region.rank_of(self._worker.spec["rank"])
        assert rank is not None
        self._actors[actor] = rank

    def _take_request(self, request: bytes) -> None:
        operation, *_ = msgpack.unpackb(request)
        if operation == "shutdown":
            self.end(0)

    def start(self) -> None:
        """Say that it is up, as a worker's first message does."""
        agent = self._workers.agent_address
        up = pack_frame(CONTROL, 0, agent, self.connection.address, 0, 0, b"", msgpack.packb(["up"]))
        self.connection.data_received(up)

    def end(self, wait_status: int) -> None:
        """End, as a process does: its socket closes, and its zygote tells."""
        if not self._is_over:
            self._is_over = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self.connection.connection_lost, None)
            loop.call_soon(self._workers._exited, self._worker.id, self._worker.pid, wait_status)


class Nobody:
    """In place of zygotes: signals end workers."""

    def __init__(self) -> None:
        self.sinks: dict[int, Sink] = {}

    async def start_zygote(self, preload: object, sys_path: object = ()) -> None:
        pass

    def signal(self, id: int, signo: int) -> None:
        self.sinks[id].end(signo)

    async def aclose(self) -> None:
        for sink in self.sinks.values():
            sink.end(signal.SIGKILL)
        await asyncio.sleep(0)


_PRINTED_NOTHING = SimpleNamespace(last_lines=(), drain=lambda: None)


class SimulatedWorkers(Workers):
    """Starts sinks instead of processes; all else is the real thing's."""

    answer: Answer = staticmethod(answer_rank)
    _orders: ClassVar[dict[bytes, Any]] = {}

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.nursery = self._nobody = Nobody()  # type: ignore[assignment]
        self._switch = Switch(type(self).answer)
        self.agent_address = self._relay.address

    def orders(self, packed: bytes) -> Any:
        """What creates actors is the same bytes for all members: it is read once."""
        order = self._orders.get(packed)
        if order is None:
            order = self._orders[packed] = pickle.loads(packed)
        return order

    def _fork(self, owner: int, spec: dict[str, Any], *rest: Any) -> None:
        spec = {**spec, "root": spec.get("root") or owner, "address": address(self._relay.host, spec["id"])}
        label = f"{spec['mesh']}[{spec['rank']}]"
        connection = Connection(self._relay, label, spec["address"], None, self._config.max_frame)
        worker = Worker(spec, connection, owner, spec["root"], rest[-1])
        worker.output, worker.pid = _PRINTED_NOTHING, 1  # type: ignore[assignment]
        self._living[worker.id] = worker
        self._exits.pop(worker.id, None)
        self._relay.routes[worker.address] = connection
        self._nobody.sinks[worker.id] = sink = Sink(self, worker, self._switch)
        connection.attach(sink)  # type: ignore[arg-type]
        self._loop.call_soon(sink.start)
