"""A host, as every process names it. Pure."""

from dataclasses import dataclass, field
from typing import Any

from monarch_async.scheduler.resources import Resources


@dataclass(frozen=True, slots=True)
class Host:
    """One host as every proc knows it: its id, its name, where its agent listens, what it has to place on.

    The id is that of the agent's process: it draws one when it starts. A host that was lost and comes back with the
    same process has the same id; one whose agent was started anew is another host.
    """

    id: int
    name: str
    url: str
    resources: Resources = field(default=Resources(), compare=False)

    def pack(self) -> list[Any]:
        """Return it for msgpack."""
        return [self.id, self.name, self.url, self.resources.pack()]

    @classmethod
    def unpack(cls, packed: list[Any]) -> "Host":
        """Return what `pack` made."""
        id, name, url, resources = packed
        return cls(id, name, url, Resources.unpack(resources))
