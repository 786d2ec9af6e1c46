"""A worker process from the inside: its connection to the agent, its actors, its lease on life.

P1. A spawn takes its place among the messages to the actor it creates: what was sent after it finds the actor.
P2. The proc ends itself when its agent is silent for longer than ``resume_window``, on a clock that also counts while
    the machine is suspended: a host declared lost has no procs left when it comes back.
P3. Requests of the runtime (status, stop) are answered by the loop at once, never behind users' calls.
P4. A call from another host to an actor that is not here waits, up to ``resume_window``, for the message that makes
    it: that may come another way, over a link that is being resumed.
P5. In a detached proc the client's failed actors are reported to the agent, which keeps that while there is no client.
    Once another client has adopted it, the one before, which may just have been cut off, stops none of them.
"""

import asyncio
import os
import pickle
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from monarch_async.config import Config
from monarch_async.errors import ActorDied, Closed, NotHolder, WireError
from monarch_async.ids import agent_of, host_of
from monarch_async.ranks import Extent, Region
from monarch_async.runtime.answers import NOTHING, Request
from monarch_async.runtime.context import ProcInfo
from monarch_async.runtime.delivery import SEND, SPAWN
from monarch_async.runtime.instance import Instance, State
from monarch_async.runtime.producer import Producer
from monarch_async.runtime.report import pack_error
from monarch_async.runtime.router import Router
from monarch_async.runtime.watchdog import Watchdog
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import (
    CANCELLED,
    CONTROL,
    EAGER,
    FAILED,
    FAILURE,
    GATHERED,
    LEASE,
    MSGPACK,
    REPLY,
    pack_frame,
)
from monarch_async.wire.message import CallFields
from monarch_async.wire.payload import Buffer, Encoded, loads


@dataclass(frozen=True)
class SpawnOrder:
    """What creates the members of an actor mesh; the same bytes for all of them, as few for many members as for one.

    ``region`` selects their procs among those of the proc mesh as spawned, so that each finds its rank by the rank of
    its proc; ``owner`` is the actor id of who spawns them in its proc (0: the client's program); ``skeleton`` the
    pickled (class, args, kwargs), unpickled only where the actor will live.
    """

    name: str
    region: Region
    owner: int
    skeleton: bytes

    def pack(self, buffers: list[memoryview]) -> Encoded:
        """Return the payload of the spawn message; ``buffers`` belong to ``skeleton``."""
        return Encoded(pickle.dumps(self), buffers)


