"""The client's program: the domain whose owners are scopes, and whose log lines go to the terminal."""

import asyncio

from monarch_async.config import Config
from monarch_async.control.controller import Controller
from monarch_async.control.supervision import Failure, escalate
from monarch_async.control.worker import Exit
from monarch_async.errors import Lost
from monarch_async.mesh.console import Console
from monarch_async.mesh.domain import Domain
from monarch_async.mesh.scope import Scope, current_scope


class Program(Domain):
    """One client. ``scope`` is the block of its hosts, where failures end that nobody handles."""

    def __init__(self, controller: Controller, scope: Scope) -> None:
        """Take what the controller reports."""
        super().__init__(controller.router, [])
        self.controller, self.scope = controller, scope
        self.console = Console(controller.config.fold_logs, scope.fail)
        self._deaths: dict[tuple[object, ...], _Outcome] = {}
        controller.on_exit = self._exited
        controller.on_failure = lambda _, actor_id, rank, report: self.failed(actor_id, rank, report)
        controller.on_lines = self.console.show
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
        outcome = _Outcome(is_delivered)
        if isinstance(failure.error, Lost):
            self._deaths[failure.error.args] = outcome
        if _has_policy(owner):
            self.start_task(self._handle(owner, failure, outcome))
        else:
            self._settle(owner, failure.error, outcome, False)

    async def _handle(self, owner: Scope, failure: Failure, outcome: "_Outcome") -> None:
        self._settle(owner, failure.error, outcome, await owner.handle(failure))

    def _settle(self, owner: Scope, error: BaseException, outcome: "_Outcome", is_handled: bool) -> None:
        outcome.is_handled = is_handled
        if not is_handled and not outcome.is_delivered:
            owner.fail(error)

    def _exited(self, exit: Exit, owner_actor: int, pending: int) -> None:
        self.exited(exit, pending > 0)

    def _unseen(self, error: BaseException, what: str) -> None:
        """A call failed and nobody looked. A death is its policies' business; it is open again where they decline."""
        outcome = self._deaths.get(error.args) if isinstance(error, Lost) else None
        if outcome is None:
            self.scope.fail(error)
        elif outcome.is_handled is None:
            outcome.is_delivered = False
        elif not outcome.is_handled:
            self.scope.fail(error)

    async def aclose(self) -> None:
        """End what this program spawned, then its sessions."""
        await self.cancel_tasks()
        stops = [
            allocation.stop(allocation.addresses, "its client has ended")
            for allocation in {id(a): a for a in self.allocations.values()}.values()
        ]
        await asyncio.gather(*stops, return_exceptions=True)
        self.console.close()
        await self.controller.aclose()


class _Outcome:
    """What became of a failure: whether callers carry it, and whether a policy handled it (None: not decided yet)."""

    def __init__(self, is_delivered: bool) -> None:
        self.is_delivered = is_delivered
        self.is_handled: bool | None = None


def _has_policy(scope: Scope | None) -> bool:
    while scope is not None:
        if scope.policy is not escalate:
            return True
        scope = scope.parent
    return False
