"""The bytes of a shared object: how many parts, their lengths, then each part at a boundary of 64 bytes.

    u32 count, u32 zero, u64 length of each; the pickle skeleton; its out-of-band buffers in order

Whoever maps them rebuilds the value over the parts as they are, so each is aligned for any dtype.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from monarch_async.errors import BadFrame
from monarch_async.wire.payload import Encoded

_ALIGNMENT = 64
_COUNT = struct.Struct("<II")
_MOST_PARTS = 1 << 24


class Laid(NamedTuple):
    """An object ready to be written: its ``parts``, each to its place of ``runs``, (offset, bytes); ``size`` in all."""

    parts: list[memoryview]
    runs: list[tuple[int, int]]
    size: int


def lay_out(encoded: Encoded) -> Laid:
    """Return where everything of a pickled value goes. Empty parts are left out of ``parts`` and ``runs``."""
    skeleton, buffers = encoded
    body = [memoryview(skeleton), *buffers]
    sizes = [len(part) for part in body]
    head = _COUNT.pack(len(body), 0) + struct.pack(f"<{len(sizes)}Q", *sizes)
    parts, runs = [memoryview(head)], [(0, len(head))]
    end = len(head)
    for part, size in zip(body, sizes, strict=True):
        offset = _aligned(end)
        if size:
            parts.append(part)
            runs.append((offset, size))
        end = offset + size
    return Laid(parts, runs, end)


def cut_object(memory: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return skeleton and buffers of an object, as views of its ``memory``. Raises BadFrame where it is none."""
    sizes = _sizes(memory)
    views = []
    end = _COUNT.size + 8 * len(sizes)
    for size in sizes:
        offset = _aligned(end)
        end = offset + size
        views.append(memory[offset:end])
    if end > len(memory):
        raise BadFrame(f"a shared object of {len(memory)} bytes announces {end}")
    return views[0], views[1:]


def _sizes(memory: memoryview) -> Sequence[int]:
    count = _COUNT.unpack_from(memory)[0] if len(memory) >= _COUNT.size else 0
    if not 0 < count <= _MOST_PARTS or len(memory) < _COUNT.size + 8 * count:
        raise BadFrame(f"a shared object of {len(memory)} bytes and {count} parts")
    return struct.unpack_from(f"<{count}Q", memory, _COUNT.size)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
