"""Ports and channels: many values back, from several procs, with admission that holds the senders."""

import asyncio
import gc
import os
import pickle
import threading
from typing import Any

import pytest
import pytest_asyncio

import monarch_async as ma
from monarch_async.mesh.ref_tickets import ARRIVALS
from monarch_async.runtime.router import active_router

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Explosive:
    """Pickles, and cannot be rebuilt."""

    def __reduce__(self) -> tuple[Any, ...]:
        return explode, ()


def explode() -> None:
    raise ValueError("cannot be rebuilt")


class Sender(ma.Actor):
    """Sends to ports, or receives."""

    def __init__(self) -> None:
        self.sent = 0
        self.error: BaseException | None = None
        self.tasks: list[asyncio.Task[None]] = []

    @ma.endpoint
    async def send(self, port: ma.Port[tuple[int, int]], count: int) -> None:
        for index in range(count):
            await port.send((ma.context().rank, index))

    @ma.endpoint
    async def start_sending(self, port: ma.Port[int], count: int) -> None:
        """In a task of its own."""
        self.sent = 0

        async def send() -> None:
            try:
                for index in range(count):
                    await port.send(index)
                    self.sent += 1
            except Exception as error:
                self.error = error

        self.tasks.append(asyncio.create_task(send()))

    @ma.endpoint
    async def progress(self) -> tuple[int, BaseException | None]:
        return self.sent, self.error

    @ma.endpoint
    async def open(self, limit: int) -> ma.Port[object]:
        port, self.receiver = ma.channel(limit)
        return port

    @ma.endpoint
    async def received(self, count: int) -> list[object]:
        return [await self.receiver.recv() for _ in range(count)]

    @ma.endpoint
    async def close(self) -> None:
        async with self.receiver:
            pass

    @ma.endpoint
    async def exit(self) -> None:
        os._exit(4)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def senders(hosts: ma.HostMesh) -> Sender:
    procs = await hosts.spawn_procs({"gpus": 3}, name="senders")
    return await procs.spawn("senders", Sender)


async def sent(sender: Sender) -> int:
    """How many values were admitted, once no more are."""
    before = -1
    while True:
        count, _ = await sender.progress.call_one()
        if count == before:
            return count
        before = count
        await asyncio.sleep(0.05)


async def test_values_of_several_procs_each_in_order(senders: Sender) -> None:
    port, receiver = ma.channel()
    async with receiver:
        done = senders.send.call(port, 100)
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for _ in range(300):
            rank, value = await receiver.recv()
            seen[rank].append(value)
        await done
        assert list(seen.values()) == [list(range(100))] * 3


async def test_a_full_receiver_makes_its_senders_wait(senders: Sender) -> None:
    port, receiver = ma.channel(limit=4)
    async with receiver:
        sender = senders.at(0)
        await sender.start_sending.call_one(port, 50)
        assert await sent(sender) == 4
        assert [await receiver.recv() for _ in range(3)] == [0, 1, 2]
        assert await sent(sender) == 7
        assert [await receiver.recv() for _ in range(47)] == list(range(3, 50))
        assert await sent(sender) == 50


async def test_sends_that_nobody_awaits_are_admitted_in_order() -> None:
    port, receiver = ma.channel(limit=2)
    async with receiver:
        futures = [port.send(index) for index in range(20)]
        assert [await receiver.recv() for _ in range(20)] == list(range(20))
        await asyncio.gather(*futures)


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
async def test_values_of_every_size(senders: Sender, size: int) -> None:
    port = await senders.at(0).open.call_one(8)
    small, large = port.send(b"first"), port.send(bytearray(size))
    after = port.send({"after": size})
    assert await senders.at(0).received.call_one(3) == [b"first", bytearray(size), {"after": size}]
    await asyncio.gather(small, large, after)


async def test_a_receiver_in_an_actor_and_a_sender_in_another(senders: Sender) -> None:
    port = await senders.at(1).open.call_one(8)
    assert pickle.loads(pickle.dumps(port)).send(0) is not None
    sending = senders.at(2).send.call_one(port, 5)
    assert await senders.at(1).received.call_one(6) == [0, *[(2, index) for index in range(5)]]
    await sending


async def test_closing_refuses_who_waits_and_who_comes_later(senders: Sender) -> None:
    port, receiver = ma.channel(limit=1)
    sender = senders.at(0)
    await sender.start_sending.call_one(port, 10)
    assert await sent(sender) == 1
    receiver.close()
    while (error := (await sender.progress.call_one())[1]) is None:
        await asyncio.sleep(0.01)
    assert isinstance(error, ma.Closed)
    with pytest.raises(ma.Closed):
        await port.send(1)
    assert await receiver.recv() == 0  # what was admitted is still there
    with pytest.raises(ma.Closed):
        await receiver.recv()
    receiver.close()


