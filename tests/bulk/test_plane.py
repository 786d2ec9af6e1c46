"""The data plane of a process: its endpoint, its thread, and the ways it finds to others."""

import asyncio
import sys
import threading

import pytest

from monarch_async.bulk.arena import Arena
from monarch_async.bulk.endpoint import Endpoint
from monarch_async.bulk.plane import DataPlane
from monarch_async.bulk.region import Regions
from monarch_async.bulk.ways import Ways
from monarch_async.config import Config
from monarch_async.transport import dial


async def test_an_endpoint_asked_for_on_several_threads_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the plane's own too, as a transport does that needs this side's sockets: nobody waits for anybody there."""
    plane = DataPlane(Config())
    is_listening, found = threading.Event(), list[Endpoint]()
    bind = dial.bind

    def bound(url: dial.Url):
        is_listening.set()
        return bind(url)

    def ask_there() -> None:
        is_listening.wait(0.3)  # until another thread is in the middle of it, where that can be
        found.append(plane.endpoint)

    monkeypatch.setattr("monarch_async.bulk.plane.bind", bound)
    plane.thread.call_soon(ask_there)
    asking = [threading.Thread(target=lambda: found.append(plane.endpoint), daemon=True) for _ in range(2)]
    for thread in asking:
        thread.start()
    for thread in asking:
        await asyncio.to_thread(thread.join, 5)
    assert len(found) == 3, "they wait for each other"
    assert len({(one.local, one.key) for one in found}) == 1
    await plane.aclose()


@pytest.mark.parametrize(("name", "kind"), [("regions", Regions), ("arena", Arena)])
def test_what_is_made_on_first_use_is_made_once(name: str, kind: type) -> None:
    """Later Pythons compute a cached property on several threads at once."""
    plane = DataPlane(Config())
    compute = vars(DataPlane)[name].func
    assert compute(plane) is compute(plane)
    assert isinstance(getattr(plane, name), kind)


async def test_a_socket_that_cannot_be_bound_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = DataPlane(Config())
    bind, bound = dial.bind, []

    def failing(url: dial.Url):
        if bound:
            raise OSError("no such address")
        bound.append(bind(url))
        return bound[0]

    monkeypatch.setattr("monarch_async.bulk.plane.bind", failing)
    with pytest.raises(OSError, match="no such"):
        plane.endpoint  # noqa: B018
    assert bound[0].fileno() == -1
    assert not plane.is_listening
    await plane.aclose()


class Closing:
    """A transport whose end takes a while."""

    name = "closing"

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def aclose(self) -> None:
        await self.may_end.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets")
async def test_a_way_found_anew_does_not_ask_over_the_connection_of_the_one_that_broke() -> None:
    plane = DataPlane(Config())
    ways, endpoint = Ways(plane), Endpoint(b"", 1, "peer", b"", 1, 0, b"n" * 16, local="peer")
    broken, transport = ways._link(endpoint), Closing()
    closing = asyncio.create_task(ways.close(transport, endpoint))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    anew = ways._link(endpoint)
    transport.may_end.set()
    await closing
    assert anew is not broken
    assert not anew._is_closed
    assert broken._is_closed
    await ways.aclose()
