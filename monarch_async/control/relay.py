"""Routing inside an agent: frames in, the same frames out. It reads headers and never a payload.

- Consecutive frames for one destination are forwarded as one slice of what was read, in one write.
- A CAST becomes one CALL for each proc it names.
- Replies to a cast are held until all of this host have come (or one failed, or a proc died), then sent in one write:
  the caller is woken once per host, not once per member.

R1. Frames from one sender to one receiver leave in the order they came.
R2. Who sent to a proc, or owns it, is told of its death, after everything the proc sent before it died.
R3. A frame for a proc that is gone or never was is answered with that proc's death.
"""

import itertools
import struct
from collections.abc import Callable
from typing import Protocol

from monarch_async.errors import BadFrame
from monarch_async.ids import address, agent_of, host_of
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import (
    CALL,
    CAST,
    CHUNKED,
    CONTROL,
    EXITED,
    FAILED,
    FAILURE,
    GATHERED,
    HEADER,
    HEADER_SIZE,
    LEASE,
    REPLY,
    ROUTE,
    U64,
    split_cast,
)

#: Of a REPLY, from its 16th byte on: who sends it, and which call it answers.
_SRC_AND_CALL = struct.Struct("<QQ")


class Gathering:
    """The replies of this host to one cast."""

    __slots__ = ("frames", "outstanding")

    def __init__(self, members: set[int]) -> None:
        """Wait for ``members``, proc addresses."""
        self.outstanding = members
        self.frames: list[bytes] = []


class Desk(Protocol):
    """The agent's own desk: what is addressed to it, and what cannot be delivered."""

    def take_control(self, connection: Connection, src: int, call: int, payload: bytes) -> None:
        """Take a request addressed to the agent."""
        ...

    def take_reply(self, call: int, payload: bytes) -> None:
        """Take a proc's answer to the agent itself."""
        ...

    def take_failure(self, src: int, owner_actor: int, rank: int, about: bytes, report: bytes) -> None:
        """An actor of a detached proc, spawned by its owner, has failed."""
        ...

    def take_exit(self, payload: bytes, proc: int) -> None:
        """Take the news of a death on another host."""
        ...

    def take_undeliverable(self, connection: Connection, dst: int, kind: int) -> None:
        """Nobody here has the address ``dst``."""
        ...

    def connection_down(self, connection: Connection, error: Exception | None) -> None:
        """A connection broke."""
        ...