@pytest.mark.parametrize("where", ["client", "actor"])
async def test_sending_to_a_receiver_that_was_left(senders: Sender, where: str) -> None:
    if where == "client":
        port, receiver = ma.channel()
        async with receiver:
            pass
    else:
        port = await senders.at(1).open.call_one(8)
        await senders.at(1).close.call_one()
    async with asyncio.timeout(5):
        with pytest.raises(ma.Closed, match="receiver of this channel"):
            await port.send(1)
        with pytest.raises(ma.Closed, match="receiver of this channel"):
            await senders.at(0).send.call_one(port, 1)


async def test_closing_wakes_who_receives() -> None:
    _, receiver = ma.channel()
    waiting = [asyncio.ensure_future(receiver.recv()) for _ in range(3)]
    looping = asyncio.ensure_future(anext(receiver))
    await asyncio.sleep(0)
    receiver.close()
    for one in waiting:
        with pytest.raises(ma.Closed):
            await one
    with pytest.raises(StopAsyncIteration):
        await looping


async def test_a_receiver_that_is_dropped_is_closed(senders: Sender) -> None:
    port, receiver = ma.channel(limit=1)
    sending = [port.send(n) for n in range(3)]
    await sending[0]
    del receiver
    gc.collect()
    async with asyncio.timeout(5):
        for waiting in (*sending[1:], port.send(4)):
            with pytest.raises(ma.Closed):
                await waiting
    assert port._id not in active_router().targets


async def test_a_receiver_that_somebody_waits_on_is_kept() -> None:
    port, receiver = ma.channel()
    waiting = asyncio.ensure_future(receiver.recv())
    del receiver
    await asyncio.sleep(0)
    gc.collect()
    await port.send("a")
    assert await waiting == "a"


async def test_several_may_receive_and_one_may_give_up() -> None:
    port, receiver = ma.channel()
    async with receiver:
        first, second, third = [asyncio.ensure_future(receiver.recv()) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        await port.send("a")
        await port.send("b")
        assert {await second, await third} == {"a", "b"}
        assert first.cancelled()
        waiting = asyncio.ensure_future(receiver.recv())
        await asyncio.sleep(0)
        sending = port.send("c")
        while not receiver._intake.values:
            await asyncio.sleep(0)
        waiting.cancel()  # just when its value has come
        await sending
        async with asyncio.timeout(1):
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await receiver.recv() == "c"


async def test_a_sender_may_give_up(senders: Sender) -> None:
    port, receiver = ma.channel(limit=1)
    async with receiver:
        await port.send(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await port.send(2)
        third = port.send(3)
        assert [await receiver.recv(), await receiver.recv()] == [1, 3]
        await third


async def test_a_value_that_does_not_pickle_is_refused_at_the_call() -> None:
    port, receiver = ma.channel()
    async with receiver:
        pending = len(active_router().pending)
        with pytest.raises(ma.PicklingError, match="value sent to a port"):
            port.send(threading.Lock())
        assert len(active_router().pending) == pending


async def test_a_value_that_cannot_be_rebuilt_is_its_senders_error(senders: Sender) -> None:
    port, receiver = ma.channel()
    async with receiver:
        with pytest.raises(ValueError, match="cannot be rebuilt"):
            await port.send(Explosive())
        await port.send(2)
        assert await receiver.recv() == 2
    port = await senders.at(0).open.call_one(8)
    with pytest.raises(ValueError, match="cannot be rebuilt"):
        await port.send(Explosive())
    assert await senders.at(0).progress.call_one()


async def test_the_proc_of_the_receiver_is_gone(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs(name="mortal")
    mortal = await procs.spawn("mortal", Sender)
    port = await mortal.open.call_one(1)
    await port.send(1)
    waiting = port.send(2)
    with pytest.raises(ma.ProcDied):
        await mortal.exit.call_one()
    for future in (waiting, port.send(3)):
        with pytest.raises(ma.ProcDied):
            await future


async def test_a_limit_below_one() -> None:
    for limit in (0, -1):
        with pytest.raises(ma.BadCall, match="limit"):
            ma.channel(limit)


async def test_nothing_is_left() -> None:
    assert not active_router().pending
    assert list(active_router().targets) == [ARRIVALS]
