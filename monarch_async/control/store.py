"""The shared objects of one host: who refers to them, where they are, and what has to be done about it. Pure.

    state      in memory   on disk   left by
    QUEUED     no          no        room: FILLING
    FILLING    yes         no        seal: HERE; abort, end of its writer: gone
    AWAY       no          no        open, fetch, spread, then room: PULLING
    PULLING    yes         no        pulled: HERE; pull_failed: AWAY
    HERE       yes         no        its memory is needed: AWAY where its home has it too, else SPILLING
    SPILLING   yes         partly    spilled: SPILLED, or HERE where it was opened meanwhile; spill_failed: HERE
    SPILLED    no          yes       open, fetch, where, then room: LOADING
    LOADING    yes         yes       loaded: HERE; load_failed: SPILLED

QUEUED and FILLING are only at the object's home (the host where it was put), AWAY and PULLING only elsewhere. An object
is gone from every state once nobody wants it: no process here holds it or has it open, or waits for it; no host does,
where this is its home; and its home no longer has it kept here.

Events are methods; each returns what is to be done, in order. Those that answer an `Ask` do so at once or later.

    S1. Memory is handed out and taken away as `store_room` says (O1 to O4).
    S2. Every ask is answered exactly once; those of a process that is gone are dropped.
    S3. No memory is freed that a process of this host has open, or while something is under way that was commanded
        and has not been told as ended (Allocate, Pull, Spill, Load).
    S4. What nobody wants is gone as soon as nothing is under way with it. When all is gone, no memory is used.
    S5. A home counts a host from the AskHome it granted until its TellHome: while it does, it keeps the object. Only
        the newest AskHome's answer counts.
    S6. A copy on behalf of its home (`spread`) goes with the home's last reference: the home tells by Forget.
    S7. Loss: when a home is lost, copies elsewhere stay for those who hold them there, and are no longer evicted.
"""

from collections.abc import Callable

from monarch_async.control.shared_object import (
    IN_MEMORY,
    READABLE,
    Ask,
    AskHome,
    Command,
    Done,
    Give,
    Hold,
    Kind,
    Refuse,
    SharedObject,
    State,
    Unlink,
)
from monarch_async.control.store_room import Room
from monarch_async.control.store_stock import WITHDRAWN, Stock, name_of
from monarch_async.errors import ObjectLost, StoreFull, TransferError
from monarch_async.ids import agent_of

_GONE = "it was freed, or never sealed"


