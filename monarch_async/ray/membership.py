"""What a process has to know of a group to join it. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Membership:
    """One rank of a group. ``timeout_ms``: how long joining and each operation may take, in milliseconds."""

    group: str
    world_size: int
    rank: int
    backend: str
    timeout_ms: int

    def __post_init__(self) -> None:
        """Raises ValueError where this is no rank of such a group."""
        if self.world_size < 1:
            raise ValueError(f"the world size of group {self.group!r} is at least 1, not {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is none of group {self.group!r} of {self.world_size}")


Address = tuple[str, int]


class Declared:
    """The groups that were declared for actors, by name."""

    __slots__ = ("_members",)

    def __init__(self) -> None:
        """None."""
        self._members: dict[str, dict[str, Membership]] = {}  # group -> actor id

    def declare(self, group: str, members: dict[str, Membership]) -> None:
        """Note who is which rank. Raises RuntimeError where the group is declared already."""
        if group in self._members:
            raise RuntimeError(f"group {group!r} is declared already: destroy_collective_group comes first")
        self._members[group] = members

    def withdraw(self, group: str) -> None:
        """Forget it, if it was declared."""
        self._members.pop(group, None)

    def of(self, group: str, actor_id: str) -> Membership | None:
        """Return which rank of it an actor is, if any."""
        return self._members.get(group, {}).get(actor_id)
