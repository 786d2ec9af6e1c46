"""Whatever the order of asks, cancels and deaths: the invariants of `permits`, `item_queue`, `barrier`, and of all."""

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from sync_home import CLIENT, Home, process

from monarch_async.errors import BarrierBroken, Closed

PROCESSES = 3
who = st.integers(0, PROCESSES - 1)

#: (what happens, to which process, a number that picks something)
steps = st.lists(
    st.tuples(st.sampled_from([*3 * ["ask"], *2 * ["undo"], "cancel", "die", "other"]), who, st.integers(0, 50)),
    min_size=30,
    max_size=60,
)


class Asked:
    """What the processes know of what they asked: each process may die, and its successor is another one."""

    def __init__(self) -> None:
        self.home = Home()
        self.lives = list(range(PROCESSES))
        self.waiting: dict[int, tuple[int, Any]] = {}  # call: who, what
        self.had: dict[int, tuple[int, Any]] = {}  # the same, once answered

    def note(self, call: int, life: int, what: Any) -> None:
        self.waiting[call] = life, what

    def sort(self) -> list[int]:
        """Move what was answered; return it, oldest answer first."""
        answered = [call for call in self.home.answers if call in self.waiting]
        for call in answered:
            self.had[call] = self.waiting.pop(call)
        return answered

    def of(self, found: dict[int, tuple[int, Any]], life: int) -> list[int]:
        return [call for call, (owner, _) in found.items() if owner == life]

    def die(self, index: int) -> int:
        dead = self.lives[index]
        self.lives[index] = max(self.lives) + 1
        for found in (self.waiting, self.had):
            for call in self.of(found, dead):
                del found[call]
        self.home.gone(process(dead))
        return dead

    def end(self) -> None:
        for life in list(self.lives):
            self.home.gone(process(life))
        self.home.gone(CLIENT)
        assert self.home.is_empty, "C3"


@settings(max_examples=80, deadline=None)
@given(steps, st.integers(1, 4))
def test_permits(happens: list[tuple[str, int, int]], total: int) -> None:
    """P1 to P6."""
    key = "semaphore s", (total,)
    world = Asked()
    last = 0
    for what, index, number in happens:
        life = world.lives[index]
        mine, granted = world.of(world.waiting, life), world.of(world.had, life)
        if what == "ask":
            world.note(world.home.ask(life, *key, "acquire", 1 + number % total), life, 1 + number % total)
        elif what == "undo" and granted:
            call = granted[number % len(granted)]
            world.home.ask(life, *key, "release", world.home.answers[call])
            del world.had[call]
        elif what == "cancel" and (mine or granted):  # granted: it has not been seen yet
            call = (mine + granted)[number % len(mine + granted)]
            world.home.cancel(life, call, key[0])
            world.waiting.pop(call, None)
            world.had.pop(call, None)
        elif what == "die":
            world.die(index)
        for call in world.sort():
            assert world.home.answers[call] > last, "P3"
            last = world.home.answers[call]
        held = sum(count for _, count in world.had.values())
        assert held <= total, "P1"
        if world.waiting:
            first = min(world.waiting)
            assert held + world.waiting[first][1] > total, "P2: the first could have it, or P5, P6: some are lost"
    world.end()


