"""What the memory itself allows: one thread's memmove between two warm tensors of this process.

Not torch's own copy, which takes all cores for a large tensor: a transfer that leaves the other cores to who computes
is compared with one thread. A state dict is moved once for each subscriber.
"""

import asyncio
import ctypes
import statistics
import time
from collections.abc import Mapping
from typing import Any

import bulk
import measure

REPEATS = {True: 3, False: 10}


def move(into: Any, source: Any) -> None:
    ctypes.memmove(into.data_ptr(), source.data_ptr(), source.nbytes)


def copy_seconds(sources: list[Any], repeats: int) -> float:
    """The median over so many copies of all these tensors into ones that are written to before."""
    import torch

    copies = [torch.ones_like(source) for source in sources]
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        for into, source in zip(copies, sources, strict=True):
            move(into, source)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def state_of(shapes: Mapping[str, tuple[int, ...]]) -> list[Any]:
    import torch

    return [torch.ones(shape) for shape in shapes.values()]


async def main() -> None:
    plan = measure.plan_from_arguments(bulk.WORKLOADS)
    repeats = REPEATS[plan.quick]

    def body(name: str) -> tuple[float, int]:
        if name == "fetch_4k":
            count = repeats * 1000
            return copy_seconds([bulk.make_tensor(bulk.SMALL)], count) * 1e6, count
        if name == "weights_4":
            tensors = state_of(bulk.state_shapes())
        else:
            tensors = [bulk.make_tensor(bulk.LARGE if name == "fetch_256m" else bulk.ARGUMENT)]
        return sum(tensor.nbytes for tensor in tensors) / copy_seconds(tensors, repeats) / 1e9, repeats

    for name in ("fetch_256m", "fetch_4k", "argument_100mb", "put_100mb", "weights_4"):

        async def attempt(name: str = name) -> tuple[float, int]:
            return body(name)

        await measure.attempt("memcpy", plan, name, bulk.MEASURES[name][0], attempt)


if __name__ == "__main__":
    asyncio.run(main())
