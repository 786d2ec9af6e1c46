"""What a process says to its host's store, against a store that writes down what it is told."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from monarch_async.bulk.arena import Arena, Segment, forget_mappings
from monarch_async.config import Config
from monarch_async.errors import Closed, HostLost, Lost, ObjectLost, StoreFull
from monarch_async.mesh import ref_tickets
from monarch_async.mesh.holding import Keeper, ObjectFacts
from monarch_async.mesh.holdings import Holdings
from monarch_async.mesh.ref_tickets import ARRIVALS, LEASE, RefTicket
from monarch_async.runtime.incoming import CREDITS
from monarch_async.runtime.router import Router
from monarch_async.wire.frame import CANCEL, CREDIT, HEADER, REPLY
from monarch_async.wire.object_layout import lay_out
from monarch_async.wire.payload import dumps

HERE = 7 << 32 | 1
AGENT = 7 << 32
OTHER = 8 << 32 | 5


class Store:
    """Stands for the agent's: takes requests and posts."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.objects: dict[bytes, Segment] = {}
        self.said: list[str] = []
        self.is_full = asyncio.Event()
        self.hold_answer = asyncio.Event()
        self.hold_answer.set()
        self.is_lost = False

    def send(self, agent: int, store: str, operation: str, id: bytes, *arguments: Any) -> Awaitable[Any]:
        assert (agent, store) == (AGENT, "store")
        self.said.append(operation)
        return self._answer(operation, id, *arguments)

    async def _answer(self, operation: str, id: bytes, *arguments: Any) -> Any:
        match operation:
            case "alloc":
                while self.is_full.is_set():
                    await asyncio.sleep(0)
                self.objects[id] = self.arena.take(arguments[0])
                return {"segment": list(self.objects[id].token)}
            case "open":
                if self.is_lost:
                    raise ObjectLost("it", "gone")
                await asyncio.sleep(0)
                return {"segment": list(self.objects[id].token)}
            case "hold":
                await self.hold_answer.wait()

    def post(self, agent: int, store: str, operation: str, id: bytes) -> None:
        self.said.append(operation)

    def heard(self) -> list[str]:
        said, self.said = self.said, []
        return said


class Wire:
    """A connection that keeps what is sent."""

    is_closed = False

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def take(self) -> list[tuple[int, int, int, int]]:
        """(kind, destination, target, call) of what was sent."""
        found = [HEADER.unpack_from(frame) for frame in self.frames]
        self.frames.clear()
        return [(kind, dst, target, call) for _, kind, _, _, dst, _, target, call in found]


@pytest_asyncio.fixture
async def store() -> AsyncIterator[Store]:
    store = Store()
    yield store
    store.arena.close()
    forget_mappings()


@pytest_asyncio.fixture
async def wire() -> Wire:
    return Wire()


@pytest_asyncio.fixture
async def holdings(store: Store, wire: Wire) -> AsyncIterator[Holdings]:
    router = Router(HERE, Config(), "test")
    router.add_uplink(7, wire)  # type: ignore[arg-type]
    yield Holdings(router, store, lambda home: AGENT)  # type: ignore[arg-type]
    router.close(Closed("test"))
    await router.plane.aclose()


async def put(holdings: Holdings, value: object) -> Keeper:
    return await holdings.put(lay_out(dumps(value)), lambda agent: "here", ())


async def settled() -> None:
    """Everything that was to be called soon has been."""
    for _ in range(5):
        await asyncio.sleep(0)


def a_remote_object() -> ObjectFacts:
    return ObjectFacts(b"0123456789abcdef", 9 << 32, 100, "far")


@pytest.mark.parametrize("size", [10, 1_000_000, 3_000_000])
async def test_put_and_load(holdings: Holdings, store: Store, size: int) -> None:
    keeper = await put(holdings, np.full(size, 3.0))
    assert store.heard() == ["alloc", "seal"]
    value = await holdings.load(keeper)
    assert isinstance(value, np.ndarray) and value.sum() == 3.0 * size
    assert store.heard() == ["open"]
    del value
    await settled()
    assert store.heard() == ["close"]
    del keeper
    await settled()
    assert store.heard() == ["drop"] and len(holdings) == 0


