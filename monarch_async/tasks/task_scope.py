"""What belongs to a running task, and ends with it.

S1. What it has submitted: see `children`.
S2. What it has spawned, placed, registered or locked, in its process or elsewhere. A death there is known to the calls
    that are in flight, and is no death of the task.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack

from monarch_async.control.supervision import Failure
from monarch_async.mesh.domain import Domain
from monarch_async.mesh.guardian import Guardian, guarding
from monarch_async.tasks.children import Children, children

log = logging.getLogger("monarch_async")


class TaskScope:
    """See the module. Entered and left where the task runs, ended on the loop."""

    __slots__ = ("_children", "_domain", "_guardian", "_name", "_stack")

    def __init__(self, domain: Domain, name: Callable[[], str], mine: Children) -> None:
        """``name`` says what the task is called; ``mine`` is what it will have submitted."""
        self._domain, self._name, self._children = domain, name, mine
        self._guardian = Guardian(self._lost)
        self._stack = ExitStack()

    def __bool__(self) -> bool:
        """Whether there is anything to be ended."""
        return bool(self._children) or self._domain.owns(self._guardian)

    def enter(self) -> None:
        """What is made from now on, in this context, belongs to it."""
        token = children.set(self._children)
        self._stack.callback(children.reset, token)
        self._stack.enter_context(guarding(self._guardian))

    def leave(self) -> None:
        """What the task has left running makes what it makes on its own account."""
        self._children.is_over = True
        self._stack.close()

    async def finish(self) -> None:
        """The task has returned. Raises what failed in something it submitted, and did not look at."""
        await self._children.finish()
        await self._end()

    async def abandon(self) -> None:
        """The task has failed, or was cancelled."""
        await self._children.abandon()
        await self._end()

    async def _end(self) -> None:
        if self._domain.owns(self._guardian):
            await self._domain.end(self._guardian, f"{self._name()} has ended")

    def _lost(self, failure: Failure) -> None:
        log.warning("%s goes on without %s[%d]: %s", self._name(), failure.mesh.name, failure.rank, failure.error)
