"""The frame: a fixed header that says where it goes, control fields, payload.

    offset  0   u32  length     of the whole frame, header included
            4   u8   kind       what it is (below)
            5   u8   flags      by kind
            6   u16  control    bytes of msgpack control fields that follow the header; 65,535: a u32 that follows it
                                says how many come then
            8   u64  dst        proc address it goes to
           16   u64  src        proc address it comes from
           24   u64  target     actor id (CALL, CAST, CANCEL, CREDIT), call id (REPLY), transfer id (CHUNK)
           32   u64  call       call id (CALL, CAST, CANCEL, CREDIT), rank of who replies (REPLY), offset (CHUNK)
           40   control fields, then the payload

Little-endian. Agents read the first 16 bytes of a frame and forward the rest as it is; they never decode a payload.
A CAST carries, before its control fields, the ids of the procs of one host it is meant for (u32 count, u32 each);
the agent turns it into one CALL for each. PING and ACK belong to one connection and are never forwarded.
"""

import struct
from typing import Final

from monarch_async.errors import BadFrame

HEADER: Final = struct.Struct("<IBBHQQQQ")
ROUTE: Final = struct.Struct("<IBBHQ")  #: the part of the header an agent needs
HEADER_SIZE: Final = HEADER.size
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")

#: A frame of up to this size is collected in one piece of bytes; a larger one as a list of pieces.
PIECEWISE: Final = 64 << 10

# Kinds.
CALL: Final = 1  #: a request to an actor, port or (target 0) the proc itself
REPLY: Final = 2  #: the answer of one member
CANCEL: Final = 3  #: stop a call, acknowledge by its reply
CREDIT: Final = 4  #: the consumer of a stream, or the receiver of chunks, allows more
CHUNK: Final = 5  #: a part of a large payload
CAST: Final = 6  #: one CALL for several procs of one host
CONTROL: Final = 7  #: a msgpack request to an agent or a proc's runtime; answered by a REPLY with MSGPACK
EXITED: Final = 8  #: agent to whoever sent to it or owns it: a proc ended
FAILURE: Final = 9  #: a member failed; to its owner
LOG: Final = 10  #: lines printed by a proc; to its client
LEASE: Final = 11  #: agent to worker: your client lives
PING: Final = 20  #: this end lives
ACK: Final = 21  #: cumulative count of frames received, in ``call``

# Flags of CALL, CAST and REPLY.
WANTS_REPLY: Final = 1  #: CALL
FAILED: Final = 1  #: REPLY: the payload is an error report
GATHERED: Final = 2  #: part of a cast: the agent holds replies until all of its host are there
BUFFERS: Final = 4  #: the payload is a pickle followed by out-of-band buffers; lengths in the control fields
CHUNKED: Final = 8  #: the payload follows in CHUNK frames
STREAMED: Final = 16  #: CALL: answer item by item; REPLY: an item, more follow
CANCELLED: Final = 32  #: REPLY: acknowledges a CANCEL
MSGPACK: Final = 64  #: REPLY: the payload is msgpack
SHARES: Final = 64  #: CALL: large payloads share pages, its own and its answers'
RELEASED: Final = 2  #: CREDIT with CHUNKED: a segment that was lent is looked at no longer
EAGER: Final = 128  #: CALL and REPLY of a cast whose replies are not held by the agent


#: In the header, for control fields that are longer: their length comes first.
LONG_CONTROL: Final = 0xFFFF


def pack_frame(
    kind: int,
    flags: int,
    dst: int,
    src: int,
    target: int,
    call: int,
    control: bytes = b"",
    payload: bytes | memoryview = b"",
) -> bytes:
    """Return one frame. For hot paths `HEADER.pack` is called in place instead."""
    size = len(control)
    if size >= LONG_CONTROL:
        control, size = U32.pack(size) + control, LONG_CONTROL
    length = HEADER_SIZE + len(control) + len(payload)
    return HEADER.pack(length, kind, flags, size, dst, src, target, call) + control + payload


def long_control(data: bytes, start: int) -> tuple[int, int]:
    """Return where control fields begin, and their length, where the header says `LONG_CONTROL`."""
    if len(data) < start + 4:
        raise BadFrame("it ends before the length of its control fields")
    return start + 4, U32.unpack_from(data, start)[0]


def pack_cast(
    flags: int, agent: int, src: int, target: int, call: int, procs: bytes, control: bytes, payload: bytes
) -> bytes:
    """Return a CAST: ``procs`` is the packed u32 list of proc ids on the host of ``agent``."""
    length = HEADER_SIZE + 4 + len(procs) + len(control) + len(payload)
    head = HEADER.pack(length, CAST, flags, len(control), agent, src, target, call)
    return b"".join((head, U32.pack(len(procs) >> 2), procs, control, payload))


def split_frame(
    kind: int, flags: int, src: int, target: int, call: int, control: bytes, payload: bytes
) -> tuple[bytes, bytes]:
    """Return a frame without its destination, for several: what goes before those 8 bytes and what goes after."""
    length = HEADER_SIZE + len(control) + len(payload)
    frame = HEADER.pack(length, kind, flags, len(control), 0, src, target, call)
    return frame[:8], frame[16:] + control + payload


def split_cast(frame: bytes) -> tuple[tuple[int, ...], bytes, bytes]:
    """Return (proc ids, first 8 bytes, bytes from ``src`` on) of the CALL frames a CAST stands for.

    The caller puts the 8 bytes of each destination address between the two. Raises BadFrame where it names nobody, or
    more than it has room for.
    """
    length, _, flags, control, _ = ROUTE.unpack_from(frame)
    count = U32.unpack_from(frame, HEADER_SIZE)[0] if length >= HEADER_SIZE + 4 else 0
    start = HEADER_SIZE + 4 + 4 * count
    if start + control > length or not count:
        raise BadFrame(f"a cast of {length} bytes to {count} procs")
    procs = struct.unpack_from(f"<{count}I", frame, HEADER_SIZE + 4)
    head = struct.pack("<IBBH", length - 4 - 4 * count, CALL, flags, control)
    return procs, head, frame[16:HEADER_SIZE] + frame[start:]


def frame_length(data: bytes | bytearray | memoryview, offset: int = 0) -> int | None:
    """Return the length of the frame that begins at ``offset``, or None where too little of it is there."""
    if len(data) - offset < 4:
        return None
    return U32.unpack_from(data, offset)[0]
