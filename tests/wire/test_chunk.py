"""Headers of bulk frames: what is packed is parsed, and what is garbled is found out."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.errors import BadFrame, FrameTooLarge
from monarch_async.wire.chunk import (
    AGAIN,
    ASK,
    CHUNK,
    HEADER_SIZE,
    MAX_CHUNK,
    READ,
    Header,
    checksum,
    new_checksum,
    pack_header,
    parse_header,
)

U64 = st.integers(0, 2**64 - 1)
LIMIT = 1 << 20


@given(st.integers(ASK, AGAIN).filter(lambda kind: kind != CHUNK), U64, U64, st.integers(0, LIMIT), U64, U64)
def test_what_is_packed_is_parsed(kind: int, transfer: int, start: int, length: int, total: int, digest: int) -> None:
    data = pack_header(kind, transfer, start, length, total, digest, flags=1)
    assert len(data) == HEADER_SIZE
    assert parse_header(data, LIMIT) == Header(kind, 1, transfer, start, length, total, digest)


@given(st.integers(0, HEADER_SIZE * 8 - 1))
def test_any_bit_that_falls_over_is_found(bit: int) -> None:
    data = bytearray(pack_header(CHUNK, 7, 4096, 4096, 1 << 20, 0xABCDEF))
    data[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(BadFrame):
        parse_header(data, LIMIT)


@given(st.binary(min_size=HEADER_SIZE, max_size=HEADER_SIZE))
def test_garbage(data: bytes) -> None:
    with pytest.raises(BadFrame):
        parse_header(data, LIMIT)


def test_what_is_too_large() -> None:
    with pytest.raises(FrameTooLarge, match=f"{LIMIT + 1} bytes"):
        parse_header(pack_header(READ, 1, length=LIMIT + 1), LIMIT)
    with pytest.raises(FrameTooLarge):
        parse_header(pack_header(CHUNK, 1, 0, MAX_CHUNK + 1, MAX_CHUNK + 1), LIMIT)
    assert parse_header(pack_header(CHUNK, 1, 0, MAX_CHUNK, MAX_CHUNK), LIMIT).length == MAX_CHUNK


@pytest.mark.parametrize(("start", "length", "total"), [(0, 0, 0), (5, 0, 10), (5, 6, 10), (2**64 - 1, 2, 2**64 - 1)])
def test_chunks_that_make_no_sense(start: int, length: int, total: int) -> None:
    with pytest.raises(BadFrame, match="a chunk of"):
        parse_header(pack_header(CHUNK, 1, start, length, total), LIMIT)


def test_unknown_kinds() -> None:
    for kind in (0, AGAIN + 1, 255):
        with pytest.raises(BadFrame, match="unknown kind"):
            parse_header(pack_header(kind, 1), LIMIT)


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_a_checksum_does_not_depend_on_the_cut(pieces: list[bytes]) -> None:
    whole = new_checksum()
    whole.update(memoryview(b"".join(pieces)))
    assert checksum(pieces) == whole.intdigest()


def test_the_checksum_is_xxh3() -> None:
    assert checksum([]) == 0x2D06800538D394C2  # XXH3_64bits of nothing, as its specification says


def test_the_library_of_checksums_is_loaded_on_first_use() -> None:
    code = "import sys, monarch_async, monarch_async.bulk.bulk_server, monarch_async.bulk.stream; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "xxhash" not in done.stdout.split()
