"""The shared objects that this process holds, and what it says about them to its host agent.

H1. A process holds an object, once, while anything here keeps it: references (`mesh.ref.Ref`), tickets of those that
    are on their way (`ref_tickets`), values that are mapped. All of them share one `Keeper`; when that dies, on
    whatever thread, the agent is told to drop it.
H2. Likewise a `Pin` is what all mappings of an object share: while it lives the agent leaves the memory where it is.
    Pins are opened and closed in turns, so the agent knows of one at most.
H3. Every await maps anew: what is written into a tensor is seen by nobody else, not by the next await here either.
H4. It is held by one agent. Where that is lost, and only then, another is asked as soon as the object is needed again:
    one that was lost and has come back knows of nothing that was held there.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from monarch_async.bulk.arena import Token, open_segment
from monarch_async.bulk.copying import copy_pieces
from monarch_async.bulk.region import RemoteRegion
from monarch_async.control.controller import Requests
from monarch_async.errors import Closed, Lost, ObjectLost, TransferError
from monarch_async.mesh import room_report
from monarch_async.mesh.holding import Grant, Holding, Hole, Keeper, ObjectFacts, Pin
from monarch_async.mesh.ref_tickets import Tickets
from monarch_async.wire.object_layout import Laid, cut_object
from monarch_async.wire.payload import loads_shared

if TYPE_CHECKING:
    from monarch_async.runtime.router import Router

#: An object of up to this size is copied at once; it takes less time than handing it to another thread.
_AT_ONCE = 256 << 10
#: Bytes of a larger one that are copied before others have their turn on the plane's thread.
_SLICE = 8 << 20

Loads = Callable[[memoryview, list[memoryview]], object]


class Holdings:
    """All of one process."""

    def __init__(self, router: "Router", requests: Requests, find_agent: Callable[[int], int]) -> None:
        """``find_agent`` says which agent to ask about objects of this home (0: that are new). It may raise Closed."""
        self._router, self._requests, self._find_agent = router, requests, find_agent
        self.thread = get_ident()  #: the loop's
        self._by_id: dict[bytes, Holding] = {}
        self._lock = threading.RLock()  # of `_by_id`; a collection while it is held may only schedule
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wants_region = False  # segments cannot be opened here
        self.tickets = Tickets(router, self._start)

    def __len__(self) -> int:
        return len(self._by_id)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` in a task. It ends by itself when the router is closed, and what it raises was looked at."""
        task = self._router.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def _ask(self, agent: int, operation: str, *arguments: object) -> asyncio.Task[Any]:
        """Ask an agent's store, now. The answer comes, whoever may have stopped to wait for it."""
        return self._start(_waited(self._requests.send(agent, "store", operation, *arguments)))

    def _post(self, agent: int, operation: str, id: bytes) -> None:
        if not self._router.is_closed:
            self._requests.post(agent, "store", operation, id)

    def close(self) -> None:
        """The agents let go of all that this process holds; values that are mapped stay."""
        self.tickets.close()
        self._by_id.clear()

    # -- holding (H1) ----------------------------------------------------------------------------------------------

    def keep(self, facts: ObjectFacts, inner: Sequence[Keeper] = ()) -> Keeper:
        """Hold an object; somebody else does so until the agent has been asked. On any thread."""
        with self._lock:
            holding = self._by_id.get(facts.id)
            is_new = holding is None
            if holding is None:
                holding = self._by_id[facts.id] = Holding(facts, self._find_agent(facts.home))
            keeper = holding.live_keeper()
            if keeper is None:
                keeper = self._make_keeper(holding, inner)
        if is_new and get_ident() == self.thread:
            self._hold(holding)
        elif is_new:
            self._router.call_soon(self._hold, holding)
        return keeper

    def _make_keeper(self, holding: Holding, inner: Sequence[Keeper]) -> Keeper:
        keeper = Keeper(holding, inner)
        holding.keeper = weakref.ref(keeper, lambda _: self._router.call_soon(self._let_go, holding))
        return keeper

    def _hold(self, holding: Holding) -> None:
        """Where that fails, whoever awaits the value is told."""
        facts = holding.facts
        try:
            asked = self._ask(holding.agent, "hold", facts.id, facts.home, facts.nbytes)
        except Closed:
            holding.is_settled.set()
        else:
            asked.add_done_callback(lambda _: holding.is_settled.set())

    def _let_go(self, holding: Holding) -> None:
        with self._lock:
            if holding.live_keeper() is not None or self._by_id.get(holding.facts.id) is not holding:
                return
            del self._by_id[holding.facts.id]
        self._unpin(holding)
        if holding.agent:
            self._post(holding.agent, "drop", holding.facts.id)

    def host_lost(self, agent: int) -> None:
        """It has forgotten what this process held and had open there (H4)."""
        with self._lock:
            for holding in self._by_id.values():
                if holding.agent == agent:
                    holding.agent, holding.grant, holding.pin = 0, None, None

    def _agent_of(self, holding: Holding) -> int:
        """Return whom to ask about an object. Raises Closed."""
        if not holding.agent:
            holding.agent = self._find_agent(holding.facts.home)
            self._hold(holding)
        return holding.agent

    # -- putting ---------------------------------------------------------------------------------------------------

    async def put(
        self, laid: Laid, where: Callable[[int], str], inner: Sequence[Keeper], hole: Hole | None = None
    ) -> Keeper:
        """Make a new object and hold it. ``where`` names the host of an agent. Waits while the host is full.

        ``hole`` is what ``laid`` leaves out: it is filled in place. What that raises is raised.
        """
        agent = self._find_agent(0)
        facts = ObjectFacts(os.urandom(16), agent, laid.size, where(agent))
        try:
            grant = await self._alloc(facts)
        except asyncio.CancelledError:
            self._post(agent, "cancel", facts.id)
            raise
        try:
            try:
                await self._fill(grant, laid)
            except TransferError:
                if isinstance(grant, RemoteRegion):
                    raise
                self._post(agent, "abort", facts.id)
                self._wants_region = True
                grant = await self._alloc(facts)
                await self._fill(grant, laid)
            if hole is not None:
                await self._fill_hole(grant, hole)
            self._post(agent, "seal", facts.id)  # whoever opens it before that has arrived waits for it
        except BaseException:
            self._post(agent, "abort", facts.id)
            raise
        with self._lock:
            holding = self._by_id[facts.id] = Holding(facts, agent)
            holding.is_settled.set()
            return self._make_keeper(holding, inner)

    async def _alloc(self, facts: ObjectFacts) -> Grant:
        return await self._ask_memory(facts.home, "alloc", facts, facts.nbytes)

    async def _ask_memory(self, agent: int, operation: str, facts: ObjectFacts, *arguments: int) -> Grant:
        asked = self._ask(agent, operation, facts.id, *arguments, self._wants_region)
        timer = self._router.loop.call_later(room_report.PATIENCE, self._report, asked, operation, facts, agent)
        asked.add_done_callback(lambda _: timer.cancel())
        try:
            return _read_grant(await asyncio.shield(asked))
        finally:
            del asked  # see `take_pin`

    def _report(self, asked: asyncio.Task[Any], operation: str, facts: ObjectFacts, agent: int) -> None:
        self._start(room_report.report_waiting(asked, operation, facts, self._requests, agent))

    async def _fill(self, grant: Grant, laid: Laid) -> None:
        plane = self._router.plane
        if isinstance(grant, RemoteRegion):
            await plane.write(grant, laid.runs, laid.parts)
        elif laid.size <= _AT_ONCE:
            for into, source in _pairs(grant, laid):
                into[:] = source
        else:
            await plane.run(copy_pieces(_pairs(grant, laid)))

    async def _fill_hole(self, grant: Grant, hole: Hole) -> None:
        start, size = hole.run
        if isinstance(grant, RemoteRegion):
            memory = self._router.pool.take(size)
            await hole.fill(memory)
            await self._router.plane.write(grant, [hole.run], [memory])
        else:
            await hole.fill(open_segment(grant, is_private=False)[start : start + size])

    # -- getting (H2, H3) ------------------------------------------------------------------------------------------

    async def load(self, keeper: Keeper, is_private: bool = True, loads: Loads = loads_shared) -> object:
        """Return an object's value. Raises ObjectLost and StoreFull, and whatever unpickling (``loads``) raises.

        Not ``is_private``: for who only reads; others would see what is written. Its pages need not be mapped one by
        one, as the mapping is kept for the objects to come.
        """
        pin = await self.take_pin(keeper)
        try:
            memory = await self._map(pin, is_private)
        except TransferError:
            if isinstance(pin.grant, RemoteRegion):
                raise
            self._wants_region = True
            if keeper.holding.live_pin() is pin:
                self._close(keeper.holding)
            pin = await self.take_pin(keeper)
            memory = await self._map(pin, is_private)
        try:
            return loads(*cut_object(memory))
        except Exception as error:
            error.add_note(f"raised while unpickling {keeper.holding.facts}")
            raise

    async def take_pin(self, keeper: Keeper) -> Pin:
        """Have the object's memory stay where it is, on this host, as long as what is returned lives. Raises as `load`.

        `map_pinned` maps it, as often as wanted.
        """
        holding = keeper.holding
        pin = holding.live_pin()
        if pin is not None:
            return pin
        if holding.grant is not None:  # the last one has just died
            return self._make_pin(keeper, holding.grant)
        if holding.opening is None:
            holding.opening = self._start(self._open(keeper))
        opening = holding.opening
        await asyncio.wait([opening])  # who stops waiting does not stop the others
        try:
            return opening.result()
        finally:
            del opening  # what is raised refers to this frame: which is not to refer to it, and keep the object (H1)

    def _make_pin(self, keeper: Keeper, grant: Grant) -> Pin:
        holding = keeper.holding
        pin = Pin(keeper, grant)
        holding.pin = weakref.ref(pin, lambda _: self._router.call_soon(self._unpin, holding))
        return pin

    async def _open(self, keeper: Keeper) -> Pin:
        holding = keeper.holding
        facts = holding.facts
        try:
            agent = self._agent_of(holding)
            grant = await self._ask_memory(agent, "open", facts, facts.home, facts.nbytes)
        except Lost as error:
            raise ObjectLost(str(facts), f"its host is gone: {error}") from error
        except TransferError as error:
            raise type(error)(str(facts), error.why) from None
        finally:
            holding.opening = None
        if agent != holding.agent:
            raise ObjectLost(str(facts), "its host was lost as it gave it")
        holding.grant = grant
        return self._make_pin(keeper, grant)

    def _unpin(self, holding: Holding) -> None:
        if holding.grant is not None and holding.live_pin() is None:
            self._close(holding)

    def _close(self, holding: Holding) -> None:
        holding.grant = holding.pin = None
        self._post(holding.agent, "close", holding.facts.id)

    async def _map(self, pin: Pin, is_private: bool) -> memoryview:
        if not isinstance(pin.grant, RemoteRegion):
            return open_segment(pin.grant, is_private=is_private, on_gone=pin.release)
        nbytes = pin.keeper.holding.facts.nbytes
        memory = self._router.pool.take(nbytes)
        await self._router.plane.read(pin.grant, [(0, nbytes)], [memory])
        return memory

    async def fetch(self, keeper: Keeper) -> None:
        """Wait until a copy is on this host. Raises as `load`."""
        holding = keeper.holding
        facts = holding.facts
        agent = self._agent_of(holding)
        if holding.grant is not None or (agent == facts.home and holding.is_settled.is_set()):
            return
        if holding.fetching is None:
            holding.fetching = self._ask(agent, "fetch", facts.id, facts.home, facts.nbytes)
        fetching = holding.fetching
        await asyncio.wait([fetching])
        if holding.fetching is fetching:
            holding.fetching = None
        try:
            fetching.result()
        finally:
            del fetching  # see `take_pin`


def map_pinned(pin: Pin) -> tuple[memoryview, list[memoryview]] | None:
    """Map an object; return it as `loads_shared` takes it, None where it cannot be mapped here. On any thread.

    The mapping keeps the pin. Raises TransferError where the memory is gone.
    """
    if isinstance(pin.grant, RemoteRegion):
        return None
    return cut_object(open_segment(pin.grant, on_gone=pin.release))


async def _waited(answer: Awaitable[Any]) -> Any:
    return await answer


def _read_grant(answer: dict[str, Any]) -> Grant:
    if "region" in answer:
        return RemoteRegion.unpack(answer["region"])
    pid, fd, inode, size = answer["segment"]
    return pid, fd, inode, size


def _pairs(token: Token, laid: Laid) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield slices of a segment and what goes there."""
    memory = open_segment(token, is_private=False)
    for part, (offset, size) in zip(laid.parts, laid.runs, strict=True):
        for start in range(0, size, _SLICE):
            source = part[start : start + _SLICE]
            yield memory[offset + start : offset + start + len(source)], source
