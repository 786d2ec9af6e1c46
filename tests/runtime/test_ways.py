"""Large arguments and results over each of the transports, and in chunks."""

import pytest
from holders import Holder, nothing_on_the_way, wait_until

import monarch_async as ma


@pytest.mark.parametrize(
    "transports",
    ["memfd,tcp", *[pytest.param(t, marks=pytest.mark.slow) for t in ("local,cma,memfd,tcp", "cma", "tcp", "")]],
)
async def test_every_way_carries_the_same(transports: str) -> None:
    async with ma.local_hosts(config=ma.Config(transports=transports)) as hosts:
        procs = await hosts.spawn_procs({"gpus": 3})
        actors = await procs.spawn("holders", Holder)
        for size in (70_000, 300_000, 5_000_000, 20_000_000):
            data = b"\x03" * size
            assert list(await actors.total.call(data)) == [(size, 300)] * 3
            assert await actors.slice(gpus=1).total.call_one(data) == (size, 300)
            assert all(len(made) == size for made in await actors.make.call(size))
        assert await wait_until(nothing_on_the_way)
