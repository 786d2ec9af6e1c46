"""Room for replicas, against placements that come when the test says."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from monarch_async.mesh.domain import Domain
from monarch_async.pools.growth import Growth


class Room:
    """A placement, and the request for it."""

    def __init__(self) -> None:
        self.is_released = False
        self.arrival: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Any:
        return self.arrival.__await__()

    async def release(self) -> None:
        self.is_released = True


async def grown() -> None:
    raise AssertionError("there was room")


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_as_it_gets_room_holds_none(turns: int) -> None:
    domain = SimpleNamespace(router=SimpleNamespace(loop=asyncio.get_running_loop()))
    growth, room = Growth(cast(Domain, domain), "pool", grown), Room()
    placing = asyncio.ensure_future(growth.place(lambda: cast(Any, room)))
    await asyncio.sleep(0.01)
    room.arrival.set_result(room)
    for _ in range(turns):
        await asyncio.sleep(0)
    if placing.cancel():
        with pytest.raises(asyncio.CancelledError):
            await placing
        assert room.is_released or turns == 0, "the request gives back what nobody took"
    else:
        assert placing.result() is room and not room.is_released
