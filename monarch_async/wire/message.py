"""The control fields of frames: small msgpack arrays, constant for most calls and therefore cached on both ends.

A CALL's control fields are ``[endpoint, sizes, transfer, chain, credit, memory]`` with trailing Nones left off; a
REPLY's are ``[sizes, transfer, memory]`` or nothing at all.

- ``sizes``: lengths of the pickle and of each out-of-band buffer, where there are buffers (flags BUFFERS, CHUNKED).
- ``transfer``: ``id`` of the CHUNK frames the payload arrives in (flag CHUNKED).
- ``chain``: calls that wait for this one, outermost first: ``[[actor id, rank, "name[rank].endpoint"], ...]``.
- ``credit``: ``[items, bytes]`` a streamed call may be ahead of its consumer.
- ``memory``: where the receiver finds the payload (``runtime.outgoing``).
"""

from typing import NamedTuple

import msgpack

from monarch_async.errors import BadFrame

_CACHE_LIMIT = 4096
_parsed: dict[bytes, "CallFields"] = {}


class CallFields(NamedTuple):
    """The control fields of a CALL."""

    endpoint: str
    sizes: list[int] | None = None
    transfer: int | None = None
    chain: list[tuple[int, int, str]] | None = None
    credit: tuple[int, int] | None = None
    memory: list[object] | None = None


class ReplyFields(NamedTuple):
    """The control fields of a REPLY."""

    sizes: list[int] | None = None
    transfer: int | None = None
    memory: list[object] | None = None


NO_FIELDS = ReplyFields()


def pack_call_fields(fields: CallFields) -> bytes:
    """Return the control fields of a CALL as bytes."""
    values = list(fields)
    while values[-1] is None:
        values.pop()
    return msgpack.packb(values)


def parse_call_fields(data: bytes) -> CallFields:
    """Return the control fields of a CALL; those without sizes or chain are cached, as they repeat."""
    fields = _parsed.get(data)
    if fields is None:
        try:
            fields = CallFields(*msgpack.unpackb(data))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise BadFrame(f"control fields of a call: {error}") from error
        if not isinstance(fields.endpoint, str):
            raise BadFrame(f"a call of endpoint {fields.endpoint!r}")
        _check_sizes(fields.sizes)
        if len(fields.endpoint) < 256 and fields.sizes is None and fields.chain is None and len(_parsed) < _CACHE_LIMIT:
            _parsed[data] = fields
    return fields


def pack_reply_fields(fields: ReplyFields) -> bytes:
    """Return the control fields of a REPLY as bytes: empty where there is nothing to say."""
    return b"" if fields.sizes is None else msgpack.packb(list(fields))


def parse_reply_fields(data: bytes) -> ReplyFields:
    """Return the control fields of a REPLY."""
    if not data:
        return NO_FIELDS
    try:
        fields = ReplyFields(*msgpack.unpackb(data))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadFrame(f"control fields of a reply: {error}") from error
    _check_sizes(fields.sizes)
    return fields


def _check_sizes(sizes: object) -> None:
    if sizes is None:
        return
    if not isinstance(sizes, list) or not sizes or not all(type(size) is int and size >= 0 for size in sizes):
        raise BadFrame(f"sizes of a payload: {sizes!r}")


def cut(payload: bytes | memoryview, sizes: list[int]) -> tuple[bytes | memoryview, list[memoryview]]:
    """Split a payload into the pickle and its out-of-band buffers, by ``sizes``."""
    if sum(sizes) != len(payload):
        raise BadFrame(f"a payload of {len(payload)} bytes announces {sum(sizes)}")
    view = memoryview(payload)
    buffers: list[memoryview] = []
    offset = sizes[0]
    for size in sizes[1:]:
        buffers.append(view[offset : offset + size])
        offset += size
    return view[: sizes[0]], buffers
