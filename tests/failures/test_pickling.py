"""Arguments and results that cannot travel: at the call, with the path; or as the reply, with the endpoint."""

import pickle
import threading

import pytest
import pytest_asyncio
from shapes import OnlyHere, Porter

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def porters(hosts: ma.HostMesh) -> Porter:
    procs = await hosts.spawn_procs({"gpus": 2})
    return await procs.spawn("porters", Porter)


@pytest.mark.parametrize("adverb", ["call", "choose", "broadcast", "stream"])
async def test_an_argument_that_does_not_pickle_fails_at_the_call(porters: Porter, adverb: str) -> None:
    from monarch_async.runtime.router import active_router

    pending = len(active_router().pending)
    with pytest.raises(ma.PicklingError) as info:
        getattr(porters.take, adverb)({"cfg": [1, threading.Lock()]})  # not awaited
    assert isinstance(info.value, pickle.PicklingError)
    assert str(info.value).startswith("cannot pickle argument args[0]['cfg'][1] of porters.take: TypeError: ")
    with pytest.raises(ma.PicklingError, match=r"argument kwargs\['lock'\] of porters.take"):
        getattr(porters.take, adverb)(1, lock=threading.Lock())
    assert len(active_router().pending) == pending  # nothing was sent, nothing waits


async def test_a_constructor_argument_that_does_not_pickle_fails_at_the_spawn(hosts: ma.HostMesh) -> None:
    procs = hosts.spawn_procs()

    class Model(ma.Actor):
        def __init__(self, lock: object) -> None: ...

        @ma.endpoint
        async def step(self) -> None: ...

    with pytest.raises(ma.PicklingError, match=r"cannot pickle argument kwargs\['lock'\] of Model: TypeError"):
        procs.spawn("models", Model, lock=threading.Lock())
    await procs
    await procs.stop()


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("locked", "result['model'][1]['lock']"), ("locked_on_thread", "result")],
)
async def test_a_result_that_does_not_pickle_is_the_reply(porters: Porter, endpoint: str, path: str) -> None:
    with pytest.raises(ma.PicklingError) as info:
        await getattr(porters.at(1), endpoint).call_one()
    assert str(info.value).startswith(f"cannot pickle {path} of porters[1].{endpoint}: TypeError: ")
    with pytest.raises(ma.MeshError) as group:
        await getattr(porters, endpoint).call()
    assert {type(error) for error in group.value.by_rank.values()} == {ma.PicklingError}
    assert await porters.at(1).alive.call_one()


async def test_an_item_that_does_not_pickle_ends_the_stream_with_it(porters: Porter) -> None:
    items = []
    with pytest.raises(ma.PicklingError, match=r"cannot pickle result of porters\[0\].locked_items"):
        async for item in porters.at(0).locked_items.stream_one():
            items.append(item)
    assert items == [1]
    assert await porters.at(0).alive.call_one()


async def test_an_argument_that_cannot_be_rebuilt_there(porters: Porter) -> None:
    with pytest.raises(OSError, match="made in another process") as info:
        await porters.at(1).take.call_one(OnlyHere())
    assert isinstance(info.value, ma.RemoteError)
    assert "raised while unpickling the arguments of porters[1].take" in str(info.value)
    assert await porters.at(1).alive.call_one()


async def test_a_result_that_cannot_be_rebuilt_here(porters: Porter) -> None:
    with pytest.raises(OSError, match="made in another process") as info:
        await porters.at(1).only_here.call_one()
    assert info.value.__notes__ == ["raised while unpickling the result of porters.only_here"]
    with pytest.raises(ma.MeshError) as group:
        await porters.only_here.call()
    assert sorted(group.value.by_rank) == [0, 1]
    items = []
    with pytest.raises(OSError, match="made in another process"):
        async for item in porters.at(1).only_here_items.stream_one():
            items.append(item)
    assert items == [1]
    assert await porters.at(1).alive.call_one()


async def test_a_pickling_error_inside_an_endpoint_is_that_endpoints_error(porters: Porter) -> None:
    """It is told apart from a result that does not pickle: it has a rank and a traceback."""
    with pytest.raises(ma.PicklingError, match=r"argument args\[0\] of porters.take") as info:
        await porters.at(0).sends_a_lock_on.call_one(porters.at(1))
    assert isinstance(info.value, ma.RemoteError)
    assert info.value.actor == "porters[0]"
    assert "in sends_a_lock_on" in info.value.traceback
