"""Actors at the hub: whoever creates them, they are placed, watched, made anew, found by name and ended here.

    PENDING ── up ──► ALIVE ── its process ends ──► RESTARTING ── up ──► ALIVE
       any ── killed, out of scope, __init__ raised, no restart left ──► DEAD
"""

import asyncio
import contextlib
import weakref
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from monarch_async.control.supervision import Failure
from monarch_async.errors import Error
from monarch_async.mesh.guardian import Guardian, guarding
from monarch_async.mesh.proc_mesh import ProcMesh
from monarch_async.ray.actor_host import ActorHost, Birth
from monarch_async.ray.compute_threads import limit_of_process
from monarch_async.ray.entry import Entry
from monarch_async.ray.exceptions import ActorAlreadyExistsError, ActorDiedError, as_birth_error
from monarch_async.ray.object_ref import ObjectRef
from monarch_async.ray.options import ActorOptions
from monarch_async.ray.payload import Packed
from monarch_async.ray.runtime_env import RuntimeEnv
from monarch_async.ray.worker import NAMESPACE_VARIABLE

if TYPE_CHECKING:
    from monarch_async.ray.hub import Hub


@dataclass(frozen=True, slots=True)
class Creation:
    """One actor, as it is said to the hub. ``said``: of what handles are made; ``life``: the number of the object that
    lives as long as there are any."""

    actor: str
    life: int
    birth: Birth
    options: ActorOptions
    said: Any
    namespace: str
    runtime_env: Mapping[str, Any] | None


