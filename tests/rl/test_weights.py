"""Publishers and subscribers: whole versions, whoever is slow, late or dead; and the memory of old ones back."""

import asyncio
import gc
import pickle
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from torch import nn
from weight_actors import Generator, Learner, filled, spread_of

import monarch_async as ma
from monarch_async.bulk.memory import copy
from monarch_async.mesh import ref_tickets
from monarch_async.mesh.domain import active_domain

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHAPES = {"embed": (300, 100), "bias": (7,), "head": (50, 40)}
LARGE = {"a": (1024, 1024), "b": (1024,), "c": (1024, 1024)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent to the dead is let go of sooner."""
    monkeypatch.setattr(ref_tickets, "_SWEEP", 0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def generators(hosts: ma.HostMesh) -> Generator:
    procs = await hosts.spawn_procs({"gpus": 3}, name="generators")
    return await procs.spawn("generators", Generator)


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def nothing_kept(hosts: ma.HostMesh) -> AsyncIterator[None]:
    yield
    await has_objects(0)


@pytest_asyncio.fixture(loop_scope="module")
async def publisher() -> AsyncIterator[ma.WeightPublisher]:
    async with ma.WeightPublisher("policy") as publisher:
        yield publisher


async def objects() -> list[int]:
    """How many objects each host has."""
    domain = active_domain()
    statuses = [await domain.requests.ask(host.id << 32, "status") for host in domain.hosts]
    return [status["store"]["objects"] for status in statuses]


async def has_objects(*expected: int) -> None:
    gc.collect()
    async with asyncio.timeout(10):
        while await objects() != list(expected):
            await asyncio.sleep(0.01)


def model(number: float) -> nn.Module:
    made = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 2).to(torch.bfloat16))
    with torch.no_grad():
        for tensor in made.state_dict().values():
            tensor.fill_(number)
    return made


# -- versions ----------------------------------------------------------------------------------------------------------


async def test_versions_one_after_the_other(generators: Generator, publisher: ma.WeightPublisher) -> None:
    await generators.subscribe.call(publisher, SHAPES)
    assert list(await generators.update.call()) == [(0, 0.0, 0.0)] * 3  # nothing to wait for
    for number in (1, 2):
        assert await publisher.publish(filled(SHAPES, number)) == number == publisher.version
        assert list(await generators.update.call()) == [(number, number, number)] * 3
        assert list(await generators.update.call()) == [(number, number, number)] * 3
    await publisher.publish(filled(SHAPES, 3))
    await publisher.publish(filled(SHAPES, 4))
    assert list(await generators.newest.call()) == [(4, 4.0, 4.0)] * 3
    assert list(await generators.look.call()) == [(4, 2.0, 2.0)] * 3
    assert list(await generators.update.call()) == [(4, 4.0, 4.0)] * 3  # where it was not yet


async def test_what_is_published_is_what_it_was(publisher: ma.WeightPublisher) -> None:
    """Modules, dicts in dicts, all dtypes and strides; and it may change afterwards."""
    subscriber = ma.WeightSubscriber(publisher)
    first = model(1)
    await publisher.publish(first)
    with torch.no_grad():
        first.get_parameter("0.weight").fill_(99)
    other = model(0)
    parameter = other.get_parameter("0.weight")
    before = parameter._version
    assert await subscriber.update(other) == 1
    assert all(bool((tensor == 1).all()) for tensor in other.state_dict().values())
    assert parameter.requires_grad and parameter._version > before

    tied = torch.randn(200, 300)
    state = {
        "tied": [tied, tied[:100]],
        "turned": torch.randn(20, 30).t(),
        "steps": torch.arange(1000)[::2],
        "scalar": torch.tensor(3, dtype=torch.int64),
        "none": torch.empty(0, 3),
        "wide": torch.randn(3, 1).expand(3, 400),
        "numpy": np.arange(6000.0).reshape(2, 3000),
    }
    await publisher.publish(state)
    version, weights = await subscriber.newest()
    assert version == 2 and weights.keys() == state.keys() and not weights["numpy"].flags.writeable
    into = {
        "tied": [torch.zeros(200, 300), torch.zeros(100, 300)],
        "turned": torch.zeros(30, 20),  # of another order
        "steps": torch.zeros(1500, dtype=torch.int64)[::3],
        "scalar": torch.zeros((), dtype=torch.int64),
        "none": torch.zeros(0, 3),
        "wide": torch.zeros(3, 400),
        "numpy": np.zeros((2, 3000)),
    }
    assert await ma.WeightSubscriber(publisher).update(into) == 2
    for found in (weights, into):
        for name in ("turned", "steps", "scalar", "none", "wide"):
            assert torch.equal(found[name], state[name]) and found[name].dtype == state[name].dtype
        assert torch.equal(found["tied"][0], tied) and torch.equal(found["tied"][1], tied[:100])
        assert np.array_equal(found["numpy"], state["numpy"])
    assert weights["tied"][0].data_ptr() == weights["tied"][1].data_ptr()
    del weights, found


async def test_a_view_of_bytes_that_is_misaligned(publisher: ma.WeightPublisher) -> None:
    flat = torch.zeros(4 + 8 * 300, dtype=torch.uint8)
    state = {"small": flat[:4].view(torch.float32), "large": torch.arange(300, dtype=torch.int64)}
    await publisher.publish({"bytes": flat[3:], **state})
    _, weights = await ma.WeightSubscriber(publisher).newest()
    assert torch.equal(weights["large"], state["large"]) and weights["bytes"].sum() == 0
    del weights


async def test_what_does_not_fit_changes_nothing(publisher: ma.WeightPublisher) -> None:
    await publisher.publish({"a": torch.ones(3), "b": torch.ones(2, 2)})
    subscriber = ma.WeightSubscriber(publisher)
    for into, why in (
        ({"a": torch.zeros(3)}, "into lacks .*'b'"),
        ({"a": torch.zeros(3), "b": torch.zeros(2, 2), "c": torch.zeros(1)}, "into has .*'c'.* too many"),
        ({"a": torch.zeros(3), "b": torch.zeros(4)}, r"policy version 1: its shape is \(2, 2\), .*into\['b'\]"),
        ({"a": torch.zeros(3), "b": torch.zeros(2, 2, dtype=torch.float64)}, r"dtype is float32, .*into\['b'\]"),
        ({"a": torch.zeros(3), "b": torch.zeros(1, 2).expand(2, 2)}, "share memory"),
        ([torch.zeros(3), torch.zeros(2, 2)], "has a dict there"),
        (nn.Linear(2, 2), "into lacks"),
    ):
        with pytest.raises(ma.BufferMismatch, match=why):
            await subscriber.update(into)  # type: ignore[arg-type]
        tensors = into.values() if isinstance(into, dict) else into if isinstance(into, list) else ()
        assert not any(bool(tensor.any()) for tensor in tensors)
    with pytest.raises(ma.BadCall, match=r"into\['b'\] is neither a tensor"):
        await subscriber.update({"a": torch.zeros(3), "b": 1})
    assert subscriber.version == 0
    for state, why in (({"lr": 0.1}, r"publish of policy: it\['lr'\] is neither"), (3, "it is neither")):
        with pytest.raises(ma.BadCall, match=why):
            await publisher.publish(state)  # type: ignore[arg-type]
    assert publisher.version == 1
    for keep in (0, True, 1.5):
        with pytest.raises(ma.BadCall, match="keep="):
            ma.WeightPublisher(keep=keep)  # type: ignore[arg-type]


async def test_the_pages_are_shared_and_what_is_written_is_not(
    generators: Generator, publisher: ma.WeightPublisher
) -> None:
    await publisher.publish(filled(LARGE, 1, "torch"))
    _, mine = await ma.WeightSubscriber(publisher).newest()
    mine["a"].fill_(-1)
    assert mine["a"].sum() == -(1 << 20)
    _, again = await ma.WeightSubscriber(publisher).newest()
    assert spread_of(again) == (1.0, 1.0)
    del mine, again

    await publisher.publish(filled(LARGE, 2))
    await generators.subscribe.call(publisher, LARGE)
    assert len(set(await generators.hold.call())) == 1
    assert list(await generators.held_spread.call()) == [(2.0, 2.0)] * 3
    await generators.let_go.call()


# -- who waits, who is late, who is slow -------------------------------------------------------------------------------


async def test_waiting_for_versions(generators: Generator, publisher: ma.WeightPublisher) -> None:
    await generators.subscribe.call(publisher, SHAPES)
    first, second, third = generators.at(0), generators.at(1), generators.at(2)
    waiting, reading, following = first.wait_newer.call_one(), second.newest.call_one(), third.follow.call_one()
    given_up = asyncio.ensure_future(ma.WeightSubscriber(publisher).wait_newer())
    await first.look.call_one()
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(1):  # it is acknowledged
            await given_up
    assert not waiting.done() and not reading.done()
    await publisher.publish(filled(SHAPES, 1))
    assert await waiting == 1 and await reading == (1, 1.0, 1.0)
    assert (await first.look.call_one())[0] == 0  # it was told, and has taken nothing
    for number in range(2, 10):
        await publisher.publish(filled(SHAPES, number))
    late = ma.WeightSubscriber(publisher)
    version, weights = await late.newest()
    assert version == late.version == 9 and spread_of(weights) == (9.0, 9.0)
    del weights
    while (await third.look.call_one())[0] < 9:
        await asyncio.sleep(0.01)
    await publisher.aclose()
    seen = await following
    assert seen == sorted(set(seen)) and seen[-1] == 9


@pytest.mark.slow
async def test_the_memory_of_old_versions_comes_back(generators: Generator) -> None:
    async with ma.WeightPublisher(keep=2) as publisher:
        await generators.subscribe.call(publisher, LARGE)
        slow = generators.at(0)
        for number in range(1, 6):
            await publisher.publish(filled(LARGE, number))
            assert (await objects())[0] <= 3
        await has_objects(2)
        assert (await slow.hold.call_one())[0] == 5
        for number in range(6, 9):
            await publisher.publish(filled(LARGE, number))
        await has_objects(3)
        assert await slow.held_spread.call_one() == (5.0, 5.0)
        await slow.let_go.call_one()
        await has_objects(2)
        assert list(await generators.update.call()) == [(8, 8.0, 8.0)] * 3


async def watched(generators: Generator, versions: int, shapes: dict[str, tuple[int, ...]], library: str) -> None:
    async with ma.WeightPublisher("policy") as publisher:
        await generators.subscribe.call(publisher, shapes, library)
        watching = [
            generators.at(rank).watch.call_one(versions, takes)
            for rank, takes in enumerate(("update", "newest", "update"))
        ]
        state = filled(shapes, 0, library)
        for number in range(1, versions + 1):
            for array in state.values():
                array[:] = number
            await publisher.publish(state)
            await asyncio.sleep(0)
        found = await asyncio.gather(*watching)
        assert [torn for _, torn in found] == [0] * 3
        assert all(moves > 1 for moves, _ in found)


@pytest.mark.slow
async def test_no_version_is_torn(generators: Generator) -> None:
    await watched(generators, 1000, SHAPES, "numpy")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_large_version_is_torn(generators: Generator) -> None:
    await watched(generators, 1000, {f"layers.{index}": (256, 256) for index in range(50)}, "torch")


async def test_an_update_that_is_cancelled_is_complete(
    publisher: ma.WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriber, into = ma.WeightSubscriber(publisher), filled({"a": (8 << 20,)}, 0, "torch")
    loop, has_begun = asyncio.get_running_loop(), asyncio.Event()

    def copy_and_tell(target: memoryview, source: memoryview) -> None:
        loop.call_soon_threadsafe(has_begun.set)
        copy(target, source)

    monkeypatch.setattr("monarch_async.bulk.copying.copy", copy_and_tell)
    for number in (1, 2, 3):
        await publisher.publish(filled({"a": (8 << 20,)}, number))
        has_begun.clear()
        updating = asyncio.ensure_future(subscriber.update(into))
        await has_begun.wait()  # the first of several pieces
        updating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await updating
        assert spread_of(into) == (number, number) and subscriber.version == number


# -- who is gone -------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="module")
async def learner(hosts: ma.HostMesh) -> AsyncIterator[Learner]:
    async with ma.supervise(ma.ignore):
        procs = await hosts.spawn_procs({"gpus": 1}, name="learner")
        yield await procs.spawn("learner", Learner, SHAPES)


@pytest.mark.parametrize("how", ["die", "fail", "stop"])
async def test_the_learner_is_gone(generators: Generator, learner: Any, how: str) -> None:
    publisher = await learner.reference.call_one()
    await generators.subscribe.call(publisher, SHAPES)
    await learner.train.call_one()
    await learner.publish.call_one()
    assert list(await generators.update.call()) == [(1, 1.0, 1.0)] * 3
    await generators.at(1).hold.call_one()
    waiting = generators.at(0).wait_newer.call_one()
    following = generators.at(2).follow.call_one()
    await generators.look.call()
    if how == "stop":
        await learner.stop()
    else:
        getattr(learner, how).broadcast()
    expected = ma.ProcDied if how == "die" else ma.ActorDied
    async with asyncio.timeout(10):
        for asked in (waiting, following):
            with pytest.raises(expected, match="learner"):
                await asked
        for ask in (generators.at(1).update, generators.at(1).newest, generators.at(1).wait_newer):
            with pytest.raises(expected, match="learner"):
                await ask.call_one()
    assert list(await generators.look.call()) == [(1, 1.0, 1.0)] * 3
    assert await generators.at(1).held_spread.call_one() == (1.0, 1.0)
    await generators.let_go.call()


@pytest.mark.slow
async def test_a_generator_is_killed(hosts: ma.HostMesh, publisher: ma.WeightPublisher) -> None:
    async with ma.supervise(ma.ignore):
        procs = await hosts.spawn_procs({"gpus": 2}, name="mortals")
        mortals = await procs.spawn("mortals", Generator)
        await mortals.subscribe.call(publisher, LARGE)
        await publisher.publish(filled(LARGE, 1))
        await mortals.update.call()
        dead, other = mortals.at(0), mortals.at(1)
        await dead.hold.call_one()
        waiting, also = dead.wait_newer.call_one(), other.wait_newer.call_one()
        await mortals.look.call()
        with pytest.raises(ma.ProcDied):
            await dead.die.call_one()
        with pytest.raises(ma.ProcDied):
            await waiting
        assert await publisher.publish(filled(LARGE, 2)) == 2
        assert await also == 2
        await has_objects(1)
        assert await other.update.call_one() == (2, 2.0, 2.0)


async def test_closed(generators: Generator, hosts: ma.HostMesh) -> None:
    publisher = ma.WeightPublisher("policy")
    await publisher.publish(filled(SHAPES, 1))
    await generators.subscribe.call(publisher, SHAPES)
    await generators.update.call()
    waiting = [generators.at(0).wait_newer.call_one(), generators.at(1).wait_newer.call_one()]
    await generators.look.call()
    await publisher.aclose()
    await publisher.aclose()
    for asked in (*waiting, generators.at(0).update.call_one(), generators.at(2).newest.call_one()):
        with pytest.raises(ma.Closed, match="the publisher of policy is closed"):
            await asked
    with pytest.raises(ma.Closed):
        await publisher.publish(filled(SHAPES, 2))
    assert await generators.at(0).follow.call_one() == []
    async with ma.supervise(ma.ignore):
        inside = ma.WeightPublisher()
    with pytest.raises(ma.Closed, match="the publisher of weights"):
        await ma.WeightSubscriber(inside).update({})


async def test_only_its_owner_publishes(learner: Any, publisher: ma.WeightPublisher) -> None:
    far = await learner.reference.call_one()
    for call in (far.publish({}), far.aclose()):
        with pytest.raises(ma.BadCall, match="only the process that made"):
            await call
    with pytest.raises(ma.BadCall, match="only the process that made"):
        await learner.misuse.call_one(publisher)
    copied = pickle.loads(pickle.dumps(publisher))
    assert await copied.publish(filled(SHAPES, 1)) == publisher.version == 1
    assert await learner.publish.call_one() == 1  # the one made on its thread


@pytest.mark.gpu
async def test_devices(publisher: ma.WeightPublisher) -> None:
    there = {"a": torch.arange(1000.0, device="cuda"), "b": torch.ones(20, 30, device="cuda").t()}
    await publisher.publish(there)
    _, weights = await ma.WeightSubscriber(publisher).newest()
    assert torch.equal(weights["a"], torch.arange(1000.0)) and weights["a"].is_cpu
    into = {name: torch.zeros_like(tensor) for name, tensor in there.items()}
    await ma.WeightSubscriber(publisher).update(into)
    assert all(torch.equal(into[name], there[name]) for name in there)
    del weights