class Relay:
    """The consumer of all of an agent's connections."""

    def __init__(self, host: int, desk: Desk) -> None:
        """``host``: own host id."""
        self.host, self._desk = host, desk
        #: The connection to another host's agent, dialled on first use.
        self.find_peer: Callable[[int], Connection | None] = lambda host: None
        #: The same, of a host that is not known here: for what is asked of it.
        self.seek_peer: Callable[[int], Connection | None] = lambda host: None
        self.address = address(host, 0)
        self.routes: dict[int, Connection] = {}  #: workers and clients by address; learned ones behind peers too
        self._gatherings: dict[tuple[int, int], Gathering] = {}

    # -- hot path --------------------------------------------------------------------------------------------------

    def feed(self, connection: Connection, data: bytes) -> tuple[int, int]:
        """Forward whole frames; see `Consumer.feed`."""
        unpack = ROUTE.unpack_from
        offset, end, frames = 0, len(data), 0
        run_dst, run_start = -1, 0
        while end - offset >= HEADER_SIZE:
            length, kind, flags, _, dst = unpack(data, offset)
            stop = offset + length
            if stop > end or length < HEADER_SIZE:
                break
            if (kind == REPLY and flags & GATHERED) or kind == CAST or kind > LEASE or dst == self.address:
                if run_dst >= 0:
                    self._forward(connection, run_dst, data, run_start, offset)
                    run_dst = -1
                if kind == REPLY and flags & GATHERED:
                    self._gather(connection, flags, dst, data[offset:stop])
                elif kind > LEASE:
                    connection.take_link_frame(kind, data, offset)
                    frames -= 1
                else:
                    self._take(connection, kind, flags, dst, data[offset:stop])
            elif dst != run_dst:
                if run_dst >= 0:
                    self._forward(connection, run_dst, data, run_start, offset)
                run_dst, run_start = dst, offset
            offset = stop
            frames += 1
        if run_dst >= 0:
            self._forward(connection, run_dst, data, run_start, offset)
        return offset, frames

    def _forward(self, source: Connection, dst: int, data: bytes, start: int, stop: int) -> None:
        """Send ``data[start:stop]``, whole frames that all go to ``dst``."""
        route = self._route(source, dst, data, start)
        if route is None:
            for offset in _frame_starts(data, start, stop):
                self._desk.take_undeliverable(source, dst, data[offset + 4])
        elif route.link is None:
            route.send(data if stop - start == len(data) else data[start:stop])
        else:
            starts = [*_frame_starts(data, start, stop), stop]
            route.send_run([data[a:b] for a, b in itertools.pairwise(starts)])

    def _route(self, source: Connection, dst: int, data: bytes, start: int) -> Connection | None:
        route = self.routes.get(dst)
        if route is None:
            route = self.find(dst) or self._seek(dst, data[start + 4])
        if route is not None and dst not in source.sent_to:
            source.sent_to.add(dst)
            self._learn(source, U64.unpack_from(data, start + 16)[0])
        return route

    def _learn(self, source: Connection, src: int) -> None:
        """Note who is behind a peer without being on its host (a client that it alone knows): answers go back that way.

        Procs of the peer's own host are not noted: what goes there has one path whoever speaks first (R1).
        """
        if host_of(src) not in (host_of(source.address), self.host) and src not in self.routes:
            self.routes[src] = source

    def feed_large(self, connection: Connection, pieces: list[bytes]) -> None:
        """Forward one large frame without joining it."""
        _, kind, flags, _, dst = ROUTE.unpack_from(pieces[0])
        if kind == REPLY and flags & GATHERED:
            self._gather(connection, flags, dst, b"".join(pieces))
            return
        if kind == CAST or dst == self.address:
            self._take(connection, kind, flags, dst, b"".join(pieces))
            return
        route = self._route(connection, dst, pieces[0], 0)
        if route is None:
            self._desk.take_undeliverable(connection, dst, kind)
        else:
            route.send_pieces(pieces)

    # -- casts and their replies -----------------------------------------------------------------------------------

    def _take(self, connection: Connection, kind: int, flags: int, dst: int, frame: bytes) -> None:
        if kind == CAST:
            self._split(connection, flags, dst, frame)
        elif kind == CONTROL:
            _, _, _, control, _, src, _, call = HEADER.unpack_from(frame)
            self._desk.take_control(connection, src, call, frame[HEADER_SIZE + control :])
        elif kind == REPLY:
            self._desk.take_reply(HEADER.unpack_from(frame)[6], frame[HEADER_SIZE:])
        elif kind == FAILURE:
            _, _, _, control, _, src, owner_actor, rank = HEADER.unpack_from(frame)
            end = HEADER_SIZE + control
            self._desk.take_failure(src, owner_actor, rank, frame[HEADER_SIZE:end], frame[end:])
        elif kind == EXITED:
            self._desk.take_exit(frame[HEADER_SIZE:], HEADER.unpack_from(frame)[7])
        elif kind == CALL:
            self._desk.take_undeliverable(connection, dst, kind)

    def _split(self, connection: Connection, flags: int, dst: int, frame: bytes) -> None:
        if host_of(dst) != self.host:
            self._forward(connection, dst, frame, 0, len(frame))
            return
        procs, head, rest = split_cast(frame)
        _, _, _, _, _, src, _, call = HEADER.unpack_from(frame)
        self._learn(connection, src)
        members: set[int] = set()
        missing: list[int] = []
        host, find, pack = self.host << 32, self.routes.get, U64.pack
        for proc in procs:
            member = host | proc
            route = find(member)
            if route is None:
                missing.append(member)
                continue
            members.add(member)
            route.send(head + pack(member) + rest)
        connection.sent_to |= members
        if flags & GATHERED and members and not missing:
            self._gatherings[(src, call)] = Gathering(members)
        for member in missing:
            self._desk.take_undeliverable(connection, member, CALL)

    def _gather(self, connection: Connection, flags: int, dst: int, frame: bytes) -> None:
        src, call = _SRC_AND_CALL.unpack_from(frame, 16)
        key = (dst, call)
        gathering = self._gatherings.get(key)
        if gathering is None:
            self._forward(connection, dst, frame, 0, len(frame))
            return
        connection.sent_to.add(dst)
        gathering.outstanding.discard(src)
        if flags & CHUNKED:  # its chunks are not held: neither may be what announces them
            self._forward(connection, dst, frame, 0, len(frame))
        else:
            gathering.frames.append(frame)
        if not gathering.outstanding or flags & FAILED:
            self._release(key, gathering)

    def _release(self, key: tuple[int, int], gathering: Gathering) -> None:
        """Send what came; what comes later is forwarded at once."""
        del self._gatherings[key]
        route = self.find(key[0])
        if route is not None and gathering.frames:
            route.send_run(gathering.frames)

    def find(self, dst: int) -> Connection | None:
        """Return the way to ``dst``: its own connection, else the one to the agent of its host."""
        route = self.routes.get(dst)
        if route is None and host_of(dst) != self.host:
            route = self.find_peer(host_of(dst)) or self.routes.get(agent_of(dst))
        return route

    def _seek(self, dst: int, kind: int) -> Connection | None:
        """Who answers somebody has heard of him: where that one is not known any more, he has gone."""
        return None if kind == REPLY or host_of(dst) == self.host else self.seek_peer(host_of(dst))

    # -- deaths ----------------------------------------------------------------------------------------------------

    def forget(self, member: int) -> list[Connection]:
        """``member`` is gone: release what waits for it; return the connections that must hear of it."""
        self.routes.pop(member, None)
        for key, gathering in list(self._gatherings.items()):
            if key[0] == member:
                del self._gatherings[key]
            elif member in gathering.outstanding:
                self._release(key, gathering)
        found = {id(c): c for c in self.routes.values() if member in c.sent_to}
        for connection in found.values():
            connection.sent_to.discard(member)
        return list(found.values())

    def forget_connection(self, connection: Connection) -> None:
        """Forget every address behind a connection."""
        for member in [member for member, route in self.routes.items() if route is connection]:
            self.routes.pop(member)

    def connection_down(self, connection: Connection, error: Exception | None) -> None:
        """Leave it to the desk."""
        self._desk.connection_down(connection, error)


def _frame_starts(data: bytes, start: int, stop: int) -> list[int]:
    starts = []
    while start < stop:
        starts.append(start)
        length = ROUTE.unpack_from(data, start)[0]
        if length < HEADER_SIZE:
            raise BadFrame(f"a length of {length} is less than a header")
        start += length
    return starts
