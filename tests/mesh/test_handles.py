"""Handles: who may do what with them, when they end, batches, bars and tables. What moves is tests/bulk's business."""

import asyncio
import gc
import io
import pickle
import re
import warnings
from collections.abc import AsyncIterator

import numpy
import pytest
import pytest_asyncio
import torch
from keeper import Keeper
from rich.console import Console

import monarch_async as ma
from monarch_async.mesh.domain import active_domain
from monarch_async.mesh.progress import Bars, Watched, watch

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    async with ma.local_hosts() as hosts:
        await (await ma.register(torch.zeros(1))).aclose()  # the sockets that it opens stay: they are nobody's leak
        yield hosts


async def test_what_a_handle_says(hosts: ma.HostMesh) -> None:
    value = {"w": torch.zeros(3, 4, dtype=torch.bfloat16), "rest": [numpy.ones(2), torch.zeros(())]}
    async with await ma.register(value, name="weights") as handle:
        assert handle.keys() == ("w", "rest") and handle["rest"].keys() == (0, 1)
        assert (handle["w"].shape, handle["w"].dtype, handle["w"].nbytes) == ((3, 4), torch.bfloat16, 24)
        assert (handle.nbytes, handle.epoch) == (24 + 16 + 4, 1)
        assert handle["rest"][0].dtype == numpy.dtype("f8")
        assert repr(handle).startswith("<handle of weights: 3 arrays, 44 bytes, of client ")
        assert "weights['w']: bfloat16 [3, 4]" in repr(pickle.loads(pickle.dumps(handle["w"])))
        with pytest.raises(ma.UnknownPart, match=r"weights\['rest'\]: it has no part 2; it has: 0, 1"):
            handle["rest"][2]
        with pytest.raises(KeyError):
            handle["v"]
        with pytest.raises(ma.BadCall, match="3 arrays: choose one"):
            handle.shape  # noqa: B018
        with pytest.raises(TypeError):
            list(handle)  # type: ignore[call-overload]


async def test_it_ends_once_and_at_its_owner(hosts: ma.HostMesh) -> None:
    keeper = (await hosts.spawn_procs()).spawn("keeper", Keeper, 4)
    async with await ma.register(torch.zeros(3), name="mine") as mine:
        for what in ("aclose", "advance", "renew"):
            with pytest.raises(ma.BadCall, match=rf"mine.{what}: only its owner can do that, which is client"):
                await keeper.try_to.call_one(what, mine)
        older = mine
        newer = await mine.advance()
        assert newer.epoch == 2 and (await newer.fetch()).tolist() == [0, 0, 0]
        with pytest.raises(ma.StaleHandle, match="epoch"):
            await older.fetch()
    for handle in (older, newer, newer):
        await handle.aclose()
    for act in (newer.advance(), newer.renew(None), newer.fetch(), newer.write(torch.zeros(3))):
        with pytest.raises(ma.StaleHandle, match=r"^mine: "):
            await act
    theirs = await keeper.get.call_one()
    assert await keeper.try_to.call_one("fetch", theirs) == [0, 1, 2, 3]
    await keeper.try_to.call_one("aclose", theirs)
    with pytest.raises(ma.StaleHandle, match="kept: procs"):
        await theirs.fetch()


