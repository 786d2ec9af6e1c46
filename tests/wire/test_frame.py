"""The frame's layout, and casts as the calls they stand for."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.errors import BadFrame
from monarch_async.wire.frame import CALL, CAST, HEADER, HEADER_SIZE, frame_length, pack_cast, pack_frame, split_cast

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
FLAGS = st.integers(0, 255)
BYTES = st.binary(max_size=60)


def test_the_header_is_as_documented() -> None:
    """Other programs may read it."""
    frame = pack_frame(7, 3, 0x0102030405060708, 2, 3, 4, b"ctl", b"payload")
    assert HEADER_SIZE == 40
    assert struct.unpack_from("<I", frame, 0) == (len(frame),)
    assert frame[4:8] == bytes([7, 3, 3, 0])
    assert struct.unpack_from("<QQQQ", frame, 8) == (0x0102030405060708, 2, 3, 4)
    assert frame[40:] == b"ctlpayload"


@given(st.integers(0, 255), FLAGS, U64, U64, U64, U64, BYTES, BYTES)
def test_what_is_packed_is_what_is_read(kind, flags, dst, src, target, call, control, payload) -> None:
    frame = pack_frame(kind, flags, dst, src, target, call, control, payload)
    assert HEADER.unpack_from(frame) == (len(frame), kind, flags, len(control), dst, src, target, call)
    assert frame[HEADER_SIZE:] == control + payload


@given(FLAGS, U32, U64, U64, U64, st.lists(U32, min_size=1, max_size=20), BYTES, BYTES)
def test_a_cast_is_one_call_for_each_proc(flags, host, src, target, call, procs, control, payload) -> None:
    packed = struct.pack(f"<{len(procs)}I", *procs)
    cast = pack_cast(flags, host << 32, src, target, call, packed, control, payload)
    assert cast[4] == CAST
    found, head, rest = split_cast(cast)
    assert list(found) == procs
    for proc in procs:
        address = host << 32 | proc
        whole = pack_frame(CALL, flags, address, src, target, call, control, payload)
        assert head + struct.pack("<Q", address) + rest == whole


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1), st.binary(max_size=40))
def test_a_cast_that_promises_more_than_it_has_is_refused(count: int, control: int, rest: bytes) -> None:
    body = struct.pack("<I", count) + rest
    frame = HEADER.pack(HEADER_SIZE + len(body), CAST, 0, control, 0, 0, 0, 0) + body
    if count > 0 and 4 * count + control <= len(rest):
        assert len(split_cast(frame)[0]) == count
    else:
        with pytest.raises(BadFrame, match="a cast of"):
            split_cast(frame)


@pytest.mark.parametrize("length", range(4))
def test_a_cast_without_a_count_is_refused(length: int) -> None:
    with pytest.raises(BadFrame, match="a cast of"):
        split_cast(pack_frame(CAST, 0, 0, 0, 0, 0, b"", bytes(length)))


@given(BYTES, BYTES, st.integers(0, 120))
def test_the_length_is_known_from_four_bytes_on(before: bytes, payload: bytes, cut: int) -> None:
    frame = pack_frame(CALL, 0, 1, 2, 3, 4, b"", payload)
    stream = (before + frame)[: len(before) + cut]
    for data in (stream, bytearray(stream), memoryview(stream)):
        assert frame_length(data, len(before)) == (len(frame) if cut >= 4 else None)
