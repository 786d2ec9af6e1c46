"""Bulk streams over TLS: the same bytes, cuts included, and none of them readable on the way."""

import asyncio
from dataclasses import replace

import pytest
from certificates import Authority, Issued, tls_record_length
from stream_peers import KEY, SMALL, ignore, owning, random_bytes
from taps import tap

from monarch_async.bulk.stream import StreamTransport
from monarch_async.bulk.ways import Ways
from monarch_async.config import Config
from monarch_async.errors import TransferBroken
from monarch_async.testing import FaultProxy
from monarch_async.transport.dial import listening
from monarch_async.transport.tls import Tls
from monarch_async.transport.url import Url

MARKER = b"this must not be read by anybody on the way. " * 40


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return Authority(tmp_path_factory.mktemp("ca")).issue("worker.test")  # its host is dialled by number, all the same


def settings(issued: Issued | None) -> Config:
    named = issued.config() if issued else Config()
    return replace(SMALL, tls_cert=named.tls_cert, tls_key=named.tls_key, tls_ca=named.tls_ca)


@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_what_passes_is_readable_only_without_tls(issued: Issued, is_encrypted: bool) -> None:
    """Without it the marker is found: the tap does see what passes."""
    config = settings(issued if is_encrypted else None)
    async with owning(config) as owner, tap(owner.endpoint.url) as between:
        memory = bytearray(MARKER * 300)
        region = owner.add(memory)
        transport = StreamTransport(replace(owner.endpoint, tcp=between.address), config)
        into = bytearray(len(memory))
        await transport.read(owner.handle(region), [(0, len(into))], [memoryview(into)], ignore)
        assert into == memory
        await transport.write(owner.handle(region), [(0, len(into))], [memoryview(into)], ignore)
        await transport.aclose()
        assert len(between.heard) > 2 * len(memory)
        assert (MARKER[:32] in between.heard) is not is_encrypted
        assert (KEY in between.heard) is False


async def test_cuts_at_any_record_are_not_noticed(issued: Issued) -> None:
    config = settings(issued)
    async with owning(config) as owner:
        proxy = FaultProxy(owner.endpoint.url.text, frame_length=tls_record_length)
        async with proxy:
            memory = bytearray(random_bytes(2 << 20))
            region = owner.add(memory)
            tcp = proxy.url.partition("://")[2]
            transport = StreamTransport(replace(owner.endpoint, tcp=tcp), config)
            cuts = [proxy.cut("to_dialer", at_frame=n, after_bytes=cut) for n, cut in ((9, 3), (40, 0), (90, 2000))]
            into = bytearray(len(memory))
            async with asyncio.timeout(20):
                await transport.read(owner.handle(region), [(0, len(into))], [memoryview(into)], ignore)
            assert into == memory and all(cut.is_set() for cut in cuts) and proxy.connections > 3
            cut = proxy.cut("to_listener", at_frame=proxy.frames["to_listener"] + 30, after_bytes=700)
            changed = random_bytes(2 << 20, seed=1)
            async with asyncio.timeout(20):
                await transport.write(owner.handle(region), [(0, len(into))], [memoryview(changed)], ignore)
            assert memory == changed and cut.is_set()
            await transport.aclose()


async def test_a_corrupted_record_is_a_broken_connection(issued: Issued) -> None:
    config = settings(issued)
    async with owning(config) as owner:
        async with FaultProxy(owner.endpoint.url.text, frame_length=tls_record_length) as proxy:
            memory = bytearray(random_bytes(1 << 20))
            region = owner.add(memory)
            transport = StreamTransport(replace(owner.endpoint, tcp=proxy.url.partition("://")[2]), config)
            bad = proxy.corrupt("to_dialer", at_frame=30, offset=100)
            into = bytearray(len(memory))
            async with asyncio.timeout(20):
                await transport.read(owner.handle(region), [(0, len(into))], [memoryview(into)], ignore)
            assert into == memory and bad.is_set() and proxy.connections == 2
            await transport.aclose()


async def test_tensors_do_not_go_where_there_is_no_tls(issued: Issued) -> None:
    from monarch_async.bulk.plane import DataPlane

    async with owning() as owner:
        plane = DataPlane(settings(issued))
        transport, why = await Ways(plane).open("tcp", owner.endpoint)
        assert transport is None and "it does not encrypt, and this process uses TLS" in why
        stream = StreamTransport(owner.endpoint, settings(issued))
        region = owner.handle(owner.add(bytearray(8)))
        with pytest.raises(TransferBroken, match="is not encrypted, and this process uses TLS"):
            await stream.read(region, [(0, 8)], [memoryview(bytearray(8))], ignore)
        await stream.aclose()
        await plane.aclose()


@pytest.mark.parametrize(
    ("transports", "is_started"), [("local,ucx,tcp", False), ("ucx", True)], ids=["among others", "alone"]
)
async def test_ucx_is_used_only_where_it_is_named_alone(
    issued: Issued, monkeypatch: pytest.MonkeyPatch, transports: str, is_started: bool
) -> None:
    from monarch_async.bulk import ucx
    from monarch_async.bulk.plane import DataPlane

    asked: list[bool] = []
    monkeypatch.setattr(ucx, "open_worker", lambda beacon, is_loopback_only: asked.append(True) or "not here")
    plane = DataPlane(replace(settings(issued), transports=transports))
    plane.identify(b"cluster!", 1, "worker", "127.0.0.1")
    endpoint = plane.endpoint
    assert (bool(asked), endpoint.tls) == (is_started, "worker.test")
    assert is_started or (isinstance(plane.ucx, str) and "UCX does not encrypt" in plane.ucx)
    await plane.aclose()


async def test_a_process_without_a_certificate_serves_nobody_elsewhere(issued: Issued) -> None:
    from monarch_async.bulk.plane import DataPlane

    plane = DataPlane(issued.client())
    plane.identify(b"cluster!", 1, "client", "127.0.0.1")
    assert (plane.endpoint.tcp, plane.can_listen) == ("", False) and plane.endpoint.local
    other = DataPlane(issued.client())
    transport, why = await Ways(other).open("tcp", plane.endpoint)
    assert transport is None and "no certificate (tls_cert)" in why
    await plane.aclose()
    await other.aclose()


async def test_whose_certificate_is_for_another_name_is_not_read(issued: Issued) -> None:
    """An endpoint says what its certificate is for; it comes from the process itself, by authenticated ways."""
    config = settings(issued)
    async with owning(config) as owner:
        stream = StreamTransport(replace(owner.endpoint, tls="other.test"), replace(config, bulk_retries=0.3))
        region = owner.handle(owner.add(bytearray(8)))
        with pytest.raises(TransferBroken, match=r"is not for other\.test"):
            await stream.read(region, [(0, 8)], [memoryview(bytearray(8))], ignore)
        await stream.aclose()


async def test_a_listener_without_a_good_certificate_does_not_listen() -> None:
    with pytest.raises(ValueError, match="TLS needs a certificate"):
        async with listening(Url.parse("tls://127.0.0.1:0"), KEY, bytes, print, print, Tls(Config())):
            pass
