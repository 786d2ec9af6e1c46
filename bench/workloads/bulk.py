"""The workloads of the data plane, the same for every system.

A system's file hands over a `Bulk`: a client, and procs with an actor in each that can hold, take and read tensors.
What is moved, how often, how it is timed and whether it arrived is decided here. Runs under every system's interpreter,
so beside the standard library only torch is used, and that by the client alone.

Whatever arrives is looked at: its last element, or of a state dict the first and last of every tensor. A value of a
system that delivered something else is none.
"""

import asyncio
import itertools
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import measure
from measure import Plan, attempt

LARGE = 256 << 20
SMALL = 4 << 10
ARGUMENT = 100_000_000
IN_FLIGHT, IN_FLIGHT_BYTES = 64, 1 << 20
ALL = 8
"""Procs that get one argument."""

SUBSCRIBERS = 4
VERSIONS = 1000
"""How many are published while subscribers look for one that is torn."""

MARK = 7.0
"""The last element of what is held."""

WORKLOADS = (
    "fetch_256m",
    "fetch_4k",
    "argument_100mb",
    "argument_100mb_8",
    "arguments_1m_64",
    "put_100mb",
    "get_100mb",
    "control_p99",
    "control_p99_4g",
    "weights_4",
)
TRANSPORTS = ("cma", "memfd", "ucx", "tcp")
OURS_ALONE = (
    *(f"fetch_256m_{name}" for name in TRANSPORTS),
    "fetch_4k_raw_cma",
    "fetch_4k_raw_ucx",
    "control_p99_4g_tcp",
    "torn_in_1000",
)


