"""Actors of the conformance suite: one that owns memory, and one that reads another's; and what they all agree on."""

import asyncio
import contextlib
import hashlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import monarch_async as ma
from monarch_async.mesh import buffer

QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)} - QUANTIZED, key=str)


def filled(size: int, seed: int = 0) -> torch.Tensor:
    """Bytes whose place can be told from their values, and which differ from seed to seed."""
    period = (torch.arange(251) * 7 + seed).to(torch.uint8)
    return period.repeat(size // 251 + 1)[:size]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as flat bytes, in order."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8)
    if tensor.itemsize == 1:
        tensor = tensor.view(torch.uint8)
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def made(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    count = torch.Size(shape).numel()
    flat = filled(max(count, 1) * dtype.itemsize, seed).clone().view(dtype)
    return flat.as_strided(shape, torch.empty(shape, device="meta").stride())


def every_kind(seed: int = 0) -> dict[str, Any]:
    """A tensor of every dtype, and of one dtype every way to lie in memory."""
    base = made(torch.float32, (12, 10, 8), seed)
    return {
        "dtypes": {str(dtype): made(dtype, (3, 5), seed) for dtype in DTYPES},
        "ways": [
            base,
            made(torch.float32, (), seed),
            made(torch.int16, (4, 0, 2), seed),
            base.permute(2, 0, 1),
            base[2:9, ::3, 1:].clone()[:, :, ::2],
            made(torch.float64, (300, 4), seed)[:, 1],
            made(torch.uint8, (1000,), seed)[1:-1],
            (made(torch.bfloat16, (7, 3), seed).t(),),
        ],
    }


def assert_same(got: Any, want: Any) -> None:
    """Structure, dtypes, shapes and bytes."""
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert torch.equal(bytes_of(got), bytes_of(want))
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same(got[key], want[key])
    else:
        assert type(got) is type(want) and len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_same(one, other)


def leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for child in value.values() if isinstance(value, dict) else value:
            yield from leaves(child)


def zeros_like(value: Any) -> Any:
    """The same structure in other memory, which holds other bytes."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    if isinstance(value, dict):
        return {key: zeros_like(child) for key, child in value.items()}
    return type(value)(zeros_like(child) for child in value)


def held() -> dict[str, int]:
    """What this process has open, mapped and in memory (bytes)."""
    status = Path("/proc/self/status").read_text()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
        "memory": int(status.split("VmRSS:")[1].split()[0]) << 10,
    }


class Owner(ma.Actor):
    """Registers what it is told to."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.handles: list[ma.Handle[Any]] = []
        self.is_computing, self.may_go_on = threading.Event(), threading.Event()

    async def _register(self, value: Any, **options: Any) -> ma.Handle[Any]:
        self.values.append(value)
        self.handles.append(await ma.register(value, **options))
        return self.handles[-1]

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def own(self, value: Any, options: dict[str, Any]) -> ma.Handle[Any]:
        return await self._register(value, **options)

    @ma.endpoint
    async def own_kinds(self) -> ma.Handle[Any]:
        return await self._register(every_kind(), name="kinds")

    @ma.endpoint
    async def own_bytes(self, size: int, count: int = 1) -> list[ma.Handle[torch.Tensor]]:
        return [await self._register(filled(size, seed), name="bytes") for seed in range(count)]

    @ma.endpoint
    async def look(self) -> Any:
        return self.values[-1]

    @ma.endpoint
    async def digests(self, count: int) -> list[str]:
        return [hashlib.sha256(bytes_of(value).numpy()).hexdigest() for value in self.values[-count:]]

    @ma.endpoint
    async def drop(self) -> None:
        """Close everything."""
        for handle in self.handles:
            await handle.aclose()
        self.values.clear()
        self.handles.clear()

    @ma.endpoint
    async def reuse(self) -> None:
        """Close the last one, and use its memory for something else."""
        await self.handles[-1].aclose()
        self.values[-1].fill_(255)

    @ma.endpoint
    async def advance(self) -> ma.Handle[Any]:
        return await self.handles[-1].advance()

    @ma.endpoint
    async def renew(self, lease: float | None) -> None:
        await self.handles[-1].renew(lease)

    @ma.endpoint
    def compute(self) -> int:
        """Keep this process's interpreter busy until told otherwise."""
        steps = 0
        self.is_computing.set()
        while not self.may_go_on.is_set():
            steps += 1
        return steps

    @ma.endpoint
    async def wait_computing(self) -> None:
        await asyncio.to_thread(self.is_computing.wait)

    @ma.endpoint
    async def go_on(self) -> None:
        self.may_go_on.set()

    @ma.endpoint
    async def churn(self, rounds: int) -> dict[str, int]:
        """Register and close many times; return what is held more than before."""
        tensor = torch.zeros(1 << 16)
        for round in range(rounds + rounds // 10):
            if round == rounds // 10:
                before = held()
            async with await ma.register({"a": tensor[:100], "b": tensor[200:]}):
                pass
        return {key: count - before[key] for key, count in held().items()}

    @ma.endpoint
    async def registrations(self) -> int:
        from monarch_async.mesh.domain import active_domain

        return len(active_domain().registrations) + len(active_domain().router.plane.regions)


class Reader(ma.Actor):
    """Reads what others own."""

    @ma.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @ma.endpoint
    async def digest(self, handle: ma.Handle[torch.Tensor]) -> str:
        return hashlib.sha256(bytes_of(await handle.fetch()).numpy()).hexdigest()

    @ma.endpoint
    async def die_midway(self, handle: ma.Handle[torch.Tensor], is_write: bool) -> None:
        """Die as soon as some of it has moved."""
        out = torch.zeros(handle.shape, dtype=torch.uint8)
        with at_first_bytes(lambda: os.kill(os.getpid(), signal.SIGKILL)):
            await (handle.write(out) if is_write else handle.fetch(out))
        await asyncio.sleep(60)


def at_first_bytes(act: Any) -> Any:
    """Call ``act`` on the plane's thread when the first bytes of the next transfer have moved."""

    class Watch:
        def __init__(self, name: str, size: int) -> None:
            self.is_first = True

        def advance(self, nbytes: int) -> None:
            if self.is_first:
                self.is_first = False
                act()

        def end(self) -> None:
            pass

    return mock.patch.object(buffer, "watch", Watch)


def kill_and_wait(pid: int) -> None:
    """Kill a process; return when its memory is gone."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            pass
