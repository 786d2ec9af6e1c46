"""What locks, queues and the like have in common: they refer to something that an agent has."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import msgpack

from monarch_async.control.coordination import name_of
from monarch_async.errors import BadCall
from monarch_async.ids import AGENT, address
from monarch_async.mesh.domain import Domain, active_domain, find_domain
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.runtime.context import current_context
from monarch_async.sync.asked import Asked

_LONGEST_NAME = 256


class Reference:
    """Pickles, and works in every process of the program. Two are equal where they refer to the same.

    With a ``name`` it is the same one wherever that is written, at its *home*: the first host of the program, where
    none is given. Programs that are attached to the same first host, or give the same ``home``, share it. Without a
    name it is for whom this object is passed to; its home is the host of who makes it.

    Every method that asks the home raises HostLost where that is lost, and Closed where this program has no hosts.
    """

    __slots__ = ("_home", "_key", "_params")
    _kind: ClassVar[str]

    def __init__(self, name: str | None, home: HostMesh | None, *params: int) -> None:
        """See the class. Raises BadCall for a bad name or home; Closed without a name where there are no hosts."""
        what = type(self).__name__
        if home is not None and (not isinstance(home, HostMesh) or len(home.hosts) != 1):
            raise BadCall(what, f"home={home!r}: expected one host, such as hosts.slice(hosts=0)")
        self._home = address(home.hosts[0].id, AGENT) if home is not None else 0
        self._params = params
        if name is not None:
            check_name(what, name)
            self._key = f"{self._kind} {name}"
        else:
            self._key = f"{self._kind} #{os.urandom(16).hex()}"
            self._home = self._home or (find_domain() or active_domain()).store_agent(0)

    @property
    def name(self) -> str:
        """What errors and tables call it."""
        return name_of(self._key)

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and (self._key, self._home) == (other._key, other._home)

    def __hash__(self) -> int:
        return hash(self._key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self._key, self._home, self._params)

    def _refer(self, key: str, home: int, params: tuple[int, ...]) -> Self:
        """Make it a reference to what another refers to."""
        self._key, self._home, self._params = key, home, params
        return self

    # -- asking the home -------------------------------------------------------------------------------------------

    def _send(self, operation: str, *arguments: Any, stays: bool = False) -> Asked:
        """Send a request now. ``stays`` is as of `Asked`."""
        domain = active_domain()
        home = self._home or domain.home
        asked = Asked(domain.router, domain.requests, home, self._key, stays)
        asked.send(msgpack.packb(["sync", *self._request(domain, operation, arguments)]))
        return asked

    def _ask(self, operation: str, *arguments: Any) -> Any:
        """Send a request now; return what waits for its answer."""
        return self._send(operation, *arguments).outcome()

    def _post(self, operation: str, *arguments: Any) -> None:
        """Send a request whose answer nobody needs."""
        domain = active_domain()
        domain.requests.post(self._home or domain.home, "sync", *self._request(domain, operation, arguments))

    def _request(self, domain: Domain, operation: str, arguments: Sequence[Any]) -> list[Any]:
        is_client = domain.router.address == domain.root
        name = domain.router.name.removeprefix("proc ")
        host = "" if is_client else domain.hosts[0].name
        about = domain.root, os.getpid(), name, host, who_asks(name)
        return ["request", self._key, self._params, operation, arguments, about]


def who_asks(name: str) -> str:
    """Return what tables call who runs now, in the process of this name."""
    context = current_context()
    if context is None:
        return name
    describe = getattr(context.actor, "__describe_call__", None)
    return f"{context.name}.{context.endpoint}" if describe is None else describe(context.endpoint)


def _restore(cls: type[Reference], key: str, home: int, params: tuple[int, ...]) -> Reference:
    return cls.__new__(cls)._refer(key, home, params)


def check_name(what: str, name: object) -> None:
    """Raise BadCall unless ``name`` may name something that processes share."""
    is_text = isinstance(name, str) and name.strip() == name and name.isprintable() and 0 < len(name) <= _LONGEST_NAME
    if not is_text or name.startswith("#"):  # type: ignore[attr-defined]
        raise BadCall(what, f"name={name!r}: expected a text of one line, without # in front")


def check_number(what: str, name: str, value: object, least: int = 1) -> int:
    """Return ``value``, a whole number of at least ``least``. Raises BadCall."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 63:
        raise BadCall(what, f"{name}={value!r}: expected a whole number, {least} or more")
    return value
