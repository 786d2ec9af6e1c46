"""Queues: items handed from process to process, each once, within a number of items and of bytes. Pure.

What an item is nobody here looks at: its body is bytes, or says which shared object it is.

    an item:  put (its bytes come along, where there is room)  -> queued
              put -> waits -> room: *reserved* -> filled       -> queued
              queued -> *handed* to who gets it -> taken: gone
                                                -> given back: queued, where it was

    Q1. Items and bytes that are queued, reserved or handed out are never more than the queue may hold.
    Q2. Who puts and who gets is served in the order of asking. Items come out in the order in which they came in.
    Q3. An item is handed out once. It is given back only by who was cancelled before it had seen it (Q2); when a
        process ends that has not said that it took it, it is lost, and counted.
    Q4. What waits for room leaves nothing here but its size.
    Q5. When a process ends, what it has reserved is free; what it has put stays.
    Q6. After `close` nothing comes in but what was reserved; who gets sees every item, then the end.
    Q7. After a failure likewise, and at the end the failure, every time: never an end. It fails when a registered
        producer fails or its process ends.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from monarch_async.control.coordination_asks import (
    Answer,
    Ask,
    Command,
    Discard,
    Facts,
    Failure,
    Refuse,
    Row,
    Waiting,
)
from monarch_async.errors import Backpressure, BadCall, Closed, Empty, Error


@dataclass(frozen=True, slots=True)
class Item:
    """``objects``: ids of the shared objects it needs, which are held for it here until it goes."""

    body: Any
    nbytes: int
    objects: tuple[bytes, ...] = ()
    serial: int = 0


class ItemQueue:
    """See the module. ``max_items`` and ``max_bytes`` are positive; ``producers``: it closes when so many have left."""

    operations: ClassVar[frozenset[str]] = frozenset(
        {"put", "fill", "get", "took", "size", "close", "fail", "join", "leave"}
    )
    __slots__ = (
        "_bytes", "_getters", "_handed", "_items", "_left", "_lost", "_max_bytes", "_max_items", "_name",
        "_producers", "_putters", "_reserved", "_serial", "_wanted", "failure", "is_closed",
    )  # fmt: skip

    def __init__(self, name: str, max_items: int, max_bytes: int, producers: int) -> None:
        """Empty."""
        self._name, self._max_items, self._max_bytes, self._wanted = name, max_items, max_bytes, producers
        self._items: deque[Item] = deque()
        self._reserved: Waiting[int] = Waiting()  # bytes
        self._handed: Waiting[Item] = Waiting()
        self._putters: Waiting[int] = Waiting()  # bytes
        self._getters: Waiting[None] = Waiting()
        self._producers: Waiting[None] = Waiting()
        self._bytes = self._serial = self._left = self._lost = 0  # bytes: queued, reserved and handed out
        self.is_closed = False
        self.failure: Failure = None

    @property
    def params(self) -> tuple[int, ...]:
        """Limits, and producers."""
        return self._max_items, self._max_bytes, self._wanted

    @property
    def count(self) -> int:
        """Items that count: queued, reserved, handed out."""
        return len(self._items) + len(self._reserved) + len(self._handed)

    @property
    def is_idle(self) -> bool:
        """Whether it is as new."""
        return not (self.is_closed or self.count or self._putters or self._getters or self._producers or self._left)

    @property
    def is_over(self) -> bool:
        """Whether it was closed, or has failed, and all is taken."""
        return self.is_closed and not self.count

    # -- putting ---------------------------------------------------------------------------------------------------

    def put(self, ask: Ask, nbytes: int, body: Any, may_wait: bool) -> list[Command]:
        """Answered with True: it is in; or False, now or later: there is room for it, `fill` it (Q4).

        Without a ``body`` it is never in at once, nor while an earlier one of this process is still to be filled in.
        """
        if nbytes < 0:
            raise ValueError(f"an item of {nbytes} bytes")
        if self.is_closed:
            return [Refuse(ask, self._closed())]
        if nbytes > self._max_bytes:
            why = f"an item of {nbytes:,} bytes, and all may have {self._max_bytes:,} (max_bytes)"
            return [Refuse(ask, BadCall(f"{self._name}.put", why))]
        if self._putters or not self._has_room(nbytes):
            if not may_wait:
                limit = f"{self.count} of {self._max_items} items, {self._bytes:,} of {self._max_bytes:,} bytes"
                return [Refuse(ask, Backpressure(self._name, limit, "await put() waits for room"))]
            self._putters.add(ask, nbytes)
            return []
        self._bytes += nbytes
        if body is None or self._reserved.has(ask.address):  # what that process put before is to come before
            self._reserved.add(ask, nbytes)
            return [Answer(ask, False)]
        self._append(Item(body, nbytes))
        return [Answer(ask, True), *self._serve()]

    def fill(self, ask: Ask, call: int, body: Any, objects: Sequence[bytes]) -> list[Command]:
        """Its bytes come to what ``call`` has reserved. Answered with True."""
        entry = self._reserved.take(ask.address, call)
        if entry is None:
            return [Refuse(ask, Closed(self._name, "its room was given back")), Discard(tuple(objects))]
        self._append(Item(body, entry[1], tuple(objects)))
        return [Answer(ask, True), *self._serve()]

    # -- getting ---------------------------------------------------------------------------------------------------

    def get(self, ask: Ask, may_wait: bool) -> list[Command]:
        """Answered with [body] of the next item, which is taken with `took` or given back by `withdraw`.

        At the end: refused with Closed or what it failed with, or answered with a report of that: {"report": bytes}.
        """
        if not may_wait and not self.is_over and (self._getters or not self._items):
            return [Refuse(ask, Empty(self._name))]
        self._getters.add(ask, None)
        return self._serve()

    def took(self, ask: Ask, call: int) -> list[Command]:
        """Who got an item by this call has it. Answered with None."""
        entry = self._handed.take(ask.address, call)
        if entry is None:
            return [Answer(ask, None)]
        return [Answer(ask, None), *self._let_go(entry[1]), *self._serve()]

    def size(self, ask: Ask) -> list[Command]:
        """Answered with [items queued, bytes, items lost (Q3)]."""
        return [Answer(ask, [len(self._items), self._bytes, self._lost])]

    # -- ends ------------------------------------------------------------------------------------------------------

    def close(self, ask: Ask) -> list[Command]:
        """Q6. Answered with None. Twice is fine."""
        return [Answer(ask, None), *self._close(None)]

    def fail(self, ask: Ask, report: bytes) -> list[Command]:
        """Q7. Answered with None. The first failure counts."""
        return [Answer(ask, None), *self._close(report)]

    def join(self, ask: Ask) -> list[Command]:
        """Who asks is a producer until `leave`. Answered with None."""
        if self.is_closed:
            return [Refuse(ask, self._closed())]
        self._producers.add(ask, None)
        return [Answer(ask, None)]

    def leave(self, ask: Ask, call: int) -> list[Command]:
        """Who joined by this call has put all it had. Answered with None."""
        done: list[Command] = [Answer(ask, None)]
        if self._producers.take(ask.address, call) is not None:
            self._left += 1
            if 0 < self._wanted <= self._left:
                done += self._close(None)
        return done

    def withdraw(self, address: int, call: int) -> list[Command]:
        """Whatever it was, it is undone: an item comes back to where it was (Q3)."""
        self._getters.take(address, call)
        self._putters.take(address, call)
        self._producers.take(address, call)
        if (reserved := self._reserved.take(address, call)) is not None:
            self._bytes -= reserved[1]
        if (handed := self._handed.take(address, call)) is not None:
            item = handed[1]
            self._items.insert(bisect_left(self._items, item.serial, key=lambda queued: queued.serial), item)
        return self._serve()

    def gone(self, address: int, why: Error) -> list[Command]:
        """Q3, Q5, Q7."""
        done: list[Command] = []
        self._getters.take_all(address)
        self._putters.take_all(address)
        for _, nbytes in self._reserved.take_all(address):
            self._bytes -= nbytes
        for _, item in self._handed.take_all(address):
            self._lost += 1
            done += self._let_go(item)
        if self._producers.take_all(address):
            done += self._close(why)
        return done + self._serve()

    def end(self) -> list[Command]:
        """Nobody will take what is left."""
        items = [*self._items, *(item for _, item in self._handed)]
        self._items.clear()
        self._handed.take_all()
        return [Discard(item.objects) for item in items if item.objects]

    def facts(self) -> Facts:
        """Return what is in it, who waits, and its producers as holders."""
        state = f"{len(self._items)} of {self._max_items} items, {self._bytes:,} of {self._max_bytes:,} bytes"
        state += f", {self._lost} lost" if self._lost else ""
        state += ", failed" if self.failure is not None else ", closed" if self.is_closed else ""
        waiting: list[Row] = [*self._putters.rows(lambda nbytes: f"to put {nbytes:,} bytes")]
        waiting += self._getters.rows(lambda _: "to get")
        return Facts(state, self._producers.rows(lambda _: "produces"), waiting)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _has_room(self, nbytes: int) -> bool:
        return self.count < self._max_items and self._bytes + nbytes <= self._max_bytes

    def _append(self, item: Item) -> None:
        self._serial += 1
        self._items.append(Item(item.body, item.nbytes, item.objects, self._serial))

    def _let_go(self, item: Item) -> list[Command]:
        self._bytes -= item.nbytes
        return [Discard(item.objects)] if item.objects else []

    def _serve(self) -> list[Command]:
        """Hand out what can be, let in what has room, tell the end where it has come."""
        done: list[Command] = []
        while self._items and self._getters:
            ask, _ = self._getters.take_first()
            item = self._items.popleft()
            self._handed.add(ask, item)
            done.append(Answer(ask, [item.body]))
        while (first := self._putters.first()) is not None and self._has_room(first[1]):
            ask, nbytes = self._putters.take_first()
            self._bytes += nbytes
            self._reserved.add(ask, nbytes)
            done.append(Answer(ask, False))
        if self.is_over:
            done += [tell_end(self._name, self.failure, ask) for ask, _ in self._getters.take_all()]
        return done

    def _close(self, failure: Failure) -> list[Command]:
        self.failure = self.failure if self.failure is not None else failure
        self.is_closed = True
        refused: list[Command] = [Refuse(ask, self._closed()) for ask, _ in self._putters.take_all()]
        return refused + self._serve()

    def _closed(self) -> Closed:
        return closed(self._name, self.failure)


def closed(name: str, failure: Failure) -> Closed:
    """Return what who puts is told after the end."""
    return Closed(name, "it has failed" if failure is not None else "")


def tell_end(name: str, failure: Failure, ask: Ask) -> Command:
    """Return what who gets is told at the end."""
    if isinstance(failure, bytes):
        return Answer(ask, {"report": failure})
    return Refuse(ask, failure if failure is not None else closed(name, None))


def after_end(name: str, failure: Failure, ask: Ask, operation: str) -> Command:
    """Return the answer of a queue of which only that is left."""
    match operation:
        case "get":
            return tell_end(name, failure, ask)
        case "size":
            return Answer(ask, [0, 0, 0])
        case "close" | "fail" | "leave" | "took":
            return Answer(ask, None)
        case _:
            return Refuse(ask, closed(name, failure))