async def test_the_value_keeps_the_object(holdings: Holdings, store: Store) -> None:
    keeper = await put(holdings, np.zeros(5000))
    value: Any = await holdings.load(keeper)
    view = value[10:]
    del keeper, value
    store.heard()
    await settled()
    assert store.heard() == []
    del view
    await settled()
    assert store.heard() == ["close", "drop"]


async def test_one_pin_for_all_that_is_mapped(holdings: Holdings, store: Store) -> None:
    keeper = await put(holdings, np.zeros(5000))
    store.heard()
    values = await asyncio.gather(*[holdings.load(keeper) for _ in range(5)])
    values.append(await holdings.load(keeper))
    assert store.heard() == ["open"]
    values.clear()
    again = await holdings.load(keeper)  # before the agent could be told
    await settled()
    assert store.heard() == []
    del again
    await settled()
    assert store.heard() == ["close"]
    await holdings.load(keeper)
    assert store.heard() == ["open"]


async def test_who_stops_waiting_leaves_nothing_open(holdings: Holdings, store: Store) -> None:
    keeper = await put(holdings, np.zeros(5000))
    loading = asyncio.ensure_future(holdings.load(keeper))
    await asyncio.sleep(0)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    del loading
    await settled()
    assert store.heard() == ["alloc", "seal", "open", "close"]


async def test_a_put_that_waits_can_be_cancelled(holdings: Holdings, store: Store) -> None:
    store.is_full.set()
    putting = asyncio.ensure_future(put(holdings, np.zeros(5000)))
    await settled()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert store.heard() == ["alloc", "cancel"] and len(holdings) == 0


