"""Shared objects, end to end: values of all kinds, references on all ways, counts that return to zero."""

import asyncio
import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from ref_actors import Reader

import monarch_async as ma
from monarch_async.mesh import ref_tickets
from monarch_async.mesh.domain import active_domain
from monarch_async.mesh.ref_tickets import Tickets
from monarch_async.runtime.direct import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def readers(hosts: ma.HostMesh) -> Reader:
    procs = await hosts.spawn_procs({"gpus": 2}, name="readers")
    readers = await procs.spawn("readers", Reader)
    for _ in range(2 * PATIENCE):  # until calls go directly: what that opens is not of these tests
        await readers.holdings.call()
    await asyncio.sleep(0.05)
    return readers


@pytest.fixture(autouse=True, scope="module")
def _quick() -> Any:
    """Tickets of ended calls are looked for sooner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ref_tickets, "_SWEEP", 0.02)
        yield


async def gauges() -> list[dict[str, int]]:
    """What the stores of all hosts have."""
    domain = active_domain()
    found = []
    for host in domain.hosts:
        status = await domain.requests.ask(host.id << 32, "status")
        found.append(status["store"])
    return found


async def all_gone() -> None:
    """Wait until no host has any object."""
    gc.collect()
    async with asyncio.timeout(10):
        while any(store["objects"] for store in await gauges()):
            await asyncio.sleep(0.01)
    assert len(active_domain().holdings) == 0


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_kept(readers: Reader) -> AsyncIterator[None]:
    yield
    await readers.forget.call()
    await all_gone()


# -- values ------------------------------------------------------------------------------------------------------------


class Sizes:
    """Of a class of the program."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sizes) and self.sizes == other.sizes


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return type(one) is type(other) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        b"x" * 100_000,
        bytearray(200_000),
        [1, {"two": (3.0, None)}],
        np.arange(1000),
        np.arange(300_000, dtype="f4").reshape(300, 1000).T,
        np.zeros(0),
        torch.arange(1000, dtype=torch.bfloat16),
        torch.randn(300, 400).t(),
        torch.nn.Parameter(torch.ones(2000)),
        torch.tensor(3.5),
        {"weights": [torch.zeros(3, 1000), torch.ones(5, dtype=torch.bool)], "step": 7, "lr": np.float64(0.1)},
        Sizes([1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_values_of_all_kinds_are_the_same_everywhere(readers: Reader, value: Any) -> None:
    ref = await ma.put(value)
    assert same(value, await ref) and same(value, await ref)
    assert all(same(value, found) for found in list(await readers.value.call(ref)))


async def test_the_original_may_change_afterwards(readers: Reader) -> None:
    value = np.ones(100_000)
    ref = await ma.put(value)
    value[:] = 5.0
    assert list(await readers.total.call(ref)) == [100_000.0] * 2


async def test_it_cannot_be_changed(readers: Reader) -> None:
    ref = await ma.put({"array": np.zeros(5000), "tensor": torch.zeros(5000)})
    for member in (readers.at(0), readers.at(1)):
        assert await member.write.call_one(ref) == [-5000.0, 0.0]
    value = await ref
    assert not value["array"].flags.writeable and value["tensor"].sum() == 0
    with pytest.raises(ValueError, match="read-only"):
        value["array"][0] = 1.0


async def test_there_is_one_copy_on_a_host(readers: Reader) -> None:
    ref = await ma.put(np.ones(1_000_000))
    assert len({await member.where.call_one(ref) for member in (readers.at(0), readers.at(1))}) == 1
    assert [store["objects"] for store in await gauges()] == [1]


async def test_what_a_reference_says() -> None:
    ref = await ma.put(np.ones(1000))
    same_ref = pickle.loads(pickle.dumps(ref))
    other = await ma.put(1)
    assert ref == same_ref and hash(ref) == hash(same_ref) and ref != other and len({ref, same_ref, other}) == 2
    assert 8000 < ref.nbytes < 9000
    assert repr(ref).endswith(f"{ref.nbytes:,} bytes, home host0>")
    assert copy.deepcopy([ref])[0] is ref
    del ref, same_ref, other
    await leases_run_out()


async def leases_run_out() -> None:
    """Of what was pickled by hand."""
    tickets: Tickets = active_domain().holdings.tickets
    for ticket in list(tickets._live):
        ticket.asks_at = 0.0
    async with asyncio.timeout(5):
        while tickets._live:
            await asyncio.sleep(0.01)


async def test_what_does_not_pickle_is_named(readers: Reader) -> None:
    with pytest.raises(ma.PicklingError, match=r"value\['lock'\]"):
        await ma.put({"lock": threading.Lock(), "ref": await ma.put(1)})


# -- ways --------------------------------------------------------------------------------------------------------------


async def test_as_argument_and_inside_of_others(readers: Reader) -> None:
    refs = [await ma.put(np.full(1000, float(n))) for n in range(3)]
    assert list(await readers.total_inside.call({"refs": refs})) == [3000.0] * 2
    assert sorted([total async for _, total in readers.total.stream(refs[1])]) == [1000.0] * 2
    assert await readers.total.choose(refs[2]) == 2000.0


async def test_as_result(readers: Reader) -> None:
    refs = await readers.make.call(2000)
    assert [float((await ref).sum()) for ref in refs] == [2000.0] * 2
    assert await readers.at(0).total.call_one(refs[1]) == 2000.0


async def test_as_items_of_a_stream(readers: Reader) -> None:
    found = [await ref async for ref in readers.at(0).make_many.stream_one(20)]
    assert found == list(range(20))


@pytest.mark.slow
async def test_items_of_a_stream_that_is_left(readers: Reader) -> None:
    async with readers.at(0).make_many.stream_one(1000) as stream:
        assert await (await anext(stream)) == 0


async def test_through_a_port(readers: Reader) -> None:
    port, receiver = ma.channel()
    async with receiver:
        sending = readers.send.call(port, 3000)
        refs = [await receiver.recv(), await receiver.recv()]
        await sending
    assert [float((await ref).sum()) for ref in refs] == [3000.0] * 2


async def test_a_value_that_waits_for_a_full_receiver(readers: Reader) -> None:
    port, receiver = ma.channel(limit=1)
    sending = [port.send(await ma.put(n)) for n in range(3)]
    await asyncio.sleep(0.1)
    got = [await (await receiver.recv()) for _ in range(2)]
    receiver.close()
    await asyncio.gather(*sending, return_exceptions=True)
    del sending
    assert got == [0, 1]


async def test_as_argument_of_an_actor(hosts: ma.HostMesh, readers: Reader) -> None:
    procs = await hosts.spawn_procs({"gpus": 2}, name="givens")
    givens = await procs.spawn("givens", Reader, await ma.put(np.ones(500)))
    gc.collect()
    assert list(await givens.total_kept.call()) == [500.0] * 2
    await givens.forget.call()
    await givens.restart(1)  # with what it was spawned with
    assert await givens.at(1).total_kept.call_one() == 500.0
    await procs.stop()


async def test_of_a_plain_def(readers: Reader) -> None:
    said = await readers.keep_in_thread.call(await ma.put(7))
    assert "home host0" in said[0]
    gc.collect()
    (ref,) = await readers.at(0).give_from_thread.call_one()
    await readers.forget.call()
    assert await ref == 7


async def test_passed_on_before_it_is_held(readers: Reader) -> None:
    ref = await ma.put(np.ones(1000))
    calls = [readers.at(0).pass_on.call_one(ref, readers.at(1)) for _ in range(20)]
    del ref
    assert await asyncio.gather(*calls) == [1000.0] * 20


@pytest.mark.slow
async def test_inside_of_a_shared_object(readers: Reader) -> None:
    inner = await ma.put(np.ones(1000))
    middle = await ma.put({"inner": inner})
    outer = await ma.put([middle, middle])
    del inner, middle
    gc.collect()
    await readers.keep_value.call(outer)
    del outer
    gc.collect()
    ((middle, same_one),) = await readers.at(0).give_from_thread.call_one()
    await readers.forget.call()
    assert middle == same_one and float((await (await middle)["inner"]).sum()) == 1000.0


# -- counts ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_objects_very_deep_in_each_other(readers: Reader) -> None:
    """As a list whose items are shared objects, and with many ways to each."""
    one, other = await ma.put(1), await ma.put(2)
    for _ in range(40):
        one, other = await ma.put([one, other]), await ma.put((one, other))
    assert len(pickle.dumps(one)) < 20_000
    for _ in range(500):
        other = await ma.put({"next": other, "one": one})
    await readers.at(0).keep.call_one(other)
    del one, other
    gc.collect()
    value = await (await readers.at(0).give_from_thread.call_one())[0]
    await readers.forget.call()
    for _ in range(5):
        value = await value["next"]
    value = await value["one"]
    for _ in range(40):
        assert type(value) is list
        value = await value[0]
    assert value == 1
    await leases_run_out()


async def test_the_last_reference_anywhere_frees_it(readers: Reader) -> None:
    ref = await ma.put(np.ones(1000))
    await readers.keep.call(ref)
    assert list(await readers.holdings.call()) == [1, 1]
    del ref
    gc.collect()
    await readers.at(0).forget.call_one()
    assert (await gauges())[0]["objects"] == 1
    assert await readers.at(1).total_kept.call_one() == 1000.0
    await readers.forget.call()
    await all_gone()


@pytest.mark.slow
async def test_a_value_keeps_it_as_a_reference_does(readers: Reader) -> None:
    value = await (await ma.put(np.ones(1000)))
    gc.collect()
    assert (await gauges())[0]["objects"] == 1
    del value
    await all_gone()


async def test_after_calls_that_are_cancelled(readers: Reader) -> None:
    ref = await ma.put(1)
    calls: list[asyncio.Future[Any]] = [readers.at(0).keep_soon.call_one(ref) for _ in range(5)]
    while not await readers.at(0).has_started.call_one():
        await asyncio.sleep(0.01)
    calls += [readers.keep_soon.call(ref) for _ in range(5)]  # some do not even begin
    while calls:
        calls[-1].cancel()
        await asyncio.wait([calls.pop()])
    del ref
    await all_gone()


@pytest.mark.slow
async def test_after_a_broadcast_to_a_busy_thread(readers: Reader) -> None:
    ref = await ma.put(1)
    for _ in range(10):
        readers.keep_in_thread.broadcast(ref)
    del ref
    await readers.keep_in_thread.call(None)
    await all_gone()


async def test_after_its_holder_is_killed(hosts: ma.HostMesh, readers: Reader) -> None:
    async with ma.supervise(ma.ignore):
        procs = await hosts.spawn_procs({"gpus": 1}, name="victims")
        victim = await procs.spawn("victims", Reader)
        ref = await ma.put(np.ones(1000))
        await victim.keep_value.call_one(ref)
        mine = await victim.make.call_one(10)
        unsent = victim.make.call_one(10)
        with pytest.raises(ma.ProcDied):
            await victim.die.call_one()
        await asyncio.gather(unsent, return_exceptions=True)
        assert float((await mine).sum()) == 10.0  # it is the host's, not the proc's
        del unsent, ref, mine
        await all_gone()


@pytest.mark.slow
async def test_many_rounds_leave_nothing(readers: Reader) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))

    async def round(index: int) -> None:
        ref = await ma.put(index)
        if index % 100 == 0:
            assert await ref == index and list(await readers.value.call(ref)) == [index] * 2

    for index in range(1000):
        await round(index)
    await all_gone()
    assert (await gauges())[0]["used"] == 0
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert not active_domain().router.pending


