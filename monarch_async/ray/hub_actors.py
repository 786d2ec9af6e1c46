"""The actors at the hub: whoever creates them, they are found by name, and ended here."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch_async.ray.entry import Entry
from monarch_async.ray.exceptions import ActorAlreadyExistsError, ActorDiedError
from monarch_async.ray.hub_actor import Creation, HubActor
from monarch_async.ray.hub_detached import PATIENCE, Adopted, DetachedActors, lease_of
from monarch_async.ray.object_ref import ObjectRef

if TYPE_CHECKING:
    from monarch_async.ray.hub import Hub


#: Dead actors that are remembered.
_MOST_DEAD = 10_000


class HubActors:
    """All of one driver."""

    def __init__(self, hub: "Hub") -> None:
        """None yet."""
        self.hub = hub
        self._actors: dict[str, HubActor] = {}
        self._names: dict[tuple[str, str], HubActor] = {}
        self._dead: dict[str, tuple[dict[str, Any], BaseException]] = {}  # rows of `_list`, and what they died of
        self._kept: dict[str, Entry] = {}  # detached ones: they live without handles
        self._left = DetachedActors(self)
        self.is_over = False  #: the driver ends: what is detached is left to others
        hub.operations |= {
            "actors.create": self._create,
            "actors.create_named": self._create_named,
            "actors.find": self._find,
            "actors.fate": self._fate,
            "actors.get": self._get,
            "actors.kill": self._kill,
            "actors.exited": self._exited,
            "actors.named": self._named,
            "actors.list": self._list,
        }

    async def _create_named(self, src: int, creation: Creation, slots: Sequence[Any]) -> Any:
        """As `_create`, where the name may also be of an actor that another driver has left."""
        if self._find_name(creation.namespace, creation.options.name or "") is None:
            await self._left.find(creation.namespace, creation.options.name or "")
        return self._create(src, creation, slots)

    def _create(self, src: int, creation: Creation, slots: Sequence[Any]) -> Any:
        """Return the handle's facts and life of the one that has the name, where that was asked for; else None.

        Raises ActorAlreadyExistsError where the name is taken.
        """
        if name := creation.options.name:
            found = self._find_name(creation.namespace, name)
            if found is not None and creation.options.get_if_exists:
                return found.creation.said, ObjectRef(found.keep())
            if found is not None:
                raise ActorAlreadyExistsError(
                    f"an actor named {name!r} is there already, in namespace {creation.namespace!r}: get it by "
                    f"get_actor(), or say get_if_exists=True"
                )
        if src == self.hub.runtime.address:
            life = Entry(self.hub.runtime, creation.life, "an actor")
        else:
            life = self.hub.runtime.borrowing.claim(creation.life, "an actor", src)
        self.create(creation, slots, life)
        return creation.said, ObjectRef(life)

    def create(self, creation: Creation, slots: Sequence[Any], life: Entry, adopted: Adopted | None = None) -> HubActor:
        """Begin an actor. ``life``: it ends when nothing refers to this any more; what is detached is kept here."""
        name, key = creation.options.name, (creation.namespace, creation.options.name or "")
        entries = [ref._entry for ref in slots]
        actor = self._actors[creation.actor] = HubActor(self, creation, entries, life, adopted)
        self.hub.runtime.borrowing.publish(life)
        if creation.options.lifetime == "detached":
            self._kept[creation.actor] = life
        if name:
            self._names[key] = actor
        return actor

    def forget(self, actor: HubActor) -> None:
        """It is dead."""
        creation = actor.creation
        self._actors.pop(creation.actor, None)
        self._kept.pop(creation.actor, None)
        key = (creation.namespace, creation.options.name or "")
        if self._names.get(key) is actor:
            del self._names[key]
        assert actor.death is not None
        self._dead[creation.actor] = _row(actor, str(actor.death)), actor.death.with_traceback(None)
        if len(self._dead) > _MOST_DEAD:
            del self._dead[next(iter(self._dead))]

    def _of(self, actor: str) -> HubActor:
        found = self._actors.get(actor)
        if found is not None:
            return found
        dead = self._dead.get(actor)
        if dead is not None:
            raise dead[1].with_traceback(None)  # else what was raised before is kept, and grows
        raise ActorDiedError("this actor is not known here: its handle is of a session that has ended", actor)

    async def _find(self, src: int, actor: str) -> Any:
        if not self.knows(actor):
            await self._left.find_id(actor)
        found = self._of(actor)
        await found.wait_up()
        return found.mesh, found.incarnation

    async def _fate(self, src: int, actor: str, incarnation: int) -> Any:
        found = self._actors.get(actor)
        if found is None:
            dead = self._dead.get(actor)
            return True, dead[1] if dead is not None else None
        return await found.fate(incarnation)

    def knows(self, actor: str) -> bool:
        """Whether it is one of this driver's, or was."""
        return actor in self._actors or actor in self._dead

    def _find_name(self, namespace: str, name: str) -> HubActor | None:
        found = self._names.get((namespace, name))
        return found if found is not None and not found.is_dead and not found.is_out_of_scope else None

    def _known_names(self) -> list[tuple[str, str]]:
        return [key for key in self._names if self._find_name(*key) is not None]

    async def _get(self, src: int, name: str, namespace: str) -> Any:
        found = self._find_name(namespace, name)
        if found is None:
            await self._left.find(namespace, name)
            found = self._find_name(namespace, name)
        if found is None:
            spaces = sorted(space for space, known in self._known_names() if known == name)
            elsewhere = f"; there is one in namespace {', '.join(map(repr, spaces))}" if spaces else ""
            raise ValueError(f"no actor named {name!r} lives in namespace {namespace!r}{elsewhere}")
        return found.creation.said, ObjectRef(found.keep())

    async def _kill(self, src: int, actor: str, may_restart: bool) -> None:
        found = self._actors.get(actor)
        if found is not None:
            incarnation = found.incarnation
            await found.kill("ray.kill has ended it", may_restart)
            await found.fate(incarnation)  # who has killed it gets no answer of that process any more

    async def _exited(self, src: int, actor: str, why: str) -> None:
        found = self._actors.get(actor)
        if found is not None:
            await found.kill(why)

    async def _named(self, src: int, all_namespaces: bool, namespace: str) -> list[Any]:
        left = await self._left.names()
        names = dict.fromkeys([*self._known_names(), *left])
        if all_namespaces:
            return [{"name": name, "namespace": space} for space, name in names]
        return [name for space, name in names if space == namespace]

    def _list(self, src: int) -> list[dict[str, Any]]:
        return [*map(_row, self._actors.values()), *[row for row, _ in self._dead.values()]]

    async def aclose(self) -> None:
        """End all but what is detached: that is left where it is. What is still to be placed has a moment for that."""
        self.is_over = True
        lasting = [actor for actor in self._actors.values() if lease_of(actor.creation) and actor.state != "ALIVE"]
        if lasting and self._left.are_possible:
            await asyncio.wait([self.hub.runtime.start(_settle(actor)) for actor in lasting], timeout=PATIENCE)
        tasks = [actor.task for actor in self._actors.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _row(actor: HubActor, why: str | None = None) -> dict[str, Any]:
    """Return what is said of an actor in tables: also of one that is dead, of which nothing else is kept."""
    creation = actor.creation
    return {
        "actor_id": creation.actor,
        "class_name": creation.birth.class_name,
        "state": actor.state,
        "name": creation.options.name or "",
        "ray_namespace": creation.namespace,
        "num_restarts": str(max(actor.incarnation - 1, 0)),
        "death_cause": why,
        "pid": None,
    }


async def _settle(actor: HubActor) -> None:
    with contextlib.suppress(Exception):
        await actor.wait_up()
