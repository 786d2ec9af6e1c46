"""One actor at the hub: it is placed, watched, made anew and ended here.

    PENDING ── up ──► ALIVE ── its process ends ──► RESTARTING ── up ──► ALIVE
       any ── killed, out of scope, __init__ raised, no restart left ──► DEAD

One that a driver before has left begins ALIVE; one that is detached is left as it is where the driver ends.
"""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from monarch_async.control.supervision import Failure
from monarch_async.errors import Error
from monarch_async.mesh.guardian import Guardian, guarding
from monarch_async.mesh.proc_mesh import ProcMesh
from monarch_async.ray.actor_host import ActorHost, Birth
from monarch_async.ray.compute_threads import limit_of_process
from monarch_async.ray.entry import Entry, wait_there
from monarch_async.ray.exceptions import ActorDiedError, as_birth_error
from monarch_async.ray.hub_detached import Adopted, lease_of, told_of
from monarch_async.ray.options import ActorOptions
from monarch_async.ray.payload import Packed
from monarch_async.ray.runtime_env import restored
from monarch_async.ray.worker import NAMESPACE_VARIABLE

if TYPE_CHECKING:
    from monarch_async.ray.hub_actors import HubActors

log = logging.getLogger("monarch_async")


@dataclass(frozen=True, slots=True)
class Creation:
    """One actor, as it is said to the hub. ``namespace``: of its name."""

    birth: Birth
    options: ActorOptions
    namespace: str

    @property
    def actor(self) -> str:
        """Its id."""
        return self.birth.actor

    @property
    def life(self) -> int:
        """The number of the object that lives as long as there are handles."""
        return self.birth.life

    @property
    def said(self) -> Any:
        """Of what handles are made."""
        return self.birth.facts


