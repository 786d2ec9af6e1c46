"""Where hosts are, as the client tells agents that ask; and what it tells those that have asked when that changes.

Agents ask at the first use of a host (see `peers`). So a membership change concerns only those that talk to that host,
and costs nothing for the others.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable

from monarch_async.control.membership import HostEvent, Membership
from monarch_async.ids import AGENT, address, host_of

#: How many hosts that have left are remembered, for those that still refer to them.
_MOST_GONE = 1024


class Directory:
    """``tell(agent, operation, host)`` posts to an agent; ``members`` are the hosts of this client."""

    def __init__(self, members: Membership, tell: Callable[[int, str, int], None]) -> None:
        """Nobody has asked."""
        self._members, self._tell = members, tell
        self._gone: OrderedDict[int, tuple[str, str]] = OrderedDict()  # name and reason
        self._askers: dict[int, set[int]] = defaultdict(set)  # by host: agents that may be in session with it

    def where(self, asker: int, host: int) -> tuple[str, ...]:
        """Return the name and URL of a host; name, nothing and why not where it is lost or unknown."""
        latest = self._members.latest(host)
        if latest is None:
            name, why = self._gone.get(host, (f"{host:08x}", "this program has no such host"))
            return name, "", why
        if latest.kind == "lost":
            return latest.host.name, "", latest.why
        self._askers[host].add(address(host_of(asker), AGENT))
        return latest.host.name, latest.host.url

    def take(self, event: HostEvent) -> None:
        """A host has changed: who may be in session with one that is gone forgets where it was."""
        if event.kind in ("lost", "left"):
            for agent in self.askers(event.host.id):
                self._tell(agent, "host_lost", event.host.id)
        if event.kind == "lost" or (event.kind == "left" and event.was != "lost"):
            self._gone[event.host.id] = event.host.name, event.why
            if len(self._gone) > _MOST_GONE:
                self._gone.popitem(last=False)
        if event.kind == "left":
            self._askers.pop(event.host.id, None)

    def askers(self, host: int) -> list[int]:
        """Return the agents of living hosts that were told of this one."""
        found = self._askers.get(host, ())
        return [agent for agent in found if self._members.state(host_of(agent)) in ("up", "suspect", "draining")]
