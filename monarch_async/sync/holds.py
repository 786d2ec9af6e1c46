"""What this process holds of locks and semaphores, and how it is taken and given back.

Giving back is one message, sent at once: it waits for nothing, neither here nor at the home.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from monarch_async.errors import BadCall, Closed
from monarch_async.mesh.domain import Domain, active_domain, find_domain
from monarch_async.mesh.guardian import current_guardian
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.runtime.context import current_context
from monarch_async.sync.asked import Asked
from monarch_async.sync.reference import Reference


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock or permits: its name, for how many seconds, by which token, how many permits."""

    name: str
    seconds: float
    token: int
    count: int

    def __str__(self) -> str:
        return f"{self.name}, for {self.seconds:.1f} s (token {self.token})"


class Hold:
    """One grant. It belongs to the actor whose endpoint, or the task, that got it, and ends with that: a
    `mesh.domain.Belonging`."""

    __slots__ = ("_holds", "asked", "owner", "reference", "token")

    def __init__(self, holds: "Holds", reference: "Held", asked: Asked, token: int, owner: object) -> None:
        """``owner`` is None for the client, and for what no actor or task does."""
        self._holds, self.reference, self.asked, self.token, self.owner = holds, reference, asked, token, owner

    def end(self) -> None:
        """The owner has ended."""
        self._holds.drop(self)
        with contextlib.suppress(Closed):
            self.reference._post("release", self.token)


class Holds:
    """All of one process: a `mesh.domain.Annex`."""

    def __init__(self, domain: Domain) -> None:
        """None yet."""
        self._domain = domain
        self._by_token: dict[tuple[str, int], Hold] = {}

    @classmethod
    def of(cls, domain: Domain) -> "Holds":
        """Return this process's."""
        found = domain.annexes.get(cls)
        if not isinstance(found, cls):
            found = domain.annexes[cls] = cls(domain)
        return found

    def add(self, reference: "Held", asked: Asked, token: int) -> None:
        """Something was granted."""
        hold = Hold(self, reference, asked, token, _owner())
        self._by_token[reference._key, token] = hold
        if hold.owner is not None:
            self._domain.belongings.add(hold)

    def find(self, key: str, token: int) -> Hold | None:
        """Return what is held, or was until its home was lost."""
        return self._by_token.get((key, token))

    def drop(self, hold: Hold) -> None:
        """It is given back."""
        self._by_token.pop((hold.reference._key, hold.token), None)
        self._domain.belongings.discard(hold)
        hold.asked.forget()

    async def aclose(self) -> None:
        """The process leaves its hosts, whose agents release what it holds."""
        self._by_token.clear()


def _owner() -> object:
    guardian, context = current_guardian(), current_context()
    return guardian or (context.instance if context is not None else None)


class Held(Reference):
    """What can be held: base of `Lock` and `Semaphore`."""

    __slots__ = ("_entered",)

    def __init__(self, name: str | None, home: HostMesh | None, total: int) -> None:
        """``total`` permits."""
        super().__init__(name, home, total)
        self._entered: dict[asyncio.Task[Any] | None, list[int]] = {}

    def _refer(self, key: str, home: int, params: tuple[int, ...]) -> Any:
        self._entered = {}
        return super()._refer(key, home, params)

    async def _acquire(self, count: int) -> int:
        asked = self._send("acquire", count, stays=True)
        token = await asked.outcome()
        Holds.of(active_domain()).add(self, asked, token)
        return token

    def release(self, token: int) -> Awaitable[None]:
        """Give back what was granted with this token, in this process. Sent at once; the next in line has it then.

        Await the result only to learn whether it was held until now: NotHolder where it was not.
        """
        holds = Holds.of(active_domain())
        hold = holds.find(self._key, token)
        if hold is not None:
            holds.drop(hold)
        return self._send("release", token).unawaited()

    async def check(self, token: int) -> None:
        """Return where the token is that of a holder now, in whatever process. Raises NotHolder where it is no longer.

        What writes on behalf of a holder asks this, or keeps the largest token it has seen and refuses smaller ones.
        """
        await self._ask("check", token)

    async def holders(self) -> list[Holder]:
        """Return who holds it now."""
        return [Holder(*row) for row in await self._ask("holders")]

    # -- async with ------------------------------------------------------------------------------------------------

    async def _enter(self, count: int) -> int:
        token = await self._acquire(count)
        self._entered.setdefault(asyncio.current_task(), []).append(token)
        return token

    def _exit(self, error: BaseException | None) -> None:
        """Give back what the block was entered with; raise why that had been lost before, where nothing else is."""
        token = self._take_entered()
        domain = find_domain()
        if domain is None:
            return  # the program has left its hosts: nothing is held any more
        holds = Holds.of(domain)
        hold = holds.find(self._key, token)
        if hold is None:
            return  # released inside the block
        holds.drop(hold)
        with contextlib.suppress(Closed):
            self._post("release", token)
        if hold.asked.lost is not None and error is None:
            raise hold.asked.lost

    def _take_entered(self) -> int:
        """Return the token of the innermost block of this task; of any, where it is left by another than entered it."""
        task = asyncio.current_task()
        if task not in self._entered:
            task = next(reversed(self._entered))
        tokens = self._entered[task]
        token = tokens.pop()
        if not tokens:
            del self._entered[task]
        return token

    def _check_not_entered(self) -> None:
        """Raise BadCall where this task would wait for itself."""
        if asyncio.current_task() in self._entered:
            raise BadCall(f"async with {self.name}", "this task is inside of such a block already: it waits for itself")

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Give it back, without waiting. Raises HostLost where the home was lost while the block ran."""
        self._exit(error)
