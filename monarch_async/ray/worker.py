"""The facade in a worker: what it wants placed or spawned it asks of the hub, in the driver."""

import os
import pickle
from typing import Any

from monarch_async.control.controller import read_answer
from monarch_async.mesh.domain import Domain
from monarch_async.ray.runtime import Runtime, find, set_current
from monarch_async.wire.payload import Encoded, Ticketed, dumps, loads

#: Set in workers by the hub: the namespace of the job.
NAMESPACE_VARIABLE = "MONARCH_ASYNC_RAY_NAMESPACE"


class RemoteHub:
    """The hub, as others have it."""

    def __init__(self, domain: Domain) -> None:
        """It is in the client."""
        self._domain = domain

    def _send(self, encoded: Encoded) -> Any:
        """Ask now; return what is to be awaited."""
        hub = self._domain.root
        call = self._domain.requests.call(hub, "ray_hub", *_said(encoded))
        if isinstance(encoded, Ticketed):
            encoded.sent_to((hub,), call.id)
        return call

    def tell(self, operation: str, args: tuple[object, ...]) -> Any:
        """Say something now. It is answered only where that is needed to know who has its references."""
        encoded = dumps((operation, args), "arguments", operation)
        if isinstance(encoded, Ticketed):
            return self._send(encoded)
        self._domain.requests.post(self._domain.root, "ray_hub", *_said(encoded))
        return None

    async def ask(self, operation: str, *args: object) -> Any:
        """Ask. Raises what is raised there."""
        encoded = dumps((operation, args), "arguments", operation)
        kind, data, *buffers = read_answer(await self._send(encoded))
        if kind == "error":
            raise pickle.loads(data)
        return loads(data, *buffers)


def _said(encoded: Encoded) -> tuple[bytes, list[bytes]]:
    return encoded.skeleton, [bytes(buffer) for buffer in encoded.buffers]


def begin(domain: Domain) -> Runtime:
    """Begin, in a process that has been spawned. On any thread."""
    found = find()
    if found is not None:
        return found
    runtime = Runtime(domain, RemoteHub(domain), is_driver=False)
    runtime.namespace = os.environ.get(NAMESPACE_VARIABLE, "")
    set_current(runtime)
    return runtime
