"""What became of the owner of memory that is being read or written.

The data plane sees a process that is gone as a connection that breaks, or, where its machine has lost its power, as one
on which nothing happens. The agents know better: they tell how a process ended, or that its host is lost.
"""

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from monarch_async.errors import Error, Lost

if TYPE_CHECKING:
    from monarch_async.mesh.domain import Domain

#: Seconds a transfer takes, or has taken since the last time, when its owner is asked after.
_PATIENCE = 2.0


async def find_fate(domain: "Domain", owner: int) -> Lost | None:
    """Return how a process ended, as its agent tells; None where it lives, or nobody says."""
    if owner in (domain.router.address, domain.root):
        return None
    try:
        async with asyncio.timeout(domain.router.config.resume_window):
            await domain.requests.ask(owner, "status")
    except Lost as lost:
        return lost
    except (Error, TimeoutError):
        pass
    return None


class Deathwatch:
    """A block that is cancelled when the owner turns out to be gone, and raises how that ended then."""

    __slots__ = ("_asking", "_cancelling", "_domain", "_fate", "_owner", "_task", "_timer")

    _task: "asyncio.Task[object]"

    def __init__(self, domain: "Domain", owner: int) -> None:
        """``owner`` is the address of the process."""
        self._domain, self._owner = domain, owner
        self._asking: asyncio.Task[None] | None = None
        self._fate: Lost | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._timer = self._domain.router.loop.call_later(_PATIENCE, self._begin)

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()
        if self._fate is not None and self._task.uncancel() <= self._cancelling and cls is asyncio.CancelledError:
            raise self._fate from None

    def _begin(self) -> None:
        self._asking = self._domain.start_task(self._ask())

    async def _ask(self) -> None:
        while (fate := await find_fate(self._domain, self._owner)) is None:  # noqa: ASYNC110  nobody tells by himself
            await asyncio.sleep(_PATIENCE)
        self._fate = fate
        self._task.cancel()
