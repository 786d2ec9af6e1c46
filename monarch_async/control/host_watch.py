"""A subscription to what becomes of hosts: ``async for event in cluster.events()``."""

import asyncio

from monarch_async.control.membership import Backlog, HostEvent, Membership


class HostWatch:
    """An async iterator of `HostEvent`: first what there is, then changes; ends when the program leaves its hosts.

    A reader that is more than 1,024 changes behind misses what lay between: it gets one event for each host that is
    not as it was when last read. For one task at a time.
    """

    def __init__(self, members: Membership) -> None:
        """Begin with what ``members`` has now; its owner calls `push` and `end`."""
        self._backlog = Backlog(members)
        self._has_news = asyncio.Event()
        self._has_ended = False

    def push(self, event: HostEvent) -> None:
        """A change."""
        self._backlog.push(event)
        self._has_news.set()

    def end(self) -> None:
        """No further change will come; what waits may be read."""
        self._has_ended = True
        self._has_news.set()

    def __aiter__(self) -> "HostWatch":
        return self

    async def __anext__(self) -> HostEvent:
        while not self._backlog:
            if self._has_ended:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
        return self._backlog.pop()
