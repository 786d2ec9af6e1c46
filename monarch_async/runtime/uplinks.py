"""The connections of one router, by host: a client has one to each agent, a worker one to its own agent.

U1. While a host is lost, what is sent there is refused: the connection of before stays in its place, for whoever knows
    it, and sending on it fails the call in the next turn of the loop.
U2. What was refused before a host came back is failed by then, and nothing that is sent afterwards.
"""

import asyncio
from collections.abc import Callable

from monarch_async.errors import Closed, Lost
from monarch_async.transport.connection import Connection


class Uplinks:
    """See the module. ``lose(host, error)`` fails every call to a host, and returns how many a caller sees."""

    def __init__(self, name: str, lose: Callable[[int, Lost], int]) -> None:
        """None yet; ``name`` is of the process, for errors."""
        self._name, self._lose = name, lose
        self._loop = asyncio.get_running_loop()
        self._by_host: dict[int, Connection] = {}
        self._first: Connection | None = None  # takes what goes to unknown hosts
        self._losses: dict[int, Lost] = {}  # of hosts that are lost

    def all(self) -> list[Connection]:
        """Return all of them, refusing ones too."""
        return list(self._by_host.values())

    def add(self, host: int, connection: Connection) -> bool:
        """Send what goes to ``host`` over ``connection`` from now on. Returns whether this host was lost before."""
        error = self._losses.pop(host, None)
        if error is not None:
            self._lose(host, error)  # U2
        self._by_host[host] = connection
        if self._first is None or self._first.is_closed:
            self._first = connection
        return error is not None

    def lose(self, host: int, error: Lost) -> int:
        """A host is gone: calls to it fail with ``error``, pending ones now, later ones too (U1), until `add`."""
        connection = self._by_host[host]
        self._losses[host] = error

        def refuse(frame: bytes) -> None:
            self._loop.call_soon(lose_refused)

        def lose_refused() -> None:
            if self._by_host.get(host) is connection:
                self._lose(host, error)

        connection.send = refuse
        if connection is self._first:
            self._first = next((other for other in self._by_host.values() if not other.is_closed), None)
        return self._lose(host, error)

    def find(self, dst: int) -> Connection:
        """Return the connection towards ``dst``. Raises `Closed` where there is none any more."""
        found = self._by_host.get(dst >> 32) or self._first
        if found is None:
            raise Closed(self._name, "it has left its hosts")
        return found
