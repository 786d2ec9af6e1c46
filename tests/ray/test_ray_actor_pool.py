"""A pool of actors: which results come when, and when an actor is free."""

import time

import pytest

from monarch_async import ray
from monarch_async.ray.util import ActorPool


@pytest.fixture(scope="module")
def actors(driver: None) -> list:
    return [Worker.remote() for _ in range(2)]


@pytest.fixture
def pool(actors: list) -> ActorPool:
    return ActorPool(actors)


@ray.remote
class Worker:
    def double(self, value: int) -> int:
        if value < 0:
            raise ValueError(value)
        return 2 * value

    def sleep(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


def double(actor, value):
    return actor.double.remote(value)


def sleep(actor, value):
    return actor.sleep.remote(value)


def test_map_keeps_order(pool: ActorPool) -> None:
    assert list(pool.map(double, range(20))) == list(range(0, 40, 2))
    assert list(pool.map(sleep, [0.2, 0, 0.1, 0])) == [0.2, 0, 0.1, 0]
    assert not pool.has_next() and pool.has_free()


def test_map_unordered(pool: ActorPool) -> None:
    assert sorted(pool.map_unordered(double, range(20))) == list(range(0, 40, 2))
    assert next(iter(pool.map_unordered(sleep, [1, 0]))) == 0


def test_submitted_is_what_is_pending(pool: ActorPool) -> None:
    assert pool.has_free() and not pool.has_next()
    for value in range(4):
        pool.submit(double, value)
    assert pool.has_next() and not pool.has_free()
    assert [pool.get_next() for _ in range(4)] == [0, 2, 4, 6]
    assert pool.has_free() and not pool.has_next()
    for get in (pool.get_next, pool.get_next_unordered):
        with pytest.raises(StopIteration):
            get()


def test_an_error_is_raised_and_its_actor_is_free(pool: ActorPool) -> None:
    results = pool.map(double, [1, -1, 3])
    assert next(results) == 2
    with pytest.raises(ValueError, match="-1"):
        next(results)
    assert pool.get_next() == 6
    assert pool.pop_idle() is not None and pool.pop_idle() is not None and pool.pop_idle() is None


def test_timeouts(pool: ActorPool) -> None:
    pool.submit(sleep, 0.4)
    for get in (pool.get_next, pool.get_next_unordered):
        with pytest.raises(TimeoutError):
            get(timeout=0.01)
    assert pool.get_next() == 0.4
    assert pool.has_free()


def test_what_timed_out_may_be_dropped(pool: ActorPool) -> None:
    pool.submit(sleep, 0.4)
    pool.submit(sleep, 0.0)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0.01, ignore_if_timedout=True)
    assert pool.get_next() == 0
    assert not pool.has_next()


def test_map_drops_what_was_pending(pool: ActorPool) -> None:
    for value in (0.2, 0, 0):
        pool.submit(sleep, value)
    assert list(pool.map(double, [1, 2, 3])) == [2, 4, 6]


def test_push_and_pop(pool: ActorPool, actors: list) -> None:
    taken = [pool.pop_idle(), pool.pop_idle()]
    assert {actor._actor_id for actor in taken} == {actor._actor_id for actor in actors}
    assert pool.pop_idle() is None and not pool.has_free()
    pool.submit(double, 4)
    pool.push(taken[0])
    assert pool.get_next() == 8
    with pytest.raises(ValueError, match="pool"):
        pool.push(taken[0])
