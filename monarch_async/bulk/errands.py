"""What transports ask of the other plane: what they need of a connection for it, and requests that nobody waits for."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from monarch_async.errors import TransferError, WireError


class Link(Protocol):
    """What a transport needs of `stream.BulkLink`."""

    @property
    def is_open(self) -> bool:
        """Whether its connection stands."""
        ...

    async def ask(self, operation: str, *arguments: Any) -> Any:
        """Have the other plane do something; raises what that raised, TransferBroken where the connection breaks."""
        ...


class Peer(Protocol):
    """What an operation needs of `bulk_server.Client`."""

    def on_gone(self, callback: Callable[[], None], /) -> None:
        """Have that called when its connection has ended."""
        ...


#: What a peer may ask of a plane, with its arguments; see `bulk_server`.
Operation = Callable[[Any, list[Any]], Awaitable[Any]]


class Errands:
    """Requests that nobody waits for, such as releases. Their owner closes this."""

    def __init__(self) -> None:
        """None yet."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, request: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Send a request. It fails only where the connection ends, which settles what it is about as well."""
        task = asyncio.create_task(request)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()  # looked at, so that nobody complains of it
            if error is not None and not isinstance(error, TransferError | WireError | OSError):
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a request to another data plane failed", "exception": error, "task": task}
                )

    async def aclose(self) -> None:
        """Wait until all have been answered."""
        while self._tasks:
            await asyncio.wait(self._tasks)
