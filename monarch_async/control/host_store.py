"""The store of a host's shared objects, as its agent has it: does what `store.Store` decides.

Processes of this host ask for memory, write to it themselves, and map it to read; the agent touches no byte of it. What
they ask (CONTROL requests ``["store", operation, ...]``):

    alloc  [id, nbytes]              memory to write a new object to; waits while the store is full
    seal   [id]                      it is complete, and will not change
    abort  [id]                      it will not be
    hold   [id, home, nbytes]        the asker refers to it; answered when its home knows that this host does
    drop   [id]                      it does no longer
    open   [id, home, nbytes]        its memory, which stays until `close`; got from its home where need be
    close  [id]                      undoes one open
    fetch  [id, home, nbytes]        answered when a copy is here
    cancel [id]                      withdraws the asker's alloc, open or fetch, or undoes it
    spread [id, home, nbytes, agents]  to the first of a chain of agents: all get a copy, each from the one before

Memory is a segment (``bulk.arena``) for those on this machine; else, or where they ask for it (one more argument,
true), a region of the agent's data plane. Agents ask each other for the same, and besides:

    where   [id]                     the region to read an object by, as far as it is there, until `close`
    arrived [id, start]              up to where it is there; answered when that is more than ``start``
    keep    [id]                     to the home: the asker has a copy of a spread
    forget  [id]                     from the home: it need not have it any longer
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, assert_never

from monarch_async.bulk.arrivals import Arrivals
from monarch_async.bulk.plane import DataPlane
from monarch_async.config import Config
from monarch_async.control.inquiries import Inquiries
from monarch_async.control.refusal import as_lost_object, pack_refusal
from monarch_async.control.shared_object import (
    Allocate,
    Ask,
    AskHome,
    Command,
    Done,
    Forget,
    Free,
    Give,
    Kind,
    Load,
    Pull,
    Refuse,
    SharedObject,
    Spill,
    StopPull,
    TellHome,
    Unlink,
)
from monarch_async.control.store import Store
from monarch_async.control.store_memory import Memory, StoreMemory, costs, memory_of_this_machine
from monarch_async.control.store_pull import PullFrom, wait_arrived
from monarch_async.control.store_stock import name_of
from monarch_async.errors import Error, ObjectLost, TransferError

log = logging.getLogger("monarch_async.agent")

ID_BYTES = 16
#: Of those before it in a chain, so many does an agent know, to turn to when the one before it is lost.
_FOREBEARS = 8
#: No more than this is kept warm for the objects to come.
_MOST_IDLE = 4 << 30


class Desk(Protocol):
    """What the store needs of its agent."""

    def answer(self, dst: int, call: int, value: object) -> None:
        """Answer a request."""
        ...

    def is_near(self, address: int) -> bool:
        """Return whether a process is on this machine."""
        ...


class HostStore:
    """See the module."""

    def __init__(self, own: int, desk: Desk, inquiries: Inquiries, plane: DataPlane, config: Config) -> None:
        """``own`` is the agent's address."""
        budget = config.store_bytes or memory_of_this_machine() * 3 // 10
        self.own, self._desk, self._inquiries, self._plane = own, desk, inquiries, plane
        self._store = Store(own, budget, bool(config.spill_folder), costs(budget))
        self._memory = StoreMemory(plane, config.spill_folder, min(budget // 4, _MOST_IDLE))
        self._loop = asyncio.get_running_loop()
        self._commands: deque[Command] = deque()
        self._is_performing = self._is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pulls: dict[bytes, asyncio.Task[None]] = {}
        self._depending: dict[int, set[asyncio.Task[None]]] = {}  # on other hosts, by their agents
        self._own_asks: dict[int, asyncio.Future[None]] = {}
        self._last_call = 0

    # -- requests --------------------------------------------------------------------------------------------------

    def take(self, src: int, call: int, operation: str, id: bytes, *arguments: Any) -> None:
        """Take a request. Raises ValueError, TypeError or KeyError where it is none."""
        if not isinstance(id, bytes) or len(id) != ID_BYTES:
            raise ValueError(f"an object's id is {ID_BYTES} bytes, not {id!r}")
        store = self._store
        match operation:
            case "alloc":
                nbytes, *wants = arguments
                self._do(store.alloc(Ask(Kind.ALLOC, src, call, *wants), id, _checked(nbytes)))
            case "seal":
                self._seal(Ask(Kind.OTHER, src, call), id)
            case "hold":
                home, nbytes = arguments if arguments else (self.own, 1)
                self._do(store.hold(Ask(Kind.HOLD, src, call), id, home, _checked(nbytes)))
            case "open":
                home, nbytes, *wants = arguments
                self._do(store.open(Ask(Kind.OPEN, src, call, *wants), id, home, _checked(nbytes)))
            case "fetch":
                home, nbytes = arguments
                self._do(store.fetch(Ask(Kind.FETCH, src, call), id, home, _checked(nbytes)))
            case "where":
                self._do(store.where(Ask(Kind.WHERE, src, call, True), id))
            case "keep":
                self._do(store.keep(Ask(Kind.OTHER, src, call), id))
            case "arrived" | "spread":
                answer = {"arrived": self._arrived, "spread": self._spread}[operation](id, *arguments)
                self._start(self._answer_with(src, call, answer))
            case "abort" | "drop" | "close" | "cancel":
                act: Callable[[int, bytes], list[Command]] = getattr(store, operation)
                self._do(act(src, id))
                self._desk.answer(src, call, None)
            case "forget":
                self._do(store.forget(id))
            case _:
                raise ValueError(f"unknown operation {operation!r}")

    def _seal(self, ask: Ask, id: bytes) -> None:
        memory = self._memory[id]
        if memory is not None and memory.is_written_remotely:
            self._start(self._seal_remote(ask, id, memory))
        else:
            self._do(self._store.seal(ask, id))

    async def _seal_remote(self, ask: Ask, id: bytes, memory: Memory) -> None:
        await memory.end_writing(self._plane)
        self._do(self._store.seal(ask, id))

    async def _answer_with(self, src: int, call: int, work: Coroutine[Any, Any, object]) -> None:
        try:
            value = await work
        except Error as error:
            value = pack_refusal(error)
        self._desk.answer(src, call, value)

    async def _arrived(self, id: bytes, start: int) -> int:
        memory = self._memory[id]
        if memory is None:
            raise ObjectLost(name_of(id), "this host has no copy any more")
        return await wait_arrived(memory, start)

    def hold(self, id: bytes, home: int, nbytes: int) -> "asyncio.Future[None]":
        """Hold an object for this host itself, until `drop`; done when its home knows. It raises TransferError."""
        self._last_call = call = self._last_call + 1
        self._own_asks[call] = held = self._loop.create_future()
        self._do(self._store.hold(Ask(Kind.HOLD, self.own, call), id, home, _checked(nbytes)))
        return held

    def drop(self, id: bytes) -> None:
        """Undo one `hold`."""
        self._do(self._store.drop(self.own, id))

    # -- who is gone -----------------------------------------------------------------------------------------------

    def gone(self, address: int, may_live: bool = False) -> None:
        """A process has ended, or has left (``may_live``): then it may have memory mapped still."""
        if may_live:
            self._memory.abandon(self._store.used_by(address))
        self._do(self._store.gone(address))

    def host_lost(self, agent: int) -> None:
        """Another host is gone."""
        for task in self._depending.pop(agent, ()):
            task.cancel()
        self._do(self._store.host_lost(agent))

    def facts(self) -> dict[str, int]:
        """See `Store.facts`."""
        return self._store.facts()

    def holders(self) -> list[tuple[int, int, int]]:
        """See `Store.holders`."""
        return self._store.holders()

    # -- doing what is decided -------------------------------------------------------------------------------------

    def _do(self, commands: Sequence[Command]) -> None:
        """Perform commands in order, also those that follow from what is told of them at once."""
        self._commands.extend(commands)
        if self._is_performing or self._is_closed:
            return
        self._is_performing = True
        try:
            while self._commands:
                self._perform(self._commands.popleft())
        finally:
            self._is_performing = False

    def _perform(self, command: Command) -> None:
        match command:
            case Done(ask):
                self._answer(ask, None)
            case Refuse(ask, error):
                self._answer(ask, error)
            case Give(ask, object):
                self._give(ask, object)
            case Allocate(object):
                if self._memory.take_idle(object.id, object.nbytes):
                    self._do(self._store.allocated(object.id))
                else:
                    self._start(self._allocate(object))
            case Free(object):
                if (memory := self._memory.remove(object.id)) is not None:
                    self._start(self._memory.free(memory))
            case Pull(object, sources):
                self._pulls[object.id] = pull = self._start(self._pull(object, sources))
                pull.add_done_callback(lambda task: self._pull_ended(object, task))
            case StopPull(object):
                self._pulls[object.id].cancel()
            case Spill(object):
                self._start(self._spill(object))
            case Load(object):
                self._start(self._load(object))
            case Unlink(object):
                self._memory.unlink(object.id)
            case AskHome(object, serial):
                asked = self._inquiries.ask(object.home, "store", "hold", object.id, object.home, object.nbytes)
                asked.add_done_callback(lambda answer: self._home_answered(object, serial, answer))
            case TellHome(object):
                self._inquiries.post(object.home, "store", "drop", object.id)
            case Forget(object, agent):
                self._inquiries.post(agent, "store", "forget", object.id)
            case _:
                assert_never(command)

    def _answer(self, ask: Ask, error: TransferError | None) -> None:
        if ask.address != self.own:
            self._desk.answer(ask.address, ask.call, None if error is None else pack_refusal(error))
        elif not (waits := self._own_asks.pop(ask.call)).done():
            waits.set_result(None) if error is None else waits.set_exception(error)

    def _give(self, ask: Ask, object: SharedObject) -> None:
        memory = self._memory[object.id]
        assert memory is not None
        if ask.kind is Kind.WHERE or ask.wants_region or not self._desk.is_near(ask.address):
            self._start(self._answer_with(ask.address, ask.call, self._give_region(ask, object, memory)))
        else:
            self._desk.answer(ask.address, ask.call, {"segment": memory.segment.token})

    async def _give_region(self, ask: Ask, object: SharedObject, memory: Memory) -> dict[str, Any]:
        try:
            region = await memory.describe(self._plane, object.id, ask.kind is Kind.ALLOC)
        except OSError as error:
            undo = self._store.abort if ask.kind is Kind.ALLOC else self._store.close  # who is refused does not
            self._do(undo(ask.address, object.id))
            raise TransferError(name_of(object.id), f"its host cannot offer it: {error}") from error
        if memory.is_gone:
            await memory.withdraw(self._plane)
            raise ObjectLost(name_of(object.id), "it is gone")
        return {"region": region, "is_complete": memory.arrivals is None}

    async def _allocate(self, object: SharedObject) -> None:
        try:
            await self._memory.take(object.id, object.nbytes)
        except TransferError as error:
            self._do(self._store.allocation_failed(object.id, error.why))
        else:
            self._do(self._store.allocated(object.id))

    async def _spill(self, object: SharedObject) -> None:
        try:
            await self._memory.spill(object.id)
        except OSError as error:
            log.warning("%s stays in memory, as it cannot be written to disk: %s", name_of(object.id), error)
            self._do(self._store.spill_failed(object.id))
        else:
            self._do(self._store.spilled(object.id))

    async def _load(self, object: SharedObject) -> None:
        try:
            await self._memory.load(object.id, object.nbytes)
        except (OSError, TransferError) as error:
            lost = ObjectLost(name_of(object.id), f"it cannot be read from disk: {error}")
            self._do(self._store.load_failed(object.id, lost))
        else:
            self._do(self._store.loaded(object.id))

    def _home_answered(self, object: SharedObject, serial: int, answer: "asyncio.Future[Any]") -> None:
        if not answer.cancelled():
            error = answer.exception()
            refusal = as_lost_object(name_of(object.id), error) if isinstance(error, Exception) else None
            self._do(self._store.home_answered(object.id, serial, refusal))

    # -- copies of other hosts' objects ----------------------------------------------------------------------------

    async def _pull(self, object: SharedObject, sources: Sequence[int]) -> None:
        memory = await self._memory.take(object.id, object.nbytes, Arrivals(object.nbytes))
        self._do(self._store.receiving(object.id))
        pull = PullFrom(object.id, object.nbytes, memory, self._plane, self._inquiries)
        await pull.run(sources, self._depend)
        memory.arrivals = None
        memory.tell()

    def _depend(self, agent: int, task: "asyncio.Task[None]") -> None:
        tasks = self._depending.setdefault(agent, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _pull_ended(self, object: SharedObject, task: "asyncio.Task[None]") -> None:
        del self._pulls[object.id]
        if task.cancelled():
            self._do(self._store.pull_failed(object.id, ObjectLost(name_of(object.id), "nobody here needs it")))
        elif (error := task.exception()) is None:
            self._do(self._store.pulled(object.id))
        else:
            lost = error if isinstance(error, TransferError) else ObjectLost(name_of(object.id), repr(error))
            self._do(self._store.pull_failed(object.id, lost))

    async def _spread(
        self, id: bytes, home: int, nbytes: int, chain: Sequence[int], forebears: Sequence[int] = ()
    ) -> dict[int, str]:
        """Get a copy, and have those behind get theirs; return who failed, and why."""
        rest = [agent for agent in chain if agent not in (self.own, home)]
        sources = tuple(dict.fromkeys([*forebears, home]))
        mine = self._get_copy(id, home, _checked(nbytes), sources)
        theirs = self._pass_on(id, home, nbytes, rest, tuple(dict.fromkeys([self.own, *sources]))[:_FOREBEARS])
        why, failed = await asyncio.gather(mine, theirs)
        return failed if why is None else {self.own: why, **failed}

    async def _get_copy(self, id: bytes, home: int, nbytes: int, sources: tuple[int, ...]) -> str | None:
        self._last_call = call = self._last_call + 1
        self._own_asks[call] = here = self._loop.create_future()
        self._do(self._store.spread(Ask(Kind.FETCH, self.own, call), id, home, nbytes, sources))
        try:
            if home != self.own:
                await self._inquiries.ask(home, "store", "keep", id)
            await here
        except Error as error:
            self._do(self._store.forget(id))
            if not here.done():
                here.cancel()
            return str(error)
        return None

    async def _pass_on(
        self, id: bytes, home: int, nbytes: int, rest: Sequence[int], forebears: Sequence[int]
    ) -> dict[int, str]:
        """Have the next agent do as this one does; one that is lost is passed over."""
        failed: dict[int, str] = {}
        for index, agent in enumerate(rest):
            try:
                behind = await self._inquiries.ask(
                    agent, "store", "spread", id, home, nbytes, list(rest[index:]), list(forebears)
                )
            except Error as error:
                failed[agent] = str(error)
            else:
                return {**failed, **behind}
        return failed

    # -- the end ---------------------------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """Stop what is under way, let go of all memory. Twice is fine."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._memory.aclose()


def _checked(nbytes: Any) -> int:
    if not isinstance(nbytes, int) or nbytes < 1:
        raise ValueError(f"an object of {nbytes!r} bytes")
    return nbytes
