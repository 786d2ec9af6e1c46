"""Actors of the tests of broadcasts."""

from typing import Any

import numpy as np
from ref_actors import Reader

import monarch_async as ma


class Owner(Reader):
    """Registers memory of its own, and broadcasts."""

    @ma.endpoint
    async def offer(self, value: Any) -> ma.Handle[Any]:
        self.kept = value
        return await ma.register(value)

    @ma.endpoint
    async def broadcast_to(self, mesh: Any, size: int) -> ma.Ref[Any]:
        return await ma.broadcast(np.ones(size), mesh)
