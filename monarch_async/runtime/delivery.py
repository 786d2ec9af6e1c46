"""Calls that arrive: handed to their targets in the order they were sent.

D1. Calls from one sender to one target are delivered in the order they were sent, also where the payload of one comes
    in chunks and is complete only after later ones have arrived.
D2. A call to a target that is being created by a message still on its way waits for it, whoever sent it.
D3. Nothing else waits: a large payload holds up only the calls behind it on its own path.
D4. So do the items of a stream, and its end: they are taken in the order they were sent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from monarch_async.bulk.blocks import BlockPool
from monarch_async.errors import BadFrame
from monarch_async.runtime.taker import Taker
from monarch_async.runtime.transfer import Inbound
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import BUFFERS, CHUNKED
from monarch_async.wire.message import CallFields, cut
from monarch_async.wire.payload import Buffer


class Target(Protocol):
    """What calls are delivered to: an actor or a port."""

    def accept(
        self, src: int, call: int, flags: int, fields: CallFields, skeleton: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        """Take one call; answer it by `Router.reply`."""
        ...

    def cancel(self, src: int, call: int) -> None:
        """The caller gave up; acknowledge by its reply."""
        ...

    def credit(self, src: int, call: int, items: int, nbytes: int) -> None:
        """The consumer of a streamed call allows more."""
        ...


#: The endpoint name of a value sent to a port, and of the message that creates an actor.
SEND, SPAWN = "__send__", "__spawn__"

Missing = Callable[[int, int, int, int, CallFields, Buffer, Sequence[Buffer]], None]
_Queue = deque[Callable[[], None] | Inbound]


class Delivery:
    """The incoming side of a router. ``targets`` by id; ``on_missing`` takes calls to what is not there."""

    def __init__(
        self,
        pool: BlockPool,
        taker: Taker,
        acknowledge: Callable[[int, int, int | None, Connection | None], None],
        released: Callable[[int, int], None],
    ) -> None:
        """Large payloads are received into memory of ``pool``, or by ``taker``.

        ``acknowledge(src, transfer, received, via)`` tells the sender; None for received asks for chunks.
        ``released(src, transfer)`` is called, on any thread, when nobody looks any more at a segment the sender lent.
        """
        self._pool, self._taker, self._acknowledge, self._released = pool, taker, acknowledge, released
        self.targets: dict[int, Target] = {}
        self.on_missing: Missing = lambda *_: None
        #: Takes (sender, target, call) of a call given up whose target is not there.
        self.on_missing_cancel: Callable[[int, int, int], None] = lambda *_: None
        self.arriving: Connection | None = None  #: the way the call came that is being delivered: its answer goes back
        self._inbound: dict[tuple[int, int], Inbound] = {}
        self.held: dict[tuple[int, int], _Queue] = {}  #: what waits, by (sender, target); usually nothing does
        self._created: dict[int, tuple[Inbound, list[Callable[[], None]]]] = {}  # targets to be, and who waits (D2)

    def take_call(self, src: int, flags: int, target: int, call: int, fields: CallFields, payload: bytes) -> None:
        """Deliver one call, or let it wait for what was sent before it."""
        if flags & CHUNKED:
            self._expect_call(src, flags, target, call, fields)
            return
        held = self.held.get((src, target)) if self.held else None
        skeleton: Buffer = payload
        buffers: Sequence[Buffer] = ()
        if flags & BUFFERS and fields.sizes is not None:
            skeleton, buffers = cut(payload, fields.sizes)
        if held is not None:
            held.append(self._later(lambda: self._hand_over(src, flags, target, call, fields, skeleton, buffers)))
        else:
            self._hand_over(src, flags, target, call, fields, skeleton, buffers)

    def _hand_over(
        self,
        src: int,
        flags: int,
        target: int,
        call: int,
        fields: CallFields,
        skeleton: Buffer,
        buffers: Sequence[Buffer],
    ) -> None:
        found = self.targets.get(target)
        if found is not None:
            found.accept(src, call, flags, fields, skeleton, buffers)
            return
        created = self._created.get(target)
        if created is None or fields.endpoint == SPAWN:
            self.on_missing(src, call, flags, target, fields, skeleton, buffers)
        else:
            deliver = self._later(lambda: self._hand_over(src, flags, target, call, fields, skeleton, buffers))
            created[1].append(deliver)

    def _open(self, target: int) -> None:
        """What creates a target has come, or never will: its callers wait no longer (D2)."""
        _, waiting = self._created.pop(target, (None, ()))
        for deliver in waiting:
            deliver()

    def _expect_call(self, src: int, flags: int, target: int, call: int, fields: CallFields) -> None:
        """A call whose payload follows: it takes its place, and those behind it wait (D1)."""
        if fields.sizes is None or fields.transfer is None:
            raise BadFrame("a chunked call without sizes")

        def hand_over(skeleton: memoryview, buffers: list[memoryview]) -> None:
            self._hand_over(src, flags, target, call, fields, skeleton, buffers)
            if fields.endpoint == SPAWN:
                self._open(target)

        inbound = self._hold((src, target), fields.sizes, hand_over)
        if fields.endpoint == SPAWN:
            self._created[target] = inbound, []
        self._receive(src, fields.transfer, inbound, fields.memory)

    def _hold(
        self, key: tuple[int, int], sizes: Sequence[int], take: Callable[[memoryview, list[memoryview]], None]
    ) -> Inbound:
        """Return what receives a payload; when it has come in full, and its turn, ``take`` gets it."""
        queue = self.held.setdefault(key, deque())
        via = self.arriving

        def complete(skeleton: memoryview, buffers: list[memoryview]) -> None:
            queue[queue.index(inbound)] = self._later(lambda: take(skeleton, buffers), via)
            self._release(key, queue)

        inbound = Inbound(key[0], sizes, self._pool, complete)
        queue.append(inbound)
        return inbound

    def _later(self, deliver: Callable[[], None], via: Connection | None = None) -> Callable[[], None]:
        """Return ``deliver`` as something to do later, when other calls have arrived by other ways."""
        way = via or self.arriving

        def run() -> None:
            before, self.arriving = self.arriving, way
            try:
                deliver()
            finally:
                self.arriving = before

        return run

    def after_held(self, src: int, target: int, take: Callable[[], None]) -> bool:
        """Call ``take`` after what is held of this sender and target; return False where nothing is."""
        created, queue = self._created.get(target), self.held.get((src, target))
        if created is not None:
            created[1].append(take)
        if queue is not None:
            queue.append(take)
        return created is not None or queue is not None

    def _release(self, key: tuple[int, int], queue: _Queue) -> None:
        while queue:
            first = queue[0]
            if isinstance(first, Inbound):
                return
            queue.popleft()
            first()
        self.held.pop(key, None)

    def expect_reply(
        self,
        src: int,
        stream: int | None,
        transfer: int,
        sizes: Sequence[int],
        memory: list[object] | None,
        complete: Callable[[memoryview, list[memoryview]], None],
    ) -> None:
        """Receive the payload of a reply; of an item of the call ``stream`` where that is given (D4)."""
        if stream is None:
            inbound = Inbound(src, sizes, self._pool, complete)
        else:
            inbound = self._hold((src, of_stream(stream)), sizes, complete)
        self._receive(src, transfer, inbound, memory)

    def _receive(self, src: int, transfer: int, inbound: Inbound, memory: list[object] | None) -> None:
        self._inbound[(src, transfer)] = inbound
        via = self.arriving
        if memory is None:  # the agent tells of a death whoever has sent there: so also who still expects something
            self._acknowledge(src, transfer, 0, via)
        else:
            self._taker.take(
                memory,
                inbound.sizes,
                lambda: self._released(src, transfer),
                lambda views: self._have_taken(src, transfer, inbound, views, via),
            )

    def _have_taken(
        self, src: int, transfer: int, inbound: Inbound, views: list[memoryview] | None, via: Connection | None
    ) -> None:
        if self._inbound.get((src, transfer)) is not inbound:
            return  # its sender was reported dead in between
        if views is None:
            self._acknowledge(src, transfer, None, via)
            return
        del self._inbound[(src, transfer)]
        self._acknowledge(src, transfer, inbound.size, via)
        inbound.finish(views)

    def take_chunk(self, src: int, transfer: int, offset: int, pieces: Sequence[memoryview | bytes]) -> None:
        """Take one chunk."""
        inbound = self._inbound.get((src, transfer))
        if inbound is None:
            return
        is_due = inbound.take(offset, pieces)
        if inbound.received >= inbound.size:
            del self._inbound[(src, transfer)]
            inbound.finish()
        if is_due:
            self._acknowledge(src, transfer, inbound.received, self.arriving)

    def lose(self, gone: Callable[[int], bool]) -> None:
        """Senders are gone: forget what they were sending; what waits behind it is from others, or complete."""
        for key in [key for key in self._inbound if gone(key[0])]:
            inbound = self._inbound.pop(key)
            for held_key, queue in list(self.held.items()):
                if inbound in queue:
                    queue.remove(inbound)
                    if self._created.get(held_key[1], (None,))[0] is inbound:
                        self._open(held_key[1])
                    self._release(held_key, queue)

    def close(self) -> None:
        """Forget everything."""
        self._inbound.clear()
        self.held.clear()
        self._created.clear()
        self._taker.close()


def of_stream(call: int) -> int:
    """Return the key in `Delivery.held` under which the replies to a streamed call wait: the id of no target."""
    return -call
