"""Elastic pools of actors.

async with ma.ActorPool(Generator, "model", min=2, max=8, bundle=ma.Bundle(gpus=1)) as pool:
    text = await pool.generate.call_one(prompt)
    async with pool.lease(key=conversation) as replica:
        await replica.load.call_one(history)
        async for token in replica.tokens.stream_one(prompt): ...
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from monarch_async.errors import BadCall, Closed
from monarch_async.mesh.actor_mesh import ActorMesh, check_init
from monarch_async.mesh.domain import active_domain, find_domain
from monarch_async.mesh.proc_recipe import check_mesh_name
from monarch_async.pools.desk import PoolDesk
from monarch_async.pools.events import Key
from monarch_async.pools.face import PoolFace
from monarch_async.pools.growth import Grow, grow_by_one
from monarch_async.pools.recipe import Recipe
from monarch_async.pools.shell import PoolShell
from monarch_async.pools.sizing import Sizes
from monarch_async.pools.status import PoolStatus
from monarch_async.runtime.actor import Actor, Interface, interface_of
from monarch_async.scheduler.demand import Bundle, Demand

A = TypeVar("A")


class ActorPool(PoolFace[A], Generic[A]):
    """As many replicas of one actor as there is work for.

    Each replica has a placement of its own, a proc and an actor in it. Calls go to the one with the fewest leases. One
    that dies is replaced, after a pause that doubles with each failure in a row; the calls that it had fail. The pool
    pickles: other processes lease from it too, through the process that has made it, and lose it with that.

    Entering the block waits until ``min`` replicas are up, and raises what kept the first that failed from that. After
    ``failures`` in a row the pool gives up: replicas that live go on, who waits when there is none is told why, and
    whoever made the pool fails with that, as with any failure, unless a policy handles it (``ma.restart`` tries again).
    Leaving the block ends all replicas in order, and waits for that.
    """

    def __init__(
        self,
        cls: Callable[..., A],
        /,
        *args: object,
        min: int = 1,
        max: int = 8,
        bundle: Bundle | None = None,
        concurrency: int = 8,
        name: str = "",
        scale_up_after: float = 0.5,
        idle: float = 30.0,
        failures: int = 5,
        backoff: float = 0.1,
        demand: Demand | None = None,
        env: Mapping[str, str] | None = None,
        grow: Grow | bool = False,
        **kwargs: object,
    ) -> None:
        """Say what is wanted; nothing is started before the block is entered.

        Args:
            cls: the actor class; ``args`` and ``kwargs`` are those of its ``__init__``.
            min: replicas there are always. At 0 the first is started when somebody asks.
            max: replicas there are at most, those included that are on their way or ending.
            bundle: what each replica gets; one cpu where not given.
            concurrency: leases that one replica has at most at once; a call is a lease.
            name: in tables and errors; that of the class where not given.
            scale_up_after: seconds that somebody has to wait before more are started, as many as those that wait need.
            idle: seconds without a lease after which a replica ends, down to ``min``.
            failures: how many replicas may fail in a row; a lease that ends on one that lives begins the count anew.
            backoff: seconds before the first that failed is replaced; doubles, up to 30.
            demand: labels, priority and the like of each replica's placement, instead of ``bundle``; of one bundle. One
                that is ``preemptible`` is drained when it is taken back.
            env: environment variables of the replicas' procs.
            grow: called without arguments and awaited where a replica found no room for a second, or never would, to
                bring one more host; once for each such replica. True: `Cluster.grow`.

        Raises BadCall, BadEndpoint and BadDemand.
        """
        interface = interface_of(cast(type, cls))
        asked = next((word for word in _OF_BUNDLES if word in kwargs), "")
        hint = f" (what a replica gets to run on is bundle=ma.Bundle({asked}=...))" if asked else ""
        check_init(cast(type[Actor], cls), args, kwargs, hint)
        super().__init__(name or cast(type, cls).__name__, interface)
        check_mesh_name("ActorPool", self.name)
        self._sizes = _checked(self.name, Sizes(min, max, concurrency, scale_up_after, idle, failures, backoff))
        wanted = _demand(self.name, bundle, demand)
        self._recipe = Recipe(self.name, cast(Any, cls), interface, args, kwargs, wanted, dict(env or {}))
        self._grow: Grow | None = grow_by_one if grow is True else grow or None
        self._shell: PoolShell | None = None

    def __repr__(self) -> str:
        return f"<pool {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        shell = self._opened("pickle it")
        return find_pool, (shell.desk.address, shell.id, self.name, self.interface)

    async def __aenter__(self) -> Self:
        """Start the replicas. Raises Unschedulable, SpawnFailed, what ``__init__`` raised."""
        if self._shell is not None:
            raise Closed(f"pool {self.name}", "it was used: each is for one block")
        self._shell = shell = PoolShell(PoolDesk.of(active_domain()), self._recipe, self._sizes, self._grow)
        shell.pool = self
        try:
            await shell.wait_open()
        except BaseException:
            await shell.aclose("it did not start")
            raise
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End all replicas in order; who waits is told Closed."""
        await self._opened("leave it").aclose("its block has ended")

    @property
    def replicas(self) -> Sequence[A]:
        """The replicas that may be leased now, in the order in which they came."""
        return cast(Sequence[A], self._opened("look at it").meshes())

    async def status(self) -> PoolStatus:
        """See `PoolFace.status`."""
        return self._opened("look at it").status()

    def _opened(self, what: str) -> PoolShell:
        if self._shell is None:
            raise Closed(f"pool {self.name}", f"to {what} enter its block first: async with pool")
        return self._shell

    def _take_number(self) -> int:
        return self._opened("lease from it").desk.take_number()

    async def _lease(self, number: int, key: Key | None) -> A:
        shell = self._opened("lease from it")
        return cast(A, await shell.desk.lease(shell, number, key))

    def _return(self, number: int) -> None:
        shell = self._opened("lease from it")
        shell.desk.returned(shell, (shell.desk.address, number))

    async def _drain(self, replica: Any) -> None:
        await self._opened("drain it").drain(_identity(self.name, replica))


