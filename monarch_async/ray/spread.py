"""Tasks that are to be spread: by turns over the hosts that have room for them.

A host that tasks fill has room, as they end; one that is full of what stays, actors and placement groups, has none. So
a task waits for no host on which it may never run, and for its like only where all hosts have as many.
"""

import asyncio
import itertools
from collections.abc import Sequence

from monarch_async.control.host import Host
from monarch_async.mesh.cluster import cluster
from monarch_async.mesh.domain import active_domain
from monarch_async.ray.amounts import Amounts
from monarch_async.scheduler.amounts import Need, need_of, together, total
from monarch_async.scheduler.holdings import HostHoldings
from monarch_async.tasks.pool import TaskPool

#: Seconds for which what is held is taken to be as it was: a loop may submit thousands of tasks.
_FRESH = 0.1


class Spread:
    """See the module. On the hub's loop."""

    def __init__(self) -> None:
        """No turn was taken yet."""
        self._turns = itertools.count()
        self._kept: dict[int, Need] = {}  # by host: what is left beside what stays
        self._kept_at = -_FRESH

    async def next(self, amounts: Amounts, hosts: Sequence[Host]) -> Host:
        """Return the host whose turn it is, of those that have room; of all, where none has."""
        now = asyncio.get_running_loop().time()
        if now - self._kept_at >= _FRESH:
            rows = (await cluster().holdings()).hosts
            self._kept, self._kept_at = {row.host: _left(row) for row in rows}, now
        need = need_of(amounts.bundle())
        roomy = [host for host in hosts if host.id in self._kept and _fits(need, self._kept[host.id])] or hosts
        return roomy[next(self._turns) % len(roomy)]


def _left(row: HostHoldings) -> Need:
    """Return what a host would have left if no task ran there."""
    pool = active_domain().annexes.get(TaskPool)
    tasks = pool.name if isinstance(pool, TaskPool) else ""
    stays = [total(each.held) for each in row.holdings if each.name != tasks and each.within is None]
    whole, taken = total(row.total), together([*stays, total(row.elsewhere)])
    held = dict(taken.custom)
    custom = tuple([(name, amount - held.get(name, 0)) for name, amount in whole.custom])
    return Need(whole.cpus - taken.cpus, whole.gpus - taken.gpus, whole.memory - taken.memory, custom)


def _fits(need: Need, left: Need) -> bool:
    custom = dict(left.custom)
    has_plain = need.cpus <= left.cpus and need.gpus <= left.gpus and need.memory <= left.memory
    return has_plain and all(amount <= custom.get(name, 0) for name, amount in need.custom)
