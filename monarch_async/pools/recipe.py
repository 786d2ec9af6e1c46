"""What the replicas of a pool are made of."""

from collections.abc import Mapping
from dataclasses import dataclass

from monarch_async.runtime.actor import Actor, Interface
from monarch_async.scheduler.demand import Demand


@dataclass(frozen=True, slots=True)
class Recipe:
    """The name of the pool, its actor class and arguments, what a replica needs, and the environment of its proc."""

    name: str
    cls: type[Actor]
    interface: Interface
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    demand: Demand
    env: Mapping[str, str]
