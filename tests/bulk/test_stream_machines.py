"""What decides in transfers over sockets: credit, missing ranges, turns, redialling."""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import monarch_async.errors as errors
from monarch_async.bulk.arrivals import Arrivals
from monarch_async.bulk.pieces import Pieces, are_small
from monarch_async.bulk.receiving import TRIES, Receiving
from monarch_async.bulk.redial import Break, Redial
from monarch_async.bulk.request import TransferRequest, pack_error, unpack_error
from monarch_async.bulk.sending import Sending, chunk_frame, holds_memory
from monarch_async.bulk.turns import Turns
from monarch_async.errors import BadFrame, StaleHandle, TransferError

# -- pieces --------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=9), max_size=8), st.data())
def test_pieces_are_one_space(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    pieces = Pieces(map(memoryview, parts))
    assert pieces.size == len(whole)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    found = pieces.cut(start, stop)
    assert b"".join(found) == whole[start:stop]
    assert all(map(len, found))


def test_many_small_pieces_are_gathered() -> None:
    view = memoryview(bytes(1 << 20))
    assert are_small([view[:100]] * 2, 200)
    assert not are_small([view[:100]], 100)
    assert not are_small([view, view], 2 << 20)


@pytest.mark.parametrize(
    ("size", "cuts", "is_copied", "holds"),
    [(100, 1, False, False), (1 << 20, 1, False, True), (1 << 20, 1000, False, False), (1 << 20, 1, True, False)],
)
def test_frames_of_chunks(size: int, cuts: int, is_copied: bool, holds: bool) -> None:
    memory = memoryview(bytes(range(256)) * (size // 256 + 1))[:size]
    step = -(-size // cuts)
    pieces = Pieces(memory[at : at + step] for at in range(0, size, step))
    frame = chunk_frame(3, pieces, 0, size, is_copied)
    assert holds_memory(frame) is holds
    assert b"".join(frame)[64:] == memory


# -- what is there -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted), max_size=12), st.data())
def test_what_has_arrived_is_a_set_of_bytes(ranges: list[list[int]], data: st.DataObject) -> None:
    arrivals, there = Arrivals(40), set[int]()
    for start, stop in ranges:
        more = set(range(start, stop)) - there
        assert arrivals.add(start, stop) == len(more)
        there |= more
    assert arrivals.count == len(there) and arrivals.is_complete == (len(there) == 40)
    start = data.draw(st.integers(0, 40))
    stop = data.draw(st.integers(start, 40))
    missing = arrivals.missing(start, stop)
    assert [i for first, last in missing for i in range(first, last)] == sorted(set(range(start, stop)) - there)
    assert all(first < last for first, last in missing)
    assert all(before[1] < after[0] for before, after in pairwise(missing))


# -- sending and receiving -----------------------------------------------------------------------------------------

RANGES = st.lists(st.integers(0, 400), min_size=2, max_size=12, unique=True).map(
    lambda cuts: [(a, b) for a, b in zip(sorted(cuts)[::2], sorted(cuts)[1::2], strict=False)]
)


@given(RANGES, st.integers(1, 40), st.integers(1, 120), st.data())
def test_every_byte_gets_there_whatever_is_garbled(
    ranges: list[tuple[int, int]], chunk: int, window: int, data: st.DataObject
) -> None:
    """A sender and a receiver in one: no loss of credit stops them, the window holds, and nothing comes twice."""
    sending, receiving = Sending(ranges, chunk, window), Receiving(400, window, ranges)
    wire: deque[tuple[int, int, bool]] = deque()
    there = bytearray(400)
    while not receiving.is_complete:
        found = sending.next()
        if found is not None and (not wire or data.draw(st.booleans())):
            start, stop, is_copied = found
            sending.did_send(start, stop)
            assert sending.in_flight < window + chunk
            wire.append(found)
            continue
        assert wire, "it stopped"
        start, stop, is_copied = wire.popleft()
        assert receiving.is_expected(start, stop)
        if not is_copied and data.draw(st.integers(0, 3)) == 0:
            assert receiving.garbled(start)
            sending.again(start, stop)
            continue
        for i in range(start, stop):
            assert not there[i]
            there[i] = 1
        for first, last in receiving.good(start, stop):
            sending.taken(last - first)
    assert [i for i in range(400) if there[i]] == [i for a, b in ranges for i in range(a, b)]
    assert sending.is_done and not wire


def test_what_is_asked_for_again_goes_first_and_from_a_copy() -> None:
    sending = Sending([(0, 30)], 10, 100)
    for expected in ((0, 10, False), (10, 20, False)):
        assert sending.next() == expected
        sending.did_send(*expected[:2])
    sending.again(0, 10)
    assert sending.next() == (0, 10, True)
    sending.did_send(0, 10)
    assert sending.next() == (20, 30, False)
    assert sending.sent == 30 and sending.in_flight == 20


def test_credit_that_was_never_given() -> None:
    sending = Sending([(0, 30)], 10, 100)
    sending.did_send(0, 10)
    for wrong in (11, -1):
        with pytest.raises(BadFrame, match="said to be taken"):
            sending.taken(wrong)


def test_it_gives_up_on_what_is_always_garbled() -> None:
    receiving = Receiving(100, 50)
    assert [receiving.garbled(10) for _ in range(TRIES)] == [True] * (TRIES - 1) + [False]
    assert receiving.garbled(20)  # another one


def test_what_is_there_is_not_expected() -> None:
    receiving = Receiving(100, 50, [(10, 20), (50, 100)])
    assert receiving.is_expected(10, 20) and receiving.is_expected(60, 70)
    assert not receiving.is_expected(0, 10) and not receiving.is_expected(5, 15) and not receiving.is_expected(90, 101)
    receiving.good(10, 20)
    assert not receiving.is_expected(10, 20) and not receiving.is_complete
    receiving.good(50, 100)
    assert receiving.is_complete


def test_little_is_not_acknowledged() -> None:
    receiving = Receiving(100, 400)
    assert receiving.good(0, 99) == []
    assert receiving.good(99, 100) == [(0, 100)]


# -- turns ---------------------------------------------------------------------------------------------------------


def test_newcomers_and_the_circle_take_turns() -> None:
    turns: Turns[str] = Turns()
    for name in ("a", "b"):
        turns.join(name, False)
    for name in ("1", "2", "3"):
        turns.join(name, True)
    order = [turns.next() for _ in range(6)]
    assert order == ["1", "a", "2", "b", "3", None]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["join", "new", "leave", "next"]))))
