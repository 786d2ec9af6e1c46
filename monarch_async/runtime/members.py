"""The members of one mesh as a router needs them: paths in rank order, and procs by host for casts."""

import struct
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from monarch_async.ids import agent_of, proc_of

if TYPE_CHECKING:
    from monarch_async.runtime.path import Path
    from monarch_async.runtime.router import Router


class Members:
    """Made once per mesh (or slice) and process."""

    def __init__(self, router: "Router", addresses: Sequence[int], actor: int, max_concurrency: int) -> None:
        """``addresses``: proc addresses in rank order; ``actor``: the id all of them share."""
        self.router, self.actor = router, actor
        self.paths: list[Path] = [router.path(address, actor, max_concurrency) for address in addresses]
        self.hosts = _by_host(addresses)

    def hosts_without(self, others: "Collection[Path]") -> list[tuple[int, bytes]]:
        """Return ``hosts`` of the members that are not among ``others``."""
        if not others:
            return self.hosts
        if len(others) == len(self.paths):
            return []
        left_out = {path.dst for path in others}
        return _by_host([path.dst for path in self.paths if path.dst not in left_out])


def _by_host(addresses: Sequence[int]) -> list[tuple[int, bytes]]:
    """Return (agent address, packed u32 proc ids) for each host."""
    by_agent: dict[int, list[int]] = defaultdict(list)
    for address in addresses:
        by_agent[agent_of(address)].append(proc_of(address))
    return [(agent, struct.pack(f"<{len(ids)}I", *ids)) for agent, ids in by_agent.items()]
