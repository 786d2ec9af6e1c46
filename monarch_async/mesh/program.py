"""The client's program: the domain whose owners are scopes, and whose log lines go to the terminal."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from monarch_async.config import Config
from monarch_async.control.controller import Controller
from monarch_async.control.host import Host
from monarch_async.control.membership import HostEvent
from monarch_async.control.placer import Placer
from monarch_async.control.remote_placer import RemoteHolders
from monarch_async.control.supervision import Failure
from monarch_async.control.worker import Exit
from monarch_async.errors import Closed, Error, HostLost
from monarch_async.ids import AGENT, address, host_of
from monarch_async.mesh.console import Console
from monarch_async.mesh.domain import Domain
from monarch_async.mesh.guardian import Guardian, current_guardian
from monarch_async.mesh.host_source import HostSource
from monarch_async.mesh.proc_recipe import client_path, default_preload
from monarch_async.mesh.remote_roster import RosterDesk
from monarch_async.mesh.roster import ClientRoster
from monarch_async.mesh.scope import Scope, current_scope
from monarch_async.runtime.call import Unseen

#: How long an agent may take to answer beyond the grace that procs have.
_PATIENCE = 10.0


class Program(Domain):
    """One client. ``scope`` is the block of its hosts, where failures end that nobody handles."""

    def __init__(self, controller: Controller, scope: Scope, token: bytes, source: HostSource | None) -> None:
        """Take what the controller reports. ``token`` and ``source``: see `ClientRoster`."""
        super().__init__(controller.router)
        self.controller, self.scope = controller, scope
        self.console = Console(controller.config.fold_logs, scope.fail)
        self._last_gone: HostEvent | None = None  # the host that was lost last, or left
        self._placer = Placer(controller)
        RemoteHolders(controller, self._placer)
        controller.links.listeners.append(self._placer.take_host_event)
        controller.links.listeners.append(self._take_host_event)
        self._roster = ClientRoster(self, token, source)
        RosterDesk(controller, self._roster, self.start_task)
        controller.is_old = self.is_old
        controller.on_exit = lambda exit, _, pending: self.exited(exit, pending > 0)
        controller.on_failure = self.failed
        controller.on_lines = self.console.show

    @property
    def operations(self) -> dict[str, Callable[..., None]]:
        """The controller's."""
        return self.controller.operations

    @property
    def on_gone(self) -> list[Callable[[Exit], None]]:
        """The controller's."""
        return self.controller.on_gone

    def answer(self, dst: int, call: int, value: object) -> None:
        """As the controller does."""
        self.controller.answer(dst, call, value)

    @property
    def roster(self) -> ClientRoster:
        """The one of the whole program: workers ask it too."""
        return self._roster

    @property
    def placer(self) -> Placer:
        """The one of the whole program: workers ask it too."""
        return self._placer

    @property
    def hosts(self) -> list[Host]:
        """All of them, in the order in which they joined."""
        return list(self.controller.hosts.values())

    @property
    def config(self) -> Config:
        """The settings of this program."""
        return self.controller.config

    def _take_host_event(self, event: HostEvent) -> None:
        """Of what was there it is known what became of it: objects were let go of, procs may have been adopted."""
        if event.kind == "lost" or (event.kind == "left" and event.was != "lost"):
            self._last_gone = event
        if event.kind in ("lost", "left"):
            self.holdings.host_lost(address(event.host.id, AGENT))
        if event.kind == "up" and event.was == "joining":
            for detachment in {a.detachment for a in self.allocations.values() if a.detachment is not None}:
                self.start_task(detachment.host_returned(event.host.id))

    def why_no_host(self) -> Error:
        """Name those that are lost; where none is known any more, the last one there was."""
        gone = self._last_gone
        lost = [event for event in self.controller.links.members if event.kind == "lost"]
        if not lost and gone is not None and gone.kind == "lost":
            lost = [gone]
        if lost:
            names, reasons = [event.host.name for event in lost], dict.fromkeys(event.why for event in lost)
            return HostLost(", ".join(names), f"{'; '.join(reasons)}. This program has no other host")
        why = f": the last one, {gone.host.name}, has left: {gone.why}" if gone is not None else ""
        return Closed("this program", f"it has no host{why}")

    def why_not_detached(self, hosts: Sequence[Host]) -> str:
        """Where a host ends with this program, so does everything there."""
        tied = [host.name for host in hosts if host.id in self.controller.links.watched]
        return f"{tied[0]} ends with this program, as local_hosts() started it: use attach()" if tied else ""

    def store_agent(self, home: int) -> int:
        """Return the home itself where it is on this machine, or no host is; else the first host that is."""
        living = self.hosts
        near = [host for host in living if self.router.outgoing.is_near(host.id)] or living
        if not near:
            why = self.why_no_host()
            raise why if isinstance(why, Closed) else Closed("this program", f"it has no host: {why}")
        return address(next((host.id for host in near if host.id == host_of(home)), near[0].id), AGENT)

    def warm(self, hosts: Sequence[Host]) -> None:
        """Have them import what this program has imported and takes long, so that their first spawn need not."""
        if preload := default_preload():
            for host in hosts:
                self.requests.post(address(host.id, AGENT), "warm", list(preload), list(client_path()))

    def owner_actor(self) -> int:
        """The client is no actor."""
        return 0

    def owner(self) -> Scope | Guardian:
        """What is spawned now belongs to the innermost scope."""
        return current_guardian() or current_scope() or self.scope

    def may_handle(self, owner: object) -> bool:
        """Whether a policy is to be asked."""
        assert isinstance(owner, Scope)
        return owner.has_policy

    async def handle(self, owner: object, failure: Failure) -> bool:
        """Ask the policies."""
        assert isinstance(owner, Scope)
        return await owner.handle(failure)

    def fail(self, owner: object, failure: Failure, raised: Exception | None = None) -> None:
        """End the scope."""
        assert isinstance(owner, Scope)
        owner.fail(raised or failure.error)

    def fail_caller(self, unseen: Unseen) -> None:
        """End the program: its body, or a task of it, did not look."""
        self.scope.fail(unseen.error)

    async def aclose(self) -> None:
        """End what this program spawned, then its sessions."""
        await asyncio.sleep(0)  # who waits for what has failed in this very turn looks at it now
        self.router.failures.report_all()
        await asyncio.sleep(0)  # the reports are on their way
        await self.close_annexes()
        self.holdings.close()
        await self.cancel_tasks()
        stops = [
            allocation.stop(allocation.addresses, "its client has ended")
            for allocation in {id(a): a for a in self.allocations.values() if a.detachment is None}.values()
        ]
        with contextlib.suppress(TimeoutError):  # an agent that does not answer ends them when we have left
            async with asyncio.timeout(2 * self.config.stop_grace + _PATIENCE):
                await asyncio.gather(*stops, return_exceptions=True)
        self.console.close()
        self._placer.close(Closed("this program", "it has left its hosts"))
        await self.controller.aclose()