def test_nobody_is_in_it_twice(events: list[tuple[int, str]]) -> None:
    turns: Turns[int] = Turns()
    members: set[int] = set()
    for who, what in events:
        match what:
            case "leave":
                turns.leave(who)
                members.discard(who)
            case "next":
                found = turns.next()
                assert (found in members) if members else found is None
                members -= {found} if found is not None else set()
            case _:
                turns.join(who, what == "new")
                members.add(who)
        assert len(turns) == len(members)
    assert {turns.next() for _ in range(len(members))} == members and turns.next() is None


def test_a_circle_goes_round_while_newcomers_come() -> None:
    turns: Turns[str] = Turns()
    turns.join("large", False)
    served = []
    for i in range(10):
        turns.join(f"small {i}", True)
        found = turns.next()
        assert found is not None
        served.append(found)
        if found == "large":
            turns.join("large", False)
    assert served.count("large") == 5


# -- redialling ----------------------------------------------------------------------------------------------------


def pauses(redial: Redial, how: Break) -> Iterator[float]:
    now = 0.0
    while (pause := redial.failed(how, now)) is not None:
        yield pause
        now += pause


def test_a_break_is_redialled_at_once_then_more_and_more_slowly() -> None:
    found = list(pauses(Redial(10.0), Break.BROKEN))
    assert found[0] == 0.0 and found[1] > 0.0
    assert all(a <= b for a, b in pairwise(found[:-1]))
    assert sum(found) == pytest.approx(10.0) and max(found) == 0.5


def test_patience_ends() -> None:
    assert sum(pauses(Redial(3.0), Break.UNREACHABLE)) == pytest.approx(3.0)


def test_a_process_that_is_gone() -> None:
    redial = Redial(10.0)
    assert redial.failed(Break.BROKEN, 0.0) == 0.0
    pause = redial.failed(Break.REFUSED, 0.0)
    assert pause is not None and pause <= 0.02
    assert redial.failed(Break.REFUSED, 0.02) is None
    assert redial.failed(Break.REFUSED, 100.0) is not None  # a new history


def test_somebody_else() -> None:
    assert Redial(10.0).failed(Break.OTHERS, 0.0) is None


def test_progress_forgets() -> None:
    redial = Redial(1.0)
    assert redial.failed(Break.BROKEN, 0.0) is not None
    redial.progressed()
    assert redial.failed(Break.BROKEN, 50.0) == 0.0
    assert redial.failed(Break.BROKEN, 51.0) is None


# -- requests ------------------------------------------------------------------------------------------------------


def test_requests_travel() -> None:
    request = TransferRequest(1, 2, ((0, 10), (20, 5)), ((0, 4), (6, 15)), 4096, 8192)
    assert TransferRequest.unpack(request.pack()) == request
    assert request.checked_ranges(15) == [(0, 4), (6, 15)]
    assert request._replace(ranges=None).checked_ranges(15) == [(0, 15)]
    for ranges in (((0, 16),), ((4, 4),), ((6, 8), (0, 3))):
        with pytest.raises(BadFrame):
            request._replace(ranges=ranges).checked_ranges(15)


@given(st.binary(max_size=40))
def test_requests_of_garbage(data: bytes) -> None:
    with pytest.raises(BadFrame):
        TransferRequest.unpack(data)


@pytest.mark.parametrize(
    "change",
    [{"runs": ((0, -1),)}, {"runs": ((0,),)}, {"runs": ((0, 1.5),)}, {"chunk": 0}, {"window": 0}, {"region": "x"}],
    ids=str,
)
def test_requests_that_make_no_sense(change: dict[str, object]) -> None:
    request = TransferRequest(1, 2, ((0, 10),), None, 4096, 8192)
    with pytest.raises(BadFrame):
        TransferRequest.unpack(request._replace(**change).pack())  # type: ignore[arg-type]


def test_errors_travel() -> None:
    for error in (StaleHandle("a", "b"), errors.BadFrame("c"), errors.Backpressure("x", "y", "z")):
        found = unpack_error(pack_error(error))
        assert type(found) is type(error) and str(found) == str(error)


def test_errors_of_nobody() -> None:
    import msgpack

    found = unpack_error(msgpack.packb(["SystemExit", ["x"]]))
    assert type(found) is TransferError
    for garbage in (b"", b"\x01", msgpack.packb(["StaleHandle", []]), msgpack.packb([1])):
        with pytest.raises(BadFrame):
            unpack_error(garbage)
