"""Arrow Flight: a server in a process of its own, asked by this one; batches of one float32 column, 4 MiB each.

It is a server and not a framework of actors: it has no arguments, and what is put there is got from there.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import bulk
import measure
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

SCHEMA = pa.schema([("values", pa.float32())])
ROWS = (4 << 20) // 4


def batches_of(array: Any) -> Any:
    """Its batches, over the array's own memory."""
    for start in range(0, len(array), ROWS):
        yield pa.record_batch([pa.array(array[start : start + ROWS])], schema=SCHEMA)


def chunks_of(reader: Any) -> Any:
    for chunk in reader:
        yield chunk.data.column(0).to_numpy()


class Server(flight.FlightServerBase):
    """Keeps tables by name; makes one of so many bytes when told to hold it."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.tables: dict[bytes, Any] = {}

    def do_get(self, context: Any, ticket: Any) -> Any:
        return flight.RecordBatchStream(self.tables[ticket.ticket])

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self.tables[descriptor.path[0]] = reader.read_all()

    def do_action(self, context: Any, action: Any) -> list[Any]:
        array = np.ones(int(action.body.to_pybytes()) // 4, dtype=np.float32)
        array[-1] = bulk.MARK
        self.tables[b"held"] = pa.Table.from_batches(batches_of(array))
        return []


class FlightBulk:
    """A server process and a connection to it."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        port = int(self.process.stdout.readline())
        self.client = flight.connect(f"grpc://127.0.0.1:{port}")

    async def hold(self, nbytes: int) -> None:
        list(self.client.do_action(flight.Action("hold", str(nbytes).encode())))

    async def fetch(self, out: Any) -> None:
        into, start = out.numpy(), 0
        for chunk in chunks_of(self.client.do_get(flight.Ticket(b"held"))):
            into[start : start + len(chunk)] = chunk
            start += len(chunk)

    async def put(self, tensor: Any) -> Any:
        descriptor = flight.FlightDescriptor.for_path("put")
        writer, _ = self.client.do_put(descriptor, SCHEMA)
        for batch in batches_of(tensor.numpy()):
            writer.write_batch(batch)
        writer.close()  # returns when the server has it
        return b"put"

    async def get(self, put: Any) -> tuple[float, float]:
        start = time.perf_counter()
        last = 0.0
        for chunk in chunks_of(self.client.do_get(flight.Ticket(put))):
            last = float(chunk[-1])
        return time.perf_counter() - start, last

    async def transfer(self) -> None:
        raise NotImplementedError("Flight has no actors")

    def echo(self) -> Any:
        raise NotImplementedError("Flight has no actors")

    def sink(self, tensor: Any) -> Any:
        raise NotImplementedError("Flight has no actors")

    def sink_all(self, tensor: Any) -> Any:
        raise NotImplementedError("Flight has no actors")

    async def subscribe(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        raise NotImplementedError("Flight has no subscribers")

    async def publish(self, state: Mapping[str, Any]) -> Sequence[tuple[float, float]]:
        raise NotImplementedError("Flight has no subscribers")

    async def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait()


def serve() -> None:
    server = Server("grpc://127.0.0.1:0")
    print(server.port, flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)


async def spawn(size: int) -> FlightBulk:
    return FlightBulk()


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        asyncio.run(bulk.run("flight", spawn, measure.plan_from_arguments(bulk.WORKLOADS)))