class HubActor:
    """One actor. ``run`` is all of its life, in a task of its own."""

    def __init__(
        self,
        actors: "HubActors",
        creation: Creation,
        slots: Sequence[Entry],
        life: Entry,
        adopted: Adopted | None = None,
    ) -> None:
        """Not placed yet, or there already (``adopted``). See `HubActors.create`."""
        self._actors, self.creation, self._slots = actors, creation, slots
        self._hub, self._runtime = actors.hub, actors.hub.runtime
        self._adopted = adopted
        self.state = "PENDING_CREATION"
        self.incarnation = 0
        self.death: BaseException | None = None
        self.why = self._killed_for = ""
        self.mesh: Any = None
        self._is_wanted = True
        most = creation.options.max_restarts or 0
        self._restarts_left = most if most >= 0 else 1 << 30
        self._procs: ProcMesh | None = None
        self._ended: asyncio.Future[str] = self._runtime.loop.create_future()
        self._changed = asyncio.Event()
        if adopted is not None:
            self.incarnation = adopted.incarnation - 1
            self._come_up(adopted.procs, adopted.mesh)
        self._watch = weakref.ref(life, lambda _: self._runtime.post(self._out_of_scope))
        self.task = self._runtime.loop.create_task(self._live(), context=Context())

    def keep(self) -> Entry:
        """Return what lives as long as there are handles; it is kept by who has it from here on."""
        life = self._watch()
        if life is None:  # they are all gone, and it is about to end
            raise ActorDiedError("it is out of scope: no handle was left", self.creation.actor)
        return life

    @property
    def is_out_of_scope(self) -> bool:
        """Whether no handle is left, so that it is about to end: its name is free."""
        return self._watch() is None

    @property
    def is_dead(self) -> bool:
        """Whether it has ended for good."""
        return self.state == "DEAD"

    @property
    def label(self) -> str:
        """What it is called in logs."""
        return self.creation.options.name or self.creation.birth.class_name

    async def wait_up(self) -> None:
        """Wait until it can be called. Raises what it died of."""
        while self.mesh is None:  # in a process that has ended, say, while it is being cleared away
            if self.death is not None:
                raise self.death
            await self._changed.wait()

    async def fate(self, incarnation: int) -> tuple[bool, BaseException | None]:
        """Wait until it is known what became of that incarnation; return whether it is dead, and of what."""
        while not self.is_dead and self.state == "ALIVE" and self.incarnation == incarnation:
            await self._changed.wait()
        return self.is_dead, self.death

    def _come_up(self, procs: ProcMesh, mesh: Any) -> None:
        self._procs, self.mesh = procs, mesh
        self.incarnation += 1
        self._change("ALIVE")

    def _change(self, state: str) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()

    # -- its life --------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        cause: BaseException | None = None
        try:
            with guarding(Guardian(self.lost)):
                await self._arguments()
                while True:
                    cause = await self._incarnate()
                    if not self._is_wanted or self._restarts_left == 0:
                        break
                    self._restarts_left -= 1
                    self._ended, self._killed_for = self._runtime.loop.create_future(), ""
                    self._change("RESTARTING")
        except asyncio.CancelledError:
            cause = self._died_of(self.why or "the driver has ended")
        except BaseException as error:
            cause = self._as_death(error)
            log.error("actor %s: %s", self.label, cause)  # whether or not anybody calls it
        finally:
            self.death = cause or self._died_of(self.why)
            self._change("DEAD")
            self._actors.forget(self)

    async def _arguments(self) -> None:
        """Wait for arguments that are objects. Raises what one of them failed with."""
        for entry in self._slots:
            await wait_there(entry)

    async def _incarnate(self) -> BaseException | None:
        """Have it run once, to its end; return what that was."""
        adopted, self._adopted = self._adopted, None
        procs, give_back = await self._place() if adopted is None else (adopted.procs, _nothing)
        self._procs = procs
        try:
            if adopted is None:
                await self._be_born(procs)
            self.why = await self._ended
            return None
        finally:
            self.mesh = None
            await _whole(self._clear(procs, give_back))

    async def _place(self) -> tuple[ProcMesh, Callable[[], Awaitable[None]]]:
        creation = self.creation
        env, cwd = self._env()
        return await self._hub.placing.spawn_proc(
            creation.options, self.label, env, cwd, on_removed=self._group_removed, detached=lease_of(creation)
        )

    async def _be_born(self, procs: ProcMesh) -> None:
        """Make the object in its process; wait until it is up, or has ended."""
        creation = self.creation
        where = self._hub.node_address(procs.addresses[0])
        birth = replace(creation.birth, is_restarted=self.incarnation > 0, node_address=where)
        told = told_of(creation, self.incarnation + 1) if _is_lasting(procs) else None
        mesh: Any = procs.spawn(self.label, ActorHost, birth, self._values(), told)
        await self._up_or_ended(mesh)
        if not self._ended.done():
            self._come_up(procs, mesh)

    def _values(self) -> list[Packed]:
        return [entry.value for entry in self._slots if entry.value is not None]

    async def _up_or_ended(self, mesh: Any) -> None:
        up = asyncio.ensure_future(_await(mesh))
        up.add_done_callback(lambda up: up.cancelled() or up.exception())  # where this is cancelled, nobody asks
        await asyncio.wait([up, self._ended], return_when=asyncio.FIRST_COMPLETED)
        if up.done() and (error := up.exception()) is not None and not self._ended.done():
            raise error

    async def _clear(self, procs: ProcMesh, give_back: Callable[[], Awaitable[None]]) -> None:
        has_ended = self._ended.done() and not self._ended.cancelled()  # as it is where this life is
        is_left = self._actors.is_over and not has_ended and _is_lasting(procs)
        for step in (give_back,) if is_left else (procs.stop, give_back):
            with contextlib.suppress(Error):
                await step()

    def _env(self) -> tuple[dict[str, str], str | None]:
        env = {NAMESPACE_VARIABLE: self.creation.namespace, **limit_of_process(self.creation.options.num_cpus)}
        given = self.creation.birth.runtime_env
        if not given:
            return env, None
        runtime_env = restored(given)
        return {**env, **runtime_env.env}, runtime_env.cwd

    def _died_of(self, why: str) -> ActorDiedError:
        return ActorDiedError(f"actor {self.label} is dead: {why}", self.creation.actor)

    def _as_death(self, error: BaseException) -> BaseException:
        return as_birth_error(error, f"{self.label}.__init__", self.creation.actor)

    # -- its end ---------------------------------------------------------------------------------------------------

    def lost(self, failure: Failure) -> None:
        """Its process has ended, or its host is lost."""
        self._end(self._killed_for or str(failure.error))

    def _end(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_result(why)

    async def kill(self, why: str, may_restart: bool = False) -> None:
        """End it, at once."""
        if not may_restart:
            self._is_wanted = False
        if self.is_dead:
            return
        incarnation, self._killed_for = self.incarnation, why
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


async def _await(mesh: Any) -> Any:
    return await mesh


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Wait for the end of it, also where this is cancelled."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise


async def _nothing() -> None:
    pass


def _is_lasting(procs: ProcMesh) -> bool:
    return procs.allocation is not None and procs.allocation.detachment is not None
