"""What a home decides, invariant by invariant: see `coordination`, `permits`, `flag`, `barrier`, `item_queue`."""

from typing import Any

import pytest
from sync_home import CLIENT, Home, process

from monarch_async.control import coordination
from monarch_async.control.coordination import name_of
from monarch_async.errors import (
    Backpressure,
    BadCall,
    BarrierBroken,
    Closed,
    Empty,
    NotHolder,
    ProcDied,
)

LOCK = "lock x", (1,)
QUEUE = "queue q", (3, 100, 0)


@pytest.fixture
def home() -> Home:
    return Home()


# -- locks and semaphores ----------------------------------------------------------------------------------------------


def test_one_holds_a_lock_and_the_others_follow_in_order(home: Home) -> None:
    """P1, P2, P3."""
    first, second, third = [home.ask(who, *LOCK, "acquire", 1) for who in (1, 2, 3)]
    assert home.answers == {first: 100}
    home.ask(1, *LOCK, "release", 100)
    assert home.answers[second] == 101 and third not in home.answers
    home.ask(2, *LOCK, "release", 101)
    home.ask(3, *LOCK, "release", home.answers[third])
    assert home.answers[third] == 102 and home.is_empty


def test_tokens_grow_over_all_keys_and_after_a_key_was_forgotten(home: Home) -> None:
    """C7, P3."""
    tokens = []
    for key in ("lock x", "lock y", "lock x"):
        tokens.append(home.answers[home.ask(1, key, (1,), "acquire", 1)])
        home.ask(1, key, (1,), "release", tokens[-1])
    assert tokens == [100, 101, 102]


def test_who_wants_many_is_not_passed(home: Home) -> None:
    """P2."""
    key = "semaphore s", (3,)
    one = home.ask(1, *key, "acquire", 1)
    many, few = home.ask(2, *key, "acquire", 3), home.ask(3, *key, "acquire", 1)
    assert set(home.answers) == {one}
    home.ask(1, *key, "release", home.answers[one])
    assert many in home.answers and few not in home.answers
    home.ask(2, *key, "release", home.answers[many])
    assert few in home.answers


def test_more_permits_than_there_are(home: Home) -> None:
    for count in (0, 4):
        assert isinstance(home.answers[home.ask(1, "semaphore s", (3,), "acquire", count)], BadCall)
    assert home.is_empty


@pytest.mark.parametrize(("who", "token"), [(2, 100), (1, 99)])
def test_only_the_holder_releases(home: Home, who: int, token: int) -> None:
    """P4."""
    home.ask(1, *LOCK, "acquire", 1)
    error = home.answers[home.ask(who, *LOCK, "release", token)]
    assert isinstance(error, NotHolder) and "p[1] (token 100)" in str(error)
    assert home.answers[home.ask(3, *LOCK, "check", 100)] is None


def test_a_second_release_is_refused(home: Home) -> None:
    """P4."""
    home.ask(1, *LOCK, "acquire", 1)
    home.ask(1, *LOCK, "release", 100)
    assert isinstance(home.answers[home.ask(1, *LOCK, "release", 100)], NotHolder)
    assert isinstance(home.answers[home.ask(2, *LOCK, "check", 100)], NotHolder)
    assert home.is_empty


def test_the_death_of_a_holder_serves_the_next(home: Home) -> None:
    """P5, C2. One that waited is not served any more."""
    home.ask(1, *LOCK, "acquire", 1)
    waits, dead = home.ask(2, *LOCK, "acquire", 1), home.ask(3, *LOCK, "acquire", 1)
    home.gone(process(3))
    home.gone(process(1))
    assert home.answers[waits] == 101
    assert dead not in home.answers
    home.ask(2, *LOCK, "release", 101)
    assert home.is_empty


def test_a_cancel_before_the_grant(home: Home) -> None:
    """P6."""
    home.ask(1, *LOCK, "acquire", 1)
    cancelled, next_one = home.ask(2, *LOCK, "acquire", 1), home.ask(3, *LOCK, "acquire", 1)
    home.cancel(2, cancelled, LOCK[0])
    home.ask(1, *LOCK, "release", 100)
    assert next_one in home.answers and cancelled not in home.answers