class Bulk(Protocol):
    """A client and procs of one system. Tensors are float32; arrays stand for them where a system knows no torch."""

    async def hold(self, nbytes: int) -> None:
        """Let the first actor make a tensor that ends with `MARK`, and offer it for fetching in place of the last."""
        ...

    async def fetch(self, out: Any) -> None:
        """Copy what the first actor offers into this tensor of the client."""
        ...

    async def transfer(self) -> None:
        """Let the second actor copy what the first one offers into a tensor that it keeps for that."""
        ...

    def echo(self) -> Awaitable[object]:
        """Call an actor in the second actor's proc that does nothing else."""
        ...

    def sink(self, tensor: Any) -> Awaitable[float]:
        """Pass the tensor to the first actor, which answers with its last element."""
        ...

    def sink_all(self, tensor: Any) -> Awaitable[Sequence[float]]:
        """Pass the tensor to all actors, each of which answers with its last element."""
        ...

    async def put(self, tensor: Any) -> Any:
        """Put the tensor where others can get it; give what they need for that."""
        ...

    async def get(self, put: Any) -> tuple[float, float]:
        """Let another proc get it, read its last element, and answer with the seconds of both, and that element."""
        ...

    async def subscribe(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Let the first `SUBSCRIBERS` actors make state dicts of that kind of their own."""
        ...

    async def publish(self, state: Mapping[str, Any]) -> Sequence[tuple[float, float]]:
        """Bring the client's state dict into those of all subscribers; give the `marks` each of them has then."""
        ...

    async def close(self) -> None:
        """End the procs."""
        ...


Spawn = Callable[[int], Awaitable[Bulk]]
"""Spawn so many procs with an actor in each; it has imported what it needs when its first reply is there."""


def state_shapes() -> dict[str, tuple[int, ...]]:
    """The 300 tensors, 502 MB, of a made-up model: small and large ones by turns, as models have them."""
    layers = range(100)
    kinds = {"norm": (1024,), "attention": (512, 768), "mlp": (1120, 768)}
    return {f"layers.{layer}.{kind}": shape for layer in layers for kind, shape in kinds.items()}


def count_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of float32 tensors of these shapes."""
    return sum(4 * math.prod(shape) for shape in shapes.values())


def marks(flat: Sequence[Any]) -> tuple[float, float]:
    """The least and the greatest of the first and last elements of flat tensors: two different ones mean torn."""
    ends = [float(tensor[end]) for tensor in flat for end in (0, -1)]
    return min(ends), max(ends)


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that `percent` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def check(seen: object, expected: object, what: str) -> None:
    if seen != expected:
        raise AssertionError(f"{what} is {seen}, expected {expected}")


async def timed(call: Callable[[], Awaitable[object]]) -> tuple[float, Any]:
    """The seconds a call took, and what it gave."""
    start = time.perf_counter()
    given = await call()
    return time.perf_counter() - start, given


def large_repeats(plan: Plan) -> int:
    return 3 if plan.quick else 10


def small_repeats(plan: Plan) -> int:
    return 200 if plan.quick else 2000


def transfer_bytes(plan: Plan) -> int:
    """Of the transfer beside which calls are timed: 4 GiB; 1 GiB with --quick."""
    return (1 if plan.quick else 4) << 30


def make_tensor(nbytes: int) -> Any:
    import torch

    return torch.ones(nbytes // 4, dtype=torch.float32)


async def median_seconds(fetch: Callable[[], Awaitable[object]], out: Any, repeats: int) -> tuple[float, int]:
    """The median over so many fetches into this tensor, after a tenth as many, at least one, not counted."""
    seconds = []
    warm_up = max(1, repeats // 10)
    for turn in range(warm_up + repeats):
        out[-1] = 0.0
        taken, _ = await timed(fetch)
        check(float(out[-1]), MARK, "the last element fetched")
        if turn >= warm_up:
            seconds.append(taken)
    return statistics.median(seconds), repeats


async def fetch_seconds(bulk: Bulk, nbytes: int, repeats: int) -> tuple[float, int]:
    """The same of a tensor of so many bytes that the first actor offers."""
    await bulk.hold(nbytes)
    out = make_tensor(nbytes)
    return await median_seconds(lambda: bulk.fetch(out), out, repeats)


async def measure_fetch(bulk: Bulk, plan: Plan) -> tuple[float, int]:
    """GB/s of 256 MiB."""
    seconds, n = await fetch_seconds(bulk, LARGE, large_repeats(plan))
    return LARGE / seconds / 1e9, n


async def measure_small_fetch(bulk: Bulk, plan: Plan) -> tuple[float, int]:
    """Microseconds of 4 KiB."""
    seconds, n = await fetch_seconds(bulk, SMALL, small_repeats(plan))
    return seconds * 1e6, n


async def measure_argument(bulk: Bulk, plan: Plan) -> tuple[float, int]:
    """GB/s of one tensor, passed again and again without change."""
    tensor = make_tensor(ARGUMENT)
    tensor[-1] = MARK
    seconds = []
    for _ in range(large_repeats(plan) + 1):
        taken, seen = await timed(lambda: bulk.sink(tensor))
        check(seen, MARK, "the last element that the actor saw")
        seconds.append(taken)
    return ARGUMENT / statistics.median(seconds[1:]) / 1e9, large_repeats(plan)


async def measure_argument_to_all(bulk: Bulk, plan: Plan) -> tuple[float, int]:
    """GB/s of one tensor, counted once, until each of 8 procs has answered."""
    tensor = make_tensor(ARGUMENT)
    tensor[-1] = MARK
    seconds = []
    for _ in range(large_repeats(plan) + 1):
        taken, seen = await timed(lambda: bulk.sink_all(tensor))
        check(list(seen), [MARK] * ALL, "what the actors saw")
        seconds.append(taken)
    return ARGUMENT / statistics.median(seconds[1:]) / 1e9, large_repeats(plan)


async def measure_in_flight(bulk: Bulk, plan: Plan) -> tuple[float, int]:
    """GB/s of 1 MiB arguments to one actor, 64 callers with a tensor each."""
    tensors = itertools.cycle([make_tensor(IN_FLIGHT_BYTES) for _ in range(IN_FLIGHT)])

    async def call() -> None:
        check(await bulk.sink(next(tensors)), 1.0, "the last element that the actor saw")

    rate, n = await measure.measure_rate(call, IN_FLIGHT, plan)
    return rate * IN_FLIGHT_BYTES / 1e9, n


async def put_and_get(bulk: Bulk, plan: Plan) -> tuple[list[float], list[float]]:
    """The seconds of puts, each with new contents, and of getting each once in another proc; the first not counted."""
    tensor = make_tensor(ARGUMENT)
    puts, gets = [], []
    for turn in range(large_repeats(plan) + 1):
        tensor[-1] = float(turn)
        taken, put = await timed(lambda: bulk.put(tensor))
        puts.append(taken)
        taken, seen = await bulk.get(put)
        gets.append(taken)
        check(seen, float(turn), "the last element that was got")
        del put
    return puts[1:], gets[1:]


async def measure_put(bulk: Bulk, plan: Plan) -> tuple[float, int]:
    """GB/s of putting 100 MB."""
    puts, _ = await put_and_get(bulk, plan)
    return ARGUMENT / statistics.median(puts) / 1e9, len(puts)


async def measure_get(bulk: Bulk, plan: Plan) -> tuple[float, int]:
    """Milliseconds of getting 100 MB in another proc."""
    _, gets = await put_and_get(bulk, plan)
    return statistics.median(gets) * 1e3, len(gets)


async def measure_idle_control(bulk: Bulk, plan: Plan) -> tuple[float, int]:
    """Microseconds within which 99 of 100 calls are answered, one in flight, while nothing else happens."""
    seconds = []
    deadline = time.perf_counter() + plan.seconds
    for _ in range(50):
        await bulk.echo()
    while time.perf_counter() < deadline:
        taken, _ = await timed(bulk.echo)
        seconds.append(taken)
    return percentile(seconds, 99) * 1e6, len(seconds)


async def measure_busy_control(bulk: Bulk, plan: Plan) -> tuple[float, int]:
    """The same while the proc that is called takes transfers of 4 GiB, one after the other, from its neighbour."""
    await bulk.hold(transfer_bytes(plan))
    await bulk.transfer()
    seconds = []
    deadline = time.perf_counter() + plan.seconds
    while time.perf_counter() < deadline:
        transfer = asyncio.ensure_future(bulk.transfer())
        try:
            while not transfer.done():
                taken, _ = await timed(bulk.echo)
                if not transfer.done():
                    seconds.append(taken)
            await transfer
        finally:
            transfer.cancel()
    await bulk.hold(SMALL)  # its gigabytes are let go of
    if not seconds:
        raise AssertionError("no call was answered before the transfer had ended")
    return percentile(seconds, 99) * 1e6, len(seconds)


async def measure_weights(bulk: Bulk, plan: Plan) -> tuple[float, int]:
    """GB/s over all subscribers of publishing a state dict, until the last of them has it in its own tensors.

    The first two versions are not counted, of anybody: with them memory is made that later ones use again.
    """
    import torch

    shapes = state_shapes()
    state = {name: torch.ones(shape) for name, shape in shapes.items()}
    flat = [tensor.view(-1) for tensor in state.values()]
    await bulk.subscribe(shapes)
    seconds = []
    versions = 4 if plan.quick else 8
    for version in range(1, versions + 1):
        for tensor in flat:
            tensor[0] = tensor[-1] = float(version)
        taken, seen = await timed(lambda: bulk.publish(state))
        check([tuple(ends) for ends in seen], [(version, version)] * SUBSCRIBERS, "what the subscribers have")
        seconds.append(taken)
    return SUBSCRIBERS * count_bytes(shapes) / statistics.median(seconds[2:]) / 1e9, versions - 2


MEASURES: dict[str, tuple[str, Callable[[Bulk, Plan], Awaitable[tuple[float, int]]]]] = {
    "fetch_256m": ("GB/s", measure_fetch),
    "fetch_4k": ("µs", measure_small_fetch),
    "argument_100mb": ("GB/s", measure_argument),
    "argument_100mb_8": ("GB/s", measure_argument_to_all),
    "arguments_1m_64": ("GB/s", measure_in_flight),
    "put_100mb": ("GB/s", measure_put),
    "get_100mb": ("ms", measure_get),
    "control_p99": ("µs", measure_idle_control),
    "control_p99_4g": ("µs", measure_busy_control),
    "weights_4": ("GB/s", measure_weights),
}


def count_procs(plan: Plan) -> int:
    """How many the workloads asked for need."""
    if plan.wants("argument_100mb_8"):
        return ALL
    return SUBSCRIBERS if plan.wants("weights_4") else 2


async def run(system: str, spawn: Spawn, plan: Plan) -> None:
    """Measure what is asked for, one after the other on one group of procs."""
    wanted = [name for name in WORKLOADS if plan.wants(name)]
    if not wanted:
        return
    try:
        async with asyncio.timeout(plan.patience):
            bulk = await spawn(count_procs(plan))
    except Exception as error:
        for name in wanted:
            measure.emit_failure(system, name, error)
        return
    try:
        for name in wanted:
            unit, body = MEASURES[name]
            await attempt(system, plan, name, unit, lambda body=body: body(bulk, plan))
    finally:
        async with asyncio.timeout(plan.patience):
            await bulk.close()
