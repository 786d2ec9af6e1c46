"""The control fields of calls and replies, and payloads cut into their buffers."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.errors import BadFrame
from monarch_async.wire import message
from monarch_async.wire.message import (
    NO_FIELDS,
    CallFields,
    ReplyFields,
    cut,
    pack_call_fields,
    pack_reply_fields,
    parse_call_fields,
    parse_reply_fields,
)

SIZES = st.none() | st.lists(st.integers(0, 2**40), min_size=1, max_size=5)
ID = st.none() | st.integers(0, 2**63)
CHAIN = st.none() | st.lists(st.lists(st.integers(0, 2**63), min_size=3, max_size=3), max_size=3)
CREDIT = st.none() | st.lists(st.integers(0, 2**40), min_size=2, max_size=2)


@given(st.text(max_size=20), SIZES, ID, CHAIN, CREDIT)
def test_fields_of_a_call_survive(endpoint, sizes, transfer, chain, credit) -> None:
    fields = CallFields(endpoint, sizes, transfer, chain, credit)
    packed = pack_call_fields(fields)
    for _ in range(2):  # also from the cache
        assert parse_call_fields(packed) == fields


def test_what_is_not_there_takes_no_room() -> None:
    assert msgpack.unpackb(pack_call_fields(CallFields("step"))) == ["step"]
    assert msgpack.unpackb(pack_call_fields(CallFields("step", None, 7))) == ["step", None, 7]
    assert pack_reply_fields(NO_FIELDS) == b""
    assert parse_reply_fields(b"") is NO_FIELDS


def test_what_repeats_is_parsed_once() -> None:
    packed = pack_call_fields(CallFields("often"))
    assert parse_call_fields(packed) is parse_call_fields(packed)


def test_the_cache_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(message, "_parsed", {})
    for index in range(message._CACHE_LIMIT + 100):
        parse_call_fields(pack_call_fields(CallFields(f"e{index}")))
    parse_call_fields(pack_call_fields(CallFields("x" * 300)))
    parse_call_fields(pack_call_fields(CallFields("sized", [1, 2])))
    assert len(message._parsed) == message._CACHE_LIMIT


@given(SIZES, ID)
def test_fields_of_a_reply_survive(sizes, transfer) -> None:
    fields = ReplyFields(sizes, transfer if sizes is not None else None)
    assert parse_reply_fields(pack_reply_fields(fields)) == fields


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_refused(data: bytes) -> None:
    for parse in (parse_call_fields, parse_reply_fields):
        try:
            parse(data)
        except BadFrame:
            pass


WRONG = [5, [5], [None], ["f", 3], ["f", []], ["f", ["a"]], ["f", [-1, 2]], ["f", [True]], ["f", 1, 2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize("values", WRONG)
def test_fields_of_the_wrong_kind_are_refused(values: object) -> None:
    with pytest.raises(BadFrame):
        parse_call_fields(msgpack.packb(values))


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=6))
def test_a_payload_is_cut_where_it_was_joined(parts: list[bytes]) -> None:
    skeleton, buffers = cut(b"".join(parts), [len(part) for part in parts])
    assert [bytes(skeleton), *map(bytes, buffers)] == parts


def test_a_payload_of_another_size_is_refused() -> None:
    with pytest.raises(BadFrame, match="a payload of 3 bytes announces 4"):
        cut(b"abc", [1, 3])