def test_a_cancel_that_crosses_the_grant(home: Home) -> None:
    """P6: it goes to the next in line, with a token of its own."""
    crossing, next_one = home.ask(2, *LOCK, "acquire", 1), home.ask(3, *LOCK, "acquire", 1)
    assert home.answers[crossing] == 100
    home.cancel(2, crossing, LOCK[0])
    assert home.answers[next_one] == 101


def test_a_large_request_that_is_cancelled_lets_the_small_ones_by(home: Home) -> None:
    """P2, P6."""
    key = "semaphore s", (2,)
    home.ask(1, *key, "acquire", 1)
    large, small = home.ask(2, *key, "acquire", 2), home.ask(3, *key, "acquire", 1)
    home.cancel(2, large, key[0])
    assert small in home.answers


def test_holders_say_since_when(home: Home) -> None:
    home.ask(1, *LOCK, "acquire", 1)
    home.ask(2, *LOCK, "acquire", 1)
    home.now = 5.0
    home.ask(1, *LOCK, "release", 100)
    home.now = 7.0
    assert home.answers[home.ask(3, *LOCK, "holders")] == [["p[2]", 2.0, 101, 1]]


# -- events ------------------------------------------------------------------------------------------------------------


def test_an_event(home: Home) -> None:
    """E1."""
    key: Any = "event e", ()
    waits, cancelled = home.ask(1, *key, "wait"), home.ask(2, *key, "wait")
    home.cancel(2, cancelled, key[0])
    assert home.answers[home.ask(3, *key, "is_set")] is False
    home.ask(3, *key, "set")
    assert home.answers[waits] is None and cancelled not in home.answers
    assert home.answers[home.ask(1, *key, "is_set")] is True
    assert home.answers[home.ask(1, *key, "wait")] is None
    home.ask(3, *key, "clear")
    assert home.is_empty


# -- barriers ----------------------------------------------------------------------------------------------------------

BARRIER = "barrier b", (3,)


def test_a_barrier_is_passed_again_and_again(home: Home) -> None:
    """B1."""
    for _ in range(2):
        calls = [home.ask(who, *BARRIER, "arrive") for who in (3, 1)]
        assert not set(calls) & set(home.answers)
        calls.append(home.ask(2, *BARRIER, "arrive"))
        assert [home.answers[call] for call in calls] == [0, 1, 2]


def test_a_barrier_breaks_when_a_party_is_cancelled(home: Home) -> None:
    """B2, B3."""
    waits, left = home.ask(1, *BARRIER, "arrive"), home.ask(2, *BARRIER, "arrive")
    home.cancel(2, left, BARRIER[0])
    for call in (waits, home.ask(3, *BARRIER, "arrive")):
        assert str(home.answers[call]) == "barrier b is broken: p[2] stopped waiting: it was cancelled"


def test_a_barrier_breaks_when_a_party_dies(home: Home) -> None:
    """B2."""
    waits, _ = home.ask(1, *BARRIER, "arrive"), home.ask(2, *BARRIER, "arrive")
    home.gone(process(2), ProcDied("p[2]", "host0", signal=9))
    assert str(home.answers[waits]) == "barrier b is broken: p[2] is gone: proc p[2] on host0 died: killed by SIGKILL"


def test_a_barrier_breaks_when_one_dies_that_passed_it(home: Home) -> None:
    """B2, B4: whether it would have come again or not."""
    passed = [home.ask(who, *BARRIER, "arrive") for who in (1, 2, 3)]
    waits = home.ask(1, *BARRIER, "arrive")
    home.gone(process(3))
    assert isinstance(home.answers[waits], BarrierBroken)
    assert [home.answers[call] for call in passed] == [0, 1, 2]


def test_a_cancel_that_crosses_the_passage_breaks_nothing(home: Home) -> None:
    """B4."""
    calls = [home.ask(who, *BARRIER, "arrive") for who in (1, 2, 3)]
    home.cancel(1, calls[0], BARRIER[0])
    again = [home.ask(who, *BARRIER, "arrive") for who in (1, 2, 3)]
    assert [home.answers[call] for call in again] == [0, 1, 2]


def test_a_reset_mends_it(home: Home) -> None:
    waits = home.ask(1, *BARRIER, "arrive")
    home.ask(2, *BARRIER, "abort", "no data")
    assert str(home.answers[waits]) == "barrier b is broken: p[2] aborted it: no data"
    home.ask(2, *BARRIER, "reset")
    assert home.is_empty
    waits = home.ask(1, *BARRIER, "arrive")
    home.ask(2, *BARRIER, "reset")
    assert str(home.answers[waits]) == "barrier b is broken: it was reset by p[2]"


