"""Failures go up the tree of who spawned whom until somebody handles them.

    V1. A failure is put to the innermost policy first, then outwards; the first that returns true has handled it.
    V2. One failure, one report: a death that pending calls carry to their callers is theirs; nobody else is told unless
        they do not look. A death nobody waits for ends the owning scope.
    V3. The first cause is the one shown; what follows from it is not reported again.

A policy is any ``async def policy(failure) -> bool``. Those that are ready made: `escalate` (the default), `ignore`,
`restarting` (``ma.restart``, with asyncio's clock).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from monarch_async.errors import Error


class Restartable(Protocol):
    """A mesh whose members can be made anew."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    def restart(self, rank: int) -> Awaitable[None]:
        """Make one member anew, in its place."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong: the error, the mesh of ours it happened in, and the rank there."""

    error: Exception
    mesh: Restartable
    rank: int

    def __str__(self) -> str:
        return f"{self.mesh.name}[{self.rank}]: {self.error}"


Policy = Callable[[Failure], Awaitable[bool]]


async def escalate(failure: Failure) -> bool:
    """Handle nothing: the failure goes on to whoever is further out."""
    return False


async def ignore(failure: Failure) -> bool:
    """Handle everything by doing nothing; calls to a dead member fail with its death."""
    return True


class Budget:
    """How often each member may be restarted, and how long to wait before each time. Pure."""

    def __init__(self, times: int, backoff: float) -> None:
        """``times`` per member; the pause doubles from ``backoff`` seconds. Raises Error where either is negative."""
        if times < 0 or backoff < 0:
            raise Error(f"restart(times={times}, backoff={backoff:g}): neither may be negative")
        self.times, self._backoff = times, backoff
        self._used: dict[tuple[Restartable, int], int] = {}

    def take(self, mesh: Restartable, rank: int) -> float | None:
        """Return the pause before the next restart of this member, or None where there is none left."""
        used = self._used.get((mesh, rank), 0)
        if used >= self.times:
            return None
        self._used[(mesh, rank)] = used + 1
        return self._backoff * 2**used


def restarting(budget: Budget, sleep: Callable[[float], Awaitable[None]]) -> Policy:
    """Return the policy that restarts what failed within ``budget``, then lets the failure through.

    ``sleep`` waits for seconds. A restart that itself fails uses up another try. A failure that is let through has a
    note that says why.
    """

    async def policy(failure: Failure) -> bool:
        why = ""
        while (pause := budget.take(failure.mesh, failure.rank)) is not None:
            await sleep(pause)
            try:
                await failure.mesh.restart(failure.rank)
            except Error as error:
                why = f"; the last one failed: {error}"
                continue
            return True
        failure.error.add_note(f"not restarted: {budget.times} restarts of this member are used up{why}")
        return False

    return policy
