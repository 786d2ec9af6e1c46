"""What runs on a thread, or in a task of the loop: a task, a method of an actor, or neither."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunningContext:
    """Ids as hex; empty where there is none."""

    actor_id: str = ""
    actor_name: str = ""
    actor_facts: Any = None  #: what handles of the actor say
    actor_life: int = 0  #: the number of the hub's object that lives as long as there are any
    task_name: str = ""
    task_id: str = ""
    assigned_resources: Mapping[str, float] = field(default_factory=dict)
    is_restarted: bool = False
    placement_group: str = ""  #: the id of the one that it runs in
    captures: bool = False  #: what it starts is to run there, too
    namespace: str = ""
    runtime_env: Mapping[str, Any] | None = None  #: what it starts has this, too
    lend: Callable[[bool], None] | None = None  #: told when a task begins to wait for others, and when it goes on


running: ContextVar[RunningContext | None] = ContextVar("monarch_async_ray_running", default=None)


@contextmanager
def lending() -> Iterator[None]:
    """A block in which a task waits for others: they may have its cpus."""
    context = running.get()
    lend = context.lend if context is not None else None
    if lend is None:
        yield
        return
    lend(True)
    try:
        yield
    finally:
        lend(False)
