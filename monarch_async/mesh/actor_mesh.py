"""Actor meshes: references to actors, addressed as an n-d array.

A reference is addresses and an interface, nothing more: it pickles, it works from any proc, and it keeps nothing alive.
"""

import asyncio
import functools
import inspect
from array import array
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from monarch_async.errors import BadCall, Closed, NotAnEndpoint
from monarch_async.ids import random_id64
from monarch_async.mesh.detachment import MOST_KEPT, Detachment
from monarch_async.mesh.domain import Domain, active_domain, find_domain
from monarch_async.mesh.endpoint import Endpoint, StreamEndpoint
from monarch_async.mesh.proc_mesh import ProcMesh
from monarch_async.mesh.sliced import Sliced
from monarch_async.ranks import Extent, Region
from monarch_async.runtime.actor import Actor, Interface, Style, interface_of
from monarch_async.runtime.call import Start
from monarch_async.runtime.delivery import SPAWN
from monarch_async.runtime.members import Members
from monarch_async.runtime.proc import SpawnOrder
from monarch_async.runtime.router import active_router
from monarch_async.wire.frame import EAGER, GATHERED, WANTS_REPLY
from monarch_async.wire.message import CallFields, pack_call_fields
from monarch_async.wire.payload import Encoded, Ticketed, dumps_recipe

_SPAWN = CallFields(SPAWN)
_SPAWN_CONTROL = pack_call_fields(_SPAWN)


class ActorGroup:
    """The actors of one `spawn`; known only in the process that spawned them, where they can be made anew."""

    def __init__(
        self,
        domain: Domain,
        procs: ProcMesh,
        name: str,
        interface: Interface,
        max_concurrency: int,
        recipe: Encoded,
    ) -> None:
        """``recipe``: the pickled class and arguments. The actors are spawned."""
        self._set(domain, procs, name, random_id64())
        order = SpawnOrder(name, procs.region, self.owner_actor, recipe.skeleton)
        self._order: Encoded | None = order.pack(recipe.buffers)
        self._recipe: Encoded | None = recipe  # keeps what it has references to: members may be made anew
        self.mesh = ActorMesh(name, self.id, interface, self.members, max_concurrency, Region.full(self.extent), self)
        self._enlist()
        if (detachment := self.detachment) is not None:
            detachment.note(self.mesh, procs.region, self._order)
        self.ready: Start | asyncio.Future[None] = self._cast()

    @classmethod
    def adopted(cls, domain: Domain, procs: ProcMesh, mesh: "ActorMesh", order: Encoded | None) -> "ActorGroup":
        """Return the group of actors that are there already. ``order`` makes them anew; None: nothing does."""
        group = cls.__new__(cls)
        group._set(domain, procs, mesh.name, mesh.identity)
        group._order, group._recipe = order, None
        group.mesh = mesh  # which finds its group once that is enlisted
        group._enlist()
        group.ready = domain.router.loop.create_future()
        group.ready.set_result(None)
        return group

    def _set(self, domain: Domain, procs: ProcMesh, name: str, id: int) -> None:
        self.domain, self.name, self.procs = domain, name, procs
        self.id = id
        self.members = procs.addresses
        self.extent: Extent = procs.extent
        self.owner, self.owner_actor = domain.owner(), domain.owner_actor()
        self.is_stopped = False
        self._restarting: dict[int, asyncio.Task[None]] = {}  # by proc address: who asks again waits for the same

    def _enlist(self) -> None:
        self.domain.groups[self.id] = self
        if self.procs.allocation is not None:
            self.procs.allocation.groups.append(self)

    @property
    def detachment(self) -> Detachment | None:
        """The detached lease that its procs are of, where they are of one."""
        return self.procs.allocation.detachment if self.procs.allocation is not None else None

    def _cast(self) -> Start:
        cast = self.mesh.cast
        router = cast.router
        assert self._order is not None
        call = Start(router, f"spawn of {self.name}", cast.paths, lambda _: None, first_error=True)
        call.id = router.register(call)
        flags = WANTS_REPLY | GATHERED
        call.nbytes = router.cast(cast, flags, _SPAWN, _SPAWN_CONTROL, self._order, call.id)
        if type(self._recipe) is Ticketed:
            self._recipe.sent_to(self.members, call.id)
        return call

    def respawn(self, address: int) -> Start:
        """Make the one member at ``address`` anew."""
        if self._order is None:
            most = f"{MOST_KEPT >> 20} MiB of all its spawns"
            why = f"its arguments were too large to be kept with a detached lease ({most})"
            raise Closed(f"restart of {self.name}", why)
        router = active_router()
        rank = self.members.index(address)
        path = router.path(address, self.id)
        call = Start(router, f"spawn of {self.name}[{rank}]", [path], lambda _: None, first_error=True)
        call.id = router.register(call)
        call.nbytes = router.post(path, WANTS_REPLY | EAGER, _SPAWN, _SPAWN_CONTROL, self._order, call.id)
        return call

    async def restart(self, rank: int) -> None:
        """Make a member anew: in its proc where that lives, else with its proc."""
        if self.is_stopped:
            raise Closed(f"actor mesh {self.name}", "it was stopped")
        address = self.members[rank]
        allocation = self.procs.allocation
        if allocation is None:
            raise Closed(f"restart of {self.name}", "its procs belong to another process: restart them there")
        if address in allocation.dead or address in allocation.restarting:
            await allocation.restart(allocation.addresses.index(address))
            return
        if address not in self._restarting:
            self._restarting[address] = task = self.domain.start_task(self._restart(address))
            task.add_done_callback(lambda _: self._restarting.pop(address, None))
        await asyncio.shield(self._restarting[address])

    async def _restart(self, address: int) -> None:
        await self.domain.requests.ask(address, "stop_actor", self.id, "it is restarted")
        await self.respawn(address)

    def forget(self) -> None:
        """They are gone for good, and will not be made anew."""
        self.domain.groups.pop(self.id, None)
        self._recipe = None
        if (detachment := self.detachment) is not None:
            detachment.drop(self.id)

    def excuse(self) -> None:
        """It is stopped on purpose: that it may never have come up is no failure then."""
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())

    async def stop(self, members: Sequence[int]) -> None:
        """Stop the actors at these addresses: cancel, teardown. Waits for all."""
        self.excuse()
        gone = self.procs.allocation.dead if self.procs.allocation is not None else set()
        await asyncio.gather(
            *[self.domain.requests.ask(m, "stop_actor", self.id, "it was stopped") for m in members if m not in gone]
        )
        if len(members) == len(self.members):
            self.is_stopped = True
            self.forget()
            self.domain.router.retire(self.members, self.id)


