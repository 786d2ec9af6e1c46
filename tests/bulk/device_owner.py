"""An actor whose memory is a fake accelerator's."""

import asyncio
import gc
from typing import Any

import torch
from conformance_owner import Owner, Reader, bytes_of, every_kind
from fake_accelerator import FakeAccelerator, each

import monarch_async as ma
from monarch_async.bulk import ucx_worker


class DeviceOwner(Owner):
    """As the other one, but what it registers is on two devices; what is under "cpu" is not."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeAccelerator()

    async def setup(self) -> None:
        self.fake.install(setattr)

    async def _register(self, value: Any, **options: Any) -> ma.Handle[Any]:
        for index, tensor in enumerate(each({**value, "cpu": ()} if isinstance(value, dict) else value)):
            self.fake.on(f"{self.fake.kind}:{index % 2}", tensor)
        return await super()._register(value, **options)

    @ma.endpoint
    async def own_mixed(self) -> ma.Handle[Any]:
        return await self._register(mixed(), name="mixed")

    @ma.endpoint
    async def copies(self) -> list[tuple[str, str, int]]:
        """What has been copied since the last time."""
        copies, self.fake.copies = self.fake.copies, []
        return copies

    @ma.endpoint
    async def hold(self) -> None:
        """Copies wait from now on."""
        self.fake.hold.clear()
        self.fake.begun.clear()

    @ma.endpoint
    async def let_go(self) -> None:
        self.fake.hold.set()

    @ma.endpoint
    async def wait_begun(self) -> None:
        assert await asyncio.to_thread(self.fake.begun.wait, 10)

    @ma.endpoint
    async def blocks(self) -> int:
        """How many lanes there are."""
        gc.collect()
        return len(self.fake.blocks)


class CudaOwner(DeviceOwner):
    """Its devices are CUDA's, as far as they say, and its UCX knows CUDA."""

    async def setup(self) -> None:
        await super().setup()
        ucx_worker.UcxWorker.has_cuda = True  # type: ignore[assignment]
        ucx_worker.MEMORY_CUDA = ucx_worker.MEMORY_HOST  # type: ignore[misc]
        self.fake.kind = "cuda"


class DeviceReader(Reader):
    """Reads to devices of its own."""

    def __init__(self) -> None:
        self.fake = FakeAccelerator()

    async def setup(self) -> None:
        self.fake.install(setattr)

    @ma.endpoint
    async def fetch_there(self, handle: ma.Handle[torch.Tensor]) -> tuple[str, bytes]:
        got = await handle.fetch(device="fake:1")
        return self.fake.device_of(got), bytes(bytes_of(got).numpy())


def mixed(seed: int = 0) -> dict[str, Any]:
    """A state dict with tensors on devices, two that share memory among them, and some that are not."""
    kinds = every_kind(seed)
    flat = torch.arange(100 + seed, 112 + seed, dtype=torch.int64)
    return {**kinds, "halves": [flat[:6], flat[6:], flat], "cpu": {"step": torch.tensor(7 + seed)}}
