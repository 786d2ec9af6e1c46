"""Replies of different kinds in one call, and answers that must find their way back."""

import asyncio
from collections.abc import AsyncIterator

import numpy
import pytest

import monarch_async as ma


class Member(ma.Actor):
    @ma.endpoint
    async def make(self, sizes: list[int]) -> bytes | None:
        size = sizes[ma.context().rank]
        return b"x" * size if size else None

    @ma.endpoint
    async def array(self, items: int) -> object:
        return numpy.arange(items) if ma.context().rank == 0 else None

    @ma.endpoint
    async def many(self, arrays: list[numpy.ndarray]) -> list[numpy.ndarray]:
        return [array + 1 for array in arrays]

    @ma.endpoint
    def many_on_thread(self, arrays: list[numpy.ndarray]) -> list[numpy.ndarray]:
        return [array + 1 for array in arrays]

    @ma.endpoint
    async def length(self, data: bytes, number: int) -> tuple[int, int]:
        return number, len(data)

    @ma.endpoint
    async def echo(self, number: int) -> int:
        return number

    @ma.endpoint
    async def chat(self, other: "Member", count: int) -> int:
        for number in range(-1, -count - 1, -1):
            assert await other.echo.call_one(number) == number
        return count


@pytest.fixture(params=[True, False], ids=["direct", "agent"])
async def hosts(request: pytest.FixtureRequest) -> AsyncIterator[ma.HostMesh]:
    config = ma.Config(direct_calls=request.param, transports="local,cma,memfd,tcp" if request.param else "")
    async with ma.local_hosts(config=config) as hosts:
        yield hosts


async def test_large_and_small_replies_in_one_call(hosts: ma.HostMesh) -> None:
    """The agent holds small replies for those of the other members, and forwards large ones at once."""
    procs = await hosts.spawn_procs({"gpus": 4})
    members = await procs.spawn("members", Member)
    async with asyncio.timeout(20):
        for sizes in ([0, 0, 0, 400_000], [3_000_000, 0, 0, 0], [70_000, 0, 400_000, 5], [400_000] * 4):
            made = await members.make.call(sizes)
            assert [len(value or b"") for value in made] == sizes
        for items in (10, 1_000, 100_000):
            first, *others = await members.array.call(items)
            assert len(first) == items and others == [None] * 3  # type: ignore[arg-type]


@pytest.mark.slow
async def test_ten_thousand_buffers_in_one_message(hosts: ma.HostMesh) -> None:
    """Their sizes alone are more than a header's length of control fields can say."""
    members = await (await hosts.spawn_procs()).spawn("members", Member)
    arrays = [numpy.full(512, number) for number in range(20_000)]
    for endpoint in (members.many, members.many_on_thread):
        back = await endpoint.call_one(arrays)
        assert [array[0] for array in back[::997]] == [number + 1 for number in range(0, 20_000, 997)]


async def test_answers_go_back_the_way_their_calls_came(hosts: ma.HostMesh) -> None:
    """A large call from the client is complete when another proc, on a connection of its own, has spoken last."""
    members = await (await hosts.spawn_procs({"gpus": 3})).spawn("members", Member)
    target = members.at(0)
    data = b"x" * 2_500_000
    async with asyncio.timeout(40):
        chats = [members.at(rank).chat.call_one(target, 600) for rank in (1, 2)]
        for number in range(60):
            assert await target.length.call_one(data, number) == (number, len(data))
        assert await asyncio.gather(*chats) == [600, 600]


async def test_a_member_that_is_refused_by_its_proc_ends_the_call(hosts: ma.HostMesh) -> None:
    """A proc that was made anew knows nothing of actors that had been stopped: nor what rank they had."""
    procs = await hosts.spawn_procs({"gpus": 3})
    members = await procs.spawn("members", Member)
    await members.stop()
    await procs.restart(1)
    async with asyncio.timeout(10):
        with pytest.raises((ma.MeshError, ma.ActorDied)):
            await members.echo.call(1)
        with pytest.raises((ma.MeshError, ma.ActorDied)):
            await members.slice(gpus=slice(1, 3)).echo.call(1)
