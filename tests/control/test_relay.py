"""The relay's invariants R1 to R3, casts and gatherings, with connections that only write down."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.control.relay import Relay
from monarch_async.errors import BadFrame
from monarch_async.ids import address
from monarch_async.wire.frame import (
    ACK,
    CALL,
    CHUNK,
    CONTROL,
    EXITED,
    FAILED,
    GATHERED,
    HEADER,
    PING,
    REPLY,
    frame_length,
    pack_cast,
    pack_frame,
)
from monarch_async.wire.link import Link

HOST, OTHER = 100, 200
AGENT = address(HOST, 0)
A, B, C = (address(HOST, n) for n in (1, 2, 3))
CLIENT = address(900, 1)
FAR = address(OTHER, 5)
FAR_AGENT = address(OTHER, 0)


class Peer:
    """A connection that writes down what is sent to it."""

    def __init__(self, where: int, link: Link | None = None) -> None:
        self.address, self.link = where, link
        self.sent_to: set[int] = set()
        self.got: list[bytes] = []
        self.writes = 0
        self.link_frames: list[int] = []

    def send(self, data: bytes) -> None:
        self.writes += 1
        offset = 0
        while offset < len(data):
            length = frame_length(data, offset)
            assert length
            self.got.append(bytes(data[offset : offset + length]))
            offset += length
        assert self.link is None or len(data) == frame_length(data), "a link counts frame by frame"

    def send_run(self, frames: list[bytes]) -> None:
        for frame in frames if self.link is not None else [b"".join(frames)]:
            self.send(frame)

    def send_pieces(self, pieces: list[bytes]) -> None:
        self.send(b"".join(pieces))

    def take_link_frame(self, kind: int, data: bytes, offset: int) -> None:
        self.link_frames.append(kind)

    def calls(self) -> list[int]:
        """The call ids of what it got, in order."""
        return [HEADER.unpack_from(frame)[7] for frame in self.got]


class Desk:
    """The agent's own desk."""

    def __init__(self) -> None:
        self.controls: list[tuple[int, int, bytes]] = []
        self.replies: list[tuple[int, bytes]] = []
        self.exits: list[tuple[int, bytes]] = []
        self.undeliverable: list[tuple[int, int, int]] = []
        self.down: list[object] = []

    def take_control(self, connection: Peer, src: int, call: int, payload: bytes) -> None:
        self.controls.append((src, call, payload))

    def take_reply(self, call: int, payload: bytes) -> None:
        self.replies.append((call, payload))

    def take_exit(self, payload: bytes, proc: int) -> None:
        self.exits.append((proc, payload))

    def take_undeliverable(self, connection: Peer, dst: int, kind: int) -> None:
        self.undeliverable.append((connection.address, dst, kind))

    def connection_down(self, connection: Peer, error: Exception | None) -> None:
        self.down.append(connection)


class Net:
    """A relay with three workers, a client, and the way to another host."""

    def __init__(self, client_link: Link | None = None) -> None:
        self.desk = Desk()
        self.relay = Relay(HOST, self.desk)  # type: ignore[arg-type]
        self.a, self.b, self.c = Peer(A), Peer(B), Peer(C)
        self.client = Peer(CLIENT, client_link)
        self.far = Peer(FAR_AGENT, client_link)
        for peer in (self.a, self.b, self.c, self.client):
            self.relay.routes[peer.address] = peer  # type: ignore[assignment]
        self.asked: list[int] = []
        self.relay.find_peer = self._find  # type: ignore[assignment]

    def _find(self, host: int) -> Peer | None:
        self.asked.append(host)
        return self.far if host == OTHER else None

    def feed(self, source: Peer, *frames: bytes) -> tuple[int, int]:
        return self.relay.feed(source, b"".join(frames))  # type: ignore[arg-type]


def call(dst: int, n: int, src: int = CLIENT, kind: int = CALL, payload: bytes = b"x") -> bytes:
    return pack_frame(kind, 0, dst, src, 7, n, b"", payload)


