"""The shared objects of one host, and what follows from any change of one of them. Pure.

`store` has the states, the invariants and the events; this is what these have in common. Whatever an event does to an
object, it ends with `Stock.finish`.
"""

from collections.abc import Callable, Iterable
from typing import assert_never

from monarch_async.control.shared_object import (
    Allocate,
    Ask,
    Command,
    Done,
    Forget,
    Free,
    Give,
    Hold,
    Kind,
    Load,
    Pull,
    Refuse,
    SharedObject,
    Spill,
    State,
    StopPull,
    TellHome,
    Unlink,
)
from monarch_async.control.store_room import Admit, Evict, Room, SpillOut
from monarch_async.errors import ObjectLost, StoreFull, TransferError

WITHDRAWN = "its asker has withdrawn"


class Stock:
    """See the module."""

    def __init__(self, own: int, room: Room, cost: Callable[[int], int]) -> None:
        """``own``: the agent's address; ``cost``: memory that so many bytes take."""
        self.own, self.room, self._cost = own, room, cost
        self.objects: dict[bytes, SharedObject] = {}
        self.of: dict[int, set[bytes]] = {}  #: objects that a process or agent refers to, or waits for
        self.commands: list[Command] = []  #: what is to be done, so far

    def __getitem__(self, id: bytes) -> SharedObject | None:
        """Return an object that can be used."""
        found = self.objects.get(id)
        return None if found is None or found.is_ending else found

    def find(self, id: bytes, home: int, nbytes: int) -> SharedObject | None:
        """Return an object; one of another home is known from the first time it is asked for."""
        object = self[id]
        if object is None and home != self.own and id not in self.objects:
            object = self.add(id, home, nbytes, State.AWAY)
        if object is not None and object.is_own and not object.is_wanted:
            return None
        return object

    def add(self, id: bytes, home: int, nbytes: int, state: State) -> SharedObject:
        """Know of an object from now on."""
        object = SharedObject(id, home, home == self.own, nbytes, self._cost(nbytes), state)
        self.objects[id] = object
        return object

    def want(self, object: SharedObject, sources: tuple[int, ...] = ()) -> None:
        """Get it into memory, where that is not under way."""
        if object.state not in (State.AWAY, State.SPILLED) or object.id in self.room.queue:
            return
        if object.state is State.AWAY and object.hold is Hold.LOST:
            self.refuse_readers(object, ObjectLost(name_of(object.id), "its home is lost, and this host has no copy"))
        elif (full := self.never_fits(object)) is not None:
            self.refuse_readers(object, full)
        else:
            object.sources = sources or object.sources
            self.room.queue[object.id] = object

    def never_fits(self, object: SharedObject) -> StoreFull | None:
        """Return why there can be no room for it, ever."""
        if object.cost <= self.room.budget:
            return None
        room = f"{object.cost:,} of memory, and this host may keep {self.room.budget:,} in all (store_bytes)"
        return StoreFull(name_of(object.id), f"its {object.nbytes:,} bytes take {room}")

    def serve(self, object: SharedObject) -> None:
        """Answer who waits for it to be in memory."""
        kinds = (Kind.WHERE,) if object.state is State.PULLING else (Kind.OPEN, Kind.WHERE, Kind.FETCH)
        self.room.touch(object)
        asks = object.take(*kinds)
        for ask in asks:
            if ask.kind is Kind.FETCH:
                self.commands.append(Done(ask))
            else:
                self.give(ask, object)
        self.note(object, *(ask.address for ask in asks))

    def give(self, ask: Ask, object: SharedObject) -> None:
        """Answer with its memory, which stays where it is until that is undone."""
        object.pins[ask.address] = object.pins.get(ask.address, 0) + 1
        self.commands.append(Give(ask, object))

    def refuse_readers(self, object: SharedObject, error: TransferError) -> None:
        """Those who wait to read it will not."""
        asks = object.take(Kind.OPEN, Kind.WHERE, Kind.FETCH)
        self.commands += [Refuse(ask, error) for ask in asks]
        for ask in asks:
            self.note(object, ask.address)

    def withdraw(self, asks: Iterable[Ask]) -> None:
        """Whoever asked does so no longer; an answer they get all the same, as none of them is to stay open (S2)."""
        self.commands += [Refuse(ask, TransferError("request", WITHDRAWN)) for ask in asks]

    def empty(self, object: SharedObject, state: State) -> None:
        """Its memory goes."""
        object.is_ready = False
        self.room.move(object, state)
        self.commands.append(Free(object))

    def lose(self, object: SharedObject, why: str) -> None:
        """It will never be complete: end it, whoever refers to it."""
        error = ObjectLost(name_of(object.id), why)
        asks = object.take(*Kind)
        self.commands += [Refuse(ask, error) for ask in asks]
        known = {object.writer, *object.holders, *(ask.address for ask in asks)} - {0}
        object.holders.clear()
        object.writer = 0
        self.settle(object, *known)

    def note(self, object: SharedObject, *addresses: int) -> None:
        """Keep `of` true for these addresses."""
        for address in addresses:
            if object.knows(address):
                self.of.setdefault(address, set()).add(object.id)
            elif known := self.of.get(address):
                known.discard(object.id)
                if not known:
                    del self.of[address]

    def settle(self, object: SharedObject, *addresses: int) -> None:
        """Draw the conclusions of what has changed; these addresses may have begun or ceased to refer to it."""
        self.note(object, *addresses)
        if self.objects.get(object.id) is not object:  # gone already
            return
        is_needed_here = object.holders or object.pins or object.waiting
        if object.hold in (Hold.ASKED, Hold.YES) and not is_needed_here:
            object.hold = Hold.NO
            self.commands.append(TellHome(object))
        if object.is_wanted and not object.is_ending:
            self.room.note(object)
        else:
            self._end(object)

    def _end(self, object: SharedObject) -> None:
        """Nobody wants it: let it go, now or when what is under way has ended."""
        if object.state in (State.SPILLING, State.LOADING) or (object.state is State.FILLING and not object.is_ready):
            object.is_ending = object.is_own
            self.room.touch(object)
            return
        if object.state is State.PULLING:
            if not object.is_stopping:
                object.is_stopping = True
                self.commands.append(StopPull(object))
            return
        if object.state in (State.FILLING, State.HERE):
            self.empty(object, State.AWAY)
        elif object.state is State.SPILLED:
            self.commands.append(Unlink(object))
        self.room.forget(object)
        del self.objects[object.id]
        self.commands += [Forget(object, agent) for agent in sorted(object.copies)]

    def finish(self, object: SharedObject, *addresses: int) -> list[Command]:
        """`settle`, then `do`: the end of an event."""
        self.settle(object, *addresses)
        return self.do()

    def do(self, *commands: Command) -> list[Command]:
        """Return what is to be done, with what the room decides."""
        self.commands += commands
        while (step := self.room.next()) is not None:
            match step:
                case Admit(object):
                    self._admit(object)
                case Evict(object):
                    self.empty(object, State.AWAY)
                    self.settle(object)
                case SpillOut(object):
                    self.room.move(object, State.SPILLING)
                    self.room.touch(object)
                    self.commands.append(Spill(object))
                case _:
                    assert_never(step)
        done, self.commands = self.commands, []
        return done

    def _admit(self, object: SharedObject) -> None:
        object.is_ready = False
        match object.state:
            case State.QUEUED:
                self.room.move(object, State.FILLING)
                self.commands.append(Allocate(object))
            case State.AWAY:
                self.room.move(object, State.PULLING)
                self.commands.append(Pull(object, object.sources))
            case _:
                assert object.state is State.SPILLED
                self.room.move(object, State.LOADING)
                self.commands.append(Load(object))


def name_of(id: bytes) -> str:
    """Return how errors call an object."""
    return f"shared object {id.hex()[:8]}"