@settings(max_examples=80, deadline=None)
@given(steps, st.integers(1, 3), st.integers(4, 8))
def test_queues(happens: list[tuple[str, int, int]], max_items: int, max_bytes: int) -> None:
    """Q1 to Q7: every item that was put is queued, with somebody, taken or lost, in order."""
    key = "queue q", (max_items, max_bytes, 0)
    world = Asked()
    home, serial = world.home, 0
    reserved: dict[int, int] = {}  # bytes by call
    inside: list[str] = []  # put and not taken nor lost, in order
    sizes: dict[str, int] = {}
    lost = 0
    for what, index, number in happens:
        life = world.lives[index]
        mine, answered = world.of(world.waiting, life), world.of(world.had, life)
        if what == "ask" and number % 2:
            serial += 1
            body = f"{serial}:{life}"
            sizes[body] = 1 + number % 4
            world.note(home.ask(life, *key, "put", 1 + number % 4, body, True), life, ("put", body, 1 + number % 4))
        elif what == "ask":
            world.note(home.ask(life, *key, "get", True), life, ("get", "", 0))
        elif what == "undo" and answered:
            call = answered[number % len(answered)]
            kind, body, _ = world.had.pop(call)[1]
            if kind == "put":
                assert home.answers[home.ask(life, *key, "fill", call, body, [])] is True
                inside.append(body)
                reserved.pop(call)
            else:
                home.ask(life, *key, "took", call)
                inside.remove(home.answers[call][0])
        elif what == "cancel" and (mine or answered):
            call = (mine + answered)[number % len(mine + answered)]
            home.cancel(life, call, key[0])
            world.waiting.pop(call, None)
            world.had.pop(call, None)
            reserved.pop(call, None)
        elif what == "die":
            handed = [home.answers[c][0] for c in answered if world.had[c][1][0] == "get"]
            for body in handed:
                inside.remove(body)
            lost += len(handed)
            for call in world.of(world.had, life):
                reserved.pop(call, None)
            world.die(index)
        for call in world.sort():
            kind, body, nbytes = world.had[call][1]
            if kind == "put" and home.answers[call] is True:
                inside.append(body)
                del world.had[call]
            elif kind == "put":
                reserved[call] = nbytes
        out = [home.answers[c][0] for c, (_, asked) in world.had.items() if asked[0] == "get"]
        assert sorted(out) == sorted(set(out)) and set(out) <= set(inside), "Q3: handed out twice"
        assert len(inside) + len(reserved) <= max_items, "Q1"
        queue: Any = home.coordination._live.get(key[0])
        nbytes = sum(reserved.values()) + sum(map(sizes.__getitem__, inside))
        assert (queue._bytes if queue is not None else 0) == nbytes <= max_bytes, "Q1, Q5"
        queued = [item.body for item in queue._items] if queue is not None else []
        assert queued == [body for body in inside if body not in out], "Q2, Q3: one is out of place, or lost"
        getters = [c for c, (_, asked) in world.waiting.items() if asked[0] == "get"]
        assert not (queued and getters), "Q2: somebody waits for what is there"
        if queue is not None:
            assert queue._lost == lost, "Q3"
        elif not queued:
            lost = 0  # forgotten with it
    home.ask(99, *key, "close")
    ends = home.ask(99, *key, "get", True)
    for index in range(PROCESSES):
        world.die(index)
    while isinstance(home.answers[ends], list):  # Q6
        home.ask(99, *key, "took", ends)
        ends = home.ask(99, *key, "get", True)
    assert isinstance(home.answers[ends], Closed)
    home.gone(process(99))
    world.end()


@settings(max_examples=80, deadline=None)
@given(steps, st.integers(1, 4))
def test_barriers(happens: list[tuple[str, int, int]], parties: int) -> None:
    """B1 to B4: who passes, passes with all the others."""
    key = "barrier b", (parties,)
    world = Asked()
    for what, index, number in happens:
        life = world.lives[index]
        before = set(world.waiting)
        if what == "ask":
            world.note(world.home.ask(life, *key, "arrive"), life, None)
        elif what == "cancel" and (mine := world.of(world.waiting, life)):
            world.home.cancel(life, mine[number % len(mine)], key[0])
            del world.waiting[mine[number % len(mine)]]
        elif what == "die":
            world.die(index)
        elif what == "other":
            world.home.ask(life, *key, "reset")
        answers = Counter(
            "broken" if isinstance(world.home.answers[call], BarrierBroken) else world.home.answers[call]
            for call in world.sort()
        )
        assert len(world.waiting) < parties, "B1"
        if "broken" not in answers:
            assert not answers or answers == Counter(range(parties)), "B1"
        else:
            assert set(answers) == {"broken"}
            assert not world.waiting, "B2: some wait on"
        if what == "cancel" and before:
            assert not world.waiting or before == set(world.waiting), "B2"
    world.end()


@settings(max_examples=60, deadline=None)
@given(steps)
def test_all_at_once(happens: list[tuple[str, int, int]]) -> None:
    """C1 to C3: over several keys of every kind nobody is answered twice, and in the end nothing is left."""
    asks: list[Any] = [
        ("lock a", (1,), "acquire", 1),
        ("semaphore s", (2,), "acquire", 2),
        ("event e", (), "wait"),
        ("event e", (), "set"),
        ("barrier b", (2,), "arrive"),
        ("queue q", (2, 9, 1), "put", 1, "x", True),
        ("queue q", (2, 9, 1), "get", True),
        ("queue q", (2, 9, 1), "join"),
        ("queue r", (2, 9, 0), "close"),
    ]
    world = Asked()
    calls: list[tuple[int, int, str]] = []
    for what, index, number in happens:
        life = world.lives[index]
        if what in ("ask", "other"):
            chosen = asks[number % len(asks)]
            calls.append((life, world.home.ask(life, *chosen), chosen[0]))
        elif what in ("cancel", "undo") and calls:
            world.home.cancel(*calls[number % len(calls)])
        elif what == "die":
            world.die(index)
    world.end()