class Store:
    """See the module."""

    def __init__(
        self, own: int, budget: int, may_spill: bool, cost: Callable[[int], int] = lambda nbytes: nbytes
    ) -> None:
        """``own``: the agent's address; ``cost``: memory that so many bytes take."""
        self._stock = Stock(own, Room(budget, may_spill), cost)
        self._serial = 0

    # -- putting ---------------------------------------------------------------------------------------------------

    def alloc(self, ask: Ask, id: bytes, nbytes: int) -> list[Command]:
        """A process wants to put an object; it becomes its holder."""
        if id in self._stock.objects:
            return self._stock.do(Refuse(ask, TransferError(name_of(id), "there is one with this id")))
        object = self._stock.add(id, self._stock.own, nbytes, State.QUEUED)
        object.holders.add(ask.address)
        object.writer = ask.address
        object.waiting.append(ask)
        if (full := self._stock.never_fits(object)) is not None:
            self._stock.commands.append(Refuse(ask, full))
            object.take(Kind.ALLOC)
            self._stock.lose(object, str(full))
        else:
            self._stock.room.queue[id] = object
        return self._stock.finish(object, ask.address)

    def allocated(self, id: bytes) -> list[Command]:
        """The memory to write a new object to is there."""
        object = self._stock.objects[id]
        object.is_ready = True
        if object.is_ending:
            return self._stock.finish(object)
        for ask in object.take(Kind.ALLOC):
            self._stock.commands.append(Give(ask, object))
        return self._stock.finish(object)

    def allocation_failed(self, id: bytes, why: str) -> list[Command]:
        """There is no such memory."""
        object = self._stock.objects[id]
        for ask in object.take(Kind.ALLOC):
            self._stock.commands.append(Refuse(ask, StoreFull(name_of(id), why)))
        self._stock.room.move(object, State.QUEUED)
        self._stock.lose(object, why)
        return self._stock.do()

    def seal(self, ask: Ask, id: bytes) -> list[Command]:
        """Its writer says that it is complete."""
        object = self._stock[id]
        if object is None or object.state is not State.FILLING or object.writer != ask.address or not object.is_ready:
            return self._stock.do(Refuse(ask, ObjectLost(name_of(id), "it is not being written by who seals it")))
        object.writer = 0
        self._stock.room.move(object, State.HERE)
        self._stock.commands.append(Done(ask))
        self._stock.serve(object)
        return self._stock.finish(object, ask.address)

    def abort(self, address: int, id: bytes) -> list[Command]:
        """Its writer has given up."""
        object = self._stock[id]
        if object is None or object.writer != address:
            return []
        self._stock.lose(object, "who put it has given up")
        return self._stock.do()

    # -- references ------------------------------------------------------------------------------------------------

    def hold(self, ask: Ask, id: bytes, home: int, nbytes: int) -> list[Command]:
        """A process refers to an object; at its home also an agent, for its host."""
        object = self._stock.find(id, home, nbytes)
        if object is None:
            return self._stock.do(Refuse(ask, ObjectLost(name_of(id), _GONE)))
        object.holders.add(ask.address)
        if object.is_own or object.hold is Hold.YES or (object.hold is Hold.LOST and object.state is not State.AWAY):
            self._stock.commands.append(Done(ask))
        else:
            object.waiting.append(ask)
            if object.hold is not Hold.ASKED:
                self._serial += 1
                object.hold, object.serial = Hold.ASKED, self._serial
                self._stock.commands.append(AskHome(object, self._serial))
        return self._stock.finish(object, ask.address)

    def home_answered(self, id: bytes, serial: int, error: TransferError | None) -> list[Command]:
        """The home has granted an AskHome, or refused it."""
        object = self._stock[id]
        if object is None or object.hold is not Hold.ASKED or object.serial != serial:
            return []
        asks = object.take(Kind.HOLD)
        object.hold = Hold.YES if error is None else Hold.NO
        if error is None:
            self._stock.commands += [Done(ask) for ask in asks]
        else:
            self._stock.commands += [Refuse(ask, error) for ask in asks]
            object.holders.difference_update(ask.address for ask in asks)
        return self._stock.finish(object, *(ask.address for ask in asks))

    def drop(self, address: int, id: bytes) -> list[Command]:
        """A process, or another host, refers to it no longer."""
        object = self._stock[id]
        if object is None:
            return []
        object.holders.discard(address)
        self._stock.withdraw(object.take(Kind.HOLD, address=address))
        return self._stock.finish(object, address)

    def keep(self, ask: Ask, id: bytes) -> list[Command]:
        """Another host's agent has a copy on behalf of this home."""
        object = self._stock[id]
        if object is None or not object.is_wanted:
            return self._stock.do(Refuse(ask, ObjectLost(name_of(id), _GONE)))
        object.copies.add(ask.address)
        return self._stock.do(Done(ask))

    def forget(self, id: bytes) -> list[Command]:
        """Its home no longer has it kept here."""
        object = self._stock[id]
        if object is None:
            return []
        object.is_kept = False
        return self._stock.finish(object)

    # -- reading ---------------------------------------------------------------------------------------------------

    def open(self, ask: Ask, id: bytes, home: int, nbytes: int) -> list[Command]:
        """A process wants to read it: it stays where it is until `close`."""
        return self._read(ask, self._stock.find(id, home, nbytes), id, (home,))

    def where(self, ask: Ask, id: bytes) -> list[Command]:
        """Another host's agent wants to read it, as far as it is here: until `close`."""
        object = self._stock[id]
        if object is not None and object.state is State.AWAY and id not in self._stock.room.queue:
            object = None
        return self._read(ask, object, id, ())

    def fetch(self, ask: Ask, id: bytes, home: int, nbytes: int) -> list[Command]:
        """It is to be here."""
        return self._read(ask, self._stock.find(id, home, nbytes), id, (home,))

    def spread(self, ask: Ask, id: bytes, home: int, nbytes: int, sources: tuple[int, ...]) -> list[Command]:
        """It is to be here, on behalf of its home, from the first of these agents that can give it."""
        object = self._stock.find(id, home, nbytes)
        if object is not None:
            object.is_kept = not object.is_own
        return self._read(ask, object, id, sources)

    def close(self, address: int, id: bytes) -> list[Command]:
        """Undo one `open` or `where`; an agent may do so before its `where` is answered."""
        object = self._stock[id]
        if object is None:
            return []
        asks = object.take(Kind.WHERE, address=address)
        self._stock.withdraw(asks)
        if not asks:
            object.unpin(address)
        return self._stock.finish(object, address)

    def cancel(self, address: int, id: bytes) -> list[Command]:
        """Withdraw an alloc, open or fetch; undo it where it was answered already."""
        object = self._stock[id]
        if object is None:
            return []
        asks = object.take(Kind.ALLOC, Kind.OPEN, Kind.FETCH, address=address)
        self._stock.withdraw(asks)
        if object.writer == address and (not asks or asks[0].kind is Kind.ALLOC):
            self._stock.lose(object, WITHDRAWN)
        elif not asks:
            object.unpin(address)
        return self._stock.finish(object, address)

    # -- what was commanded ----------------------------------------------------------------------------------------

    def receiving(self, id: bytes) -> list[Command]:
        """A pull has memory, which others may read as it arrives."""
        object = self._stock.objects[id]
        object.is_ready = True
        for ask in object.take(Kind.WHERE):
            self._stock.give(ask, object)
        return self._stock.finish(object)

    def pulled(self, id: bytes) -> list[Command]:
        """A copy is here."""
        object = self._stock.objects[id]
        object.is_stopping = False
        self._is_here(object)
        return self._stock.do()

    def pull_failed(self, id: bytes, error: TransferError) -> list[Command]:
        """There is no copy, or it was stopped; its memory is to be freed, where there was any."""
        object = self._stock.objects[id]
        self._stock.empty(object, State.AWAY)
        if object.is_stopping:  # somebody may want it again by now
            object.is_stopping = False
            if object.waiting:
                self._stock.want(object)
        else:
            self._stock.refuse_readers(object, error)
        return self._stock.finish(object)

    def spilled(self, id: bytes) -> list[Command]:
        """It is on disk."""
        object = self._stock.objects[id]
        if object.pins or object.waiting:
            self._stock.room.move(object, State.HERE)
            self._stock.commands.append(Unlink(object))
        else:
            self._stock.empty(object, State.SPILLED)
        return self._stock.finish(object)

    def spill_failed(self, id: bytes) -> list[Command]:
        """It stays in memory for good; nothing of it is on disk."""
        object = self._stock.objects[id]
        object.has_failed_to_spill = True
        self._stock.room.move(object, State.HERE)
        return self._stock.finish(object)

    def loaded(self, id: bytes) -> list[Command]:
        """It is in memory again."""
        object = self._stock.objects[id]
        self._stock.commands.append(Unlink(object))
        self._is_here(object)
        return self._stock.do()

    def load_failed(self, id: bytes, error: TransferError) -> list[Command]:
        """It cannot be read."""
        object = self._stock.objects[id]
        self._stock.empty(object, State.SPILLED)
        self._stock.refuse_readers(object, error)
        return self._stock.finish(object)

    # -- ends ------------------------------------------------------------------------------------------------------

    def gone(self, address: int) -> list[Command]:
        """A process or client has ended: what it held, opened, wrote and waited for is nobody's."""
        self._forget_asker(address)
        return self._stock.do()

    def host_lost(self, agent: int) -> list[Command]:
        """Another host is gone, or has given this one up."""
        for object in list(self._stock.objects.values()):
            object.copies.discard(agent)
            if object.home == agent and not object.is_ending:
                self._lose_home(object)
        for address in [address for address in self._stock.of if agent_of(address) == agent]:
            self._forget_asker(address)
        return self._stock.do()

    def _forget_asker(self, address: int) -> None:
        for id in list(self._stock.of.get(address, ())):
            object = self._stock.objects[id]
            object.take(*Kind, address=address)
            object.holders.discard(address)
            object.unpin(address, None)
            if object.writer == address:
                self._stock.lose(object, "who put it ended before it was complete")
            self._stock.settle(object, address)

    def _lose_home(self, object: SharedObject) -> None:
        error = ObjectLost(name_of(object.id), "its home is lost")
        object.hold, object.is_kept = Hold.LOST, False
        asks = object.take(Kind.HOLD)
        if object.state is State.AWAY:
            self._stock.commands += [Refuse(ask, error) for ask in asks]
            object.holders.difference_update(ask.address for ask in asks)
            self._stock.room.queue.pop(object.id, None)
            self._stock.refuse_readers(object, error)
        else:
            self._stock.commands += [Done(ask) for ask in asks]
        self._stock.room.touch(object)
        self._stock.settle(object, *(ask.address for ask in asks))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _read(self, ask: Ask, object: SharedObject | None, id: bytes, sources: tuple[int, ...]) -> list[Command]:
        if object is None:
            return self._stock.do(Refuse(ask, ObjectLost(name_of(id), _GONE)))
        object.waiting.append(ask)
        if object.state in READABLE or (object.state is State.PULLING and object.is_ready and ask.kind is Kind.WHERE):
            self._stock.serve(object)
        else:
            self._stock.want(object, sources)
        return self._stock.finish(object, ask.address)

    def _is_here(self, object: SharedObject) -> None:
        object.is_ready = True
        self._stock.room.move(object, State.HERE)
        self._stock.serve(object)
        self._stock.settle(object)

    def used_by(self, address: int) -> list[bytes]:
        """Return the objects that a process writes or has open."""
        objects = [self._stock.objects[id] for id in self._stock.of.get(address, ())]
        return [object.id for object in objects if object.writer == address or address in object.pins]

    def holders(self) -> list[tuple[int, int, int]]:
        """Return who keeps objects in memory: (process or agent, objects, what they count); the largest first.

        What several keep counts for each of them.
        """
        found = []
        for address, ids in self._stock.of.items():
            costs = [object.cost for object in map(self._stock.objects.__getitem__, ids) if object.state in IN_MEMORY]
            if costs:
                found.append((address, len(costs), sum(costs)))
        return sorted(found, key=lambda share: (-share[2], share[0]))

    def facts(self) -> dict[str, int]:
        """Return what the host's status shows of it; bytes and counts."""
        states = [object.state for object in self._stock.objects.values()]
        on_disk = [object for object in self._stock.objects.values() if object.state in (State.SPILLED, State.LOADING)]
        return {
            "used": self._stock.room.used,
            "budget": self._stock.room.budget,
            "objects": len(states),
            "waiting_puts": states.count(State.QUEUED),
            "waiting_reads": sum(object.state is not State.QUEUED for object in self._stock.room.queue.values()),
            "pulls": states.count(State.PULLING),
            "spilled": len(on_disk),
            "spilled_bytes": sum(object.nbytes for object in on_disk),
        }
