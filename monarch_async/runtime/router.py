"""The router: one per process; sends calls, takes replies, delivers calls to what lives here.

A *path* is one sender to one member (proc address, actor id). All calls to a member go through its path, in order. A
path has a window: past ``window_calls`` unanswered calls or ``window_bytes`` of their payload, further calls wait here,
at the sender, so that neither the agent nor the receiver has to hold what the receiver does not keep up with.

Routing is by host: a client has a connection to each agent, a worker one to its own agent, which forwards.

Hot path: `post`, `cast`, `reply`, and `incoming`. No task, closure or log record there.
"""

import asyncio
import itertools
import logging
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import current_thread, get_ident
from typing import Any

from monarch_async.bulk.blocks import BlockPool
from monarch_async.bulk.plane import DataPlane
from monarch_async.config import Config
from monarch_async.errors import BadCall, Closed, Lost
from monarch_async.ids import format_address, host_of
from monarch_async.runtime.call import Pending, RemoteFuture
from monarch_async.runtime.delivery import SEND, Delivery
from monarch_async.runtime.direct import DIRECT, FEW, PATIENCE, RELAYED, Direct
from monarch_async.runtime.failures import Failures
from monarch_async.runtime.incoming import Incoming
from monarch_async.runtime.members import Members
from monarch_async.runtime.outgoing import Outgoing, Parcel
from monarch_async.runtime.path import Path
from monarch_async.runtime.receipts import Receipts
from monarch_async.runtime.report import pack_error
from monarch_async.runtime.taker import Taker
from monarch_async.runtime.uplinks import Uplinks
from monarch_async.runtime.waiters import Waiters
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import (
    CALL,
    CANCEL,
    CONTROL,
    EAGER,
    FAILED,
    GATHERED,
    HEADER,
    HEADER_SIZE,
    LONG_CONTROL,
    REPLY,
    SHARES,
    U64,
    pack_cast,
    pack_frame,
    split_frame,
)
from monarch_async.wire.message import NO_FIELDS, CallFields
from monarch_async.wire.payload import Buffer, Encoded

log = logging.getLogger("monarch_async")

#: Members that are told in one turn of the loop that a call is cancelled. On other hosts each costs a system call.
_CANCELLED_AT_ONCE = 128