def reply(src: int, n: int, flags: int = 0, dst: int = CLIENT) -> bytes:
    return pack_frame(REPLY, flags, dst, src, n, 0, b"", b"r")


def cast(n: int, *procs: int, flags: int = GATHERED, src: int = CLIENT, agent: int = AGENT) -> bytes:
    return pack_cast(flags, agent, src, 7, n, struct.pack(f"<{len(procs)}I", *procs), b"c", b"payload")


# -- R1: order -------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([A, B, FAR, CLIENT]), max_size=40), st.data())
def test_r1_frames_leave_in_the_order_they_came_whatever_the_split(dsts: list[int], data: st.DataObject) -> None:
    net = Net()
    frames = [call(dst, n, src=C) for n, dst in enumerate(dsts)]
    stream = b"".join(frames)
    rest, position = b"", 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        rest += stream[position : position + size]
        position += size
        taken, _ = net.feed(net.c, rest)
        rest = rest[taken:]
    assert rest == b""
    for dst, peer in ((A, net.a), (B, net.b), (FAR, net.far), (CLIENT, net.client)):
        assert peer.got == [frame for frame, to in zip(frames, dsts, strict=True) if to == dst]


def test_r1_the_same_over_links() -> None:
    net = Net(Link())
    assert net.feed(net.a, *[call(dst, n, src=A) for n, dst in enumerate([CLIENT, CLIENT, FAR, FAR, CLIENT])])[1] == 5
    assert net.client.calls() == [0, 1, 4]
    assert net.far.calls() == [2, 3]


def test_a_run_to_one_receiver_is_one_write() -> None:
    net = Net()
    net.feed(net.client, *[call(A, n) for n in range(50)])
    assert (net.a.writes, len(net.a.got)) == (1, 50)


def test_r1_what_goes_to_a_host_goes_one_way_whoever_spoke_first() -> None:
    """A frame from there, over the connection that its agent has dialled, does not turn the path round."""
    net = Net()
    dialled_in = Peer(FAR_AGENT)
    net.relay.routes[FAR_AGENT] = dialled_in  # type: ignore[assignment]
    net.feed(net.a, call(FAR, 1, src=A))
    net.feed(dialled_in, call(A, 2, src=FAR))
    net.feed(net.a, call(FAR, 3, src=A))
    assert net.far.calls() == [1, 3]
    assert dialled_in.got == []
    assert net.a.calls() == [2]


def test_an_agent_that_dialled_in_is_answered_where_it_cannot_be_dialled() -> None:
    net = Net()
    net.relay.find_peer = lambda host: None
    dialled_in = Peer(FAR_AGENT)
    net.relay.routes[FAR_AGENT] = dialled_in  # type: ignore[assignment]
    net.feed(net.a, call(FAR, 1, src=A))
    assert dialled_in.calls() == [1]


def test_a_client_that_only_a_peer_knows_is_answered_through_that_peer() -> None:
    net = Net()
    stranger = address(901, 1)
    net.feed(net.far, call(A, 1, src=stranger))
    net.feed(net.a, reply(A, 1, dst=stranger))
    assert [HEADER.unpack_from(frame)[4] for frame in net.far.got] == [stranger]


# -- what is not forwarded -------------------------------------------------------------------------------------------


def test_pings_and_acks_belong_to_the_connection_and_are_not_counted() -> None:
    net = Net()
    frames = [call(A, 1), pack_frame(PING, 0, 0, 0, 0, 0), call(A, 2), pack_frame(ACK, 0, 0, 0, 0, 9), call(A, 3)]
    assert net.feed(net.client, *frames) == (sum(map(len, frames)), 3)
    assert net.client.link_frames == [PING, ACK]
    assert net.a.calls() == [1, 2, 3]


