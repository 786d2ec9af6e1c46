"""Detached leases as one agent keeps them: by invariant, and in any order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.control.detached import (
    MOST_FAILURES,
    MOST_LINE_BYTES,
    MOST_LINES,
    ActorFailure,
    Leases,
    Lines,
    Where,
    facts,
)
from monarch_async.errors import LeaseHeld, NoSuchLease, NotHolder

A, B, C = 1 << 32 | 1, 2 << 32 | 1, 3 << 32 | 1
HOSTS = [Where(7, "host-07", "tcp://host-07:1", (0, 1))]


def opened(name: str = "train", id: int = 5, client: int = A) -> Leases:
    leases = Leases()
    leases.open(id, name, HOSTS, b"shape", client, f"client {client >> 32}", now=10.0)
    return leases


def lines(at: float, text: bytes = b"a line") -> Lines:
    return Lines(at, "procs", 0, 1, text)


def test_a_lease_has_one_owner_and_is_adopted_only_when_that_one_is_gone() -> None:  # D1
    leases = opened()
    with pytest.raises(LeaseHeld, match=r"detached lease 'train' is held by client 1$"):
        leases.adopt(5, B, "client 2")
    [lease] = leases.left(A, heard_at=12.0, now=20.0, why="not heard for 8.0 s")
    assert (lease.owner, lease.previous_owner, lease.left_why) == (0, "client 1", "not heard for 8.0 s")
    assert leases.adopt(5, B, "client 2") is lease and lease.owner == B
    assert leases.adopt(5, B, "client 2") is lease  # once more
    with pytest.raises(LeaseHeld, match="by client 2"):
        leases.adopt(5, A, "client 1")
    with pytest.raises(NoSuchLease, match="there are: train"):
        leases.adopt(6, C, "client 3")


def test_a_name_is_that_of_one_lease() -> None:  # D2
    leases = opened()
    leases.check_name("train", 5)
    leases.check_name("eval", 6)
    with pytest.raises(LeaseHeld, match="held by client 1"):
        leases.open(6, "train", HOSTS, b"", B, "client 2", now=11.0)
    leases.left(A, 12.0, 20.0, "it said goodbye")
    with pytest.raises(
        LeaseHeld, match=r"held by nobody: its client client 1 is gone \(it said goodbye\); adopt it, or release it"
    ):
        leases.check_name("train", 6)
    leases.end(5, C)
    leases.open(6, "train", HOSTS, b"", B, "client 2", now=21.0)


def test_only_its_owner_ends_it_and_commands_its_procs() -> None:  # D3
    leases = opened()
    with pytest.raises(LeaseHeld):
        leases.end(5, B)
    assert leases.why_not(5, A) is None and isinstance(leases.why_not(5, B), NotHolder)
    leases.left(A, 12.0, 20.0, "cut off")
    assert "it has no owner now: adopt it" in str(leases.why_not(5, A))
    leases.adopt(5, B, "client 2")
    assert str(leases.why_not(5, A)) == (
        "detached lease 'train': this client is its owner no longer, client 2 has adopted it"
    )
    assert leases.end(5, B) is not None and not len(leases)
    assert leases.end(5, B) is None and leases.why_not(5, A) is None


def test_news_begin_where_the_last_owner_was_last_heard() -> None:  # D4
    leases = opened()
    lease = leases.find(5)
    assert lease is not None
    for at in (10.0, 11.9, 12.0, 15.0):
        lease.lines.add(lines(at))
        lease.failures.add(ActorFailure(at, 9, 0, b"report"))
    leases.left(A, heard_at=12.0, now=20.0, why="gone")
    lease.lines.add(lines(21.0))
    kept, failures = lease.news()
    assert [line.at for line in kept] == [12.0, 15.0, 21.0] and [f.at for f in failures] == [12.0, 15.0]


def test_an_adopter_that_could_not_have_all_of_it_takes_no_news_away() -> None:
    leases = opened()
    leases.left(A, heard_at=12.0, now=20.0, why="gone")
    lease = leases.adopt(5, B, "client 2")
    lease.lines.add(lines(15.0))
    leases.disown(5, C, now=30.0)  # not its
    assert lease.owner == B
    leases.disown(5, B, now=30.0)
    assert (lease.owner, lease.previous_owner, len(lease.news()[0])) == (0, "client 2", 1)


def test_of_lines_and_failures_the_latest_are_kept_and_the_others_counted() -> None:  # D4
    lease = opened().find(5)
    assert lease is not None
    for number in range(MOST_LINES + 7):
        lease.lines.add(lines(float(number), b"%d" % number))
    kept, _ = lease.news()
    assert (len(kept), kept[0].text, lease.lines.dropped) == (MOST_LINES, b"7", 7)
    lease.lines.add(lines(1e6, b"x" * MOST_LINE_BYTES + b"\nlast"))
    kept, _ = lease.news()
    assert len(kept) == 1 and kept[0].count == 2 and lease.lines.dropped == MOST_LINES + 7
    for number in range(MOST_FAILURES + 3):
        lease.failures.add(ActorFailure(float(number), 9, 0, b"report"))
    assert len(lease.news()[1]) == MOST_FAILURES and lease.failures.dropped == 3


def test_how_a_member_ended_is_kept_until_it_is_made_anew() -> None:  # D5
    leases = opened()
    leases.started(5, 70, rank=0)
    leases.started(5, 71, rank=1)
    leases.exited(5, 72, b"a proc that a member has spawned")
    leases.exited(5, 71, b"how it ended")
    lease = leases.find(5)
    assert lease is not None and (lease.members, lease.exits) == ({70: 0}, {1: b"how it ended"})
    said = facts(lease, now=15.0)
    assert (said["living"], said["dead"], said["age"], said["unowned_for"]) == ([0], [1], 5.0, 0.0)
    leases.started(5, 71, rank=1)
    assert (lease.members, lease.exits) == ({70: 0, 71: 1}, {})


def test_a_host_that_was_given_up_has_no_leases() -> None:
    leases = opened()
    assert [lease.name for lease in leases.fence()] == ["train"] and not len(leases)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(1, 3), st.sampled_from("xy"), st.sampled_from([A, B])),
        st.tuples(st.just("adopt"), st.integers(1, 3), st.just(""), st.sampled_from([A, B, C])),
        st.tuples(st.just("left"), st.just(0), st.just(""), st.sampled_from([A, B, C])),
        st.tuples(st.just("disown"), st.integers(1, 3), st.just(""), st.sampled_from([A, B, C])),
        st.tuples(st.just("end"), st.integers(1, 3), st.just(""), st.sampled_from([A, B, C])),
    )
)


@given(STEPS)
def test_in_any_order_no_owner_loses_a_lease_to_another(steps: list[tuple[str, int, str, int]]) -> None:
    leases, owners = Leases(), dict[int, int]()
    for now, (step, id, name, client) in enumerate(steps):
        try:
            match step:
                case "open":
                    leases.open(id, name, HOSTS, b"", client, f"{client}", float(now))
                case "adopt":
                    leases.adopt(id, client, f"{client}")
                case "left":
                    leases.left(client, float(now), float(now), "gone")
                case "disown":
                    leases.disown(id, client, float(now))
                case _:
                    leases.end(id, client)
        except (LeaseHeld, NoSuchLease):
            pass
        now_owned = {lease.id: lease.owner for lease in leases}
        for held, owner in owners.items():
            if owner and owner != client:
                assert now_owned.get(held) == owner, (step, held)
        owners = now_owned
        names = [lease.name for lease in leases]
        assert len(names) == len(set(names))
