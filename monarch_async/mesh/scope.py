"""Scopes: where a failure that nobody handled ends, in the client.

A scope is an ``async with`` block: the one of the hosts, or `supervise`. What is spawned inside belongs to it. An
unhandled failure cancels the block's body and the block raises it, as a TaskGroup would: so a program that idles in an
await ends too, with the cause.
"""

import asyncio
from contextvars import ContextVar, Token
from types import TracebackType

from monarch_async.control.supervision import Budget, Failure, Policy, escalate, restarting
from monarch_async.mesh.domain import find_domain

_scope: ContextVar["Scope | None"] = ContextVar("monarch_async_scope", default=None)


class Scope:
    """One block, its policy, and the scope around it.

    S1. A failure nobody handles cancels the body, once; the first is the one the block raises.
    S2. It replaces what the body ends with afterwards, which becomes its context; not a KeyboardInterrupt or the like.
    S3. A block that has been left asks no policy and cancels nothing: what still belongs to it is its parent's.
    """

    def __init__(self, policy: Policy = escalate) -> None:
        """``policy`` is asked first about failures of what is spawned inside."""
        self.policy = policy
        self.parent: Scope | None = None
        self.failure: BaseException | None = None
        self.is_left = False
        self._has_failed_inside = False
        self._is_cancelled = False
        self._task: asyncio.Task[object] | None = None
        self._token: Token[Scope | None] | None = None

    async def __aenter__(self) -> "Scope":
        """Begin: what this task spawns from now on belongs here."""
        self.parent = current_scope()
        if self.is_left:  # entered again
            self.is_left, self.failure = False, None
        self._token = _scope.set(self)
        self._task = asyncio.current_task()
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End what was spawned inside; raise the failure that ended the body."""
        self.leave()
        try:
            domain = find_domain()
            if domain is not None:
                await domain.end(self, "the block that spawned it has ended")
        finally:
            self.raise_failure(error)

    def leave(self) -> None:
        """The body has ended: no failure cancels the task any more."""
        self.is_left = True
        self._has_failed_inside = self.failure is not None
        task, self._task = self._task, None
        was_cancelled, self._is_cancelled = self._is_cancelled, False
        if self._token is not None:
            try:
                _scope.reset(self._token)
            except ValueError:  # left in another context than entered (an async generator, a notebook)
                _scope.set(self.parent)
        if was_cancelled and task is not None:
            task.uncancel()

    def raise_failure(self, error: BaseException | None) -> None:
        """Raise the failure, if there is one; ``error`` is what the body ended with (S2)."""
        failure = self.failure
        if failure is None or failure is error:
            return
        if error is None or isinstance(error, asyncio.CancelledError):
            raise failure from failure.__cause__
        if isinstance(error, Exception) and self._has_failed_inside:
            raise failure

    def fail(self, error: BaseException) -> None:
        """Nobody handled ``error``: cancel the body. Only the first counts (V3)."""
        if self.is_left and self.parent is not None:
            self.parent.fail(error)
        elif self.failure is None:
            self.failure = error
            if self._task is not None:  # soon, when it waits: the body may be what runs now, and about to end
                self._task.get_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._is_cancelled = True
            self._task.cancel()

    @property
    def has_policy(self) -> bool:
        """Whether this block or one around it handles failures."""
        mine = not self.is_left and self.policy is not escalate
        return mine or (self.parent is not None and self.parent.has_policy)

    async def handle(self, failure: Failure) -> bool:
        """V1: ask the policies from here outwards. What a policy raises is raised."""
        scope: Scope | None = self
        while scope is not None:
            try:
                if not scope.is_left and await scope.policy(failure):
                    return True
            except Exception as error:
                error.add_note(f"raised by a supervision policy while it handled: {failure}")
                raise
            scope = scope.parent
        return False


def current_scope() -> Scope | None:
    """Return the innermost scope of this task that has not been left."""
    scope = _scope.get()
    while scope is not None and scope.is_left:
        scope = scope.parent
    return scope


def supervise(policy: Policy) -> Scope:
    """Return an ``async with`` block that owns what is spawned inside; ``policy`` is asked about failures of that.

    The policy is any ``async def policy(failure) -> bool``: true means handled. A failure that no policy handles
    cancels the block's body and the block raises it. What was spawned inside ends with the block.

    Raises TypeError where ``policy`` cannot be called.
    """
    if not callable(policy):
        raise TypeError(f"supervise({policy!r}): expected `async def policy(failure) -> bool`, or ma.restart(...)")
    return Scope(policy)


def restart(times: int = 3, backoff: float = 0.1) -> Policy:
    """Return a policy that restarts what failed, up to ``times`` per member, then lets the failure through.

    The pause before a restart starts at ``backoff`` seconds and doubles. A restart that itself fails uses up another
    try. Raises Error where either is negative.
    """
    return restarting(Budget(times, backoff), asyncio.sleep)
