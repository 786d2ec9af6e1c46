"""Invariants L1 to L8 of the link's docstring."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.errors import BadFrame, LinkBroken
from monarch_async.wire.link import UP, Down, Link, Lost

LIMITS = {"max_unacked_bytes": 100, "ack_every_frames": 4, "ack_every_bytes": 60}


class Ack(int):
    """A count on its way, between frames."""


class End:
    """One end as its owner drives it: a link, what went in, what came out, and what is on its way to it."""

    def __init__(self):
        self.link = Link(**LIMITS)
        self.pushed, self.delivered = [], []
        self.inbound = deque()
        self.peer: End

    def send(self, size):
        if self.link.is_full:
            return
        frame = len(self.pushed).to_bytes(4, "little") + bytes(size)
        self.pushed.append(frame)
        self.link.push(frame)
        if self.link.state is UP:
            self.peer.inbound.append(frame)

    def read(self, limit):
        """Take up to ``limit`` items that arrived, as one batch, and acknowledge where that is due."""
        batch = [self.inbound.popleft() for _ in range(min(limit, len(self.inbound)))]
        frames = [item for item in batch if not isinstance(item, Ack)]
        for ack in (item for item in batch if isinstance(item, Ack)):
            self.link.acked(ack)
        self.delivered += frames
        if self.link.received(len(frames), sum(map(len, frames))):
            self.peer.inbound.append(Ack(self.link.take_ack()))

    def check(self):
        link, peer = self.link, self.peer.link
        assert link.acked_count <= peer.received_count == len(self.peer.delivered) <= link.sent_count  # L2
        kept = self.pushed[link.acked_count :]
        assert list(link._frames) == kept  # L3
        assert link.unacked_bytes == sum(map(len, kept))
        assert link.unacked_bytes < LIMITS["max_unacked_bytes"] + 44  # L4
        assert self.peer.delivered == self.pushed[: len(self.peer.delivered)]  # L1


class Pair:
    def __init__(self):
        self.dialer, self.listener = self.ends = End(), End()
        self.dialer.peer, self.listener.peer = self.listener, self.dialer

    def cut(self, now):
        for end in self.ends:
            end.inbound.clear()
            end.link.down(now)

    def reconnect(self, now, welcome_arrives=True):
        """Resume as the handshake does: the listener first, then the dialer, unless it drops between."""
        if self.dialer.link.state is UP:
            return
        count_d, count_l = self.dialer.link.received_count, self.listener.link.received_count
        self.dialer.inbound += self.listener.link.resume(count_d, now)
        if welcome_arrives:
            self.listener.inbound += self.dialer.link.resume(count_l, now)
        else:
            self.cut(now)


STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(0, 40)),
    st.tuples(st.just("read"), st.integers(0, 1), st.integers(1, 8)),
    st.tuples(st.just("cut")),
    st.tuples(st.just("reconnect"), st.booleans()),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=80))
def test_nothing_is_lost_doubled_or_reordered_whatever_drops(steps):  # L1, L2, L3, L4, L5
    pair = Pair()
    for step in steps:
        match step:
            case "send", end, size:
                pair.ends[end].send(size)
            case "read", end, limit if pair.dialer.link.state is UP:
                pair.ends[end].read(limit)
            case ("cut",):
                pair.cut(now=0)
            case "reconnect", arrives:
                pair.reconnect(0, arrives)
        for end in pair.ends:
            end.check()
    pair.reconnect(0)
    while pair.dialer.inbound or pair.listener.inbound:
        for end in pair.ends:
            end.read(1 << 30)
            end.check()
    for end in pair.ends:
        assert end.peer.delivered == end.pushed  # L1
        assert not end.link.is_full  # L5


def test_an_ack_is_due_after_so_many_frames_or_bytes():
    link = Link(max_unacked_bytes=1000, ack_every_frames=3, ack_every_bytes=100)
    assert not link.received(2, 50)
    assert link.received(1, 1)
    assert link.received(0, 0), "due until it is taken"
    assert link.take_ack() == 3
    assert not link.received(1, 99)
    assert link.received(1, 1)
    assert link.take_ack() == 5
    assert not link.received(2, 2)


def test_full_until_acked():
    link = Link(max_unacked_bytes=10, ack_every_bytes=10)
    link.push(b"x" * 9)
    assert not link.is_full
    link.push(b"y" * 9)  # L4: the one frame over
    assert (link.is_full, link.unacked_bytes, link.sent_count) == (True, 18, 2)
    link.acked(1)
    assert (link.is_full, link.unacked_bytes, link.acked_count) == (False, 9, 1)
    link.push(b"z")
    assert link.is_full, "at the limit, not past it"
    link.acked(3)
    assert (link.is_full, link.unacked_bytes, link.acked_count) == (False, 0, 3)


@pytest.mark.parametrize(
    ("count", "why"), [(1, "acknowledged 1 frames after 2"), (4, "acknowledged 4 frames of 3 sent")]
)
def test_an_impossible_ack_is_a_bad_frame_and_changes_nothing(count, why):  # L6
    link = three_frames_two_acked()
    with pytest.raises(BadFrame, match=why):
        link.acked(count)
    link.acked(2)  # equal is fine
    assert (link.acked_count, link.unacked_bytes, link.state) == (2, 1, UP)


@pytest.mark.parametrize(("count", "why"), [(0, "0 frames after 2"), (4, "4 frames of 3 sent")])
def test_an_impossible_resume_breaks_and_changes_nothing(count, why):  # L6
    link = three_frames_two_acked()
    link.down(1.0)
    with pytest.raises(LinkBroken, match=f"link to host b broken: cannot resume, .* {why}"):
        link.resume(count, 2.0)
    assert link.state == Down(1.0)
    assert link.resume(2, 2.0) == [b"c"]
    assert link.state is UP


def three_frames_two_acked():
    link = Link(peer="host b")
    for frame in (b"a", b"b", b"c"):
        link.push(frame)
    link.acked(2)
    return link


def test_frames_pushed_while_down_are_replayed_after_those_sent_before():  # L1
    link = Link()
    link.push(b"a")
    link.down(0)
    link.push(b"b")
    assert link.resume(0, 1) == [b"a", b"b"]
    link.down(2)
    assert link.resume(1, 3) == [b"b"]


def test_a_resume_tells_the_peer_so_no_ack_is_due_after_it():
    link = Link(ack_every_frames=4)
    assert link.received(5, 5)
    link.down(0)
    link.resume(0, 1)
    assert not link.received(3, 3)
    assert link.received(1, 1)


def test_the_window_runs_from_the_first_down_of_an_outage():  # L7
    link = Link()
    assert not link.is_lost(1e9, window=30)
    link.down(10)
    link.down(35)
    assert not link.is_lost(40, window=30)
    assert link.is_lost(40.5, window=30)


def test_a_resume_in_time_starts_the_next_outage_anew():  # L7
    link = Link()
    link.down(0)
    link.resume(0, 29)
    link.down(31)
    assert not link.is_lost(60, window=30)


def test_lost_is_final_and_keeps_nothing():  # L8, L4
    link = three_frames_two_acked()
    link.down(0)
    assert link.is_lost(31, window=30)
    assert link.is_lost(31, window=1e9)
    assert (link.unacked_bytes, len(link._frames)) == (0, 0)
    link.down(32)
    link.acked(3)
    with pytest.raises(LinkBroken, match=r"came back 40\.0 s after it went, and had been given up"):
        link.resume(2, 40)
    assert link.state == Lost(0)


@pytest.mark.parametrize("is_down", [False, True])
def test_a_peer_that_is_given_up_is_lost_and_nothing_is_kept_for_it(is_down):  # L4, L8
    link = Link(peer="host-07")
    link.push(b"a frame")
    if is_down:
        link.down(1.0)
    link.give_up(5.0)
    link.give_up(6.0)
    assert link.state == Lost(1.0 if is_down else 5.0)
    assert link.unacked_bytes == 0
    link.acked(1)
    with pytest.raises(LinkBroken, match="had been given up"):
        link.resume(0, 7.0)


def test_limits_under_which_a_full_sender_would_wait_for_ever_are_refused():  # L5
    with pytest.raises(AssertionError, match="an ack that is not due"):
        Link(max_unacked_bytes=1000)
