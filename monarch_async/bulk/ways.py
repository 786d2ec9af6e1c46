"""How transports to other processes come about: tried, in one plane, one by one."""

from typing import TYPE_CHECKING

from monarch_async.bulk.cma import Cma
from monarch_async.bulk.endpoint import Endpoint, this_machine, this_network
from monarch_async.bulk.local import Local
from monarch_async.bulk.pinned import OwnDevice, PinnedTransport
from monarch_async.bulk.region import RemoteRegion
from monarch_async.bulk.staged import Staged
from monarch_async.bulk.stream import BulkLink, StreamTransport
from monarch_async.bulk.transport import Transport
from monarch_async.errors import TransferBroken
from monarch_async.transport.url import Url

if TYPE_CHECKING:
    from monarch_async.bulk.plane import DataPlane


class Ways:
    """Of one plane, on its loop."""

    def __init__(self, plane: "DataPlane") -> None:
        """No connections yet."""
        self._plane = plane
        self._links: dict[Endpoint, BulkLink] = {}

    async def open(self, name: str, endpoint: Endpoint) -> tuple[Transport | None, str]:
        """Return one transport to a process, or why there is none."""
        plane = self._plane
        if name == "local" and endpoint.nonce != plane.regions.beacon.nonce:
            return None, "another process"
        match name:
            case "local":
                return Local(plane.regions), ""
            case "cma":
                why = Cma.probe(endpoint)
                return (None, why) if why else (Cma(endpoint, self._link(endpoint)), "")
            case "memfd":
                why = Staged.probe(endpoint)
                return (None, why) if why else (Staged(endpoint, self._link(endpoint), plane.arena), "")
            case "ucx":
                return await self._open_ucx(endpoint)
            case _:
                return self._open_stream(endpoint)

    async def open_beyond(self, inner: Transport, region: RemoteRegion) -> tuple[Transport, dict[str, str]]:
        """Return a transport to memory of a process's device, and why it is no better one.

        ``inner`` is one to its other memory, on which this may stand: it is to be closed first.
        """
        if inner.name == "local":
            return OwnDevice(self._plane.regions), {}
        why = _why_no_ucx(region)
        if not why and "ucx" in self._plane.config.allowed_transports:
            transport, why = await self._open_ucx(region.endpoint)
            if transport is not None:
                return transport, {}
        return PinnedTransport(self._link(region.endpoint), inner), {"ucx": why or "this process allows no UCX"}

    async def _open_ucx(self, endpoint: Endpoint) -> tuple[Transport | None, str]:
        from monarch_async.bulk.ucx import Ucx

        plane = self._plane
        plane.endpoint  # noqa: B018  the worker starts with it
        if isinstance(plane.ucx, str):
            return None, plane.ucx
        why = Ucx.probe(endpoint)
        if why:
            return None, why
        transport = Ucx(endpoint, plane.ucx, self._link(endpoint))
        try:
            await transport.connect()
        except TransferBroken as error:
            await transport.aclose()
            return None, error.why
        return transport, ""

    def _open_stream(self, endpoint: Endpoint) -> tuple[Transport | None, str]:
        if not endpoint.tcp:
            return None, "it does not listen on TCP, or has TLS but no certificate (tls_cert) to listen with"
        if endpoint.url.is_local_only and endpoint.machine != this_machine():
            return None, f"it listens on {endpoint.tcp} only, and is on another machine"
        if self._plane.tls.is_on and not endpoint.tls:
            return None, "it does not encrypt, and this process uses TLS: start its agent with --tls-cert"
        return StreamTransport(endpoint, self._plane.config, self._plane.tls), ""

    def _link(self, endpoint: Endpoint) -> BulkLink:
        """Return the connection on which a process is asked for what its transports need of it."""
        link = self._links.get(endpoint)
        if link is None:
            link = self._links[endpoint] = BulkLink(
                endpoint, self._plane.config, _link_url(endpoint), self._plane.tls
            )
        return link

    async def close(self, transport: Transport, endpoint: Endpoint) -> None:
        """Close a transport, and the connection that it asked on."""
        link = self._links.pop(endpoint, None)  # first: who finds a way meanwhile is to have one of its own
        await transport.aclose()
        if link is not None:
            await link.aclose()

    async def aclose(self) -> None:
        """Close what no transport had. Twice is fine."""
        while self._links:
            _, link = self._links.popitem()
            await link.aclose()


def _link_url(endpoint: Endpoint) -> Url:
    is_here = endpoint.network == this_network()
    if endpoint.tcp and not (is_here and endpoint.local):
        return endpoint.url
    return Url.abstract(endpoint.local or "nowhere")  # a silent one is not asked for anything


def _why_no_ucx(region: RemoteRegion) -> str:
    """Return why UCX does not reach memory of a device; empty: it may."""
    if region.rkeys:
        return ""
    if not region.device.startswith("cuda"):
        return "it moves memory of CUDA devices only"
    return "UCX has no CUDA at its owner" if region.endpoint.ucx else "its owner has no UCX worker"
