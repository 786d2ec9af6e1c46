"""What an agent asks its clients about hosts."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_async.control.host_news import HostNews
from monarch_async.control.inquiries import Inquiries
from monarch_async.errors import HostLost

ONE, OTHER = 1 << 32 | 1, 2 << 32 | 1


def news_of(*clients: int) -> tuple[HostNews, Inquiries]:
    guests: Any = [SimpleNamespace(role="client", connection=SimpleNamespace(address=client)) for client in clients]
    sink: Any = SimpleNamespace(send=lambda frame: None)
    inquiries = Inquiries(7 << 32, lambda dst: sink)
    workers: Any = None
    return HostNews(guests, inquiries, workers, lambda *_: None, lambda work: None), inquiries


async def test_the_first_that_knows_is_enough_and_of_the_others_nothing_is_kept() -> None:
    news, inquiries = news_of(ONE, OTHER)
    finding = asyncio.ensure_future(news.where(5))
    await asyncio.sleep(0)
    (call, *_), asked = inquiries._asked, dict(inquiries._asked)
    asked[call][1].set_result(["host5", "tcp://there:1"])
    assert await finding == ("host5", "tcp://there:1")
    await asyncio.sleep(0)
    assert not inquiries._asked
    inquiries.lose(2 << 32, HostLost("other", "it is gone"))  # would be logged as an error that nobody looked at


async def test_where_nobody_knows_it_is_said_why() -> None:
    news, inquiries = news_of(ONE)
    finding = asyncio.ensure_future(news.where(5))
    await asyncio.sleep(0)
    for _, answer in list(inquiries._asked.values()):
        answer.set_result(["host5", "", "it is lost"])
    with pytest.raises(HostLost, match="host host5 lost: it is lost"):
        await finding
