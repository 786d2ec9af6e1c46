"""What a router does with frames that nobody sends."""

import pytest

import monarch_async as ma
from monarch_async.errors import BadFrame
from monarch_async.runtime.router import Router
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import CAST, LEASE, PING, pack_frame


@pytest.mark.parametrize("kind", [0, CAST, LEASE + 1, PING - 1, 253])
async def test_a_frame_of_no_kind_is_not_left_out(kind: int) -> None:
    """It may have been the item that a stream waits for: without it the stream went on, and one was missing."""
    router = Router(7, ma.Config(), "us")
    with pytest.raises(BadFrame, match=f"unknown kind {kind}"):
        router.feed(Connection(router, "peer", 9), pack_frame(kind, 0, 7, 9, 0, 0))
    router.close(ma.Closed("us", "the test is over"))
    await router.plane.aclose()