# -- queues ------------------------------------------------------------------------------------------------------------


def put(home: Home, who: int, body: str, nbytes: int = 1) -> int:
    return home.ask(who, *QUEUE, "put", nbytes, body, True)


def get(home: Home, who: int) -> Any:
    """Get and take."""
    call = home.ask(who, *QUEUE, "get", True)
    answer = home.answers[call]
    home.ask(who, *QUEUE, "took", call)
    return answer[0] if isinstance(answer, list) else answer


def test_items_come_out_in_order_and_nothing_is_left(home: Home) -> None:
    """Q2."""
    for body in "abc":
        assert home.answers[put(home, 1, body)] is True
    assert [get(home, 2) for _ in range(3)] == ["a", "b", "c"]
    assert home.is_empty


def test_a_full_queue_makes_who_puts_wait_and_keeps_only_its_size(home: Home) -> None:
    """Q1, Q2, Q4."""
    for body in "abc":
        put(home, 1, body)
    fourth, fifth = put(home, 1, "d"), put(home, 2, "e")
    assert get(home, 3) == "a"
    assert home.answers[fourth] is False and fifth not in home.answers
    queue: Any = home.coordination._live[QUEUE[0]]
    assert queue.count == 3 and len(queue._items) == 2
    home.ask(1, *QUEUE, "fill", fourth, "d", [])
    assert [get(home, 3), get(home, 3)] == ["b", "c"]
    home.ask(2, *QUEUE, "fill", fifth, "e", [])
    assert [get(home, 3), get(home, 3)] == ["d", "e"]
    assert home.is_empty


def test_bytes_count_as_items_do(home: Home) -> None:
    """Q1, Q2: a large one is not passed by small ones."""
    put(home, 1, "a", 60)
    large, small = put(home, 1, "b", 50), put(home, 2, "c", 1)
    assert large not in home.answers and small not in home.answers
    assert get(home, 3) == "a"
    assert home.answers[large] is False and home.answers[small] is False
    assert isinstance(home.answers[put(home, 1, "x", 101)], BadCall)


def test_room_is_not_free_before_the_item_was_taken(home: Home) -> None:
    """Q1."""
    for body in "abc":
        put(home, 1, body)
    waits = put(home, 1, "d")
    handed = home.ask(2, *QUEUE, "get", True)
    assert home.answers[handed] == ["a"] and waits not in home.answers
    home.ask(2, *QUEUE, "took", handed)
    assert home.answers[waits] is False


def test_what_a_process_puts_while_it_has_room_to_fill_comes_after_that(home: Home) -> None:
    reserved = home.ask(1, *QUEUE, "put", 1, None, True)
    later = put(home, 1, "b")
    assert [home.answers[reserved], home.answers[later]] == [False, False]
    assert home.answers[put(home, 2, "of another")] is True


def test_an_item_given_back_is_where_it_was(home: Home) -> None:
    """Q2, Q3: before what came after it, also where several are given back in whatever order."""
    for body in "abc":
        put(home, 1, body)
    calls = [home.ask(who, *QUEUE, "get", True) for who in (2, 3)]
    waits = home.ask(4, *QUEUE, "get", True)
    assert home.answers[waits] == ["c"]
    for who, call in zip((3, 2), reversed(calls), strict=True):
        home.cancel(who, call, QUEUE[0])
    assert [get(home, 5), get(home, 5)] == ["a", "b"]


def test_an_item_given_back_goes_to_who_waits(home: Home) -> None:
    """Q3."""
    put(home, 1, "a")
    handed, waits = home.ask(2, *QUEUE, "get", True), home.ask(3, *QUEUE, "get", True)
    home.cancel(2, handed, QUEUE[0])
    assert home.answers[waits] == ["a"]


def test_an_item_on_its_way_to_who_dies_is_lost_and_counted(home: Home) -> None:
    """Q3."""
    put(home, 1, "a")
    put(home, 1, "b")
    home.ask(2, *QUEUE, "get", True)
    home.gone(process(2))
    assert home.answers[home.ask(3, *QUEUE, "size")] == [1, 1, 1]
    assert get(home, 3) == "b"


