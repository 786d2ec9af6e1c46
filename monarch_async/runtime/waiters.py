"""Which calls wait for whom, so that a death need not look at every call: when a large mesh is stopped, thousands of
deaths come at once, with a request to each of its hosts in flight.

Found by asking the calls themselves, and kept until there is a new one: whom a call waits for only ever becomes less.
So what is found is asked again. What else is pending may come to wait for others, and is always among what is found.
"""

from collections import defaultdict
from typing import TYPE_CHECKING

from monarch_async.runtime.call import Call, MembersCall

if TYPE_CHECKING:
    from monarch_async.runtime.call import Pending

#: Of so few all are looked at.
_FEW = 32


class Waiters:
    """Over the table of what is pending, in which the newest is the last."""

    def __init__(self, pending: "dict[int, Pending]") -> None:
        """Nothing is looked at yet."""
        self._pending = pending
        self._by_host: dict[int, list[tuple[int, Pending]]] = {}
        self._others: list[tuple[int, Pending]] = []
        self._newest = 0

    def on(self, host: int) -> "list[tuple[int, Pending]]":
        """Return what is pending and may wait for something on this host, with ids: all that does, and some more."""
        pending = self._pending
        if len(pending) <= _FEW:
            return list(pending.items())
        newest = next(reversed(pending))
        if newest != self._newest:
            self._newest = newest
            self._sort()
        found = [*self._by_host.get(host, ()), *self._others]
        return [(id, waits) for id, waits in found if pending.get(id) is waits]

    def _sort(self) -> None:
        by_host: defaultdict[int, list[tuple[int, Pending]]] = defaultdict(list)
        self._others = []
        for id, waits in self._pending.items():
            if isinstance(waits, Call | MembersCall):
                for host in {path.dst >> 32 for path in waits.waits_for()}:
                    by_host[host].append((id, waits))
            else:
                self._others.append((id, waits))
        self._by_host = by_host
