"""Who holds and who waits for what: locks, semaphores, events, barriers and queues of a cluster, at one moment.

    print(await ma.cluster().locks())
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from monarch_async.errors import HostLost
from monarch_async.ids import AGENT, address
from monarch_async.mesh.domain import Domain


@dataclass(frozen=True, slots=True)
class LockUser:
    """A process, or an endpoint in it, that has held something, or waited, for so many ``seconds``; ``what`` of it."""

    name: str
    seconds: float
    what: str

    def __str__(self) -> str:
        return f"{self.name}{f' ({self.what})' if self.what else ''}, {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class LockStatus:
    """One that is in use: its name, home, state in words, who holds it (of a queue: who produces), who waits."""

    name: str
    host: str
    state: str
    holders: tuple[LockUser, ...]
    waiting: tuple[LockUser, ...]


@dataclass(frozen=True, slots=True)
class LockTable:
    """All that are in use, those first that most wait for. ``str()`` is a table."""

    rows: tuple[LockStatus, ...]

    def __str__(self) -> str:
        if not self.rows:
            return "no lock, semaphore, event, barrier or queue is in use"
        lines = []
        for row in self.rows:
            lines.append(f"{row.name} on {row.host}: {row.state}")
            lines += [f"    held by   {user}" for user in row.holders]
            lines += [f"    waits     {user}" for user in row.waiting]
        return "\n".join(lines)


async def fetch_locks(domain: Domain) -> LockTable:
    """Ask every host that this process knows, and the home of what has a name. One that is lost has none."""
    agents = dict.fromkeys([*(address(host.id, AGENT) for host in domain.hosts), domain.home])
    asked = [domain.requests.send(agent, "sync", "facts") for agent in agents]
    rows: list[LockStatus] = []
    for agent, answer in zip(agents, await asyncio.gather(*asked, return_exceptions=True), strict=True):
        if isinstance(answer, HostLost):
            continue
        if isinstance(answer, BaseException):
            raise answer
        host = domain.name_of(agent)
        rows += [LockStatus(name, host, state, _users(held), _users(waits)) for name, state, held, waits in answer]
    return LockTable(tuple(sorted(rows, key=lambda row: -len(row.waiting))))


def _users(rows: Iterable[Any]) -> tuple[LockUser, ...]:
    return tuple(LockUser(who, seconds, what) for who, _, seconds, what in rows)
