"""``context()``: who is running, inside an endpoint."""

import logging
from collections.abc import MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_async.ranks import Extent, Point

if TYPE_CHECKING:
    from monarch_async.runtime.instance import Instance


@dataclass(frozen=True)
class ProcInfo:
    """The proc this code runs in: its address, mesh name, rank and point there, host name and pid."""

    address: int
    name: str
    rank: int
    point: Point
    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name}[{self.rank}]"


class Context:
    """One call, seen from inside. Made per call, so everything costly is computed when asked for.

    ``rank``, ``point`` and ``extent`` are those of the actor mesh as spawned.
    """

    __slots__ = ("call", "chain", "endpoint", "instance", "is_over", "src")

    def __init__(
        self, instance: "Instance", endpoint: str, src: int, call: int, chain: list[tuple[int, int, str]] | None
    ) -> None:
        self.instance, self.endpoint, self.src, self.call, self.chain = instance, endpoint, src, call, chain
        self.is_over = False  #: whether the endpoint has ended; a task that it left behind still has its context

    @property
    def rank(self) -> int:
        """Flat rank of this actor in its mesh."""
        return self.instance.rank

    @property
    def point(self) -> Point:
        """Its coordinates."""
        return self.instance.extent.point(self.instance.rank)

    @property
    def extent(self) -> Extent:
        """The extent of its mesh."""
        return self.instance.extent

    @property
    def actor(self) -> object:
        """The actor object itself."""
        return self.instance.actor

    @property
    def name(self) -> str:
        """``mesh[rank]``."""
        return self.instance.label

    @property
    def proc(self) -> ProcInfo:
        """The proc it lives in."""
        return self.instance.proc.info

    @property
    def host(self) -> str:
        """The name of the host."""
        return self.instance.proc.info.host

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records say mesh, rank, endpoint and host."""
        return self.instance.logger

    @property
    def caller(self) -> str:
        """``mesh[rank].endpoint`` of the endpoint that called; empty where it was no endpoint, or did not wait."""
        return self.chain[-1][2] if self.chain else ""

    def as_parent(self) -> list[tuple[int, int, str]] | None:
        """The chain of calls that wait for a call made from here, outermost first; None where nobody does."""
        if self.is_over:
            return None
        own = (self.instance.id, self.instance.rank, f"{self.instance.label}.{self.endpoint}")
        return [*self.chain, own] if self.chain else [own]


_current: ContextVar[Context | None] = ContextVar("monarch_async_context", default=None)


def context() -> Context:
    """Return the running call's context: rank, point, extent, actor, proc, host, a logger.

    Works in endpoints, in tasks they start, and in the hooks ``__init__``, ``setup`` and ``teardown``. Raises
    RuntimeError elsewhere.
    """
    found = _current.get()
    if found is None:
        raise RuntimeError("context() is only known inside an actor: there is no running endpoint here")
    return found


def current_context() -> Context | None:
    """Return the running call's context, or None outside actors."""
    return _current.get()


def enter_hook(instance: "Instance", name: str) -> None:
    """Make the hook ``name`` of ``instance`` what runs in this task from now on."""
    _current.set(Context(instance, name, instance.owner[0], 0, None))


class ActorLog(logging.LoggerAdapter[logging.Logger]):
    """Says with every record which actor on which host it comes from."""

    def __init__(self, label: str, host: str) -> None:
        """Log below ``monarch_async.actor.<mesh>``."""
        super().__init__(logging.getLogger(f"monarch_async.actor.{label.partition('[')[0]}"), {})
        self.label, self.host = label, host

    def process(self, msg: object, kwargs: MutableMapping[str, object]) -> tuple[object, MutableMapping[str, object]]:
        """Prefix the message."""
        return f"[{self.label} on {self.host}] {msg}", kwargs