class ActorMesh(Sliced):
    """Actors. Made by `ProcMesh.spawn`. Every endpoint of the class is an attribute: ``mesh.step.call(batch)``.

    ``await mesh`` waits until every member is up and raises what an ``__init__`` raised; it may be used before.
    """

    def __init__(
        self,
        name: str,
        actor_id: int,
        interface: Interface,
        members: "array[int]",
        max_concurrency: int,
        region: Region,
        group: ActorGroup | None,
    ) -> None:
        """``members``: proc addresses in rank order of the mesh as spawned."""
        self.name, self.region, self.interface = name, region, interface
        self._actor_id, self._members, self._max_concurrency, self._group = actor_id, members, max_concurrency, group

    def __await__(self) -> Generator[Any, None, "ActorMesh"]:
        group = self._find_group()
        if group is not None:
            procs = group.procs
            if procs.allocation is not None:
                yield from procs.allocation.wait_ready().__await__()
            yield from group.ready.__await__()
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self.name, self._actor_id, self.interface, self._members, self._max_concurrency, self.region, None)
        return type(self), facts

    @property
    def identity(self) -> int:
        """The id all its actors share."""
        return self._actor_id

    def seen_through(self, region: Region) -> "ActorMesh":
        """Return the same actors through another region."""
        facts = (self.name, self._actor_id, self.interface, self._members, self._max_concurrency, region, self._group)
        return type(self)(*facts)

    @functools.cached_property
    def cast(self) -> Members:
        """The members as the router of this process needs them."""
        if self.region.is_full:
            members: Sequence[int] = self._members
        else:
            members = [self._members[rank] for rank in self.region.base_ranks]
        return Members(active_router(), members, self._actor_id, self._max_concurrency)

    def __getattr__(self, name: str) -> Any:
        """Return the endpoint of that name; the next access finds it without coming here."""
        if name.startswith("__"):
            raise AttributeError(name)
        interface: Interface = self.__dict__["interface"]
        spec = interface.endpoints.get(name)
        if spec is None:
            raise NotAnEndpoint(self.name, name, tuple(interface.endpoints), name in interface.methods)
        kind = StreamEndpoint if spec.style is Style.STREAM else Endpoint
        found = self.__dict__[name] = kind(self, spec)
        return found

    def label(self, index: int) -> str:
        """Return ``name[rank]`` of the member at this place in the slice."""
        return self.name if len(self._members) == 1 else f"{self.name}[{self.region.base_rank(index)}]"

    async def restart(self, rank: int) -> None:
        """Make the actor at ``rank`` anew with the arguments it was spawned with, its proc too where that is dead.

        References stay valid; calls in flight fail. Waits until it is up. Only in the process that spawned it.
        """
        await self._owned("restart").restart(self.region.base_rank(rank))

    async def stop(self) -> None:
        """Stop these actors: running calls are cancelled, ``teardown`` runs; later calls fail with `ActorDied`."""
        group = self._owned("stop")
        if not group.is_stopped:
            await group.stop([self._members[rank] for rank in self.region.base_ranks])

    def _owned(self, what: str) -> ActorGroup:
        group = self._find_group()
        if group is None:
            raise Closed(f"{what} of {self.name}", f"only the process that spawned a mesh can {what} it")
        return group

    def _find_group(self) -> ActorGroup | None:
        """The group, in the process that spawned it; also for a copy that has come back there."""
        domain = find_domain()
        if self._group is None and domain is not None:
            self._group = domain.groups.get(self._actor_id)
        return self._group


def check_init(cls: type[Actor], args: Sequence[object], kwargs: Mapping[str, object], hint: str = "") -> None:
    """Raise BadCall, with ``hint`` at its end, where ``__init__`` does not take these arguments."""
    if cls.__init__ is not object.__init__:
        try:
            inspect.signature(cls).bind(*args, **kwargs)
        except TypeError as error:
            why = f"{error}; its signature is {cls.__name__}{inspect.signature(cls)}"
            raise BadCall(f"{cls.__name__}.__init__", why + hint) from None
    elif args or kwargs:
        raise BadCall(f"{cls.__name__}.__init__", f"it takes no arguments, {len(args) + len(kwargs)} given{hint}")


def spawn_actors(
    procs: ProcMesh, name: str, cls: type[Actor], args: tuple[object, ...], kwargs: dict[str, object]
) -> ActorMesh:
    """See `ProcMesh.spawn`."""
    interface = interface_of(cls)
    check_init(cls, args, kwargs)
    recipe = dumps_recipe(cls, args, kwargs)
    domain = active_domain()
    return ActorGroup(domain, procs, name, interface, cls.max_concurrency, recipe).mesh
