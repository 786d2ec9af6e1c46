"""An actor whose memory is CUDA's."""

from typing import Any

import torch

import monarch_async as ma
from monarch_async.bulk.device import LANE_BYTES


class GpuOwner(ma.Actor):
    """Registers a state dict with a tensor of the CPU in it."""

    @ma.endpoint
    async def register(self) -> ma.Handle[Any]:
        count = 5 * LANE_BYTES // 2 + 3
        self.value = {
            "a": torch.arange(count, dtype=torch.int32, device="cuda"),
            "b": torch.ones(7, 9, device="cuda").t(),
            "step": torch.tensor(3),
        }
        return await ma.register(self.value)

    @ma.endpoint
    async def look(self) -> torch.Tensor:
        return self.value["a"].cpu()

    @ma.endpoint
    async def queue(self, value: int) -> None:
        """Queue work that takes a while, and after it a change; wait for nothing."""
        matrix = torch.ones(4096, 4096, device="cuda")
        for _ in range(200):
            matrix = matrix @ matrix
        self.value["a"].fill_(value)
