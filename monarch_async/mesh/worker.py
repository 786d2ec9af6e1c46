"""The entry of a worker process: the runtime's `Proc`, and what lets actors spawn and supervise.

What an actor spawns is its own: failures of it go to its ``__supervise__``; where that does not handle them the actor
itself fails, and its owner is told, up to the client.
"""

import os
import socket
from collections.abc import Callable
from typing import Any

from monarch_async.control.cluster_token import TOKEN_VARIABLE
from monarch_async.control.controller import lose
from monarch_async.control.host import Host
from monarch_async.control.remote_placer import RemotePlacer
from monarch_async.control.supervision import Failure
from monarch_async.control.worker import Exit
from monarch_async.errors import ActorDied
from monarch_async.ids import agent_of, host_of
from monarch_async.mesh.domain import Domain, activate_domain
from monarch_async.mesh.guardian import Guardian, current_guardian
from monarch_async.mesh.remote_roster import RemoteRoster
from monarch_async.runtime.call import Unseen
from monarch_async.runtime.context import current_context, enter_hook
from monarch_async.runtime.instance import Instance
from monarch_async.runtime.proc import Proc, serve
from monarch_async.runtime.report import describe, format_traceback
from monarch_async.transport.loop import run_loop


class WorkerDomain(Domain):
    """What the actors of one proc have spawned."""

    def __init__(self, proc: Proc, spec: dict[str, Any]) -> None:
        """``spec``: what the agent said of this proc."""
        super().__init__(proc.router)
        self._proc = proc
        self._on_gone: list[Callable[[Exit], None]] = []
        self.root, self.home = spec["root"], spec["home"]
        self.lease = spec.get("lease", 0), spec.get("lease_name", "")
        self._placer = RemotePlacer(self.requests, self.root)
        self._roster = RemoteRoster(self.requests, self.root)
        proc.operations |= self._placer.operations | self._roster.operations
        proc.operations["owned_by"] = self._owned_by
        proc.on_exit = self._take_exit
        proc.on_failure = self.failed
        proc.release = self._release
        proc.router.direct.ask = lambda dst: self.requests.ask(dst, "direct")
        proc.router.direct.is_here = lambda host: host == host_of(proc.info.address)
        proc.router.outgoing.is_near = _nearness(spec)
        proc.before_end = self._end
        agent, taker = agent_of(proc.info.address), proc.router.taker
        taker.fetch_once = lambda *upload: self.requests.ask(agent, "upload", *upload)
        taker.release = lambda name: proc.router.call_soon(self.requests.post, agent, "uploaded", name)

    @property
    def hosts(self) -> list[Host]:
        """Its own host first; the others once the roster has fetched them."""
        mine, known = host_of(self._proc.info.address), self._roster.hosts
        own = [host for host in known if host.id == mine] or [Host(mine, self._proc.info.host, "")]
        return own + [host for host in known if host.id != mine]

    @property
    def operations(self) -> dict[str, Callable[..., None]]:
        """The proc's."""
        return self._proc.operations

    @property
    def on_gone(self) -> list[Callable[[Exit], None]]:
        """Its own."""
        return self._on_gone

    def answer(self, dst: int, call: int, value: object) -> None:
        """As the proc does."""
        self._proc.answer(dst, call, value)

    @property
    def roster(self) -> RemoteRoster:
        """What asks the client's."""
        return self._roster

    @property
    def placer(self) -> RemotePlacer:
        """What asks the client's."""
        return self._placer

    def _owned_by(self, src: int, call: int, root: int, home: int, is_near: bool) -> None:
        """A detached proc: another client has adopted it. What the last one was asked for is gone with that."""
        self._proc.change_root(root)
        self._roster.end()
        self.root, self.home = root, home
        self._placer = RemotePlacer(self.requests, root)
        self._roster = RemoteRoster(self.requests, root)
        self._proc.operations |= self._placer.operations | self._roster.operations
        spec = {"address": self._proc.info.address, "is_root_near": is_near, "root": root, "is_lifelined": False}
        self._proc.router.outgoing.is_near = _nearness(spec)

    def owner_actor(self) -> int:
        """Return the id of the actor whose endpoint runs; 0 where a guardian spawns."""
        context = current_context()
        return context.instance.id if context is not None and current_guardian() is None else 0

    def owner(self) -> Instance | Guardian | None:
        """Return the actor whose endpoint runs, unless a guardian spawns."""
        if (guardian := current_guardian()) is not None:
            return guardian
        context = current_context()
        return context.instance if context is not None else None

    def may_handle(self, owner: object) -> bool:
        """Whether the actor has a ``__supervise__``."""
        return isinstance(owner, Instance) and hasattr(owner.actor, "__supervise__")

    async def handle(self, owner: object, failure: Failure) -> bool:
        """Ask the actor's ``__supervise__``, with the actor as context: what that spawns is its own."""
        assert isinstance(owner, Instance)
        enter_hook(owner, "__supervise__")
        return await owner.actor.__supervise__(failure)  # type: ignore[attr-defined]

    def fail(self, owner: object, failure: Failure, raised: Exception | None = None) -> None:
        """The actor that spawned it fails, and with it what else it spawned."""
        what = f"{failure.mesh.name}[{failure.rank}], which it spawned, failed"
        if raised is None:
            self._fail_actor(owner, f"{what}, and it did not handle that: {describe(failure.error)}", failure.error)
        else:
            self._fail_actor(owner, f"{what}, and its __supervise__ raised {describe(raised)}", raised)

    def fail_caller(self, unseen: Unseen) -> None:
        """The actor that made the call fails."""
        owner = unseen.caller.instance if unseen.caller is not None else None
        reason = f"its call of {unseen.what} failed, and it did not look at that: {describe(unseen.error)}"
        self._fail_actor(owner, reason, unseen.error)

    def _fail_actor(self, owner: object, reason: str, cause: BaseException) -> None:
        if isinstance(owner, Instance):
            trace = format_traceback(cause) if cause.__traceback__ is not None else ""
            died = ActorDied(owner.label, self._proc.info.host, reason, trace)
            self.start_task(owner.fail(died, cause))
        else:  # spawned or called by no actor: by a module, or in a thread
            self.router.loop.call_exception_handler({"message": reason, "exception": cause})

    def _take_exit(self, payload: bytes) -> None:
        exit = Exit.unpack(payload)
        self.router.direct.when_drained(exit.address, lambda: self._exited(exit))

    def _exited(self, exit: Exit) -> None:
        if not self.is_old(exit):
            for told in self._on_gone:
                told(exit)
            self.exited(exit, lose(self.router, exit) > 0)

    async def _release(self, instance: Instance) -> None:
        await self.end(instance, f"{instance.label}, which spawned it, has ended")

    async def _end(self) -> None:
        """End the procs that actors of this one spawned."""
        await self.close_annexes()
        await self.cancel_tasks()
        for allocation in {id(a): a for a in self.allocations.values()}.values():
            await allocation.stop(allocation.addresses, f"proc {self._proc.info}, which spawned it, ends")


def _nearness(spec: dict[str, Any]) -> Callable[[int], bool]:
    """Return what tells whether the processes of a host run on this machine: of a lifelined agent's cluster all do."""
    near = {host_of(spec["address"])}
    if spec["is_root_near"]:
        near.add(host_of(spec["root"]))
    return lambda host: spec["is_lifelined"] or host in near


def main(control: socket.socket, spec: dict[str, Any]) -> int:
    """Run a worker until it is told to stop (entry named in the spec of every proc)."""
    os.environ.pop(TOKEN_VARIABLE, None)

    def prepare(proc: Proc) -> None:
        activate_domain(WorkerDomain(proc, spec))

    async def run() -> int:
        return await serve(control, spec, prepare)

    return run_loop(run())


