"""The client's program: the domain whose owners are scopes, and whose log lines go to the terminal."""

import asyncio
import sys

from monarch_async.config import Config
from monarch_async.control.controller import Controller
from monarch_async.control.log_lines import LineFold
from monarch_async.control.supervision import Failure, escalate
from monarch_async.control.worker import Exit
from monarch_async.errors import Lost
from monarch_async.mesh.domain import Domain
from monarch_async.mesh.scope import Scope, current_scope


class Program(Domain):
    """One client. ``scope`` is the block of its hosts, where failures end that nobody handles."""

    def __init__(self, controller: Controller, scope: Scope) -> None:
        """Take what the controller reports."""
        super().__init__(controller.router, [])
        self.controller, self.scope = controller, scope
        self._folds: dict[tuple[str, int, int], LineFold] = {}
        controller.on_exit = self._exited
        controller.on_failure = lambda _, actor_id, rank, report: self.failed(actor_id, rank, report)
        controller.on_lines = self._print
        controller.router.on_unseen = self._unseen

    @property
    def config(self) -> Config:
        """The settings of this program."""
        return self.controller.config

    def owner_actor(self) -> int:
        """The client is no actor."""
        return 0

    def owner(self) -> Scope:
        """What is spawned now belongs to the innermost scope."""
        return current_scope() or self.scope

    def tell(self, owner: object, failure: Failure, is_delivered: bool) -> None:
        """Ask the policies; a failure nobody handles ends the scope, unless callers carry it already."""
        assert isinstance(owner, Scope)
        if not _has_policy(owner):
            if not is_delivered:
                owner.fail(failure.error)
            return
        self.start_task(self._handle(owner, failure, is_delivered))

    async def _handle(self, owner: Scope, failure: Failure, is_delivered: bool) -> None:
        if not await owner.handle(failure) and not is_delivered:
            owner.fail(failure.error)

    def _exited(self, exit: Exit, owner_actor: int, pending: int) -> None:
        self.exited(exit, pending > 0)

    def _unseen(self, error: BaseException, what: str) -> None:
        """A call failed and nobody looked."""
        if isinstance(error, Lost) and self._was_handled(error):
            return
        self.scope.fail(error)

    def _was_handled(self, error: Lost) -> bool:
        """Deaths were put to the policies when they happened; only where there are none is this the first report."""
        scopes = {id(a.owner): a.owner for a in self.allocations.values()}
        return any(isinstance(scope, Scope) and _has_policy(scope) for scope in scopes.values())

    # -- output ----------------------------------------------------------------------------------------------------

    def _print(self, mesh: str, rank: int, stream: int, lines: bytes) -> None:
        """Print the lines of a proc with its mesh and rank in front."""
        out = sys.stdout if stream == 1 else sys.stderr
        prefix = f"[{mesh} {rank}] "
        split = lines.split(b"\n")
        if self.config.fold_logs:
            fold = self._folds.setdefault((mesh, rank, stream), LineFold())
            split = [folded for line in split for folded in fold.feed(line)]
        text = "".join(f"{prefix}{line.decode(errors='backslashreplace')}\n" for line in split)
        out.write(text)
        out.flush()

    def finish_output(self) -> None:
        """Print what folding still holds back."""
        for (mesh, rank, stream), fold in self._folds.items():
            out = sys.stdout if stream == 1 else sys.stderr
            out.write("".join(f"[{mesh} {rank}] {line.decode(errors='backslashreplace')}\n" for line in fold.close()))
        self._folds.clear()

    async def aclose(self) -> None:
        """End what this program spawned, then its sessions."""
        await self.cancel_tasks()
        stops = [
            allocation.stop(allocation.addresses, "its client has ended")
            for allocation in {id(a): a for a in self.allocations.values()}.values()
        ]
        await asyncio.gather(*stops, return_exceptions=True)
        self.finish_output()
        await self.controller.aclose()


def _has_policy(scope: Scope | None) -> bool:
    while scope is not None:
        if scope.policy is not escalate:
            return True
        scope = scope.parent
    return False