def test_what_a_dead_process_has_put_stays_and_what_it_reserved_is_free(home: Home) -> None:
    """Q5."""
    put(home, 1, "a")
    home.ask(1, *QUEUE, "put", 90, None, True)
    waits = home.ask(2, *QUEUE, "put", 20, "b", True)
    home.gone(process(1))
    assert home.answers[waits] is False
    assert get(home, 2) == "a"


def test_not_to_wait(home: Home) -> None:
    assert isinstance(home.answers[home.ask(1, *QUEUE, "get", False)], Empty)
    for body in "abc":
        put(home, 1, body)
    full = home.answers[home.ask(1, *QUEUE, "put", 1, "d", False)]
    assert isinstance(full, Backpressure) and "3 of 3 items, 3 of 100 bytes" in str(full)
    assert home.answers[home.ask(1, *QUEUE, "get", False)] == ["a"]


def test_closing_lets_out_what_is_in_and_then_ends(home: Home) -> None:
    """Q6, C4."""
    for body in "abc":
        put(home, 1, body)
    refused = put(home, 2, "d")
    home.ask(1, *QUEUE, "close")
    assert isinstance(home.answers[refused], Closed)
    assert isinstance(home.answers[put(home, 1, "e")], Closed)
    assert [get(home, 3) for _ in range(3)] == ["a", "b", "c"]
    assert home.is_empty
    assert isinstance(get(home, 3), Closed)
    assert isinstance(home.answers[put(home, 1, "f")], Closed)
    home.gone(CLIENT)
    assert home.answers[put(home, 1, "g")] is True


def test_the_end_waits_for_what_was_reserved_or_may_be_given_back(home: Home) -> None:
    """Q6."""
    reserved = home.ask(1, *QUEUE, "put", 1, None, True)
    home.ask(1, *QUEUE, "close")
    first, second = home.ask(2, *QUEUE, "get", True), home.ask(3, *QUEUE, "get", True)
    home.ask(1, *QUEUE, "fill", reserved, "a", [])
    assert home.answers[first] == ["a"] and second not in home.answers
    home.cancel(2, first, QUEUE[0])
    assert home.answers[second] == ["a"]
    third = home.ask(4, *QUEUE, "get", True)
    home.ask(3, *QUEUE, "took", second)
    assert isinstance(home.answers[third], Closed)


def test_a_failure_comes_after_the_items_and_every_time(home: Home) -> None:
    """Q7."""
    put(home, 1, "a")
    home.ask(1, *QUEUE, "fail", b"report")
    home.ask(1, *QUEUE, "fail", b"a second one")
    home.ask(1, *QUEUE, "close")
    assert get(home, 2) == "a"
    assert home.is_empty
    assert [get(home, 2), get(home, 3)] == [{"report": b"report"}] * 2
    assert home.answers[home.ask(1, *QUEUE, "close")] is None


