"""The program of the design document, end to end."""

import pytest

import monarch_async as ma


class Trainer(ma.Actor):
    def __init__(self, lr: float) -> None:
        self.lr = lr

    @ma.endpoint
    async def step(self, batch: float) -> float:
        return batch * self.lr

    @ma.endpoint
    def save(self, path: str) -> tuple[str, int]:
        return path, ma.context().rank

    @ma.endpoint
    async def tokens(self, count: int):
        for index in range(count):
            yield index


@pytest.mark.asyncio(loop_scope="module")
async def test_the_design_documents_program(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs({"gpus": 4})
    trainers = await procs.spawn("trainers", Trainer, lr=2.0)
    losses = await trainers.step.call(3.0)
    assert losses.extent == {"hosts": 1, "gpus": 4}
    assert list(losses) == [6.0] * 4
    assert await trainers.slice(hosts=0, gpus=2).save.call_one("x") == ("x", 2)
    assert await trainers.step.choose(1.0) == 2.0
    assert {point["gpus"]: loss async for point, loss in trainers.step.stream(4.0)} == dict.fromkeys(range(4), 8.0)
    assert [item async for item in trainers.at(1).tokens.stream_one(5)] == [0, 1, 2, 3, 4]
    await procs.stop()
