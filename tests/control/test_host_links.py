"""A client's links to its hosts, without sockets: what is told of losses that come together."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

import monarch_async as ma
from monarch_async.control.host import Host
from monarch_async.control.host_links import HostLink, HostLinks
from monarch_async.ids import AGENT, address
from monarch_async.runtime.router import Router
from monarch_async.scheduler.resources import Resources
from monarch_async.transport.session import Session
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url

CONFIG = ma.Config()
NEXT_TURN = 0


@pytest_asyncio.fixture
async def links() -> AsyncIterator[HostLinks]:
    """Hosts 1 to 5, all up; none is dialled again."""
    router = Router(address(7, 1), CONFIG, "client")
    links = HostLinks(CONFIG, router, {}, Tls(CONFIG, None))
    for id in range(1, 6):
        url = f"tcp://host{id}:1"
        session = Session(router, Url.parse(url), b"", {}, CONFIG, links._session_lost)
        session.connection.address = address(id, AGENT)
        await links._enter(HostLink(Host(id, f"host{id}", url, Resources()), session, b""))
        links.watched.add(id)
    yield links
    await links.aclose()
    router.close(ma.Closed("client", "the test has ended"))


async def test_of_losses_in_one_turn_each_is_told_in_a_turn_of_its_own(links: HostLinks) -> None:
    """Each fails what waits for that host: a hundred in one turn would stop the loop."""
    told: list[str] = []
    links.on_lost = lambda host, error: told.append(host.name)
    for link in list(links)[:3]:
        link.session.lose("the rack is gone")
    assert told == ["host1"]
    await asyncio.sleep(NEXT_TURN)
    assert told == ["host1", "host2"]
    await asyncio.sleep(NEXT_TURN)
    assert told == ["host1", "host2", "host3"]
    assert [host.name for host in links.hosts.values()] == ["host4", "host5"]


async def test_a_loss_that_comes_when_all_are_told_is_told_at_once(links: HostLinks) -> None:
    told: list[str] = []
    links.on_lost = lambda host, error: told.append(host.name)
    first, second, *_ = links
    first.session.lose("cut")
    await asyncio.sleep(NEXT_TURN)
    await asyncio.sleep(NEXT_TURN)
    second.session.lose("cut")
    assert told == ["host1", "host2"]


async def test_a_host_that_leaves_before_its_loss_is_told_is_not_lost(links: HostLinks) -> None:
    told: list[str] = []
    links.on_lost = lambda host, error: told.append(host.name)
    first, second, *_ = links
    first.session.lose("cut")
    second.session.lose("cut")
    await links.leave(second.host)
    await asyncio.sleep(NEXT_TURN)
    assert told == ["host1"]
