"""The hub: the driver's half of the facade. All that is placed or spawned belongs to it.

ray_hub [skeleton, buffers]: (operation, arguments), pickled; answered with ["ok", skeleton, buffers] or ["error", data]
"""

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from monarch_async.control.worker import Exit
from monarch_async.ids import format_address, host_of
from monarch_async.mesh.domain import Domain
from monarch_async.mesh.host_mesh import HostMesh
from monarch_async.ray.hub_actors import HubActors
from monarch_async.ray.hub_tasks import HubTasks
from monarch_async.ray.living import address_of
from monarch_async.ray.metric_table import MetricTable
from monarch_async.ray.nodes import Nodes
from monarch_async.ray.placing import Placing
from monarch_async.ray.rendezvous import Rendezvous
from monarch_async.wire.payload import Buffer, Ticketed, dumps, loads

if TYPE_CHECKING:
    from monarch_async.ray.runtime import Runtime

log = logging.getLogger("monarch_async")

Operation = Callable[..., Awaitable[Any] | Any]


class Hub:
    """One per driver, on its loop. Operations are called with who asks (an address) and what was said.

    Those that are coroutine functions run in a task; others at once, so in the order in which they were said.
    """

    def __init__(self, domain: Domain, hosts: HostMesh) -> None:
        """`begin` makes it ready."""
        self.domain, self.hosts = domain, hosts
        self.operations: dict[str, Operation] = {}
        domain.operations["ray_hub"] = self._take

    def begin(self, runtime: "Runtime") -> None:
        """The driver's runtime is there."""
        self.runtime = runtime
        self.placing = Placing(self.hosts)
        self.placing.start()
        self.tasks = HubTasks(self)
        self.actors = HubActors(self)
        self.metrics, self.rendezvous = MetricTable(), Rendezvous()
        self.operations |= self.placing.groups.operations | Nodes(self.placing).operations
        self.operations |= self.metrics.operations | self.rendezvous.operations
        self.operations["node.address"] = self.node_address
        self.domain.on_gone.append(self._gone)

    async def aclose(self) -> None:
        """End what runs."""
        await self.actors.aclose()
        await self.placing.aclose()

    def node_address(self, process: int) -> str:
        """Return where the host of a process is reached."""
        hosts = self.domain.hosts
        return address_of(next((host for host in hosts if host.id == host_of(process)), hosts[0]))

    def _gone(self, exit: Exit) -> None:
        """A process, or a host, has ended."""

        def has_ended(address: int) -> bool:
            return host_of(address) == host_of(exit.address) if exit.is_host else address == exit.address

        self.metrics.forget(has_ended)
        self.rendezvous.forget(has_ended)
        self.tasks.forget(has_ended)

    # -- asked by its own process ----------------------------------------------------------------------------------

    def tell(self, operation: str, args: tuple[object, ...]) -> Awaitable[Any] | None:
        """See `runtime.HubAccess`."""
        told = self.operations[operation](self.runtime.address, *args)
        return told if asyncio.iscoroutine(told) else None

    async def ask(self, operation: str, *args: object) -> Any:
        """See `runtime.HubAccess`."""
        told = self.operations[operation](self.runtime.address, *args)
        return await told if asyncio.iscoroutine(told) else told

    # -- asked by others -------------------------------------------------------------------------------------------

    def _take(self, src: int, call: int, skeleton: bytes, buffers: list[Buffer]) -> None:
        try:
            operation, args = loads(skeleton, buffers)  # type: ignore[misc]
            told = self.operations[operation](src, *args)
        except Exception as error:
            self._refuse(src, call, error)
            return
        if asyncio.iscoroutine(told):
            self.runtime.start(self._answer_later(src, call, told))
        else:
            self._answer(src, call, told)

    async def _answer_later(self, src: int, call: int, told: Awaitable[Any]) -> None:
        try:
            value = await told
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._refuse(src, call, error)
        else:
            self._answer(src, call, value)

    def _answer(self, src: int, call: int, value: object) -> None:
        encoded = dumps(value, "answer")
        self.domain.answer(src, call, ["ok", encoded.skeleton, [bytes(buffer) for buffer in encoded.buffers]])
        if isinstance(encoded, Ticketed):
            encoded.sent_to((src,), call, is_answer=True)

    def _refuse(self, src: int, call: int, error: BaseException) -> None:
        if not call:  # nobody waits for it
            log.error("ray facade: a request of %s failed", format_address(src), exc_info=error)
            return
        try:
            data = pickle.dumps(error)
            pickle.loads(data)
        except Exception:
            data = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        self.domain.answer(src, call, ["error", data])