class Router:
    """See the module. ``address`` is this process's own."""

    def __init__(self, address: int, config: Config, name: str) -> None:
        """Belong to the running loop."""
        self.address, self.config, self.name = address, config, name
        self.loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self.pending: dict[int, Pending] = {}
        self._waiters = Waiters(self.pending)
        self.pool = BlockPool()
        self.plane = DataPlane(config)
        self.taker = Taker(self.plane, self.pool)
        receipts = Receipts(self)
        self.delivery = Delivery(self.pool, self.taker, receipts.acknowledge, receipts.released)
        self.delivery.on_missing = self.refuse_missing
        self.targets = self.delivery.targets
        self.is_closed = False
        self.is_prompt = False  #: see `Connection`
        self._uplinks = Uplinks(name, self._lose_host)
        self.uplink = self._uplinks.find  #: returns the connection towards an address; raises Closed
        self._paths: dict[tuple[int, int], Path] = {}
        self._paths_to: defaultdict[int, list[Path]] = defaultdict(list)  # the same by host: a loss looks at no others
        #: Not those of an earlier life at this address: what that one asked for may still be answered, or kept by name.
        self._ids = itertools.count(1 + (secrets.randbits(31) << 31))
        self.direct = Direct(self)
        incoming = Incoming(self)
        self.feed, self.feed_large = incoming.feed, incoming.feed_large  #: see `transport.connection.Consumer`
        self.outgoing = Outgoing(address, config, self.pool, self.plane, self._ids)
        #: Every other kind of frame: (kind, flags, src, target, call, control, payload).
        self.on_other: Callable[[int, int, int, int, int, bytes, bytes], None] = lambda *_: None
        self.on_down: Callable[[Connection, Exception | None], None] = lambda *_: None
        self.failures = Failures(self)

    # -- connections -----------------------------------------------------------------------------------------------

    def add_uplink(self, host: int, connection: Connection) -> bool:
        """Send what goes to ``host`` over ``connection``; the first one also takes what goes to unknown hosts.

        Returns whether this host was lost before. Then old paths lead there too: to where nothing of theirs is left.
        """
        was_lost = self._uplinks.add(host, connection)
        if was_lost:
            for path in self._paths_to[host]:
                path.connection = connection
        return was_lost

    def lose_host(self, host: int, error: Lost) -> int:
        """A host is gone: calls to it fail with ``error``, pending ones now, later ones at once. Returns as `lose`.

        Until `add_uplink` brings a new way there.
        """
        return self._uplinks.lose(host, error)

    def _lose_host(self, host: int, error: Lost) -> int:
        return 0 if self.is_closed else self.lose(host, lambda dst: dst >> 32 == host, error)

    def path(self, dst: int, actor: int, max_concurrency: int = 1000) -> Path:
        """Return the one path to a member."""
        path = self._paths.get((dst, actor))
        if path is None:
            config = self.config
            window = max(config.window_calls, 2 * max_concurrency)
            path = self._paths[(dst, actor)] = Path(dst, actor, self.uplink(dst), window, config.window_bytes)
            self._paths_to[dst >> 32].append(path)
        return path

    def retire(self, members: Sequence[int], actor: int | None = None) -> None:
        """These procs, or their members of ``actor``, have been ended for good: keep nothing for them.

        Whoever still has a reference goes through the agent, which knows that they are gone.
        """
        gone, retired = set(members), set()
        for key in [key for key in self._paths if key[0] in gone and actor in (None, key[1])]:
            path = self._paths[key]
            if not path.queue and not path.inflight:
                path.connection, path.turns = self.uplink(path.dst), RELAYED
                del self._paths[key]
                retired.add(path)
        for host in {host_of(path.dst) for path in retired}:
            self._paths_to[host] = [path for path in self._paths_to[host] if path not in retired]

    # -- calls out -------------------------------------------------------------------------------------------------

    def register(self, pending: Pending) -> int:
        """Return a call id for ``pending``."""
        if self.is_closed:
            raise Closed(self.name)
        if get_ident() != self._thread:
            self.check_thread()
        call = next(self._ids)
        self.pending[call] = pending
        return call

    def take_id(self) -> int:
        """Return a call id; what it is of is registered later. On any thread."""
        return next(self._ids)

    def check_thread(self) -> None:
        """Raise `BadCall` on any thread but the loop's: nothing here may be used there."""
        if get_ident() != self._thread:
            raise BadCall(
                "a mesh, handle or reference",
                f"made on the thread {current_thread().name!r}, and they are used on the event loop's: use "
                f"asyncio.run_coroutine_threadsafe, or make the endpoint `async def`",
            )

    def post(self, path: Path, flags: int, fields: CallFields, control: bytes, encoded: Encoded, call: int) -> int:
        """Send one call to one member; return its size. ``control`` is ``fields`` packed."""
        skeleton, buffers = encoded
        if not buffers and len(skeleton) <= self.config.large and len(control) < LONG_CONTROL:
            length = HEADER_SIZE + len(control) + len(skeleton)
            head = HEADER.pack(length, CALL, flags, len(control), path.dst, self.address, path.actor, call)
            frame = head + control + skeleton
            if path.inflight < path.window and not path.queue and path.inflight_bytes < path.window_bytes:
                if not path.inflight and path.turns >= 0:
                    path.turns += 1
                    if path.turns > PATIENCE:
                        self.direct.consider(path)
                path.inflight += 1
                path.inflight_bytes += length
                path.connection.send(frame)
            else:
                self._send_or_wait(path, call, length, lambda: path.connection.send(frame))
            return length
        with self._withdrawing(call):
            parcel = self.outgoing.parcel(encoded, shares=flags & SHARES > 0)
        return self._post_parcel(path, flags, fields, parcel, call)

    def _post_parcel(
        self, path: Path, flags: int, fields: CallFields, parcel: Parcel, call: int, fellows: int = 1
    ) -> int:
        send = self.outgoing.pack(CALL, flags, path.dst, path.actor, call, fields, parcel, path.connection, fellows)
        self._send_or_wait(path, call, parcel.size, send)
        return parcel.size

    def _send_or_wait(self, path: Path, call: int, nbytes: int, send: Callable[[], None]) -> None:
        with self._withdrawing(call):
            path.send(call, nbytes, send)

    def cast(
        self, members: Members, flags: int, fields: CallFields, control: bytes, encoded: Encoded, call: int
    ) -> int:
        """Send one call to many members: one frame per host, and one to each that has a direct connection.

        Falls back to one frame per member where a window is full or the payload is large.
        """
        skeleton, buffers = encoded
        paths = members.paths
        is_plain = not buffers and len(skeleton) <= self.config.large
        if not is_plain or any(p.queue or p.inflight >= p.window or p.inflight_bytes >= p.window_bytes for p in paths):
            flags &= ~GATHERED
            with self._withdrawing(call):  # before anything is sent: all or none
                for path in paths:
                    path.check_room()
            if is_plain:
                return max([self.post(path, flags, fields, control, encoded, call) for path in paths])
            fellows = Counter([host_of(path.dst) for path in paths])
            near = sum(count for host, count in fellows.items() if self.outgoing.is_near(host))
            with self._withdrawing(call):
                parcel = self.outgoing.parcel(encoded, near, flags & SHARES > 0)
            return max(
                [self._post_parcel(p, flags, fields, parcel, call, fellows[host_of(p.dst)]) for p in paths]
            )
        size = HEADER_SIZE + len(control) + len(skeleton)
        may_move = len(paths) <= FEW
        direct: list[Path] = []
        for path in paths:
            if may_move and not path.inflight and path.turns >= 0:
                path.turns += 1
                if path.turns > PATIENCE:
                    self.direct.consider(path)
            path.inflight += 1
            path.inflight_bytes += size
            if path.turns == DIRECT:
                direct.append(path)
        if direct:
            head, tail = split_frame(CALL, flags & ~GATHERED, self.address, members.actor, call, control, skeleton)
            for path in direct:
                path.connection.send(head + U64.pack(path.dst) + tail)
        for agent, procs in members.hosts_without(direct):
            frame = pack_cast(flags, agent, self.address, members.actor, call, procs, control, skeleton)
            self.uplink(agent).send(frame)
        return size

    @contextmanager
    def _withdrawing(self, call: int) -> Iterator[None]:
        """What raises in this block, for want of room or memory, keeps a call from being made."""
        try:
            yield
        except BaseException:
            self.pending.pop(call, None)
            raise

    def cancel(self, call: RemoteFuture[Any]) -> None:
        """Tell the members that have not answered, of many some in each turn; give up after ``cancel_grace``."""
        self._cancel_members(call, iter(call.waits_for()))
        if not call.done():
            self.loop.call_later(self.config.cancel_grace, self._cancel_overdue, call)

    def _cancel_members(self, call: RemoteFuture[Any], members: Iterator[Path]) -> None:
        for count, path in enumerate(members, 1):
            if path.withdraw(call.id):
                self._acknowledge_unsent(call, path)
            else:
                path.connection.send(pack_frame(CANCEL, 0, path.dst, self.address, path.actor, call.id))
            if count == _CANCELLED_AT_ONCE:
                self.loop.call_soon(self._cancel_members, call, members)
                return

    def _acknowledge_unsent(self, call: RemoteFuture[Any], path: Path) -> None:
        pending = self.pending.get(call.id)
        if pending is not None and pending.lose(lambda dst: dst == path.dst, Closed(call.what)):
            self.pending.pop(call.id, None)

    def _cancel_overdue(self, call: RemoteFuture[Any]) -> None:
        """Let the caller go. The call stays registered: its late answer still frees its place in the window."""
        if not call.done():
            late = ", ".join(format_address(path.dst) for path in call.waits_for())
            grace = self.config.cancel_grace
            log.warning("%s: no acknowledgement of its cancellation after %g s from %s", call.what, grace, late)
            call.give_up(f"cancelled, but not acknowledged within {grace:g} s")

    def control(self, dst: int, request: bytes, pending: Pending) -> int:
        """Send a msgpack request to an agent or to a proc's runtime."""
        call = self.register(pending)
        self.uplink(dst).send(pack_frame(CONTROL, 0, dst, self.address, 0, call, b"", request))
        return call

    # -- replies out -----------------------------------------------------------------------------------------------

    def reply(
        self,
        dst: int,
        call: int,
        rank: int,
        flags: int,
        encoded: Encoded,
        via: Connection | None = None,
        shares: bool = False,
    ) -> int:
        """Answer a call, the way it came (``via``); return the payload's size: what its receiver sees of it."""
        skeleton, buffers = encoded
        connection = via if via is not None and not via.is_closed else self.uplink(dst)
        if not buffers and len(skeleton) <= self.config.large:
            length = HEADER_SIZE + len(skeleton)
            connection.send(HEADER.pack(length, REPLY, flags, 0, dst, self.address, call, rank) + skeleton)
            return len(skeleton)
        return self.reply_parcel(dst, call, rank, flags, self.outgoing.parcel(encoded, shares=shares), via)

    def reply_parcel(
        self, dst: int, call: int, rank: int, flags: int, parcel: Parcel, via: Connection | None = None
    ) -> int:
        """Answer a call with a parcel, as `reply` does."""
        connection = via if via is not None and not via.is_closed else self.uplink(dst)
        self.outgoing.pack(REPLY, flags, dst, call, rank, NO_FIELDS, parcel, connection)()
        return parcel.size

    # -- in --------------------------------------------------------------------------------------------------------

    def connection_down(self, connection: Connection, error: Exception | None) -> None:
        """Leave it to the owner: a client may resume, a worker has lost its agent."""
        if not self.direct.connection_down(connection):
            self.on_down(connection, error)

    def refuse_missing(
        self,
        src: int,
        call: int,
        flags: int,
        target: int,
        fields: CallFields,
        skeleton: Buffer,
        buffers: Sequence[Buffer],
    ) -> None:
        """A call to something that is not here, or no longer."""
        what = "the receiver of this channel" if fields.endpoint == SEND else f"actor {target:016x}"
        error = Closed(what, "it is gone")
        self.reply(src, call, 0, FAILED | flags & (GATHERED | EAGER), Encoded(pack_error(error), []))

    # -- deaths ----------------------------------------------------------------------------------------------------

    def lose(self, host: int, gone: Callable[[int], bool], error: Lost) -> int:
        """Fail every call that waits for a member whose address ``gone`` knows; return how many a caller sees.

        ``host``: where all of those are.
        """
        count = 0
        for call, pending in self._waiters.on(host):
            if pending.has_member(gone):
                count += pending.is_carrier
                if pending.lose(gone, error.again()):
                    self.pending.pop(call, None)
        for path in self._paths_to.get(host, ()):
            if gone(path.dst):
                path.forget(self.uplink(path.dst))
        self.delivery.lose(gone)
        self.outgoing.lose(gone)
        self.direct.lose(gone)
        return count

    def call_soon(self, function: Callable[..., None], *arguments: object) -> None:
        """Call back on the loop, from any thread: the collector drops futures and streams where it happens to run."""
        if not self.is_closed and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function, *arguments)

    def close(self, error: Lost | Closed) -> None:
        """Fail whatever is pending; no further calls."""
        self.is_closed = True
        self.failures.on_unseen = lambda *_: None
        for call, pending in list(self.pending.items()):
            pending.lose(lambda _: True, error)
            self.pending.pop(call, None)
        self._paths.clear()
        self._paths_to.clear()
        self.outgoing.close()
        self.delivery.close()


_active: Router | None = None


def activate(router: Router | None) -> None:
    """Make ``router`` the one of this process, or none."""
    global _active
    _active = router


def active_router() -> Router:
    """Return this process's router. Raises `Closed` outside ``async with hosts`` and outside workers."""
    if _active is None:
        raise Closed("this program", "it is not inside `async with ma.local_hosts()` or `ma.attach(...)`")
    return _active