class RemotePool(PoolFace[Any]):
    """A pool of another process: what an `ActorPool` is where it was passed to."""

    def __init__(self, owner: int, id: int, name: str, interface: Interface) -> None:
        """``owner``: the address of the process that has it."""
        super().__init__(name, interface)
        self._owner, self._id = owner, id

    def __repr__(self) -> str:
        return f"<pool {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return find_pool, (self._owner, self._id, self.name, self.interface)

    async def status(self) -> PoolStatus:
        """See `PoolFace.status`. Waits for the process that has the pool."""
        return PoolStatus.unpack(await active_domain().requests.ask(self._owner, "pool", self._id, self.name, "status"))

    def _take_number(self) -> int:
        return PoolDesk.of(active_domain()).take_number()

    async def _lease(self, number: int, key: Key | None) -> Any:
        return await PoolDesk.of(active_domain()).lease_of(self._owner, (self._id, self.name), number, key)

    def _return(self, number: int) -> None:
        if (domain := find_domain()) is not None:
            with contextlib.suppress(Closed):
                domain.requests.post(self._owner, "pool", self._id, self.name, "return", number)

    async def _drain(self, replica: Any) -> None:
        actor = _identity(self.name, replica)
        await active_domain().requests.ask(self._owner, "pool", self._id, self.name, "drain", actor)


def find_pool(owner: int, id: int, name: str, interface: Interface) -> PoolFace[Any]:
    """Return a pool that was pickled: itself, in the process that has made it."""
    domain = find_domain()
    if domain is not None and domain.router.address == owner:
        shell = PoolDesk.of(domain).pools.get(id)
        if shell is not None and shell.pool is not None:
            return shell.pool
    return RemotePool(owner, id, name, interface)


def _identity(name: str, replica: object) -> int:
    if not isinstance(replica, ActorMesh):
        raise BadCall(f"pool {name}.drain", f"{replica!r}: expected a replica that the pool has given")
    return replica.identity


#: What is an argument of the actor here, and may have been meant for the bundle.
_OF_BUNDLES = ("cpus", "gpus", "memory", "custom")


def _checked(name: str, sizes: Sizes) -> Sizes:
    what = f"pool {name}"
    for field, least in (("least", 0), ("most", 1), ("concurrency", 1), ("failures", 1)):
        value = getattr(sizes, field)
        word = {"least": "min", "most": "max"}.get(field, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise BadCall(what, f"{word}={value!r}: expected a whole number of {least} or more")
    for field in ("scale_up_after", "idle", "backoff"):
        value = getattr(sizes, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise BadCall(what, f"{field}={value!r}: expected seconds")
    if sizes.least > sizes.most:
        raise BadCall(what, f"min={sizes.least} is more than max={sizes.most}")
    return sizes


def _demand(name: str, bundle: Bundle | None, demand: Demand | None) -> Demand:
    if demand is None:
        return Demand([bundle if bundle is not None else Bundle()], axis="replica", name=name)
    if bundle is not None:
        raise BadCall(f"pool {name}", "bundle and demand: say one of them")
    if len(demand.bundles) != 1:
        raise BadCall(f"pool {name}", f"a demand of {len(demand.bundles)} bundles: a replica has one")
    return demand