class HubActor:
    """One actor. ``run`` is all of its life, in a task of its own."""

    def __init__(self, actors: "HubActors", creation: Creation, slots: Sequence[Entry], life: Entry) -> None:
        """Not placed yet. See `HubActors.create`."""
        self._actors, self.creation, self._slots = actors, creation, slots
        self._hub, self._runtime = actors.hub, actors.hub.runtime
        self.state = "PENDING_CREATION"
        self.incarnation = 0
        self.death: BaseException | None = None
        self.why = ""
        self.mesh: Any = None
        self._is_wanted = True
        most = creation.options.max_restarts or 0
        self._restarts_left = most if most >= 0 else 1 << 30
        self._procs: ProcMesh | None = None
        self._ended: asyncio.Future[str] = self._runtime.loop.create_future()
        self._changed = asyncio.Event()
        self._watch = weakref.ref(life, lambda _: self._runtime.post(self._out_of_scope))
        self.task = self._runtime.loop.create_task(self._live(), context=Context())

    def keep(self) -> Entry:
        """Return what lives as long as there are handles; it is kept by who has it from here on."""
        life = self._watch()
        if life is None:  # they are all gone, and it is about to end
            raise ActorDiedError("it is out of scope: no handle was left", self.creation.actor)
        return life

    @property
    def is_dead(self) -> bool:
        """Whether it has ended for good."""
        return self.state == "DEAD"

    @property
    def label(self) -> str:
        """What it is called in logs."""
        return self.creation.options.name or self.creation.said.class_name

    async def wait_up(self) -> None:
        """Wait until it can be called. Raises what it died of."""
        while self.state != "ALIVE":
            if self.death is not None:
                raise self.death
            await self._changed.wait()

    async def fate(self, incarnation: int) -> tuple[bool, BaseException | None]:
        """Wait until it is known what became of that incarnation; return whether it is dead, and of what."""
        while not self.is_dead and self.state == "ALIVE" and self.incarnation == incarnation:
            await self._changed.wait()
        return self.is_dead, self.death

    def _change(self, state: str) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()

    # -- its life --------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        cause: BaseException | None = None
        try:
            with guarding(Guardian(self._lost)):
                await self._arguments()
                while True:
                    cause = await self._incarnate()
                    if not self._is_wanted or self._restarts_left == 0:
                        break
                    self._restarts_left -= 1
                    self._ended = self._runtime.loop.create_future()
                    self._change("RESTARTING")
        except asyncio.CancelledError:
            cause = ActorDiedError(self.why or "the driver has ended", self.creation.actor)
        except BaseException as error:
            cause = self._as_death(error)
        finally:
            self.death = cause or ActorDiedError(self.why, self.creation.actor)
            self._change("DEAD")
            self._actors.forget(self)

    async def _arguments(self) -> None:
        """Wait for arguments that are objects. Raises what one of them failed with."""
        for entry in self._slots:
            await ObjectRef(entry)

    async def _incarnate(self) -> BaseException | None:
        """Have it run once, to its end; return what that was."""
        creation = self.creation
        env, cwd = self._env()
        procs, give_back = await self._hub.placing.spawn_proc(
            creation.options, self.label, env, cwd, on_removed=self._group_removed
        )
        self._procs = procs
        try:
            where = self._hub.node_address(procs.addresses[0])
            birth = replace(creation.birth, is_restarted=self.incarnation > 0, node_address=where)
            mesh: Any = procs.spawn(self.label, ActorHost, birth, self._values())
            await self._up_or_ended(mesh)
            if not self._ended.done():
                self.mesh = mesh
                self.incarnation += 1
                self._change("ALIVE")
            self.why = await self._ended
            return None
        finally:
            self.mesh = None
            await asyncio.shield(self._clear(procs, give_back))

    def _values(self) -> list[Packed]:
        return [entry.value for entry in self._slots if entry.value is not None]

    async def _up_or_ended(self, mesh: Any) -> None:
        up = asyncio.ensure_future(_await(mesh))
        await asyncio.wait([up, self._ended], return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            if (error := up.exception()) is not None and not self._ended.done():
                raise error
            return
        up.add_done_callback(lambda up: up.cancelled() or up.exception())

    async def _clear(self, procs: ProcMesh, give_back: Any) -> None:
        for step in (procs.stop, give_back):
            with contextlib.suppress(Error):
                await step()

    def _env(self) -> tuple[dict[str, str], str | None]:
        env = {NAMESPACE_VARIABLE: self.creation.namespace, **limit_of_process(self.creation.options.num_cpus)}
        given = self.creation.runtime_env
        if not given:
            return env, None
        runtime_env = RuntimeEnv(**given)
        return {**env, **runtime_env.env}, runtime_env.cwd

    def _as_death(self, error: BaseException) -> BaseException:
        return as_birth_error(error, f"{self.label}.__init__", self.creation.actor)

    # -- its end ---------------------------------------------------------------------------------------------------

    def _lost(self, failure: Failure) -> None:
        """Its process has ended, or its host is lost."""
        self._end(str(failure.error))

    def _end(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_result(why)

    async def kill(self, why: str, may_restart: bool = False) -> None:
        """End it, at once."""
        if not may_restart:
            self._is_wanted = False
        if self.is_dead:
            return
        incarnation = self.incarnation
        if self._procs is not None and self.state == "ALIVE":
            with contextlib.suppress(Error):
                await self._procs.kill()
        if self.incarnation == incarnation:
            self._end(why)
        if self.state == "PENDING_CREATION" and not may_restart:
            self.why = why
            self.task.cancel()

    async def _group_removed(self, why: str) -> None:
        await self.kill(why)

    def _out_of_scope(self) -> None:
        self._is_wanted = False
        if not self.is_dead:
            self._runtime.start(self._leave("it went out of scope: there is no handle any more"))

    async def _leave(self, why: str) -> None:
        with contextlib.suppress(Exception):
            await self.wait_up()
        self._end(why)


class HubActors:
    """All of one driver."""

    def __init__(self, hub: "Hub") -> None:
        """None yet."""
        self.hub = hub
        self._actors: dict[str, HubActor] = {}
        self._names: dict[tuple[str, str], HubActor] = {}
        self._dead: dict[str, tuple[HubActor, BaseException]] = {}
        self._kept: dict[str, Entry] = {}  # detached ones: they live without handles
        hub.operations |= {
            "actors.create": self._create,
            "actors.find": self._find,
            "actors.fate": self._fate,
            "actors.get": self._get,
            "actors.kill": self._kill,
            "actors.exited": self._exited,
            "actors.named": self._named,
            "actors.list": self._list,
        }

    def _create(self, src: int, creation: Creation, slots: Sequence[Any]) -> Any:
        """Return the handle's facts and life of the one that has the name, where that was asked for; else None.

        Raises ActorAlreadyExistsError where the name is taken.
        """
        name, key = creation.options.name, (creation.namespace, creation.options.name or "")
        if name:
            found = self._names.get(key)
            if found is not None and not found.is_dead and creation.options.get_if_exists:
                return found.creation.said, ObjectRef(found.keep())
            if found is not None and not found.is_dead:
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

    def create(self, creation: Creation, slots: Sequence[Any], life: Entry) -> None:
        """Begin an actor. ``life``: it ends when nothing refers to this any more; what is detached is kept here."""
        name, key = creation.options.name, (creation.namespace, creation.options.name or "")
        actor = self._actors[creation.actor] = HubActor(self, creation, [ref._entry for ref in slots], life)
        self.hub.runtime.borrowing.publish(life)
        if creation.options.lifetime == "detached":
            self._kept[creation.actor] = life
        if name:
            self._names[key] = actor

    def forget(self, actor: HubActor) -> None:
        """It is dead."""
        creation = actor.creation
        self._actors.pop(creation.actor, None)
        self._kept.pop(creation.actor, None)
        key = (creation.namespace, creation.options.name or "")
        if self._names.get(key) is actor:
            del self._names[key]
        assert actor.death is not None
        self._dead[creation.actor] = actor, actor.death
        if len(self._dead) > 10_000:
            del self._dead[next(iter(self._dead))]

    def _of(self, actor: str) -> HubActor:
        found = self._actors.get(actor)
        if found is not None:
            return found
        dead = self._dead.get(actor)
        raise dead[1] if dead is not None else ActorDiedError("nobody knows it any more", actor)

    async def _find(self, src: int, actor: str) -> Any:
        found = self._of(actor)
        await found.wait_up()
        return found.mesh, found.incarnation

    async def _fate(self, src: int, actor: str, incarnation: int) -> Any:
        found = self._actors.get(actor)
        if found is None:
            dead = self._dead.get(actor)
            return True, dead[1] if dead is not None else None
        return await found.fate(incarnation)

    def _get(self, src: int, name: str, namespace: str) -> Any:
        found = self._names.get((namespace, name))
        if found is None or found.is_dead:
            spaces = sorted(space for space, known in self._names if known == name)
            elsewhere = f"; there is one in namespace {', '.join(map(repr, spaces))}" if spaces else ""
            raise ValueError(f"no actor named {name!r} lives in namespace {namespace!r}{elsewhere}")
        return found.creation.said, ObjectRef(found.keep())

    async def _kill(self, src: int, actor: str, may_restart: bool) -> None:
        found = self._actors.get(actor)
        if found is not None:
            await found.kill("it was ended by ray.kill", may_restart)

    async def _exited(self, src: int, actor: str, why: str) -> None:
        found = self._actors.get(actor)
        if found is not None:
            await found.kill(why)

    def _named(self, src: int, all_namespaces: bool, namespace: str) -> list[Any]:
        if all_namespaces:
            return [{"name": name, "namespace": space} for space, name in self._names]
        return [name for space, name in self._names if space == namespace]

    def _list(self, src: int) -> list[dict[str, Any]]:
        living = [(actor, "") for actor in self._actors.values()]
        dead = [(actor, str(death)) for actor, death in self._dead.values()]
        return [
            {
                "actor_id": actor.creation.actor,
                "class_name": actor.creation.said.class_name,
                "state": actor.state,
                "name": actor.creation.options.name or "",
                "ray_namespace": actor.creation.namespace,
                "num_restarts": str(max(actor.incarnation - 1, 0)),
                "death_cause": why or None,
                "pid": None,
            }
            for actor, why in [*living, *dead]
        ]

    async def aclose(self) -> None:
        """End all."""
        tasks = [actor.task for actor in self._actors.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _await(mesh: Any) -> Any:
    return await mesh