async def test_what_fails_is_undone(holdings: Holdings, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise StoreFull("it", "too large")

    monkeypatch.setattr(holdings, "_fill", fail)
    holdings._wants_region = True
    with pytest.raises(StoreFull):
        await put(holdings, np.zeros(5000))
    assert "abort" in store.heard() and len(holdings) == 0


async def test_a_reference_that_arrives_holds_once(holdings: Holdings, store: Store) -> None:
    first, second = holdings.keep(a_remote_object()), holdings.keep(a_remote_object())
    assert first is second
    await settled()
    assert store.heard() == ["hold"] and first.is_held
    del first, second
    third = holdings.keep(a_remote_object())  # before the agent could be told
    await settled()
    assert store.heard() == []
    del third
    await settled()
    assert store.heard() == ["drop"]


async def test_on_other_threads_too(holdings: Holdings, store: Store) -> None:
    def use() -> None:
        for _ in range(100):
            holdings.keep(a_remote_object())

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        await asyncio.sleep(0.001)
    gc.collect()
    await settled()
    said = store.heard()
    assert len(holdings) == 0 and said == ["hold", "drop"] * (len(said) // 2)


async def test_lost(holdings: Holdings, store: Store) -> None:
    keeper = await put(holdings, 1)
    store.is_lost = True
    for _ in range(2):
        with pytest.raises(ObjectLost, match=r"shared object \w+ .* put on here\): gone"):
            await holdings.load(keeper)


@pytest.mark.parametrize("what", ["load", "fetch"])
async def test_an_error_that_was_looked_at_keeps_no_object(two: "tuple[TwoStores, Holdings]", what: str) -> None:
    """Without the collector: it may not run for long."""
    stores, holdings = two
    keeper = holdings.keep(a_remote_object())
    await settled()
    stores.heard()
    stores.living.clear()
    gc.collect()
    gc.disable()
    try:
        try:
            await (holdings.load(keeper) if what == "load" else holdings.fetch(keeper))
        except (ObjectLost, Lost):
            pass
        del keeper
        await settled()
        assert stores.heard()[-1] == (AGENT, "drop") and len(holdings) == 0
    finally:
        gc.enable()


# -- tickets -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ref_tickets, "_SWEEP", 0.01)


async def ended(holdings: Holdings) -> None:
    async with asyncio.timeout(5):
        while holdings.tickets._live:
            await asyncio.sleep(0.005)


async def test_a_ticket_keeps_until_all_have_arrived(holdings: Holdings, store: Store) -> None:
    keeper = await put(holdings, 1)
    ticket = RefTicket(holdings.tickets, keeper)
    ticket.sent(OTHER, 3, False)
    ticket.sent(OTHER + 1, 3, False)
    del keeper
    pending = holdings._router.pending
    store.heard()
    assert not pending[ticket.number].take_reply(OTHER, 0, 0, b"", ())
    assert pending[ticket.number].lose(lambda address: address == OTHER + 1, ObjectLost("", ""))
    del pending[ticket.number], ticket
    await settled()
    assert store.heard() == ["drop"]


async def test_who_was_sent_it_is_asked_once_the_call_has_ended(
    holdings: Holdings, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ref_tickets, "_SWEEP", 0.01)
    keeper = await put(holdings, 1)
    pending = holdings._router.pending
    call = holdings._router.take_id()
    pending[call] = object()  # type: ignore[assignment]
    ticket = RefTicket(holdings.tickets, keeper)
    ticket.sent(OTHER, call, False)
    await asyncio.sleep(0.05)
    assert wire.take() == []
    del pending[call]
    while not wire.frames:
        await asyncio.sleep(0.005)
    assert wire.take()[0] == (CANCEL, OTHER, ARRIVALS, ticket.number)
    assert pending[ticket.number].take_reply(OTHER, 0, 0, b"", ())
    await ended(holdings)


async def test_with_an_answer_its_receiver_says_when_the_call_is_over(
    holdings: Holdings, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ref_tickets, "_SWEEP", 0.01)
    ticket = RefTicket(holdings.tickets, await put(holdings, 1))
    ticket.sent(OTHER, 44, True)
    while not wire.frames:
        await asyncio.sleep(0.005)
    assert CREDITS.unpack(wire.frames[0][-CREDITS.size :]) == (44, 0)
    assert wire.take()[0] == (CREDIT, OTHER, ARRIVALS, ticket.number)
    pending = holdings._router.pending
    pending[44] = object()  # type: ignore[assignment]
    holdings.tickets.credit(OTHER, 9, 44, 0)
    del pending[44]
    assert not [frame for frame in wire.take() if frame[0] == REPLY]
    holdings.tickets.credit(OTHER, 9, 44, 0)
    await asyncio.sleep(0)  # it is said when what has just arrived has been unpickled
    assert (REPLY, OTHER, 9, 0) in wire.take()


async def test_by_hand_it_lasts_for_its_lease(
    holdings: Holdings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ref_tickets, "_SWEEP", 0.01)
    keeper = await put(holdings, 1)
    ticket = RefTicket(holdings.tickets, keeper)
    holdings.tickets.add(ticket, 0.05)
    assert not holdings._router.pending[ticket.number].take_reply(OTHER, 0, 0, b"", ())  # there may be others
    del keeper, ticket
    await ended(holdings)
    await settled()
    assert "drop" in store.heard() and not holdings._router.pending
    assert LEASE == 60


async def test_an_arrival_is_told_when_the_hold_was_answered(holdings: Holdings, store: Store, wire: Wire) -> None:
    store.hold_answer.clear()
    keeper = holdings.keep(a_remote_object())
    holdings.tickets.arrived(keeper, OTHER, 12)
    del keeper  # what arrived is gone again: it is held until that is told
    await settled()
    holdings.tickets.cancel(OTHER, 12)  # it is asked for meanwhile
    assert wire.take() == [] and store.heard() == ["hold"]
    store.hold_answer.set()
    await settled()
    assert [(dst, target) for _, dst, target, _ in wire.take()] == [(OTHER, 12)]
    assert store.heard() == ["drop"]


async def test_what_never_came_is_said_not_to_come(holdings: Holdings, wire: Wire) -> None:
    holdings.tickets.cancel(OTHER, 12)
    assert [(dst, target) for _, dst, target, _ in wire.take()] == [(OTHER, 12)]


# -- agents that are lost (H4) -----------------------------------------------------------------------------------------

SECOND = 8 << 32


class TwoStores:
    """Those of two agents: the first is asked about all objects while it lives."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str]] = []
        self.arena = Arena()
        self.segment = self.arena.take(100)
        self.living = [AGENT, SECOND]
        self.answered = asyncio.Event()
        self.answered.set()

    def find(self, home: int) -> int:
        return self.living[0]

    def send(self, agent: int, store: str, operation: str, id: bytes, *arguments: Any) -> Awaitable[Any]:
        self.said.append((agent, operation))
        return self._answer(agent)

    async def _answer(self, agent: int) -> Any:
        await self.answered.wait()
        if agent not in self.living:
            raise HostLost(str(agent), "silence")
        return {"segment": list(self.segment.token)}

    def post(self, agent: int, store: str, operation: str, id: bytes) -> None:
        self.said.append((agent, operation))

    def heard(self) -> list[tuple[int, str]]:
        said, self.said = self.said, []
        return said


@pytest_asyncio.fixture
async def two() -> AsyncIterator[tuple[TwoStores, Holdings]]:
    router, stores = Router(HERE, Config(), "test"), TwoStores()
    yield stores, Holdings(router, stores, stores.find)  # type: ignore[arg-type]
    router.close(Closed("test"))
    await router.plane.aclose()
    stores.arena.close()
    forget_mappings()


def read(skeleton: memoryview, parts: list[memoryview]) -> bytes:
    return bytes(skeleton[:1])


@pytest.mark.parametrize("is_back", [False, True])
async def test_where_its_agent_is_lost_another_holds_it_to_the_end(
    two: tuple[TwoStores, Holdings], is_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_async.mesh.holdings.cut_object", lambda memory: (memory, []))
    stores, holdings = two
    keeper = holdings.keep(a_remote_object())
    await holdings.load(keeper, loads=read)
    await settled()
    assert stores.heard() == [(AGENT, "hold"), (AGENT, "open"), (AGENT, "close")]
    stores.living.remove(AGENT)
    holdings.host_lost(AGENT)
    await holdings.load(keeper, loads=read)
    await settled()
    assert stores.heard() == [(SECOND, "hold"), (SECOND, "open"), (SECOND, "close")]
    if is_back:
        stores.living.insert(0, AGENT)
    await holdings.load(keeper, loads=read)
    await settled()
    assert stores.heard() == [(SECOND, "open"), (SECOND, "close")]
    del keeper
    await settled()
    assert stores.heard() == [(SECOND, "drop")] and len(holdings) == 0


async def test_an_agent_that_is_back_is_told_anew_what_is_held(two: tuple[TwoStores, Holdings]) -> None:
    stores, holdings = two
    keeper = holdings.keep(a_remote_object())
    holdings.host_lost(AGENT)
    stores.heard()
    await holdings.fetch(keeper)
    assert stores.heard() == [(AGENT, "hold"), (AGENT, "fetch")]
    holdings.host_lost(AGENT)
    del keeper
    await settled()
    assert stores.heard() == [] and len(holdings) == 0


async def test_memory_of_an_agent_that_is_lost_as_it_gives_it_is_not_used(
    two: tuple[TwoStores, Holdings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monarch_async.mesh.holdings.cut_object", lambda memory: (memory, []))
    stores, holdings = two
    keeper = holdings.keep(a_remote_object())
    stores.answered.clear()
    loading = asyncio.ensure_future(holdings.load(keeper, loads=read))
    await settled()
    stores.answered.set()
    holdings.host_lost(AGENT)  # and it is back
    with pytest.raises(ObjectLost, match="its host was lost as it gave it"):
        await loading
    stores.heard()
    await holdings.load(keeper, loads=read)
    assert stores.heard() == [(AGENT, "hold"), (AGENT, "open")]
