"""What programs import from ``ray.util``.

Ideas
- Pools, queues and metrics are made of tasks and actors, as a user would make them: they call ``ray`` and no more.
- Names are Ray's, down to those of the files, so that what a program imports is found. A function and the file it is in
  may have one name: the function is what ``ray.util`` has.

What it refuses
- Whatever is not listed here. Asking for it raises NotImplementedError, which names the native way where there is one.

Reading order
- ``placement_group.py``, ``scheduling_strategies.py``  where tasks and actors run
- ``actor_pool.py``                  a fixed pool of actors
- ``queue.py``                       a queue between any of them
- ``metrics.py``                     counters, gauges, histograms
- ``node_address.py``                where a host is reached
- ``collective``                     collective operations
- ``state.py``                       what runs: another name of `experimental.state.api`
- ``check_serialize.py``, ``debug.py``  why something cannot be sent; logging once
"""

import importlib

from monarch_async.ray import runtime
from monarch_async.ray.missing import missing
from monarch_async.ray.util.actor_pool import ActorPool
from monarch_async.ray.util.check_serialize import inspect_serializability
from monarch_async.ray.util.debug import log_once
from monarch_async.ray.util.node_address import get_node_ip_address
from monarch_async.ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "ActorPool",
    "PlacementGroup",
    "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "log_once",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]

_MODULES = frozenset({"check_serialize", "collective", "debug", "metrics", "queue", "scheduling_strategies", "state"})


def list_named_actors(all_namespaces: bool = False) -> list[str] | list[dict[str, str]]:
    """Return the names of the living actors that have one, detached or not.

    Those of this namespace; with ``all_namespaces`` of all, as dicts with ``name`` and ``namespace``.
    """
    mine = runtime.current()
    namespace = mine.context.namespace or mine.namespace
    return mine.ask_hub("actors.named", all_namespaces, namespace)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise missing(f"ray.util.{name}")
