"""Which object of a store gets memory next, and which loses it. Pure.

    O1. What is in memory costs no more than the budget in all, but for one object that was *let over* it.
    O2. New objects are let in in the order in which they were asked for: a large one waits at the head, and what is
        freed is kept for it.
    O3. Only a copy that is to be read (pulled, or loaded from disk) is let over, one at a time, and only where there is
        nothing left to evict or spill. So readers, on whom the writers that fill the store often wait, are not stuck
        behind those; with one at a time, they cannot fill it up either. An object let over counts as one until nobody
        waits for memory any more.
    O4. To make room, copies that their home has too are evicted, and then objects spilled to disk (where that is
        allowed), those first that have not been used for longest. Nobody has them open.
"""

from dataclasses import dataclass

from monarch_async.control.shared_object import IN_MEMORY, SharedObject, State


@dataclass(frozen=True, slots=True)
class Admit:
    """It gets memory."""

    object: SharedObject


@dataclass(frozen=True, slots=True)
class Evict:
    """Its memory is wanted: there is another copy."""

    object: SharedObject


@dataclass(frozen=True, slots=True)
class SpillOut:
    """Its memory is wanted: it goes to disk."""

    object: SharedObject


class Room:
    """The memory of one store. What it decides takes effect when `enter`, `leave` and `note` tell of it."""

    def __init__(self, budget: int, may_spill: bool) -> None:
        """``budget`` in bytes."""
        self.budget, self.may_spill = budget, may_spill
        self.used = 0  #: cost of what is in memory
        self.over: SharedObject | None = None  #: O3
        self.queue: dict[bytes, SharedObject] = {}  #: waits for memory
        self._copies: dict[bytes, SharedObject] = {}  # idle; least recently used first
        self._own: dict[bytes, SharedObject] = {}  # idle, and nowhere else
        self._spilling = 0

    def note(self, object: SharedObject) -> None:
        """An object may have begun or ceased to be in use."""
        idle = self._own if object.is_last else self._copies
        if not object.is_idle or object.id not in idle:
            self.touch(object)
            if object.is_idle:
                idle[object.id] = object

    def touch(self, object: SharedObject) -> None:
        """It was used; `note` follows."""
        self._copies.pop(object.id, None)
        self._own.pop(object.id, None)

    def move(self, object: SharedObject, state: State) -> None:
        """An object goes to another state, and may get or lose memory by that."""
        had, has = object.state in IN_MEMORY, state in IN_MEMORY
        self.used += (has - had) * object.cost
        self._spilling += ((state is State.SPILLING) - (object.state is State.SPILLING)) * object.cost
        if not has and self.over is object:
            self.over = None
        object.state = state

    def forget(self, object: SharedObject) -> None:
        """It is gone, and has no memory."""
        assert object.state not in IN_MEMORY
        self.queue.pop(object.id, None)
        self.touch(object)

    def next(self) -> Admit | Evict | SpillOut | None:
        """Return what to do next so that what waits gets memory; None: nothing, for now."""
        head = next(iter(self.queue.values()), None)
        if head is None:
            if self.used <= self.budget:
                self.over = None
            return None
        if self._fits(head.cost):
            return self._admit(head)
        victim = self._oldest(self._copies)
        if victim is not None:
            return Evict(victim)
        if not self._fits(head.cost - self._spilling):
            victim = self._oldest(self._own) if self.may_spill else None
            if victim is not None:
                return SpillOut(victim)
        return None if self._spilling else self._let_over()

    def _let_over(self) -> Admit | Evict | SpillOut | None:
        reader = next((waits for waits in self.queue.values() if waits.state is not State.QUEUED), None)
        if reader is None:
            return None
        if self.over is None:
            self.over = reader
            return self._admit(reader)
        if self.over.id in self._copies:
            return Evict(self.over)
        if self.over.id in self._own and self.may_spill and not self.over.has_failed_to_spill:
            return SpillOut(self.over)
        return None

    def _admit(self, object: SharedObject) -> Admit:
        del self.queue[object.id]
        return Admit(object)

    def _fits(self, cost: int) -> bool:
        over = 0 if self.over is None or self.over.state not in IN_MEMORY else self.over.cost
        return self.used - over + cost <= self.budget

    def _oldest(self, idle: dict[bytes, SharedObject]) -> SharedObject | None:
        for object in idle.values():
            if object is not self.over and not object.has_failed_to_spill:
                return object
        return None
