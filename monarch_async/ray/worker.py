"""The facade in a worker: what it wants placed or spawned it asks of the hub, in the driver."""

import os
import pickle
from typing import Any

from monarch_async.control.controller import read_answer
from monarch_async.mesh.domain import Domain
from monarch_async.ray.runtime import Runtime, find, set_current
from monarch_async.wire.payload import Ticketed, dumps, loads

#: Set in workers by the hub: the namespace of the job, and whether plain methods of async actors run on the loop.
NAMESPACE_VARIABLE = "MONARCH_ASYNC_RAY_NAMESPACE"


class RemoteHub:
    """The hub, as others have it."""

    def __init__(self, domain: Domain) -> None:
        """It is in the client."""
        self._domain = domain

    def send(self, operation: str, args: tuple[object, ...]) -> Any:
        """Ask now; return what is to be awaited."""
        encoded = dumps((operation, args), "arguments", operation)
        requests, hub = self._domain.requests, self._domain.root
        call = requests.call(hub, "ray_hub", encoded.skeleton, [bytes(buffer) for buffer in encoded.buffers])
        if isinstance(encoded, Ticketed):
            encoded.sent_to((hub,), call.id)
        return call

    async def ask(self, operation: str, *args: object) -> Any:
        """Ask. Raises what is raised there."""
        kind, data, *buffers = read_answer(await self.send(operation, args))
        if kind == "error":
            raise pickle.loads(data)
        return loads(data, *buffers)


def begin(domain: Domain) -> Runtime:
    """Begin, in a process that has been spawned. On any thread."""
    found = find()
    if found is not None:
        return found
    runtime = Runtime(domain, RemoteHub(domain), domain.root, is_driver=False)
    runtime.namespace = os.environ.get(NAMESPACE_VARIABLE, "")
    set_current(runtime)
    return runtime
