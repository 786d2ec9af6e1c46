"""ray.util.ActorPool, and ray.util.metrics."""

import time

import ray
from contract import answer, error_of
from ray.util import ActorPool
from ray.util.metrics import Counter, Gauge, Histogram


@ray.remote
class Worker:
    def double(self, x):
        return 2 * x

    def nap(self, seconds):
        time.sleep(seconds)
        return seconds

    def fail(self, x):
        if x == 1:
            raise ValueError("boom")
        return x


def contract_map_keeps_the_order() -> object:
    pool = ActorPool([Worker.remote(), Worker.remote()])
    return [list(pool.map(lambda actor, x: actor.double.remote(x), range(6))), pool.has_next()]


def contract_map_keeps_the_order_of_slow_ones() -> object:
    pool = ActorPool([Worker.remote(), Worker.remote()])
    return list(pool.map(lambda actor, x: actor.nap.remote(x), [0.2, 0.0, 0.05]))


def contract_map_unordered_gives_all() -> object:
    pool = ActorPool([Worker.remote(), Worker.remote()])
    return sorted(pool.map_unordered(lambda actor, x: actor.double.remote(x), range(6)))


def contract_map_unordered_gives_the_quick_first() -> object:
    pool = ActorPool([Worker.remote(), Worker.remote()])
    list(pool.map(lambda actor, x: actor.double.remote(x), range(2)))
    return next(iter(pool.map_unordered(lambda actor, x: actor.nap.remote(x), [1.0, 0.0])))


def contract_submit_and_get_next() -> object:
    pool = ActorPool([Worker.remote()])
    found = [pool.has_next(), pool.has_free()]
    for n in range(3):
        pool.submit(lambda actor, x: actor.double.remote(x), n)
    found += [pool.has_next(), pool.has_free(), [pool.get_next() for _ in range(3)], pool.has_next(), pool.has_free()]
    return found


def contract_get_next_without_results() -> object:
    pool = ActorPool([Worker.remote()])
    return [error_of(lambda: pool.get_next()), error_of(lambda: pool.get_next_unordered())]


def contract_get_next_with_a_timeout() -> object:
    pool = ActorPool([Worker.remote()])
    pool.submit(lambda actor, x: actor.nap.remote(x), 1.0)
    return [error_of(lambda: pool.get_next(timeout=0.1)), pool.get_next()]


def contract_get_next_unordered() -> object:
    pool = ActorPool([Worker.remote(), Worker.remote()])
    for n in range(4):
        pool.submit(lambda actor, x: actor.double.remote(x), n)
    return sorted(pool.get_next_unordered() for _ in range(4))


def contract_an_error_leaves_the_pool() -> object:
    pool = ActorPool([Worker.remote()])
    for n in range(3):
        pool.submit(lambda actor, x: actor.fail.remote(x), n)
    return [pool.get_next(), error_of(lambda: pool.get_next(), "boom"), pool.get_next()]


def contract_push_and_pop_idle() -> object:
    one, two = Worker.remote(), Worker.remote()
    pool = ActorPool([one])
    pool.push(two)
    popped = [pool.pop_idle() is not None, pool.pop_idle() is not None, pool.pop_idle()]
    pool.push(one)
    return [popped, error_of(lambda: pool.push(one)), list(pool.map(lambda actor, x: actor.double.remote(x), [1]))]


def contract_metrics_are_counted_without_an_answer() -> object:
    counter = Counter("contract_counter", description="counts", tag_keys=("who",))
    counter.set_default_tags({"who": "me"})
    gauge = Gauge("contract_gauge", description="a level", tag_keys=("who",))
    histogram = Histogram("contract_histogram", description="sizes", boundaries=[1, 10], tag_keys=("who",))
    return [
        counter.inc(),
        counter.inc(2, tags={"who": "you"}),
        gauge.set(5, {"who": "me"}),
        histogram.observe(3.5, tags={"who": "me"}),
        counter.info["name"],
        counter.info["tag_keys"],
        counter.info["description"],
    ]


def contract_wrong_metrics() -> object:
    counter = Counter("contract_wrong", tag_keys=("who",))
    return [
        error_of(lambda: counter.inc(0, tags={"who": "x"})),
        error_of(lambda: counter.inc(-1, tags={"who": "x"})),
        error_of(lambda: counter.inc(1, tags={"other": "x"})),
        error_of(lambda: Counter("")),
        error_of(lambda: Counter("x", tag_keys="who")),
        error_of(lambda: Histogram("x", boundaries=[])),
        error_of(lambda: Histogram("x", boundaries=[0, 1])),
        error_of(lambda: counter.set_default_tags({"other": "x"})),
        error_of(lambda: counter.inc(1)),
    ]


def contract_metrics_in_tasks() -> object:
    @ray.remote
    class Counting:
        def __init__(self):
            self.counter = Counter("contract_in_actor", tag_keys=("who",))

        def count(self):
            self.counter.inc(1, {"who": "actor"})
            return self.counter.info["name"]

    return ray.get(Counting.remote().count.remote())


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
