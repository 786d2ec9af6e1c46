"""What is asked of a bulk server, and how its errors come back. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

import monarch_async.errors
from monarch_async.bulk.transport import Run
from monarch_async.errors import BadFrame, Error, TransferError


class TransferRequest(NamedTuple):
    """Body of READ and WRITE."""

    region: int
    stamp: int
    runs: Sequence[Run]
    ranges: Sequence[tuple[int, int]] | None  #: what of the transfer's space is wanted, in order; None: all of it
    chunk: int  #: the most bytes a chunk may have
    window: int  #: bytes the sender may be ahead

    def pack(self) -> bytes:
        """Return it as bytes."""
        return msgpack.packb(tuple(self))

    @staticmethod
    def unpack(data: bytes) -> "TransferRequest":
        """Return it from bytes. Raises BadFrame."""
        try:
            request = TransferRequest(*msgpack.unpackb(data, use_list=False))
            numbers = [request.region, request.stamp, request.chunk, request.window]
            for pair in (*request.runs, *(request.ranges or ())):
                first, second = pair
                numbers += first, second
            if not all(type(number) is int and number >= 0 for number in numbers):
                raise TypeError("offsets and sizes are whole numbers")
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise BadFrame(f"request for a transfer: {error}") from error
        if request.chunk == 0 or request.window == 0:
            raise BadFrame("request for a transfer: chunks and windows have a size")
        return request

    def checked_ranges(self, total: int) -> list[tuple[int, int]]:
        """Return the ranges that are wanted of ``total`` bytes. Raises BadFrame where they are not in order."""
        if self.ranges is None:
            return [(0, total)] if total else []
        at = 0
        for start, stop in self.ranges:
            if not at <= start < stop <= total:
                raise BadFrame(f"bytes {start} to {stop} of a transfer of {total}")
            at = stop
        return [*self.ranges]


def pack_error(error: Error) -> bytes:
    """Return an error of this package as bytes: its class and its facts."""
    return msgpack.packb([type(error).__name__, error.args], unicode_errors="replace")


def unpack_error(data: bytes) -> Error:
    """Return the error. Raises BadFrame."""
    try:
        name, facts = msgpack.unpackb(data, strict_map_key=False)
        kind = getattr(monarch_async.errors, name, None)
        if not (isinstance(kind, type) and issubclass(kind, Error)):
            return TransferError(str(name), ", ".join(map(str, facts)))
        return kind(*facts)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadFrame(f"error of a data plane: {error}") from error


def pack_values(values: Sequence[object]) -> bytes:
    """Return arguments or results as bytes. Raises TypeError where msgpack has no form for one."""
    return msgpack.packb(values)


def unpack_values(data: bytes) -> list[Any]:
    """Return what `pack_values` packed. Raises BadFrame."""
    try:
        values = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadFrame(f"values of an operation: {error}") from error
    if not isinstance(values, list):
        raise BadFrame("values of an operation: not a list")
    return values
