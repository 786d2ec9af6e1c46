"""An actor that owns memory. It knows numpy only: workers that have it start fast."""

import os
import sys
from typing import Any

import numpy

import monarch_async as ma


class Keeper(ma.Actor):
    """Registers an array."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    async def setup(self) -> None:
        self.array = numpy.arange(self.count, dtype="f4")
        self.handle = await ma.register(self.array, name="kept")

    @ma.endpoint
    async def get(self) -> ma.Handle[Any]:
        return self.handle

    @ma.endpoint
    async def die(self) -> None:
        os._exit(3)

    @ma.endpoint
    async def try_to(self, what: str, handle: ma.Handle[Any]) -> Any:
        match what:
            case "aclose":
                return await handle.aclose()
            case "advance":
                return await handle.advance()
            case "renew":
                return await handle.renew(1)
        return (await handle.fetch()).tolist()

    @ma.endpoint
    async def loaded(self) -> list[str]:
        return sorted({"torch", "rich"} & set(sys.modules))