def test_what_is_addressed_to_the_agent_goes_to_its_desk_in_order_with_the_rest() -> None:
    net = Net()
    net.feed(
        net.client,
        call(A, 1),
        pack_frame(CONTROL, 0, AGENT, CLIENT, 0, 5, b"", b"request"),
        call(A, 2),
        pack_frame(REPLY, 0, AGENT, CLIENT, 6, 0, b"", b"answer"),
        pack_frame(EXITED, 0, AGENT, FAR_AGENT, 0, FAR, b"", b"news"),
    )
    assert net.desk.controls == [(CLIENT, 5, b"request")]
    assert net.desk.replies == [(6, b"answer")]
    assert net.desk.exits == [(FAR, b"news")]
    assert net.a.calls() == [1, 2]


def test_an_unfinished_frame_is_left() -> None:
    net = Net()
    whole, part = call(A, 1), call(A, 2)[:-1]
    assert net.feed(net.client, whole, part) == (len(whole), 1)
    assert net.feed(net.client, part) == (0, 0)


@pytest.mark.parametrize("kind", [CALL, CHUNK])
def test_a_large_frame_is_forwarded_as_it_is(kind: int) -> None:
    net = Net()
    frame = call(A, 1, kind=kind, payload=bytes(100_000))
    pieces = [frame[:70_000], frame[70_000:]]
    net.relay.feed_large(net.client, pieces)  # type: ignore[arg-type]
    net.relay.feed_large(net.client, [call(address(HOST, 99), 2, kind=kind)])  # type: ignore[arg-type]
    assert net.a.got == [frame]
    assert net.desk.undeliverable == [(CLIENT, address(HOST, 99), kind)]


# -- R2, R3: deaths --------------------------------------------------------------------------------------------------


def test_r2_who_sent_to_a_proc_is_told_of_its_death_once() -> None:
    net = Net()
    net.feed(net.client, call(A, 1))
    net.feed(net.b, call(A, 2, src=B))
    net.feed(net.c, call(B, 3, src=C))
    assert {peer.address for peer in net.relay.forget(A)} == {CLIENT, B}
    assert net.relay.forget(A) == []
    net.feed(net.client, call(A, 4))
    assert net.desk.undeliverable == [(CLIENT, A, CALL)]


def test_r2_a_cast_counts_as_sent() -> None:
    net = Net()
    net.feed(net.client, cast(1, 1, 2))
    assert [peer.address for peer in net.relay.forget(B)] == [CLIENT]


def test_r2_a_reply_that_is_held_counts_as_sent() -> None:
    net = Net()
    net.feed(net.client, cast(1, 1, 2))
    net.feed(net.a, reply(A, 1, GATHERED))
    assert [peer.address for peer in net.relay.forget(CLIENT)] == [A]


def test_r3_what_cannot_be_delivered_goes_to_the_desk_frame_by_frame() -> None:
    net = Net()
    nobody, nowhere = address(HOST, 99), address(777, 1)
    net.feed(net.client, call(nobody, 1), call(nobody, 2, kind=CHUNK), call(A, 3), call(nowhere, 4))
    assert net.desk.undeliverable == [(CLIENT, nobody, CALL), (CLIENT, nobody, CHUNK), (CLIENT, nowhere, CALL)]
    assert net.a.calls() == [3]


def test_what_was_behind_a_connection_is_forgotten_with_it() -> None:
    net = Net()
    stranger = address(901, 1)
    net.feed(net.far, call(A, 1, src=stranger))
    net.relay.forget_connection(net.far)  # type: ignore[arg-type]
    net.feed(net.a, call(stranger, 1, src=A))
    assert net.desk.undeliverable == [(A, stranger, CALL)]


# -- casts and what comes back ---------------------------------------------------------------------------------------


