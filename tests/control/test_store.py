"""The store of a host, decided in pure code: exact commands, and any order of events. Numbers cite its invariants."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Spill,
    StopPull,
    TellHome,
    Unlink,
)
from monarch_async.control.store import Store
from monarch_async.errors import ObjectLost, StoreFull, TransferError
from monarch_async.ids import address, agent_of

OWN, OTHER, THIRD = address(1, 0), address(2, 0), address(3, 0)
P, Q = address(1, 7), address(1, 8)
A, B, C, D = (bytes([n]) * 16 for n in range(4))


class Host:
    """A store, and the order in which what it commands is done."""

    def __init__(self, budget: int = 100, may_spill: bool = False) -> None:
        self.store = Store(OWN, budget, may_spill)
        self.calls = 0

    def ask(self, who: int, kind: Kind) -> Ask:
        self.calls += 1
        return Ask(kind, who, self.calls)

    def alloc(self, id: bytes, nbytes: int, who: int = P) -> list[Command]:
        return self.store.alloc(self.ask(who, Kind.ALLOC), id, nbytes)

    def hold(self, id: bytes, who: int = P, home: int = OWN, nbytes: int = 40) -> list[Command]:
        return self.store.hold(self.ask(who, Kind.HOLD), id, home, nbytes)

    def open(self, id: bytes, who: int = P, home: int = OWN, nbytes: int = 40) -> list[Command]:
        return self.store.open(self.ask(who, Kind.OPEN), id, home, nbytes)

    def where(self, id: bytes, who: int = OTHER) -> list[Command]:
        return self.store.where(self.ask(who, Kind.WHERE), id)

    def seal(self, id: bytes, who: int = P) -> list[Command]:
        return self.store.seal(self.ask(who, Kind.OTHER), id)

    def put(self, id: bytes, nbytes: int, who: int = P) -> None:
        assert names(self.alloc(id, nbytes, who)) == ["Allocate"]
        assert names(self.store.allocated(id)) == ["Give"]
        assert names(self.seal(id, who))[0] == "Done"

    def copy(self, id: bytes, nbytes: int, who: int = P, home: int = OTHER) -> None:
        """Hold, pull and open an object of another host."""
        assert names(self.hold(id, who, home, nbytes)) == ["AskHome"]
        assert names(self.store.home_answered(id, self.object(id).serial, None)) == ["Done"]
        assert names(self.open(id, who, home, nbytes)) == ["Pull"]
        assert names(self.store.pulled(id)) == ["Give"]

    def object(self, id: bytes) -> Any:
        return self.store._stock.objects[id]

    @property
    def used(self) -> int:
        return self.store.facts()["used"]

    @property
    def count(self) -> int:
        return self.store.facts()["objects"]


def names(commands: list[Command]) -> list[str]:
    return [type(command).__name__ for command in commands]


def test_put_and_read() -> None:
    host = Host()
    (allocate,) = host.alloc(A, 40)
    assert isinstance(allocate, Allocate) and allocate.object.nbytes == 40
    (give,) = host.store.allocated(A)
    assert isinstance(give, Give) and give.ask.address == P
    assert names(host.open(A, Q)) == []  # not sealed yet
    done, read = host.seal(A)
    assert isinstance(done, Done)
    assert isinstance(read, Give) and read.ask.address == Q
    assert host.store.drop(P, A) == []  # Q reads it
    assert names(host.store.close(Q, A)) == ["Free"]
    assert (host.used, host.count) == (0, 0)


def test_puts_wait_in_order_and_a_large_one_is_not_overtaken() -> None:  # O2
    host = Host()
    host.put(A, 60)
    host.put(B, 30)
    assert host.alloc(C, 95) == []
    assert host.alloc(D, 10) == []  # there is room, and it is kept for C
    assert host.store.facts()["waiting_puts"] == 2
    assert names(host.store.drop(P, B)) == ["Free"]
    free, allocate = host.store.drop(P, A)
    assert isinstance(free, Free)
    assert isinstance(allocate, Allocate) and allocate.object.id == C
    host.store.allocated(C)
    assert [c.object.id for c in host.store.cancel(P, C) if isinstance(c, Allocate)] == [D]


def test_what_can_never_fit_is_refused() -> None:
    host = Host()
    (refused,) = host.alloc(A, 101)
    assert isinstance(refused, Refuse) and isinstance(refused.error, StoreFull) and "100" in str(refused.error)
    assert names(host.hold(B, P, OTHER, 101)) == ["AskHome"]
    (refused,) = host.open(B, P, OTHER, 101)
    assert isinstance(refused, Refuse) and isinstance(refused.error, StoreFull)
    assert host.used == 0


def test_no_memory_is_an_error_for_the_put_only() -> None:
    host = Host()
    host.alloc(A, 40)
    assert host.hold(A, Q)
    (refused,) = host.store.allocation_failed(A, "no memory")
    assert isinstance(refused, Refuse) and isinstance(refused.error, StoreFull)
    assert (host.used, host.count) == (0, 0)


@pytest.mark.parametrize("how", ["abort", "cancel", "gone"])
def test_an_unfinished_object_ends_with_its_writer(how: str) -> None:
    host = Host()
    host.alloc(A, 40)
    host.open(A, Q)
    ends: list[Command] = getattr(host.store, how)(*((P,) if how == "gone" else (P, A)))
    refusals = [command for command in ends if isinstance(command, Refuse)]
    assert {r.ask.address for r in refusals} == ({Q} if how == "gone" else {P, Q})
    assert host.used == 40  # its memory is being made (S3)
    (refused,) = host.open(A, Q)
    assert isinstance(refused, Refuse) and isinstance(refused.error, ObjectLost)
    assert names(host.store.allocated(A)) == ["Free"]
    assert (host.used, host.count) == (0, 0)


def test_only_its_writer_seals_and_aborts() -> None:
    host = Host()
    host.alloc(A, 40)
    host.store.allocated(A)
    assert names(host.seal(A, Q)) == ["Refuse"]
    assert host.store.abort(Q, A) == []
    assert names(host.seal(A)) == ["Done"]
    assert names(host.seal(A)) == ["Refuse"]
    assert host.store.abort(P, A) == []


def test_one_copy_per_host_however_many_ask() -> None:
    host = Host()
    assert names(host.hold(A, P, OTHER)) == ["AskHome"]
    assert names(host.hold(A, Q, OTHER)) == []
    assert names(host.store.home_answered(A, 1, None)) == ["Done", "Done"]
    (pull,) = host.open(A, P, OTHER)
    assert isinstance(pull, Pull) and pull.sources == (OTHER,)
    assert host.open(A, Q, OTHER) == []
    assert names(host.store.pulled(A)) == ["Give", "Give"]
    assert names(host.open(A, Q, OTHER)) == ["Give"]
    for who in (P, Q, Q):
        assert host.store.close(who, A) == []
    assert host.store.drop(P, A) == []
    assert names(host.store.drop(Q, A)) == ["TellHome", "Free"]
    assert (host.used, host.count) == (0, 0)


def test_only_the_newest_answer_of_a_home_counts() -> None:  # S5
    host = Host()
    host.hold(A, P, OTHER)
    assert names(host.store.drop(P, A)) == ["Refuse", "TellHome"]
    (ask,) = host.hold(A, P, OTHER)
    assert isinstance(ask, AskHome)
    assert host.store.home_answered(A, ask.serial - 1, None) == []
    assert names(host.store.home_answered(A, ask.serial, None)) == ["Done"]


def test_a_refused_hold_leaves_nothing() -> None:
    host = Host()
    host.hold(A, P, OTHER)
    (refused,) = host.store.home_answered(A, 1, ObjectLost("x", "freed"))
    assert isinstance(refused, Refuse)
    assert host.count == 0


def test_copies_are_evicted_least_recently_used_first_and_come_back() -> None:  # O4
    host = Host()
    host.copy(A, 40)
    host.copy(B, 40)
    host.store.close(P, A)
    host.store.close(P, B)
    assert names(host.open(A, P, OTHER)) == ["Give"]  # now B is the older one
    host.store.close(P, A)
    free, allocate = host.alloc(C, 50)
    assert isinstance(free, Free) and free.object.id == B
    assert isinstance(allocate, Allocate)
    free, pull = host.open(B, P, OTHER)
    assert isinstance(free, Free) and free.object.id == A
    assert isinstance(pull, Pull)


def test_what_is_open_or_only_here_stays() -> None:
    host = Host()
    host.copy(A, 40)
    host.put(B, 40)
    assert host.alloc(C, 40) == []
    assert host.used == 80


def test_a_reader_goes_over_the_budget_where_nothing_else_helps() -> None:  # O3
    host = Host()
    host.put(A, 100)
    assert host.alloc(B, 50) == []
    (pull,) = host.open(C, Q, OTHER, 60)  # overtakes B, which waits for A
    assert isinstance(pull, Pull)
    assert host.open(D, Q, OTHER, 10) == []  # one at a time
    assert names(host.store.pulled(C)) == ["Give"]
    assert host.used == 160
    free, pull = host.store.close(Q, C)
    assert isinstance(free, Free) and free.object.id == C
    assert isinstance(pull, Pull) and pull.object.id == D
    host.store.pulled(D)
    assert names(host.store.drop(P, A)) == ["Free", "Allocate"]  # B does not wait for D
    assert host.used == 60


def test_spilling_and_loading() -> None:
    host = Host(may_spill=True)
    host.put(A, 60)
    host.put(B, 40)
    (spill,) = host.alloc(C, 50)
    assert isinstance(spill, Spill) and spill.object.id == A
    free, allocate = host.store.spilled(A)
    assert isinstance(free, Free) and free.object.id == A
    assert isinstance(allocate, Allocate)
    assert host.store.facts()["spilled_bytes"] == 60
    (spill,) = host.open(A)
    assert isinstance(spill, Spill) and spill.object.id == B
    free, load = host.store.spilled(B)
    assert isinstance(load, Load)  # let over: C is not sealed, and there is nothing else to spill
    assert names(host.store.loaded(A)) == ["Unlink", "Give"]
    host.store.close(P, A)
    assert names(host.store.drop(P, B)) == ["Unlink"]
    assert names(host.store.drop(P, A)) == ["Free"]
    assert host.store.facts()["spilled"] == 0


def test_an_object_opened_while_it_is_written_to_disk_stays() -> None:
    host = Host(may_spill=True)
    host.put(A, 60)
    host.put(B, 40)
    assert names(host.alloc(C, 50)) == ["Spill"]
    assert names(host.open(A)) == ["Give"]
    unlink, spill = host.store.spilled(A)
    assert isinstance(unlink, Unlink)
    assert isinstance(spill, Spill) and spill.object.id == B


def test_a_disk_that_fails_is_not_asked_again_for_that_object() -> None:
    host = Host(may_spill=True)
    host.put(A, 60)
    host.alloc(B, 60)
    assert host.store.spill_failed(A) == []
    assert names(host.store.drop(P, A)) == ["Free", "Allocate"]


def test_dropped_while_it_is_written_to_disk() -> None:  # S3, S4
    host = Host(may_spill=True)
    host.put(A, 60)
    host.alloc(B, 60)
    assert host.store.drop(P, A) == []
    assert names(host.hold(A, Q)) == ["Refuse"]
    assert names(host.store.spilled(A)) == ["Free", "Unlink", "Allocate"]


def test_agents_read_what_is_here_and_what_is_arriving() -> None:
    host = Host()
    host.put(A, 40)
    (give,) = host.where(A)
    assert isinstance(give, Give) and give.ask.address == OTHER
    assert host.store.drop(P, A) == []  # it is being read
    assert names(host.store.close(OTHER, A)) == ["Free"]
    assert names(host.where(B)) == ["Refuse"]
    host.store.spread(host.ask(OTHER, Kind.FETCH), B, OTHER, 40, (OTHER,))
    assert host.where(B, THIRD) == []  # no memory yet
    assert names(host.store.receiving(B)) == ["Give"]
    assert names(host.where(B, OTHER)) == ["Give"]
    assert names(host.store.pulled(B)) == ["Done"]


def test_an_agent_that_reads_no_more_while_it_waits_pins_nothing_later() -> None:
    host = Host()
    host.alloc(A, 40)
    host.store.allocated(A)
    assert host.where(A) == []  # waits until it is sealed
    assert names(host.store.close(OTHER, A)) == ["Refuse"]
    assert names(host.seal(A)) == ["Done"]
    assert names(host.store.drop(P, A)) == ["Free"]
    assert host.count == 0


def test_copies_of_a_spread_go_with_the_homes_last_reference() -> None:  # S6
    home, host = Host(), Host()
    home.put(A, 40)
    assert names(home.store.keep(home.ask(OTHER, Kind.OTHER), A)) == ["Done"]
    _, forget = home.store.drop(P, A)
    assert isinstance(forget, Forget) and forget.agent == OTHER
    host.store.spread(host.ask(THIRD, Kind.FETCH), A, OTHER, 40, (THIRD, OTHER))
    host.store.pulled(A)
    assert host.used == 40  # though no process here holds it
    assert names(host.store.forget(A)) == ["Free"]
    assert names(home.store.keep(home.ask(OTHER, Kind.OTHER), A)) == ["Refuse"]


def test_a_pull_that_nobody_needs_is_stopped_and_begun_anew_when_needed() -> None:
    host = Host()
    host.open(A, P, OTHER)
    (refused, stop) = host.store.cancel(P, A)
    assert isinstance(refused, Refuse)
    assert isinstance(stop, StopPull)
    assert host.open(A, Q, OTHER) == []
    assert names(host.store.pull_failed(A, ObjectLost("A", "stopped"))) == ["Free", "Pull"]
    assert names(host.store.pulled(A)) == ["Give"]


def test_a_pull_that_fails_tells_all_who_wait() -> None:
    host = Host()
    host.open(A, P, OTHER)
    host.where(A, THIRD)
    free, *refusals = host.store.pull_failed(A, ObjectLost("A", "its home is lost"))
    assert isinstance(free, Free)
    assert [type(r) for r in refusals] == [Refuse, Refuse]
    assert (host.used, host.count) == (0, 0)


def test_a_lost_home_leaves_copies_to_those_who_hold_them() -> None:  # S7
    host = Host()
    host.copy(A, 40)
    host.store.close(P, A)
    assert names(host.hold(B, P, OTHER)) == ["AskHome"]
    (refused,) = host.store.host_lost(OTHER)
    assert isinstance(refused, Refuse) and refused.ask.kind is Kind.HOLD
    assert names(host.hold(A, Q, OTHER)) == ["Done"]
    assert host.alloc(C, 80) == []  # the copy is the last one: not evicted
    assert names(host.open(A, Q, OTHER)) == ["Give"]
    host.store.close(Q, A)
    host.store.drop(Q, A)
    assert names(host.store.drop(P, A)) == ["Free", "Allocate"]  # and nobody to tell


def test_a_lost_host_holds_and_reads_nothing_here() -> None:
    host = Host()
    host.put(A, 40)
    host.hold(A, OTHER)
    host.where(A, OTHER)
    assert host.store.drop(P, A) == []
    assert names(host.store.host_lost(OTHER)) == ["Free"]


# -- any order of events -----------------------------------------------------------------------------------------------


class Model:
    """Does what the store commands, sometime; checks the invariants after every event."""

    def __init__(self, may_spill: bool) -> None:
        self.host = Host(100, may_spill)
        self.store = self.host.store
        self.under_way: dict[bytes, Command] = {}
        self.memory: set[bytes] = set()
        self.files: set[bytes] = set()
        self.asked: dict[int, Ask] = {}
        self.open: list[tuple[int, bytes]] = []
        self.held: dict[bytes, list[int]] = {}  # answers of homes under way
        self.counted: set[bytes] = set()  # at their homes
        self.nbytes = {A: 40, B: 60, C: 30, D: 90}
        self.homes = {A: OWN, B: OWN, C: OTHER, D: OTHER}

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Done(ask) | Refuse(ask, _):
                    self.answer(ask)
                case Give(ask, object):
                    self.answer(ask)
                    assert object.id in self.memory
                    if ask.kind is not Kind.ALLOC:
                        self.open.append((ask.address, object.id))
                case Allocate(object) | Load(object) | Pull(object, _):
                    assert object.id not in self.under_way and object.id not in self.memory
                    self.under_way[object.id] = command
                    if not isinstance(command, Pull):
                        self.memory.add(object.id)
                    if isinstance(command, Load):
                        assert object.id in self.files
                case Spill(object):
                    assert object.id not in self.under_way and object.id in self.memory
                    self.under_way[object.id] = command
                    self.files.add(object.id)
                case Free(object):  # S3
                    assert object.id not in self.under_way
                    assert not [who for who, id in self.open if id == object.id and agent_of(who) == OWN]
                    self.memory.discard(object.id)
                case Unlink(object):
                    assert object.id not in self.under_way
                    self.files.remove(object.id)
                case StopPull(object):
                    assert isinstance(self.under_way[object.id], Pull)
                case AskHome(object, serial):
                    self.held.setdefault(object.id, []).append(serial)
                    assert object.id not in self.counted
                    self.counted.add(object.id)
                case TellHome(object):
                    self.counted.remove(object.id)
                case Forget():
                    pass
        self.check()

    def answer(self, ask: Ask) -> None:  # S2
        assert self.asked.pop(ask.call) == ask

    def check(self) -> None:
        room, stock = self.store._stock.room, self.store._stock
        over = room.over.cost if room.over is not None and room.over.state.name not in ("AWAY", "SPILLED") else 0
        assert room.used - over <= room.budget  # O1
        assert room.used == sum(o.cost for o in stock.objects.values() if o.state.name in (
            "FILLING", "PULLING", "HERE", "SPILLING", "LOADING"))  # fmt: skip
        for object in stock.objects.values():  # S4
            assert object.is_wanted or object.id in self.under_way
        waiting = {ask.call for object in stock.objects.values() for ask in object.waiting}
        assert waiting == set(self.asked)
        for who, ids in stock.of.items():
            assert ids and all(stock.objects[id].knows(who) for id in ids)

    def report(self, id: bytes, fails: bool) -> None:
        command = self.under_way.get(id)
        if command is None:
            return
        error = TransferError("x", "failed")
        if isinstance(command, Pull) and id not in self.memory:
            self.memory.add(id)
            if not fails:
                return self.do(self.store.receiving(id))
        del self.under_way[id]
        match command:
            case Allocate():
                if fails:
                    self.memory.discard(id)
                self.do(self.store.allocation_failed(id, "failed") if fails else self.store.allocated(id))
            case Pull():
                self.do(self.store.pull_failed(id, error) if fails else self.store.pulled(id))
            case Spill():
                if fails:
                    self.files.discard(id)
                self.do(self.store.spill_failed(id) if fails else self.store.spilled(id))
            case Load():
                self.do(self.store.load_failed(id, error) if fails else self.store.loaded(id))

    def request(self, what: str, who: int, id: bytes) -> None:
        store, home, nbytes = self.store, self.homes[id], self.nbytes[id]
        kinds = {"alloc": Kind.ALLOC, "hold": Kind.HOLD, "open": Kind.OPEN, "where": Kind.WHERE, "fetch": Kind.FETCH,
                 "spread": Kind.FETCH}  # fmt: skip
        ask = self.host.ask(who, kinds.get(what, Kind.OTHER))
        if what in kinds or what in ("seal", "keep"):
            self.asked[ask.call] = ask
        match what:
            case "alloc":
                self.do(store.alloc(ask, id, nbytes))
            case "seal" | "keep":
                self.do(getattr(store, what)(ask, id))
            case "hold" | "open" | "fetch":
                self.do(getattr(store, what)(ask, id, home, nbytes))
            case "where":
                self.do(store.where(ask, id))
            case "spread":
                self.do(store.spread(ask, id, home, nbytes, (THIRD, OTHER)))

    def close(self, who: int, id: bytes) -> None:
        object = self.store._stock.objects.get(id)
        waits = object is not None and any(ask.kind is Kind.WHERE and ask.address == who for ask in object.waiting)
        if not waits and (who, id) in self.open:
            self.open.remove((who, id))
        elif not waits:
            return
        self.do(self.store.close(who, id))

    def gone(self, who: int) -> None:
        self.asked = {call: ask for call, ask in self.asked.items() if ask.address != who}
        self.open = [(other, id) for other, id in self.open if other != who]
        self.do(self.store.gone(who))

    def step(self, what: str, who: int, id: bytes, flag: bool) -> None:
        match what:
            case "report":
                self.report(id, flag)
            case "home":
                if serials := self.held.get(id):
                    error = ObjectLost("x", "freed") if flag else None
                    serial = serials.pop(0)
                    if flag:
                        self.counted.discard(id)  # it never was; a TellHome is ignored there
                    if flag and self.store._stock.objects.get(id) and self.host.object(id).serial != serial:
                        self.counted.add(id)
                    self.do(self.store.home_answered(id, serial, error))
            case "drop" | "abort" | "cancel":
                if what != "cancel" or flag:
                    if what == "cancel" and (who, id) in self.open and not any(
                        a.address == who and a.kind in (Kind.OPEN, Kind.FETCH, Kind.ALLOC)
                        for a in getattr(self.store._stock.objects.get(id), "waiting", ())
                    ):
                        self.open.remove((who, id))
                    self.do(getattr(self.store, what)(who, id))
            case "close":
                self.close(who, id)
            case "forget":
                self.do(self.store.forget(id))
            case "gone" if who not in (OTHER, THIRD):
                self.gone(who)
            case _:
                if what in ("where", "keep") and agent_of(who) == OWN:
                    return
                if what == "alloc" and (self.homes[id] != OWN or agent_of(who) != OWN):
                    return
                if what in ("open", "fetch", "spread", "seal") and agent_of(who) != OWN:
                    return
                if what == "hold" and agent_of(who) != OWN and self.homes[id] != OWN:
                    return
                self.request(what, who, id)

    def finish(self) -> None:
        """Let all that is under way end, and all processes go: nothing is left."""
        for who in (P, Q):
            self.gone(who)
        for host in (OTHER, THIRD):
            self.asked = {call: ask for call, ask in self.asked.items() if agent_of(ask.address) != host}
            self.open = [(who, id) for who, id in self.open if agent_of(who) != host]
            self.counted = set()
            self.do(self.store.host_lost(host))
        for _ in range(40):
            for id in list(self.under_way):
                self.report(id, False)
        assert not self.store._stock.objects and not self.store._stock.of
        assert self.host.used == 0 and not self.memory and not self.files and not self.asked


STEPS = ("alloc", "seal", "abort", "hold", "drop", "open", "where", "fetch", "spread", "close", "cancel", "keep",
         "forget", "gone", "home", "report", "report", "report", "report")  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.booleans(),
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.sampled_from((P, Q, OTHER, THIRD)), st.sampled_from((A, B, C, D)),
                  st.booleans()),
        max_size=80,
    ),
)  # fmt: skip
def test_any_order_of_events(may_spill: bool, steps: list[tuple[str, int, bytes, bool]]) -> None:
    model = Model(may_spill)
    for step in steps:
        model.step(*step)
    model.finish()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((P, Q)), st.integers(1, 100)), min_size=1, max_size=20), st.booleans())
def test_every_put_gets_its_turn(puts: list[tuple[int, int]], may_spill: bool) -> None:  # O2
    """Whoever gets memory seals and drops: then all get it, in order."""
    host = Host(100, may_spill)
    waiting: list[Command] = []
    got: list[bytes] = []
    for n, (who, nbytes) in enumerate(puts):
        waiting += host.alloc(bytes([n]) * 16, nbytes, who)
    while waiting:
        command = waiting.pop(0)
        match command:
            case Allocate(object):
                got.append(object.id)
                waiting += host.store.allocated(object.id)
            case Give(ask, object):
                waiting += host.seal(object.id, ask.address)
                waiting += host.store.drop(ask.address, object.id)
            case Spill(object):
                waiting += host.store.spilled(object.id)
    assert got == [bytes([n]) * 16 for n in range(len(puts))]
    assert (host.used, host.count) == (0, 0)
