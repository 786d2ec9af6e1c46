"""Mistakes that an editor must show. Every line marked `expect-error` is reported by pyright, and no other."""

from collections.abc import AsyncIterator
from typing import assert_type

import monarch_async as ma


class Trainer(ma.Actor):
    def __init__(self, lr: float) -> None:
        self.lr = lr

    @ma.endpoint
    async def step(self, batch: list[int]) -> float:
        return self.lr

    @ma.endpoint
    def save(self, path: str) -> int:
        return 1

    @ma.endpoint
    async def tokens(self, prompt: str) -> AsyncIterator[str]:
        yield prompt

    def helper(self) -> int:
        return 1


async def main(procs: ma.ProcMesh, hosts: ma.HostMesh) -> None:
    trainers = await procs.spawn("trainers", Trainer, lr=0.1)
    procs.spawn("trainers", Trainer)  # expect-error
    procs.spawn("trainers", Trainer, "x")  # expect-error
    procs.spawn("trainers", Trainer, lr=0.1, sise=3)  # expect-error
    procs.spawn(3, Trainer, lr=0.1)  # expect-error
    trainers.step.call("x")  # expect-error
    trainers.step.call()  # expect-error
    trainers.step.call([1], 3)  # expect-error
    trainers.step.choose(bach=[1])  # expect-error
    trainers.step.broadcast(None)  # expect-error
    trainers.step.stream(1)  # expect-error
    trainers.save.call_one(3)  # expect-error
    trainers.tokens.stream_one(3)  # expect-error
    trainers.tokens.stream()  # expect-error
    trainers.step.stream_one([1])  # expect-error
    trainers.stepp.call([1])  # expect-error
    trainers.helper.call()  # expect-error
    trainers.slice(gpus="all")  # expect-error
    trainers.at("x")  # expect-error
    loss: str = await trainers.at(0).step.call_one([1])  # expect-error
    assert_type(await trainers.save.call("x"), ma.ValueMesh[str])  # expect-error
    async for token in trainers.tokens.stream("x"):
        token.upper()  # expect-error
    hosts.spawn_procs({"gpus": "4"})  # expect-error
    hosts.spawn_procs(env={"A": 1})  # expect-error
    hosts.spawn_procs(nope=1)  # expect-error
    ma.local_hosts("2")  # expect-error
    ma.supervise(lambda failure: True)  # expect-error
    del loss


def parse(text: str) -> int:
    return int(text)


async def tasks() -> None:
    ma.task(parse).submit(1)  # expect-error
    ma.task(parse, gpu=1)  # expect-error
    ma.task(parse).options(retries="x")  # expect-error
    ma.map_unordered(parse, [1])  # expect-error
    ma.map_unordered(parse, ["1"], errors="skip")  # expect-error
    text: str = await ma.submit(parse, "1")  # expect-error
    del text
