"""The entry of a worker process: the runtime's `Proc`, and what lets actors spawn and supervise.

What an actor spawns is its own: failures of it go to its ``__supervise__``; where that does not handle them the actor
itself fails, and its owner is told, up to the client.
"""

import os
import socket
from typing import Any

from monarch_async.control.cluster_token import TOKEN_VARIABLE
from monarch_async.control.controller import Host, lose
from monarch_async.control.supervision import Failure
from monarch_async.control.worker import Exit
from monarch_async.errors import ActorDied
from monarch_async.ids import host_of
from monarch_async.mesh.domain import Domain, activate_domain
from monarch_async.runtime.context import current_context
from monarch_async.runtime.instance import Instance, State
from monarch_async.runtime.loop import run_loop
from monarch_async.runtime.proc import Proc, serve
from monarch_async.runtime.report import format_traceback, pack_error
from monarch_async.wire.frame import EXITED, FAILURE


class WorkerDomain(Domain):
    """What the actors of one proc have spawned."""

    def __init__(self, proc: Proc, spec: dict[str, Any]) -> None:
        """``spec``: what the agent said of this proc."""
        super().__init__(proc.router, [Host(host_of(proc.info.address), proc.info.host, "")])
        self._proc = proc
        self.root = spec["root"]
        proc.on_event = self._take
        proc.router.direct.ask = lambda dst: self.requests.ask(dst, "direct")
        proc.router.direct.is_here = lambda host: host == host_of(proc.info.address)
        proc.router.on_unseen = self._unseen
        proc.before_end = self._end

    def owner_actor(self) -> int:
        """Return the id of the actor whose endpoint runs."""
        context = current_context()
        return context.instance.id if context is not None else 0

    def owner(self) -> Instance | None:
        """Return the actor whose endpoint runs."""
        context = current_context()
        return context.instance if context is not None else None

    def tell(self, owner: object, failure: Failure, is_delivered: bool) -> None:
        """Ask the owner's ``__supervise__``; without it, or where it does not handle it, the owner fails."""
        if isinstance(owner, Instance) and owner.state is State.RUNNING:
            self.start_task(self._supervise(owner, failure, is_delivered))

    async def _supervise(self, owner: Instance, failure: Failure, is_delivered: bool) -> None:
        hook = getattr(owner.actor, "__supervise__", None)
        error: BaseException = failure.error
        if hook is not None:
            try:
                if await hook(failure):
                    return
            except Exception as raised:
                raised.__cause__ = raised.__cause__ or failure.error
                error = raised
        elif is_delivered:
            return  # an endpoint of the owner has it as an exception: what it does with it decides
        member = f"{failure.mesh.name}[{failure.rank}]"
        reason = f"{member}, which it spawned, failed, and it did not handle that: {failure.error}"
        trace = "" if error is failure.error else format_traceback(error)
        died = ActorDied(owner.label, self._proc.info.host, reason, trace)
        self._proc.report_failure(owner.owner, owner.id, owner.rank, pack_error(died))
        await owner.stop(reason)

    def _unseen(self, error: BaseException, what: str) -> None:
        """A call made here failed and nobody looked: it is the failure of the actor that made it, if that is known."""
        self.router.loop.call_exception_handler(
            {"message": f"{what} failed and nobody looked at its result", "exception": error}
        )

    def _take(self, kind: int, owner_actor: int, actor_id: int, rank: int, payload: bytes) -> None:
        if kind == EXITED:
            exit = Exit.unpack(payload)
            self.router.direct.when_drained(exit.address, lambda: self.exited(exit, lose(self.router, exit) > 0))
        elif kind == FAILURE:
            self.failed(actor_id, rank, payload)

    async def _end(self) -> None:
        """End the procs that actors of this one spawned."""
        await self.cancel_tasks()
        for allocation in {id(a): a for a in self.allocations.values()}.values():
            await allocation.stop(allocation.addresses, f"proc {self._proc.info}, which spawned it, ends")


def main(control: socket.socket, spec: dict[str, Any]) -> int:
    """Run a worker until it is told to stop (entry named in the spec of every proc)."""
    os.environ.pop(TOKEN_VARIABLE, None)

    def prepare(proc: Proc) -> None:
        activate_domain(WorkerDomain(proc, spec))

    async def run() -> int:
        return await serve(control, spec, prepare)

    return run_loop(run())