def test_a_cast_becomes_a_call_for_each_of_its_procs() -> None:
    net = Net()
    net.feed(net.client, call(A, 0), cast(1, 1, 3), call(A, 2))
    assert net.a.calls() == [0, 1, 2]
    assert net.b.got == []
    assert net.c.got == [pack_frame(CALL, GATHERED, C, CLIENT, 7, 1, b"c", b"payload")]


def test_a_cast_to_another_host_is_forwarded_whole() -> None:
    net = Net()
    frame = cast(1, 5, 6, agent=FAR_AGENT, src=A)
    net.feed(net.a, frame)
    assert net.far.got == [frame]


def test_replies_are_held_until_all_are_there() -> None:
    net = Net()
    net.feed(net.client, cast(1, 1, 2, 3))
    net.feed(net.a, reply(A, 1, GATHERED))
    net.feed(net.c, reply(C, 1, GATHERED), reply(C, 9))
    assert net.client.got == [reply(C, 9)]
    net.feed(net.b, reply(B, 1, GATHERED))
    assert net.client.got[1:] == [reply(A, 1, GATHERED), reply(C, 1, GATHERED), reply(B, 1, GATHERED)]
    assert net.client.writes == 2


def test_a_failure_is_not_held_up_nor_are_the_replies_after_it() -> None:
    net = Net()
    net.feed(net.client, cast(1, 1, 2, 3))
    net.feed(net.a, reply(A, 1, GATHERED))
    net.feed(net.b, reply(B, 1, GATHERED | FAILED))
    assert len(net.client.got) == 2
    net.feed(net.c, reply(C, 1, GATHERED))
    assert len(net.client.got) == 3


def test_a_death_releases_what_was_held_before_it_is_told() -> None:
    net = Net()
    net.feed(net.client, cast(1, 1, 2, 3))
    net.feed(net.a, reply(A, 1, GATHERED))
    assert [peer.address for peer in net.relay.forget(B)] == [CLIENT]
    assert net.client.got == [reply(A, 1, GATHERED)]
    net.feed(net.c, reply(C, 1, GATHERED))
    assert len(net.client.got) == 2


def test_a_cast_to_one_that_is_gone_is_told_and_holds_nothing() -> None:
    net = Net()
    net.relay.forget(B)
    net.feed(net.client, cast(1, 1, 2))
    assert net.desk.undeliverable == [(CLIENT, B, CALL)]
    net.feed(net.a, reply(A, 1, GATHERED))
    assert net.client.got == [reply(A, 1, GATHERED)]


def test_replies_for_a_caller_that_is_gone_are_dropped() -> None:
    net = Net()
    net.feed(net.client, cast(1, 1, 2))
    net.feed(net.a, reply(A, 1, GATHERED))
    net.relay.forget(CLIENT)
    net.feed(net.b, reply(B, 1, GATHERED))
    assert net.client.got == []


def test_replies_to_a_cast_from_another_host_go_back_there() -> None:
    net = Net()
    net.feed(net.far, cast(1, 1, 2, src=FAR))
    net.feed(net.a, reply(A, 1, GATHERED, dst=FAR))
    net.feed(net.b, reply(B, 1, GATHERED, dst=FAR))
    assert net.far.got == [reply(A, 1, GATHERED, dst=FAR), reply(B, 1, GATHERED, dst=FAR)]


def test_casts_of_two_callers_with_the_same_call_id_do_not_mix() -> None:
    net = Net()
    net.feed(net.client, cast(1, 1, 2))
    net.feed(net.c, cast(1, 1, 2, src=C))
    net.feed(net.a, reply(A, 1, GATHERED), reply(A, 1, GATHERED, dst=C))
    net.feed(net.b, reply(B, 1, GATHERED, dst=C))
    assert (len(net.client.got), len(net.c.got)) == (0, 2)


def test_a_cast_that_does_not_parse_is_refused() -> None:
    with pytest.raises(BadFrame):
        Net().feed(Peer(CLIENT), pack_frame(6, 0, AGENT, CLIENT, 7, 1, b"", struct.pack("<I", 50)))
