"""Frames of bulk connections: a header of 64 bytes, then the body.

    <4s magic | B version | B kind | H flags | Q transfer | Q start | Q length | Q total | Q checksum | 12x | I CRC

``length`` is that of the body, ``checksum`` its xxh3-64 (of CHUNK bodies only: who garbles a small message garbles its
length as well), and the CRC-32 covers the 60 bytes before it. A body whose bits fell over is asked for again; a header
whose bits did says nothing about where the next frame begins, so the connection ends there.

``transfer`` is chosen by the dialling end, and used for one transfer or request of a connection. A transfer is a space
of ``total`` bytes: the runs it moves, end to end. ``start`` is an offset into that space.

    dialler -> server   ASK      body: operation and arguments
                        READ     body: `monarch_async.bulk.request.TransferRequest`
                        WRITE    the same; chunks follow without waiting for an answer
                        CANCEL   of a request, read or write
    server -> dialler   ANSWER   body: what the operation returned
                        FAILED   body: the error; of a request, read or write
                        DONE     every byte of a write is there; or a read had none
    bytes -> other end  CHUNK    body: bytes from ``start`` on
    receiver -> sender  TAKEN    bytes ``start`` to ``total`` are there, or will be asked for anew: they cost no more
                                 credit
                        AGAIN    of a write: bytes ``start`` to ``total`` were garbled
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from monarch_async.errors import BadFrame, FrameTooLarge

HEADER_SIZE: Final = 64
MAGIC: Final = b"\x93mbk"
VERSION: Final = 1

_FIELDS = Struct("<4sBBHQQQQQ12x")
_CRC = Struct("<I")
_CHECKED = HEADER_SIZE - _CRC.size

ASK: Final = 1
READ: Final = 2
WRITE: Final = 3
CANCEL: Final = 4
ANSWER: Final = 5
FAILED: Final = 6
DONE: Final = 7
CHUNK: Final = 8
TAKEN: Final = 9
AGAIN: Final = 10

#: Flag of READ: those bytes came garbled before; send them from a copy, which nobody changes meanwhile.
FROM_COPY: Final = 1

#: Bytes of the largest body of a CHUNK that is taken, and sent.
MAX_CHUNK: Final = 16 << 20


class Header(NamedTuple):
    """The header of a frame, parsed."""

    kind: int
    flags: int
    transfer: int
    start: int
    length: int
    total: int
    checksum: int


def pack_header(
    kind: int, transfer: int, start: int = 0, length: int = 0, total: int = 0, checksum: int = 0, flags: int = 0
) -> bytes:
    """Return a header of 64 bytes."""
    data = _FIELDS.pack(MAGIC, VERSION, kind, flags, transfer, start, length, total, checksum)
    return data + _CRC.pack(crc32(data))


def parse_header(data: bytes | bytearray | memoryview, max_body: int) -> Header:
    """Return the header that ``data`` begins with. Raises BadFrame, or FrameTooLarge where the body is too long.

    ``max_body`` bounds all bodies but those of chunks.
    """
    magic, version, kind, flags, transfer, start, length, total, checksum = _FIELDS.unpack_from(data)
    if magic != MAGIC:
        raise BadFrame(f"it begins with {magic!r}: not a frame of the data plane")
    if crc32(data[:_CHECKED]) != _CRC.unpack_from(data, _CHECKED)[0]:
        raise BadFrame("a header arrived garbled")
    if version != VERSION:
        raise BadFrame(f"version {version} of the data plane; this is version {VERSION}")
    if not ASK <= kind <= AGAIN:
        raise BadFrame(f"unknown kind {kind}")
    if length > (limit := MAX_CHUNK if kind == CHUNK else max_body):
        raise FrameTooLarge(length, limit)
    if kind == CHUNK and (not length or start + length > total):
        raise BadFrame(f"a chunk of {length} bytes at {start} of {total}")
    return Header(kind, flags, transfer, start, length, total, checksum)


class Checksum(Protocol):
    """A checksum in the making."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""
        ...

    def intdigest(self) -> int:
        """Return the checksum of the bytes so far."""
        ...


@lru_cache(maxsize=1)
def _xxh3() -> Callable[[], Checksum]:
    """Return the constructor of checksums; who moves nothing does not load it."""
    from xxhash import xxh3_64

    return xxh3_64


def new_checksum() -> Checksum:
    """Return the xxh3-64 of no bytes."""
    return _xxh3()()


def checksum(pieces: Iterable[bytes | memoryview]) -> int:
    """Return the xxh3-64 of ``pieces``, one after the other."""
    found = _xxh3()()
    for piece in pieces:
        found.update(piece)
    return found.intdigest()
