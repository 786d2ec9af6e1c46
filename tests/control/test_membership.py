"""Which hosts there are: the table, the versions, and that a reader of a backlog comes to know what there is."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.control.host import Host
from monarch_async.control.membership import Action, Backlog, HostEvent, Membership, State

A, B = Host(1, "a", "tcp://a:1"), Host(2, "b", "tcp://b:1")
HOSTS = [Host(id, f"h{id}", f"tcp://h{id}:1") for id in range(4)]
ACTIONS = get_args(Action)

#: The table of the module, once more and by hand: what each action makes of each state.
TABLE: dict[State, dict[str, State]] = {
    "joining": {"ready": "up", "drain": "draining", "lose": "lost", "leave": "left"},
    "up": {"doubt": "suspect", "drain": "draining", "lose": "lost", "leave": "left"},
    "suspect": {"hear": "up", "drain": "draining", "lose": "lost", "leave": "left"},
    "draining": {"reopen": "up", "lose": "lost", "leave": "left"},
    "lost": {"join": "joining", "leave": "left"},
    "left": {"join": "joining"},
}
WAYS: dict[State, list[Action]] = {
    "joining": [],
    "up": ["ready"],
    "suspect": ["ready", "doubt"],
    "draining": ["drain"],
    "lost": ["lose"],
    "left": ["leave"],
}


def act(members: Membership, host: Host, action: str, why: str = "") -> HostEvent | None:
    return members.join(host, why) if action == "join" else members.change(host.id, action, why)  # type: ignore[arg-type]


@pytest.mark.parametrize("action", ["join", *ACTIONS])
@pytest.mark.parametrize("state", TABLE)
def test_every_action_in_every_state(state: State, action: str) -> None:
    members = Membership()
    members.join(A)
    for step in WAYS[state]:
        members.change(A.id, step)
    before = members.version
    event = act(members, A, action, "because")
    expected = TABLE[state].get(action)
    if expected is None:
        assert event is None
        assert members.state(A.id) == state
        assert members.version == before
    else:
        was = "" if state == "left" else state
        assert event == HostEvent(before + 1, expected, A, "because", was)
        assert members.state(A.id) == expected


def test_who_lives() -> None:
    members = Membership()
    for host in HOSTS:
        members.join(host)
    assert members.living() == []  # joining ones are not ready
    for host in HOSTS:
        members.change(host.id, "ready")
    members.change(0, "doubt")
    members.change(1, "drain")
    members.change(2, "lose")
    assert members.living() == [HOSTS[0], HOSTS[1], HOSTS[3]]
    members.change(0, "leave")
    members.join(HOSTS[2])
    members.change(2, "ready")
    assert members.living() == [HOSTS[1], HOSTS[2], HOSTS[3]]


STEPS = st.lists(st.tuples(st.sampled_from(HOSTS), st.sampled_from(["join", *ACTIONS])), max_size=120)


@given(STEPS)
def test_versions_count_up_and_each_host_goes_its_way_through_the_table(steps: list[tuple[Host, str]]) -> None:
    """M1, M2, M5."""
    members = Membership()
    events = [event for host, action in steps if (event := act(members, host, action))]
    assert [event.version for event in events] == list(range(1, len(events) + 1))
    for host in HOSTS:
        state: State = "left"
        for event in [event for event in events if event.host == host]:
            assert event.was == ("" if state == "left" else state)
            assert event.kind in TABLE[state].values()
            state = event.kind
        assert members.state(host.id) == state


@given(STEPS, st.lists(st.integers(0, 200), max_size=60), st.integers(1, 8))
def test_a_reader_however_slow_comes_to_know_what_there_is(
    steps: list[tuple[Host, str]], reads: list[int], limit: int
) -> None:
    """M3, M4: reads come at any time; a backlog overflows early."""
    members = Membership()
    members.join(A)
    backlog = Backlog(members, limit)
    known: dict[int, HostEvent] = {}
    last = 0

    def read() -> None:
        nonlocal last
        event = backlog.pop()
        assert event.version > last or not known
        last = event.version
        if event.kind == "left":
            assert known.pop(event.host.id, None) is not None or event.was
        else:
            known[event.host.id] = event

    pending = sorted(reads)
    for at, (host, action) in enumerate(steps):
        event = act(members, host, action)
        if event is not None:
            backlog.push(event)
        assert len(backlog) <= 2 * (len(HOSTS) + 1) + limit
        while pending and pending[0] <= at:
            pending.pop(0)
            if len(backlog):
                read()
    while len(backlog):
        read()
    assert {id: event.kind for id, event in known.items()} == {event.host.id: event.kind for event in members}
    assert {id: event.version for id, event in known.items()} == {event.host.id: event.version for event in members}


def test_a_copy_is_made_of_events() -> None:
    members, copy = Membership(), Membership()
    for host, action in [(A, "join"), (B, "join"), (A, "ready"), (B, "ready"), (A, "doubt"), (B, "leave"), (A, "hear")]:
        event = act(members, host, action)
        assert event is not None
        copy.apply(event)
    assert list(copy) == list(members)
    assert copy.version == members.version


def test_a_slow_reader_is_not_told_that_nothing_was_lost() -> None:
    """M4, M5: it has read that a host is suspect; before it reads that it is up, it was lost and came back."""
    members = Membership()
    members.join(A)
    members.change(A.id, "ready")
    backlog = Backlog(members, limit=2)
    assert backlog.pop().kind == "up"
    for action in ["doubt", "lose", "join", "ready"]:
        event = act(members, A, action)
        assert event is not None
        backlog.push(event)
    event = backlog.pop()
    assert (event.kind, event.was) == ("up", "")
    with pytest.raises(IndexError):
        backlog.pop()


def test_who_has_seen_a_host_that_left_is_told_so_although_it_is_behind() -> None:
    members = Membership()
    members.join(A)
    backlog = Backlog(members, limit=2)
    assert backlog.pop().kind == "joining"
    for action in ["ready", "doubt", "leave"]:
        event = act(members, A, action, action)
        assert event is not None
        backlog.push(event)
    for action in ["join", "ready", "leave"]:  # of one that it has never seen
        event = act(members, B, action)
        assert event is not None
        backlog.push(event)
    kinds = []
    while len(backlog):
        event = backlog.pop()
        kinds.append((event.host.name, event.kind))
    assert ("a", "left") in kinds
    assert kinds[-1] != ("b", "up")