class Proc:
    """This worker. ``router.on_other`` of kinds FAILURE and EXITED are left to others."""

    def __init__(
        self,
        router: Router,
        info: ProcInfo,
        root: int = 0,
        clock: Callable[[], float] = time.monotonic,
        is_detached: bool = False,
    ) -> None:
        """Take over what the router does not deliver itself. ``root``: the client; ``clock`` is the lease's (P2).

        ``is_detached``: the client may change, and there may be none for a while (P5).
        """
        self.router, self.info, self.root, self._is_detached = router, info, root, is_detached
        self.instances: dict[int, Instance] = {}
        self.producers: dict[tuple[int, int], Producer] = {}
        self._early: dict[int, list[tuple[Any, ...]]] = {}
        self._near = {host_of(info.address), host_of(root)}  # what comes from there comes one way only
        self.started_at = time.time()
        self.ended: asyncio.Future[int] = router.loop.create_future()
        self.on_exit: Callable[[bytes], None] = lambda _: None
        #: Of an actor that one of ours spawned: (its id, its rank, whether callers know, report).
        self.on_failure: Callable[[int, int, bool, bytes], None] = lambda *_: None
        #: Ends what an actor has spawned.
        self.release: Callable[[Instance], Awaitable[None]] = _nothing_to_release
        #: Further requests to this proc, by operation: called with (src, call, *arguments). See `answer`.
        self.operations: dict[str, Callable[..., None]] = {}
        self.before_end: Callable[[], Awaitable[None]] | None = None
        self._watchdog = Watchdog(router.loop, router.config.block_warning, f"proc {info}")
        self._tasks: set[asyncio.Task[None]] = set()
        self._clock = clock
        self._lease_at = clock()
        self._was_overdue = False
        router.on_other = self._take
        router.delivery.on_missing = self._take_missing
        router.delivery.on_missing_cancel = self._cancel_early
        router.on_down = self._agent_gone
        router.loop.call_later(router.config.resume_window / 4, self._check_lease)

    # -- actors ----------------------------------------------------------------------------------------------------

    def watch_loop(self, instance: Instance) -> None:
        """An endpoint of ``instance`` is about to run on the loop."""
        watchdog = self._watchdog
        watchdog.label = instance.label
        if not watchdog.is_awake:
            watchdog.wake()

    def _take_missing(
        self,
        src: int,
        call: int,
        flags: int,
        target: int,
        fields: CallFields,
        skeleton: Buffer,
        buffers: Sequence[Buffer],
    ) -> None:
        """A call to something that is not here: the one that creates it, or one that comes too late."""
        if fields.endpoint == SPAWN:
            self._spawn(src, call, flags, target, skeleton, buffers)
        elif fields.endpoint == SEND:
            self.router.refuse_missing(src, call, flags, target, fields, skeleton, buffers)
        elif host_of(src) not in self._near:
            self._hold_early(target, src, call, flags, fields, skeleton, buffers)
        else:
            self._refuse(target, src, call, flags)

    def _hold_early(self, target: int, *early: Any) -> None:
        """P4. A reference can be faster than the message that creates its actor: that one comes from another host."""
        if target not in self._early:
            self._early[target] = []
            self.router.loop.call_later(self.router.config.resume_window, self._refuse_early, target)
        self._early[target].append(early)

    def _cancel_early(self, src: int, target: int, call: int) -> None:
        """The caller of one that waits for its actor has given it up: it is not to begin; acknowledge."""
        for early in self._early.get(target, ()):
            if early[:2] == (src, call):
                self._early[target].remove(early)
                self.router.reply(src, call, 0, CANCELLED | early[2] & (GATHERED | EAGER), Encoded(b"", []))
                return

    def _refuse_early(self, target: int) -> None:
        for src, call, flags, *_ in self._early.pop(target, ()):
            self._refuse(target, src, call, flags)

    def _refuse(self, target: int, src: int, call: int, flags: int) -> None:
        error = ActorDied(f"{target:016x}", self.info.host, f"proc {self.info} has no such actor")
        self.router.reply(src, call, 0, FAILED | flags & (GATHERED | EAGER), Encoded(pack_error(error), []))

    def respawn(self, request: Request, actor_id: int) -> None:
        """An actor that has ended is made anew in its place."""
        self._spawn(request.src, request.call, request.flags, actor_id, request.skeleton, request.buffers)

    def _spawn(
        self, src: int, call: int, flags: int, actor_id: int, skeleton: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        order: SpawnOrder = pickle.loads(skeleton)
        region, owner = order.region, (src, order.owner)
        rank = region.rank_of(self.info.rank)
        assert rank is not None, f"{order.name} is spawned on other procs"
        instance = Instance(self, actor_id, order.name, rank, region.extent, owner, len(region) == 1)
        self.instances[actor_id] = instance
        self.router.targets[actor_id] = instance
        for early in self._early.pop(actor_id, ()):
            instance.accept(*early)

        async def start() -> None:
            report = await instance.start(lambda: loads(order.skeleton, buffers))  # type: ignore[return-value]
            if instance.state is State.FAILED:
                self._start_task(self.release(instance))
            kept = flags & (GATHERED | EAGER)
            if report is None:
                self.router.reply(src, call, rank, kept, NOTHING)
                instance.open()
            else:
                self.router.reply(src, call, rank, kept | FAILED, Encoded(report, []))

        self._start_task(start())

    def report_failure(self, failed: Instance, report: bytes, is_delivered: bool) -> None:
        """Tell the owner of an actor that it failed. ``is_delivered``: calls of that owner bring it the error too."""
        proc, owner_actor = failed.owner
        if self._is_detached and proc == self.root:
            proc = agent_of(self.info.address)
        about = msgpack.packb([failed.id, is_delivered])
        self.router.uplink(proc).send(
            pack_frame(FAILURE, 0, proc, self.info.address, owner_actor, failed.rank, about, report)
        )

    def change_root(self, root: int) -> None:
        """Another client owns this detached proc from now on, and what the last one has spawned."""
        for instance in self.instances.values():
            if instance.owner[0] == self.root:
                instance.owner = root, instance.owner[1]
        self.root = root
        self._near.add(host_of(root))

    def _start_task(self, work: Any) -> None:
        task = self.router.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.router.loop.call_exception_handler({"message": f"in proc {self.info}", "exception": task.exception()})

    # -- what is not a call ----------------------------------------------------------------------------------------

    def _take(self, kind: int, flags: int, src: int, target: int, call: int, control: bytes, payload: bytes) -> None:
        if kind == CONTROL:
            operation, *arguments = msgpack.unpackb(payload)
            self._control(src, call, operation, arguments)
        elif kind == LEASE:
            self._lease_at = self._clock()
        elif kind == FAILURE:
            actor_id, is_delivered = msgpack.unpackb(control)
            self.on_failure(actor_id, call, is_delivered, payload)
        else:
            self.on_exit(payload)

    def _control(self, src: int, call: int, operation: str, arguments: list[Any]) -> None:
        match operation:
            case "status":
                self.answer(src, call, self.status())
            case "direct":
                self._start_task(self._answer_direct(src, call))
            case "stop_actor":
                self._start_task(self._stop_actor(src, call, *arguments))
            case "shutdown":
                self._start_task(self.shutdown(*arguments))
            case _ if operation in self.operations:
                self.operations[operation](src, call, *arguments)
            case _ if call:
                self.answer(src, call, {"error": f"{self.router.name}: unknown request {operation!r}"})

    def answer(self, dst: int, call: int, value: object) -> None:
        """Answer a request, as msgpack."""
        self.router.uplink(dst).send(
            pack_frame(REPLY, MSGPACK, dst, self.info.address, call, 0, b"", msgpack.packb(value))
        )

    async def _answer_direct(self, src: int, call: int) -> None:
        self.answer(src, call, await self.router.direct.listen())

    async def _stop_actor(self, src: int, call: int, actor_id: int, reason: str) -> None:
        instance = self.instances.get(actor_id)
        if instance is not None and self._is_detached and src != instance.owner[0]:  # P5
            error = NotHolder(instance.label, "this program is the owner of its detached lease no longer")
            self.answer(src, call, {"error": str(error), "kind": "NotHolder", "facts": list(error.args)})
            return
        if instance is not None:  # until it has stopped it is here: who asks again, and `shutdown`, wait for that too
            await instance.stop(reason)
            if self.instances.get(actor_id) is instance:
                del self.instances[actor_id]
        self.answer(src, call, None)

    async def shutdown(self, reason: str) -> None:
        """Stop every actor, youngest first, then end the process with status 0."""
        for instance in reversed(list(self.instances.values())):
            await instance.stop(reason)
        if self.before_end is not None:
            await self.before_end()
        if not self.ended.done():
            self.ended.set_result(0)

    def close(self) -> None:
        """End the proc's own machinery."""
        self._watchdog.close()
        self.router.close(Closed(f"proc {self.info}"))

    def status(self) -> dict[str, Any]:
        """What the `monarch-async status` table shows of this proc."""
        now = time.monotonic()
        return {
            "pid": os.getpid(),
            "rss": resident_bytes(),
            "pending": len(self.router.pending),
            "actors": [
                {
                    "name": instance.label,
                    "state": instance.state.value,
                    "queued": len(instance.mailbox),
                    "running": [
                        [
                            _described(instance, r.endpoint),
                            round(now - r.since, 3),
                            r.src,
                            r.context.caller if r.context is not None else "",
                        ]
                        for r in instance.running.values()
                    ],
                }
                for instance in self.instances.values()
                if instance.state is not State.STOPPED
            ],
        }

    # -- the lease -------------------------------------------------------------------------------------------------

    def _agent_gone(self, connection: Connection, error: Exception | None) -> None:
        if not self.ended.done():
            if isinstance(error, WireError):
                sys.stderr.write(f"proc {self.info}: what came over its connection was not understood: {error}\n")
            self.ended.set_result(1)

    def _check_lease(self) -> None:
        """P2. A blocked loop reads late: only what is still overdue a second later counts."""
        window = self.router.config.resume_window
        is_overdue = self._clock() - self._lease_at > window
        if is_overdue and self._was_overdue:
            sys.stderr.write(f"proc {self.info}: no sign of its host agent for {window:g} s: ending itself\n")
            sys.stderr.flush()
            os._exit(71)
        self._was_overdue = is_overdue
        self.router.loop.call_later(1.0 if is_overdue else window / 4, self._check_lease)


def _described(instance: Instance, endpoint: str) -> str:
    """Return what is shown of a call: its endpoint, unless the actor knows better."""
    describe = getattr(instance.actor, "__describe_call__", None)
    return endpoint if describe is None else describe(endpoint)


async def _nothing_to_release(instance: Instance) -> None:
    pass


def boot_time() -> float:
    """Seconds on a clock that goes on while the machine is suspended, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process (this one), shared pages included; 0 where that is not known."""
    try:
        with open(f"/proc/{pid or 'self'}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if pid is None else 0


async def serve(control: Any, spec: dict[str, Any], prepare: Callable[[Proc], None]) -> int:
    """Run one worker on the running loop until it is told to stop; return its exit status.

    ``control`` is the inherited socket to the agent; ``prepare`` is called before the first message is read.
    """
    extent = Extent.of(spec["extent"])
    me = spec["address"]
    info = ProcInfo(me, spec["mesh"], spec["rank"], extent.point(spec["rank"]), spec["host"], os.getpid())
    config = Config(**spec["config"])
    router = Router(me, config, f"proc {info}")
    router.is_prompt = True
    router.plane.identify(spec["cluster"], me, f"{info} on {info.host}", spec["bulk_host"])
    connection = Connection(router, f"agent of {info.host}", agent_of(me), max_frame=config.max_frame, is_prompt=True)
    router.add_uplink(host_of(me), connection)
    clock = time.monotonic if spec["is_lifelined"] else boot_time
    proc = Proc(router, info, spec["root"], clock, is_detached=bool(spec.get("lease")))
    prepare(proc)
    await router.loop.create_unix_connection(lambda: connection, sock=control)
    connection.send(pack_frame(CONTROL, 0, agent_of(me), me, 0, 0, b"", msgpack.packb(["up"])))
    try:
        return await proc.ended
    finally:
        await router.direct.aclose()
        proc.close()
        await router.plane.aclose()
        connection.close()