async def test_it_ends_with_the_actor_that_made_it(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs()
    keepers = [await procs.spawn(f"keeper{i}", Keeper, 5) for i in range(2)]
    handles = [await keeper.get.call_one() for keeper in keepers]
    await keepers[0].stop()
    with pytest.raises(ma.StaleHandle):
        await handles[0].fetch()
    assert (await handles[1].fetch()).tolist() == [0, 1, 2, 3, 4]
    async with ma.supervise(ma.escalate):
        mine = await ma.register(numpy.zeros(3))
    with pytest.raises(ma.StaleHandle):
        await mine.fetch()


async def test_numpy_alone_loads_no_torch(hosts: ma.HostMesh) -> None:
    keeper = (await hosts.spawn_procs()).spawn("keeper", Keeper, 4)
    handle = await keeper.get.call_one()
    assert (await handle.fetch()).tolist() == [0, 1, 2, 3]
    await handle.write(torch.ones(4).numpy())
    assert await keeper.loaded.call_one() == []
    out = torch.zeros(4)
    assert (await handle.fetch(out)) is out and out.tolist() == [1, 1, 1, 1]


async def test_leases_are_checked(hosts: ma.HostMesh) -> None:
    for lease in (0, -1, float("nan"), float("inf"), True, "1"):
        with pytest.raises(ma.BadCall, match="lease"):
            await ma.register(torch.zeros(1), lease=lease)  # type: ignore[arg-type]
    assert not active_domain().registrations
    handle = await ma.register(torch.zeros(1), lease=0.05)
    await handle.renew(None)
    await asyncio.sleep(0.1)  # past the first lease, which would have ended it
    await handle.fetch()
    await handle.renew(0.01)
    async with asyncio.timeout(5):
        while active_domain().registrations:
            await asyncio.sleep(0.005)
    with pytest.raises(ma.StaleHandle):
        await handle.fetch()


async def test_autograd_is_told(hosts: ma.HostMesh) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    async with await ma.register(torch.full((3,), 2.0)) as handle:
        await handle.fetch(out=weight)
    assert weight.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


async def test_batches(hosts: ma.HostMesh) -> None:
    tensors = [torch.full((3,), float(i)) for i in range(5)]
    async with await ma.register(tensors) as handle:
        async with ma.transfers(limit=2) as batch:
            tasks = [batch.fetch(handle[i]) for i in range(5)]
            written = batch.write(handle[4], torch.zeros(3), slice(0, 3))
        assert [task.result()[0].item() for task in tasks[:4]] == [0, 1, 2, 3] and written.result() is None
        with pytest.raises(ExceptionGroup) as caught:
            async with ma.transfers(limit=1) as batch:
                bad = batch.fetch(handle[0], torch.zeros(4))
                late = [batch.write(handle[i], torch.zeros(3)) for i in range(5)]
        assert [type(error) for error in caught.value.exceptions] == [ma.BufferMismatch]
        assert bad.done() and all(task.done() for task in late) and late[-1].cancelled()
        with pytest.raises(RuntimeError):
            batch.fetch(handle[0])
    for limit in (0, True, "2"):
        with pytest.raises(ma.BadCall, match="limit"):
            ma.transfers(limit)  # type: ignore[arg-type]


async def test_a_batch_that_is_left_before_it_begins_warns_of_nothing(hosts: ma.HostMesh) -> None:
    async with await ma.register(torch.ones(3)) as handle:
        out = torch.zeros(3)
        with pytest.raises(ExceptionGroup), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            async with ma.transfers() as batch:
                fetching = batch.fetch(handle, out)
                raise ValueError
        gc.collect()
        assert fetching.cancelled() and not out.any() and not [str(warning.message) for warning in caught]


async def test_a_cancelled_transfer_leaves_its_memory_alone(hosts: ma.HostMesh) -> None:
    keeper = (await hosts.spawn_procs()).spawn("keeper", Keeper, 16 << 20)
    handle = await keeper.get.call_one()
    out = numpy.zeros(16 << 20, "f4")
    for turns in range(6):
        fetching = asyncio.ensure_future(handle.fetch(out))
        for _ in range(turns):
            await asyncio.sleep(0)
        fetching.cancel()
        await asyncio.wait([fetching])
        assert fetching.cancelled() or turns  # it may have been that quick
        out[:] = -1
        await handle.fetch(slice=slice(10))
        assert (out == -1).all()


async def test_the_table_of_transports(hosts: ma.HostMesh) -> None:
    keeper = (await hosts.spawn_procs(name="table")).spawn("keeper", Keeper, 1000)
    await (await keeper.get.call_one()).fetch()
    rows = {row.peer: row for row in ma.transports()}
    assert rows["table[0] on host0"].nbytes == 4000
    assert len(ma.transports()) >= len(rows)
    text = str(ma.transports())
    head, *lines = text.splitlines()
    assert head.split() == ["peer", "transport", "moved", "GB/s", "why", "no", "better", "one"]
    [line] = [line for line in lines if line.startswith("table[0] on host0")]
    assert "cma" in line and "4.0 kB" in line and "local: another process" in text


async def test_bars(hosts: ma.HostMesh) -> None:
    keeper = (await hosts.spawn_procs()).spawn("keeper", Keeper, 32 << 20)
    handle = await keeper.get.call_one()
    text = io.StringIO()
    with ma.progress(Console(file=text, force_terminal=True, width=100), patience=0):
        await handle.fetch()
        await handle.write(numpy.zeros(32 << 20, "f4"))
    drawn = text.getvalue()
    assert "fetch kept" in drawn and "write kept" in drawn and "━" in drawn
    assert re.search(r"fetch kept: 134 MB in \d+\.\d s, \d+\.\d\d GB/s", drawn)
    with ma.progress():
        await handle.fetch(slice=slice(10))
    assert watch("nobody looks", 1) is None


async def test_a_bar_of_a_transfer_that_breaks_off() -> None:
    text = io.StringIO()
    with Bars(Console(file=text, force_terminal=True, width=100), 0) as bars:
        slow = watch("slow", 2_000_000)
        assert isinstance(slow, Watched)
        slow.advance(500_000)
        while slow.task is None:
            await asyncio.sleep(0)
        slow.advance(250_000)
        bars._progress.refresh()  # type: ignore[union-attr]
        quick = watch("quick", 1)
        assert quick is not None
        quick.end()
        slow.end()
        slow.end()
    drawn = text.getvalue()
    assert "0.8/2.0 MB" in drawn and "quick" not in drawn
    assert drawn.count("slow: ended after 750 kB of 2.0 MB") == 1


async def test_nobody_waits_for_an_owner_that_is_gone(hosts: ma.HostMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its machine has lost its power: nothing breaks, nothing moves."""
    monkeypatch.setattr("monarch_async.mesh.deathwatch._PATIENCE", 0.05)
    async with ma.supervise(ma.ignore):
        keeper = (await hosts.spawn_procs()).spawn("keeper", Keeper, 4)
        handle = await keeper.get.call_one()
        begun = asyncio.Event()

        async def hang(*_: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(active_domain().router.plane, "write", hang)
        writing = asyncio.ensure_future(handle.write(numpy.zeros(4, "f4")))
        await begun.wait()
        await asyncio.sleep(0.2)  # it is asked after more than once
        assert not writing.done()
        with pytest.raises(ma.ProcDied):
            await keeper.die.call_one()
        with pytest.raises(ma.ProcDied, match="status 3"):
            async with asyncio.timeout(5):
                await writing
        monkeypatch.undo()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                monkeypatch.setattr(active_domain().router.plane, "write", hang)
                async with await ma.register(numpy.zeros(4)) as mine:
                    await mine.write(numpy.zeros(4))
