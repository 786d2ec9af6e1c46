"""What waits its turn on a connection, and how little of it the kernel has already: so others need not wait for it."""

import asyncio
import contextlib
import socket

from monarch_async.wire.frame import CHUNK, EXITED

#: A socket that has so much to send takes no more chunks: with a link, which may be slow, and without.
_LINKED_HIGH_WATER, _HIGH_WATER = 256 << 10, 1 << 20

#: What the kernel may have beyond what is on its way: it would take megabytes, and a slow link sends those for seconds.
_MOST_UNSENT = 128 << 10

#: Where a frame says what it is, and what of it is passed on in turn: a death stays behind what the dead proc had sent.
_KIND_AT, _IN_TURN = 4, frozenset({CHUNK, EXITED})


class Passed:
    """A frame that somebody else has sent, in the bulk lane. A `connection.BulkSource`."""

    __slots__ = ("frame",)
    is_done = True  #: once it was taken

    def __init__(self, frame: bytes) -> None:
        """It is whole."""
        self.frame = frame

    def next_chunk(self) -> tuple[bytes]:
        """Return it."""
        return (self.frame,)


def takes_turn(frame: bytes | memoryview) -> bool:
    """Return whether a frame is not to be passed on before those that wait already. Its beginning will do."""
    return frame[_KIND_AT] in _IN_TURN


def bound_unsent(wire: asyncio.Transport, is_linked: bool) -> None:
    """Let little wait in a socket and its kernel: what does is ahead of all that is sent later."""
    wire.set_write_buffer_limits(_LINKED_HIGH_WATER if is_linked else _HIGH_WATER)
    sock, option = wire.get_extra_info("socket"), getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if is_linked and option is not None and sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # it is gone already, which is told in another way
            sock.setsockopt(socket.IPPROTO_TCP, option, _MOST_UNSENT)
