"""Bulk frames arrive in any split, and go where they belong."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.bulk.intake import Intake
from monarch_async.bulk.pieces import Pieces
from monarch_async.bulk.sending import chunk_frame
from monarch_async.errors import BadFrame, FrameTooLarge
from monarch_async.wire.chunk import ASK, CHUNK, READ, Header, pack_header


@dataclass
class Target:
    """A place of some bytes, cut somewhere."""

    memory: bytearray
    cuts: Sequence[int] = ()
    is_shut: bool = False

    def is_open(self) -> bool:
        return not self.is_shut

    def views(self, start: int, stop: int) -> list[memoryview]:
        whole = memoryview(self.memory)
        bounds = [0, *sorted(c for c in self.cuts if c <= len(self.memory)), len(self.memory)]
        return Pieces(whole[a:b] for a, b in pairwise(bounds)).cut(start, stop)


@dataclass
class Taker:
    """Takes down what arrives."""

    places: dict[int, Target] = field(default_factory=dict)
    messages: list[tuple[int, int, bytes]] = field(default_factory=list)
    chunks: list[tuple[int, int, int, bool]] = field(default_factory=list)

    def take_message(self, header: Header, body: bytes) -> None:
        self.messages.append((header.kind, header.transfer, body))

    def place(self, header: Header) -> Target | None:
        return self.places.get(header.transfer)

    def take_chunk(self, header: Header, is_good: bool) -> None:
        self.chunks.append((header.transfer, header.start, header.start + header.length, is_good))


def push(intake: Intake, data: bytes, steps: Sequence[int]) -> None:
    """Do as a socket does: put at most so many bytes at a time where the intake says."""
    at = turn = 0
    while at < len(data):
        buffer = intake.buffer()
        assert len(buffer)
        step = min(len(buffer), len(data) - at, steps[turn % len(steps)])
        buffer[:step] = data[at : at + step]
        intake.took(step)
        at, turn = at + step, turn + 1


def chunk(transfer: int, memory: bytes, start: int, stop: int) -> bytes:
    return b"".join(chunk_frame(transfer, Pieces([memoryview(memory)]), start, stop, False))


FRAMES = st.lists(
    st.one_of(
        st.tuples(st.just("message"), st.binary(max_size=200)),
        st.tuples(st.just("large message"), st.binary(min_size=17000, max_size=17001)),
        st.tuples(st.just("chunk"), st.integers(1, 40000)),
        st.tuples(st.just("lost chunk"), st.integers(1, 40000)),
        st.tuples(st.just("bad chunk"), st.integers(1, 40000)),
    ),
    max_size=6,
)
STEPS = st.lists(st.one_of(st.integers(1, 100), st.integers(1, 100_000)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(FRAMES, STEPS, st.lists(st.integers(0, 40000), max_size=12))
def test_any_split(frames: list[tuple[str, object]], steps: list[int], cuts: list[int]) -> None:
    taker = Taker()
    stream, expected_messages, expected_chunks, memories = b"", [], [], []
    for transfer, (what, argument) in enumerate(frames):
        if isinstance(argument, bytes):
            stream += pack_header(ASK, transfer, 0, len(argument)) + argument
            expected_messages.append((ASK, transfer, argument))
            continue
        assert isinstance(argument, int)
        memory = bytes(i * 7 % 251 for i in range(argument))
        frame = bytearray(chunk(transfer, memory, argument // 3, argument))
        if what == "bad chunk":
            frame[-1] ^= 0x10
        if what != "lost chunk":
            taker.places[transfer] = target = Target(bytearray(argument), cuts)
            expected_chunks.append((transfer, argument // 3, argument, what == "chunk"))
            if what == "chunk":
                memories.append((target, bytes(argument // 3) + memory[argument // 3 :]))
        stream += frame
    push(Intake(taker, 1 << 20), stream, steps)
    assert taker.messages == expected_messages
    assert taker.chunks == expected_chunks
    assert all(target.memory == memory for target, memory in memories)


@given(STEPS, st.integers(0, 3000))
@settings(max_examples=30, deadline=None)
def test_a_place_that_is_shut_meanwhile_is_not_touched(steps: list[int], when: int) -> None:
    memory = b"x" * 30000
    taker = Taker({1: (target := Target(bytearray(30000)))})
    intake = Intake(taker, 1 << 20)
    frame = chunk(1, memory, 0, 30000)
    push(intake, frame[: 64 + when], steps)
    target.is_shut = True
    before = bytes(target.memory)
    push(intake, frame[64 + when :] + pack_header(ASK, 2), steps)
    assert target.memory == before
    assert taker.chunks == [] and taker.messages == [(ASK, 2, b"")]


def test_scattered_chunks_are_checked_before_they_touch_memory() -> None:
    target = Target(bytearray(1000), range(0, 1000, 10))
    intake = Intake(taker := Taker({1: target}), 1 << 20)
    frame = bytearray(chunk(1, b"y" * 1000, 0, 1000))
    frame[-1] ^= 1
    intake.feed(bytes(frame))
    assert taker.chunks == [(1, 0, 1000, False)] and target.memory == bytes(1000)
    intake.feed(chunk(1, b"y" * 1000, 0, 1000))
    assert taker.chunks[1:] == [(1, 0, 1000, True)] and target.memory == b"y" * 1000


def test_what_breaks_the_rules() -> None:
    for frame, error in (
        (b"GET / HTTP/1.1\r\n" * 8, BadFrame),
        (pack_header(READ, 1, length=2000), FrameTooLarge),
        (pack_header(CHUNK, 1, 0, 1 << 30, 1 << 30), FrameTooLarge),
    ):
        with pytest.raises(error):
            Intake(Taker(), 1000).feed(frame)