def test_of_many_failures_the_latest_are_kept(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q7: those before them end with a failure all the same."""
    monkeypatch.setattr(coordination, "MOST_REPORTS", 2)
    keys = [(f"queue {number}", (1, 1, 0)) for number in range(3)]
    for key in keys:
        home.ask(1, *key, "fail", b"report")
    answers = [home.answers[home.ask(1, *key, "get", True)] for key in keys]
    assert str(answers[0]) == "queue 0 has failed; it is too long ago to say of what"
    assert answers[1:] == [{"report": b"report"}] * 2


def test_the_death_of_a_producer_is_a_failure(home: Home) -> None:
    """Q7. Not once it has left."""
    home.ask(1, *QUEUE, "join")
    joined = home.ask(2, *QUEUE, "join")
    home.ask(2, *QUEUE, "leave", joined)
    waits = home.ask(3, *QUEUE, "get", True)
    home.gone(process(2))
    assert waits not in home.answers
    home.gone(process(1), ProcDied("p[1]", "host0", signal=9))
    assert isinstance(home.answers[waits], ProcDied)
    assert isinstance(home.answers[put(home, 3, "a")], Closed)


def test_the_last_producer_closes(home: Home) -> None:
    key = "queue q", (3, 100, 2)
    waits = home.ask(3, *key, "get", True)
    for who in (1, 2):
        assert waits not in home.answers
        home.ask(who, *key, "leave", home.ask(who, *key, "join"))
    assert isinstance(home.answers[waits], Closed)


def test_objects_go_with_their_item(home: Home) -> None:
    """When it is taken, when it is lost, when nobody is left; and what is filled in too late is not kept."""
    for objects in ([b"1"], [b"2", b"3"], [b"4"]):
        reserved = home.ask(1, *QUEUE, "put", 1, None, True)
        home.ask(1, *QUEUE, "fill", reserved, "a", objects)
    get(home, 2)
    assert home.discarded == [b"1"]
    home.ask(2, *QUEUE, "get", True)
    home.gone(process(2))
    assert home.discarded == [b"1", b"2", b"3"]
    assert isinstance(home.answers[home.ask(1, *QUEUE, "fill", reserved, "a", [b"5"])], Closed)
    home.gone(process(1))
    assert home.discarded == [b"1", b"2", b"3", b"5"]
    home.gone(CLIENT)
    assert home.discarded == [b"1", b"2", b"3", b"5", b"4"] and home.is_empty


# -- all of them -------------------------------------------------------------------------------------------------------


def test_it_lasts_while_a_process_that_has_used_it_lives(home: Home) -> None:
    """C3: a detached proc outlives its client, and so does what it uses."""
    home.ask(1, "event e", (), "set")
    home.gone(CLIENT)
    assert home.answers[home.ask(1, "event e", (), "is_set")] is True
    home.gone(process(1))
    home.gone(CLIENT)
    assert home.is_empty


def test_two_programs_share_a_name(home: Home) -> None:
    """C3, C4."""
    other = 9 << 32 | 1
    home.ask(1, *QUEUE, "put", 1, "a", True)
    home.ask(2, *QUEUE, "put", 1, "b", True, client=other)
    home.gone(process(1))
    home.gone(CLIENT)
    home.ask(2, *QUEUE, "close", client=other)
    assert home.answers[home.ask(2, *QUEUE, "get", True, client=other)] == ["a"]


def test_sizes_have_to_agree(home: Home) -> None:
    """C5."""
    home.ask(1, "semaphore s", (3,), "acquire", 1)
    refused = home.answers[home.ask(2, "semaphore s", (4,), "acquire", 1)]
    assert isinstance(refused, BadCall) and "(3,)" in str(refused) and "(4,)" in str(refused)


def test_a_program_has_a_limit(home: Home) -> None:
    """C6. What is not in use does not count."""
    for number in range(10):
        home.ask(1, f"event {number}", (), "set")
    assert isinstance(home.answers[home.ask(1, *LOCK, "acquire", 1)], Backpressure)
    assert home.answers[home.ask(2, *LOCK, "acquire", 1, client=7)] == 100
    home.ask(1, "event 3", (), "clear")
    home.ask(1, *LOCK, "release", 0)
    assert home.answers[home.ask(1, "event new", (), "set")] is None


@pytest.mark.parametrize(
    ("key", "params", "operation", "arguments"),
    [
        ("lock x", (2,), "acquire", (1,)),
        ("lock x", (1,), "gone", (1,)),
        ("lock x", (1,), "acquire", ()),
        ("lock x", (1,), "acquire", ("1",)),
        ("mutex x", (1,), "acquire", (1,)),
        ("semaphore x", (0,), "acquire", (1,)),
        ("semaphore x", (1.5,), "acquire", (1,)),
        ("queue x", (1, 0, 0), "get", (True,)),
        ("queue x", (1, 1, 0), "put", (-1, "a", True)),
    ],
)
def test_requests_that_make_no_sense_leave_nothing(
    home: Home, key: str, params: Any, operation: str, arguments: Any
) -> None:
    with pytest.raises((ValueError, TypeError)):
        home.ask(1, key, params, operation, *arguments)
    assert home.is_empty and not home.answers


def test_facts_show_who_is_waited_for_first(home: Home) -> None:
    home.ask(1, "event e", (), "set")
    home.ask(1, *LOCK, "acquire", 1)
    home.ask(2, *LOCK, "acquire", 1)
    (name, facts), (other, _) = home.coordination.facts()
    assert (name, other) == ("lock x", "event e")
    assert [row.who for row in facts.holders] == ["p[1]"] and [row.who for row in facts.waiting] == ["p[2]"]


def test_names() -> None:
    assert name_of("lock checkpoints of a") == "lock checkpoints of a"
    assert name_of("lock #0123456789abcdef0123456789abcdef") == "lock #01234567"
