"""Where the hub puts tasks and actors: what Ray's options say, as native demands.

- A task takes one cpu unless it says otherwise, and runs on a warm worker; see `Placing.room_for_task`.
- An actor holds what it asks for; one that asks for nothing holds nothing, and goes to the host with the fewest of ours
  for its cpus.
- What fits on no host that is here now waits for one that it fits on, with a warning, as under Ray.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from monarch_async.control.host import Host
from monarch_async.errors import Error, Unschedulable
from monarch_async.mesh.cluster import cluster
from monarch_async.mesh.guardian import Guardian, guarding
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.mesh.proc_mesh import ProcMesh
from monarch_async.ray.amounts import Amounts, Asked, of_actor, of_task
from monarch_async.ray.exceptions import (
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
)
from monarch_async.ray.group import Group, GroupRemoved
from monarch_async.ray.groups import PlacementGroups
from monarch_async.ray.living import LivingHosts
from monarch_async.ray.seat import Seat
from monarch_async.ray.spread import Spread
from monarch_async.ray.strategies import (
    In,
    LabelOperator,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from monarch_async.scheduler.demand import Demand

log = logging.getLogger("monarch_async")

#: Seconds after which something is placed once more that was refused as its host is gone.
_MOMENT = 0.1


class Options(Asked, Protocol):
    """The part of options that says where."""

    @property
    def scheduling_strategy(self) -> object: ...

    @property
    def label_selector(self) -> Mapping[str, str] | None: ...


@dataclass(frozen=True, slots=True)
class Where:
    """What a strategy comes to: names of hosts (none: any), rather spread, in a bundle (-1: any) of a group."""

    hosts: tuple[str, ...] = ()
    spreads: bool = False
    group: Group | None = None
    bundle: int = -1


_ANYWHERE = Where()


class Placing:
    """See the module. One per hub, on its loop."""

    def __init__(self, hosts: HostMesh) -> None:
        """Nothing is followed before `start`."""
        self.living = LivingHosts(hosts)
        self.groups = PlacementGroups(self.living)
        self._actors: Counter[int] = Counter()  # by host: of those that live
        self._spread = Spread()
        self._rooms: dict[tuple[object, ...], dict[str, Any]] = {}
        self._rooms_of = -1

    def start(self) -> None:
        """Follow what becomes of hosts."""
        self.living.start()
        self.groups.start()

    async def aclose(self) -> None:
        """End all placement groups."""
        await self.groups.aclose()
        await self.living.aclose()

    # -- tasks -----------------------------------------------------------------------------------------------------

    def room_now(self, options: Options) -> dict[str, Any] | None:
        """Return what `room_for_task` does where nothing is to be waited for, else None. Not to be changed."""
        if options.label_selector or _strategy_of(options) is not None:
            return None
        if self._rooms_of != self.living.version:
            self._rooms, self._rooms_of = {}, self.living.version
        resources = options.resources
        key = (options.num_cpus, options.num_gpus, options.memory, tuple(resources.items()) if resources else None)
        room = self._rooms.get(key)
        if room is None:
            amounts = of_task(options)
            if amounts.nodes or not self.living.allowed(amounts):
                return None
            room = self._rooms[key] = _as_task_options(amounts)
        return room

    async def room_for_task(self, options: Options, name: str = "a task") -> dict[str, Any]:
        """Return keyword arguments for a native task: what it takes, and where it may run. ``name``: in warnings.

        Waits for the placement group, and for a host on which
        it fits. Raises TaskPlacementGroupRemoved, TaskUnschedulableError where it is bound to a node that is gone, and
        ValueError where no bundle is large enough.
        """
        if (room := self.room_now(options)) is not None:
            return room
        amounts = of_task(options)
        try:
            where = await self._find(name, options, amounts)
            if where.group is not None:
                await where.group.wait_created()
                return _as_task_options(amounts) | self._in_group(where.group, where.bundle, amounts)
        except GroupRemoved as error:
            raise TaskPlacementGroupRemoved(f"{error} was removed") from None
        except Unschedulable as error:
            raise TaskUnschedulableError(str(error)) from None
        if where.spreads:
            host = await self._spread.next(amounts, self._open_for(amounts, where.hosts))
            return _as_task_options(amounts) | {"hosts": (host.name,)}
        return _as_task_options(amounts) | ({"hosts": where.hosts} if where.hosts else {})

    def error_of(self, options: Options, error: BaseException) -> BaseException:
        """Return what a native error of a task means: that its placement group was removed, where that is so.

        Where Unschedulable is returned, a host has gone on which it was to run: to be placed once more, after
        `wait_news`.
        """
        strategy = _strategy_of(options)
        if not isinstance(strategy, PlacementGroupSchedulingStrategy) or not isinstance(error, Error):
            return error
        assert strategy.placement_group is not None
        id = strategy.placement_group.id.binary()
        if not self.groups.is_removed(id):
            return error
        removed = TaskPlacementGroupRemoved(f"placement group {id.hex()} was removed")
        removed.__cause__ = error
        return removed

    async def wait_news(self) -> None:
        """Wait until something has become of hosts, for a moment: what was said of them has proved wrong."""
        await self.living.wait_changed(at_most=_MOMENT)

    def _in_group(self, group: Group, bundle: int, amounts: Amounts) -> dict[str, Any]:
        placement, part = group.spot(group.choose(amounts, bundle))
        return {"placement": placement, "bundle": part}

    def _open_for(self, amounts: Amounts, names: Sequence[str]) -> list[Host]:
        hosts = self.living.allowed(amounts, self.living.open_hosts()) or self.living.allowed(amounts)
        return [host for host in hosts if not names or host.name in names] or hosts

    # -- actors ----------------------------------------------------------------------------------------------------

    async def spawn_proc(
        self,
        options: Options,
        name: str,
        env: Mapping[str, str],
        cwd: str | None,
        on_removed: Callable[[str], Awaitable[None] | None] | None = None,
        detached: str | None = None,
    ) -> tuple[ProcMesh, Callable[[], Awaitable[None]]]:
        """Return one proc (not awaited) placed as the options say, and what gives its room back once it has ended.

        The proc belongs to who asks. ``on_removed`` is called with the reason when its placement group is removed, and
        what it returns awaited: to end the actor; then the proc is stopped, where it was not. ``detached``: see
        `Seat.spawn`. Waits for room. Raises ActorPlacementGroupRemoved, ActorUnschedulableError where it is bound to a
        node that is gone, ValueError where no bundle is large enough.
        """
        seat = Seat(name, of_actor(options), on_removed)
        try:
            await self._seat(seat, options)
            procs = seat.spawn(env, cwd, detached)
        except BaseException as error:
            await seat.give_back()
            if isinstance(error, GroupRemoved):
                raise ActorPlacementGroupRemoved(f"{error} was removed") from None
            if isinstance(error, Unschedulable):
                raise ActorUnschedulableError(str(error)) from None
            raise
        return procs, seat.give_back

    async def _seat(self, seat: Seat, options: Options) -> None:
        """Find room for an actor. Raises Unschedulable where it is bound to a node that cannot have it."""
        while True:
            where = await self._find(f"actor {seat.name}", options, seat.amounts)
            try:
                await self._seat_at(seat, where)
            except Unschedulable as error:
                log.warning("actor %s is placed once more: %s", seat.name, error)
                await self.wait_news()
            else:
                break
        self._count(seat)

    async def _seat_at(self, seat: Seat, where: Where) -> None:
        amounts = seat.amounts
        if where.group is not None:
            await self._seat_within(seat, where.group, where.bundle)
        elif amounts.is_free:
            hosts = self._named(where.hosts, self.living.open_hosts()) or self._named(where.hosts, self.living.hosts)
            seat.host = min(hosts, key=self._crowd)
        else:
            strategy = "spread" if where.spreads else "pack"
            demand = Demand([amounts.bundle()], strategy=strategy, hosts=where.hosts, name=f"actor {seat.name}")
            await self._hold(seat, demand)

    def _named(self, names: Sequence[str], hosts: Sequence[Host]) -> list[Host]:
        return [host for host in hosts if (host.name in names if names else host.resources.cpus)] or list(hosts)

    def _crowd(self, host: Host) -> float:
        return self._actors[host.id] / max(host.resources.cpus, 1)

    def _count(self, seat: Seat) -> None:
        assert seat.host is not None
        id = seat.host.id
        self._actors[id] += 1
        seat.leave.append(lambda: self._actors.subtract([id]))

    async def _seat_within(self, seat: Seat, group: Group, bundle: int) -> None:
        await seat.give_back()  # of a bundle that was lost since
        bundle = await group.take(seat, bundle)
        placement, part = group.spot(bundle)
        seat.within = placement
        if seat.amounts.is_free:
            seat.host = placement.spots[part].host
            return
        demand = Demand([seat.amounts.bundle()], within=(placement.id, part), name=f"actor {seat.name}")
        try:
            await self._hold(seat, demand)
        except Unschedulable:
            if not group.is_removed:
                raise
        if group.is_removed:  # perhaps it was granted what those before it gave back as they were ended
            raise GroupRemoved(str(group))

    async def _hold(self, seat: Seat, demand: Demand) -> None:
        """Have what an actor takes. Where that ends before it, as its placement group does, the proc is ended."""
        with guarding(Guardian(lambda failure: None)):  # groups end what is in them themselves
            seat.placement = await cluster().place(demand)
        seat.host = seat.placement.spots[0].host

    # -- strategies ------------------------------------------------------------------------------------------------

    async def _find(self, what: str, options: Options, amounts: Amounts) -> Where:
        """Return what a strategy comes to, once there is a host on which it fits. Raises Unschedulable."""
        strategy = _strategy_of(options)
        match strategy:
            case PlacementGroupSchedulingStrategy() if strategy.placement_group is not None:
                group = self.groups.get(strategy.placement_group.id.binary())
                return Where(group=group, bundle=strategy.placement_group_bundle_index)
            case NodeAffinitySchedulingStrategy():
                return await self._find_node(what, strategy, amounts)
            case NodeLabelSchedulingStrategy():
                asked = _asked(amounts, strategy.hard)
                hosts = await self._wait(what, asked, lambda: self._labelled(strategy, amounts))
                return Where(_names(hosts))
            case None | "SPREAD":
                selector = {key: In(value) for key, value in (options.label_selector or {}).items()}
                asked = _asked(amounts, options.label_selector)
                hosts = await self._wait(what, asked, lambda: self._allowed(amounts, selector))
                return Where(_names(hosts) if amounts.nodes or selector else (), strategy == "SPREAD")
        raise ValueError(f"scheduling_strategy={strategy!r}: expected 'DEFAULT', 'SPREAD' or one of ray.util's")

    async def _wait(self, what: str, asked: str, find: Callable[[], Sequence[Host]]) -> Sequence[Host]:
        return find() or await self.living.wait_allowed(what, asked, find)

    async def _find_node(self, what: str, strategy: NodeAffinitySchedulingStrategy, amounts: Amounts) -> Where:
        host = self.living.by_node_id(strategy.node_id)
        if host is not None and self.living.allowed(amounts, [host]):
            return Where((host.name,))
        if not strategy.soft:
            why = f"node {strategy.node_id} {'is not alive' if host is None else f'has no {amounts.as_ray()}'}"
            raise Unschedulable(what, why)
        await self._wait(what, _asked(amounts), lambda: self.living.allowed(amounts))
        return _ANYWHERE

    def _allowed(self, amounts: Amounts, labels: Mapping[str, LabelOperator]) -> list[Host]:
        return [host for host in self.living.allowed(amounts) if self._matches(host, labels)]

    def _labelled(self, strategy: NodeLabelSchedulingStrategy, amounts: Amounts) -> list[Host]:
        hosts = self._allowed(amounts, strategy.hard)
        return [host for host in hosts if self._matches(host, strategy.soft)] or hosts

    def _matches(self, host: Host, labels: Mapping[str, LabelOperator]) -> bool:
        has = self.living.labels(host)
        return all(operator.holds(has.get(key)) for key, operator in labels.items())


def _strategy_of(options: Options) -> object:
    """Return the strategy; None where it is to be the default."""
    strategy = options.scheduling_strategy
    if strategy is None or strategy == "DEFAULT":
        return None
    if isinstance(strategy, PlacementGroupSchedulingStrategy) and strategy.placement_group is None:
        return None
    return strategy


def _asked(amounts: Amounts, labels: Mapping[str, object] | None = None) -> str:
    """Return it for warnings."""
    asked = f"{amounts.as_ray() | dict.fromkeys(amounts.nodes, 1.0)}"
    return f"{asked} with labels {dict(labels)}" if labels else asked


def _names(hosts: Sequence[Host]) -> tuple[str, ...]:
    return tuple([host.name for host in hosts])


def _as_task_options(amounts: Amounts) -> dict[str, Any]:
    """Return only what is not a native task's default."""
    options: dict[str, Any] = {}
    if amounts.cpus != 1:
        options["cpus"] = amounts.cpus
    if amounts.gpus:
        options["gpus"] = amounts.gpus
    if amounts.memory:
        options["memory"] = amounts.memory
    if amounts.custom:
        options["custom"] = dict(amounts.custom)
    return options
