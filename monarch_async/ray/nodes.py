"""Nodes and their resources, in Ray's names: `nodes`, `cluster_resources`, `available_resources`."""

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from monarch_async.control.host import Host
from monarch_async.mesh.cluster import cluster
from monarch_async.mesh.domain import active_domain
from monarch_async.ray.living import address_of, node_id_of, plain_resources
from monarch_async.ray.placing import Placing
from monarch_async.ray.runtime import current
from monarch_async.scheduler.amounts import UNIT, Need, need_of, together, total
from monarch_async.tasks.line import Stage
from monarch_async.tasks.pool import TaskPool


class Nodes:
    """What the hub answers about nodes."""

    def __init__(self, placing: Placing) -> None:
        """Of its hosts."""
        self._living = placing.living
        self._store_bytes = active_domain().router.config.store_bytes  # its agents have the same, as a rule

    @property
    def operations(self) -> dict[str, Callable[..., Any]]:
        """What the hub is asked; ``src`` is the process that asks."""
        return {
            "nodes.rows": lambda src: self.rows(),
            "nodes.totals": lambda src: self.totals(),
            "nodes.available": lambda src: self.available(),
            "nodes.available_by_node": lambda src: self.available_by_node(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each node, those that live first."""
        living = [self._row(host, True) for host in self._living.hosts]
        return living + [self._row(host, False) for host in self._living.lost.values()]

    def _row(self, host: Host, is_alive: bool) -> dict[str, Any]:
        address = address_of(host)
        return {
            "NodeID": node_id_of(host.id),
            "Alive": is_alive,
            "NodeManagerAddress": address,
            "NodeManagerHostname": socket.gethostname() if address == "127.0.0.1" else host.name,
            "NodeName": host.name,
            "Resources": self._resources(host) if is_alive else {},
            "Labels": self._living.labels(host),
            "alive": is_alive,
        }

    def _resources(self, host: Host) -> dict[str, float]:
        return {**plain_resources(host), **self._named(host)}

    def _named(self, host: Host) -> dict[str, float]:
        """Return the resources that nothing ever holds: which node it is, and what it has for objects."""
        store = self._store_bytes or host.resources.memory * 3 // 10
        named = self._living.node_resources(host)
        return {"object_store_memory": float(store), **named} if store else named

    def totals(self) -> dict[str, float]:
        """Return what all nodes that live have together."""
        return _summed([self._resources(host) for host in self._living.hosts])

    async def available_by_node(self) -> dict[str, dict[str, float]]:
        """Return what nobody holds now on each node that lives, by node id; what idle workers have is free."""
        idle = _held_idle()
        rows = (await cluster().holdings()).hosts
        free = {row.host: _as_ray([total(row.free), *idle.get(row.host, ())]) for row in rows}
        return {
            node_id_of(host.id): {**free.get(host.id, {}), **self._named(host)}
            for host in self._living.hosts
        }

    async def available(self) -> dict[str, float]:
        """Return what nobody holds now on all nodes together."""
        return _summed(list((await self.available_by_node()).values()))


def _held_idle() -> dict[int, list[Need]]:
    """Return by host what workers hold that are kept warm for tasks to come; they give it back when asked."""
    pool = active_domain().annexes.get(TaskPool)
    held: dict[int, list[Need]] = {}
    for worker in pool.queue.workers() if isinstance(pool, TaskPool) else ():
        if worker.stage is Stage.IDLE and worker.line.shape.within is None:
            held.setdefault(worker.host, []).append(need_of(worker.line.shape.bundle()))
    return held


def _as_ray(needs: list[Need]) -> dict[str, float]:
    need = together(needs)
    plain = {"CPU": need.cpus / UNIT, "GPU": need.gpus / UNIT, "memory": float(need.memory)}
    return {name: amount for name, amount in [*plain.items(), *_custom(need.custom)] if amount}


def _custom(custom: tuple[tuple[str, int], ...]) -> list[tuple[str, float]]:
    return [(name, amount / UNIT) for name, amount in custom]


def _summed(parts: list[dict[str, float]]) -> dict[str, float]:
    summed: Counter[str] = Counter()
    for part in parts:
        summed.update(part)  # type: ignore[arg-type]  # floats count as well
    return dict(summed)


def nodes() -> list[dict[str, Any]]:
    """Return a row for each node: NodeID, Alive, NodeManagerAddress, Resources, Labels, ...; also of those lost."""
    return current().ask_hub("nodes.rows")


def cluster_resources() -> dict[str, float]:
    """Return what all nodes have together, by the names of resources."""
    return current().ask_hub("nodes.totals")


def available_resources() -> dict[str, float]:
    """Return what nobody holds now on all nodes together; what is all held is left out."""
    return current().ask_hub("nodes.available")


def available_resources_per_node() -> Mapping[str, Mapping[str, float]]:
    """Return the same for each node, by node id."""
    return current().ask_hub("nodes.available_by_node")
