"""Scopes: where a failure that nobody handled ends, in the client.

A scope is an ``async with`` block: the one of the hosts, or `supervise`. What is spawned inside belongs to it. An
unhandled failure cancels the block's body and the block raises it, as a TaskGroup would: so a program that idles in an
await ends too, with the cause.
"""

import asyncio
from contextvars import ContextVar, Token
from types import TracebackType

from monarch_async.control.supervision import Budget, Failure, Policy, escalate, restarting

_scope: ContextVar["Scope | None"] = ContextVar("monarch_async_scope", default=None)


class Scope:
    """One block, its policy, and the scope around it."""

    def __init__(self, policy: Policy = escalate) -> None:
        """``policy`` is asked first about failures of what is spawned inside."""
        self.policy = policy
        self.parent: Scope | None = None
        self.failure: BaseException | None = None
        self._task: asyncio.Task[object] | None = None
        self._token: Token[Scope | None] | None = None

    async def __aenter__(self) -> "Scope":
        """Begin: what this task spawns from now on belongs here."""
        self.parent = _scope.get()
        self._token = _scope.set(self)
        self._task = asyncio.current_task()
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End; raises the failure that ended the body, unless the body already ended with an error of its own."""
        failure = self.leave(error)
        if failure is not None:
            raise failure from failure.__cause__

    def leave(self, error: BaseException | None) -> BaseException | None:
        """End: no failure cancels the task any more. Return the one to raise in place of ``error``, if any."""
        task, self._task = self._task, None
        if self._token is not None:
            try:
                _scope.reset(self._token)
            except ValueError:  # left in another context than entered (an async generator, a notebook)
                _scope.set(self.parent)
        if self.failure is None or task is None:
            return None
        was_cancelled_by_us = task.uncancel() == 0
        if error is None or (isinstance(error, asyncio.CancelledError) and was_cancelled_by_us):
            return self.failure
        return None

    def fail(self, error: BaseException) -> None:
        """Nobody handled ``error``: cancel the body. Only the first counts (V3)."""
        if self.failure is None:
            self.failure = error
            if self._task is not None:
                self._task.cancel()

    async def handle(self, failure: Failure) -> bool:
        """V1: ask the policies from here outwards. A policy that raises has not handled it."""
        scope: Scope | None = self
        while scope is not None:
            try:
                if await scope.policy(failure):
                    return True
            except Exception as error:
                error.add_note(f"raised by a supervision policy while it handled: {failure}")
                if error.__cause__ is None and error is not failure.error:
                    error.__cause__ = failure.error
                self.fail(error)
                return True
            scope = scope.parent
        return False


def current_scope() -> Scope | None:
    """Return the innermost scope of this task."""
    return _scope.get()


def supervise(policy: Policy) -> Scope:
    """Return an ``async with`` block whose ``policy`` is asked about failures of what is spawned inside.

    The policy is any ``async def policy(failure) -> bool``: true means handled. A failure that no policy handles
    cancels the block's body and the block raises it.

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
