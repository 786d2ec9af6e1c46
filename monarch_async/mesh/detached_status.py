"""What agents say of detached leases, put together for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monarch_async.mesh.duration import format_age


@dataclass(frozen=True, slots=True)
class DetachedStatus:
    """A detached lease at one moment; times are seconds.

    ``living`` and ``gone`` are ranks of its procs: those that run, and those that ended or whose host is not there.
    ``owner`` is the client that has it, empty where none does; ``away`` says how long that one has not been connected.
    """

    name: str
    made_by: str
    age: float
    owner: str
    away: float
    previous_owner: str
    unowned_for: float
    hosts: tuple[str, ...]
    actors: tuple[str, ...]
    living: tuple[int, ...]
    gone: tuple[int, ...]

    def __str__(self) -> str:
        procs = f"{len(self.living)} of {len(self.living) + len(self.gone)} procs on {', '.join(self.hosts)}"
        actors = f" with {', '.join(self.actors)}" if self.actors else ""
        if not self.owner:
            holder = f"unowned for {format_age(self.unowned_for)}, was of {self.previous_owner or self.made_by}"
        elif self.away:
            holder = f"held by {self.owner}, not connected for {format_age(self.away)}"
        else:
            holder = f"held by {self.owner}"
        return f"{self.name}: {procs}{actors}, {format_age(self.age)} old, {holder}"


def merge_leases(rows: Sequence[Mapping[str, Any]]) -> DetachedStatus:
    """Put together what several agents say of one lease; those with members know more than the others."""
    first = max(rows, key=lambda row: (len(row["hosts"]), bool(row["owner"])))
    living = sorted({rank for row in rows for rank in row["living"]})
    ranks = sorted(rank for _, _, _, ranks in first["hosts"] for rank in ranks)
    return DetachedStatus(
        name=first["name"],
        made_by=first["made_by"],
        age=max(row["age"] for row in rows),
        owner=first["owner_name"],
        away=first["away"],
        previous_owner=first["previous_owner"],
        unowned_for=first["unowned_for"],
        hosts=tuple(name for _, name, _, _ in first["hosts"]),
        actors=tuple(first["actors"]),
        living=tuple(living),
        gone=tuple(rank for rank in ranks if rank not in set(living)),
    )