# -- wait --------------------------------------------------------------------------------------------------------------


async def test_wait(readers: Reader) -> None:
    refs = [*(await readers.make.call(10)), await ma.put(1)]
    done, pending = await ma.wait(refs)
    assert sorted(map(hash, done)) == sorted(map(hash, refs)) and pending == []
    done, pending = await ma.wait(refs, count=1, timeout=5)
    assert len(done) >= 1 and len(done) + len(pending) == 3
    assert await ma.wait([]) == ([], [])
    with pytest.raises(ma.BadCall, match="twice"):
        await ma.wait([refs[0], refs[0]])
    for count in (0, 4, "1"):
        with pytest.raises(ma.BadCall, match="count"):
            await ma.wait(refs, count=count)  # type: ignore[arg-type]
    for refs_given, said in ((refs[0], "several references"), ([refs[0], 5], r"refs\[1\] is no reference .* a int")):
        with pytest.raises(ma.BadCall, match=said):
            await ma.wait(refs_given)


# -- without hosts, and with others ------------------------------------------------------------------------------------


async def test_a_program_without_hosts_can_look_at_it_only() -> None:
    ref = await ma.put(1)
    code = (
        "import asyncio, pickle, sys, monarch_async as ma\n"
        "ref = pickle.loads(sys.stdin.buffer.read())\n"
        "assert ref == pickle.loads(pickle.dumps(ref)) and ref.nbytes\n"
        "async def main():\n"
        "    for awaited in (ref, ma.put(1), ma.wait([ref])):\n"
        "        try: await awaited\n"
        "        except ma.Closed as error: print(error)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code]
    said = await asyncio.to_thread(subprocess.run, command, input=pickle.dumps(ref), capture_output=True, check=True)
    assert said.stdout.count(b"not inside") == 3
    del ref
    await leases_run_out()
