"""What an agent asks others itself: its procs, other agents. Each is answered, or fails when who was asked is gone."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack

from monarch_async.control.refusal import as_refusal
from monarch_async.errors import HostLost, Lost
from monarch_async.ids import agent_of, format_address
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import CONTROL, pack_frame


class Inquiries:
    """See the module. Requests to one agent arrive in the order in which they were made."""

    def __init__(self, own: int, find: Callable[[int], Connection | None]) -> None:
        """``own``: the agent's address; ``find`` returns the one way to an agent or proc."""
        self._own, self._find = own, find
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, tuple[int, asyncio.Future[Any]]] = {}
        self._last = 0

    def ask(self, dst: int, *request: object) -> "asyncio.Future[Any]":
        """Send a request now; return its answer: a future, which raises Lost, or the Error that it was refused with."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._last = call = self._last + 1
        self._asked[call] = dst, answer
        answer.add_done_callback(lambda _: self._asked.pop(call, None))
        if not self._send(dst, call, request):
            answer.set_exception(HostLost(format_address(agent_of(dst)), "it is not known here"))
        return answer

    def post(self, dst: int, *request: object) -> None:
        """Send a request whose answer nobody needs; one that is gone needs it no more."""
        self._send(dst, 0, request)

    def _send(self, dst: int, call: int, request: tuple[object, ...]) -> bool:
        connection = self._find(dst)
        if connection is None:
            return False
        connection.send(pack_frame(CONTROL, 0, dst, self._own, 0, call, b"", msgpack.packb(request)))
        return True

    def take(self, call: int, payload: bytes) -> None:
        """An answer has come."""
        _, answer = self._asked.get(call, (0, None))
        if answer is None or answer.done():
            return
        value = msgpack.unpackb(payload, strict_map_key=False)
        error = as_refusal(value)
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    def lose(self, agent: int, error: Lost) -> None:
        """A host is gone: it answers nothing any more, nor does a proc of it."""
        for dst, answer in list(self._asked.values()):
            if agent_of(dst) == agent and not answer.done():
                answer.set_exception(error)
