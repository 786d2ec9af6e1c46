"""Actors with plain methods: state, order, calls, errors of constructors and methods."""

import os
import threading
import time

import ray
from contract import Gate, Tally, answer, error_of, is_running, until


@ray.remote
class Counter:
    """Counts."""

    unit = "apples"

    def __init__(self, start=0):
        self.n = start

    def add(self, k=1):
        self.n += k
        return self.n

    def _hidden(self):
        return "hidden"

    def fail(self):
        raise KeyError("lost")

    def pid(self):
        return os.getpid()

    @staticmethod
    def fixed(x):
        return x + 1

    @classmethod
    def named(cls):
        return cls.unit

    @property
    def size(self):
        return self.n

    def __call__(self, x):
        return x + self.n


def contract_an_actor_keeps_state() -> object:
    counter = Counter.remote(10)
    return [type(counter).__name__, ray.get([counter.add.remote() for _ in range(3)]), ray.get(counter.add.remote(k=5))]


def contract_calls_of_one_caller_run_in_their_order() -> object:
    @ray.remote
    class Log:
        def __init__(self):
            self.seen = []

        def note(self, n):
            self.seen.append(n)

        def all(self):
            return self.seen

    log = Log.remote()
    for n in range(100):
        log.note.remote(n)
    return ray.get(log.all.remote()) == list(range(100))


def contract_a_call_keeps_its_place_while_its_argument_is_awaited() -> object:
    """A method whose argument is not there yet is not overtaken by the calls after it."""
    gate = Gate()

    @ray.remote
    def later():
        gate.wait()
        return 5

    counter = Counter.remote()
    slow = counter.add.remote(later.remote())
    after = counter.add.remote(1)
    early, _ = ray.wait([after], timeout=0.2)
    gate.open()
    return [len(early), ray.get([slow, after])]


def contract_methods_run_one_by_one_on_one_thread() -> object:
    @ray.remote
    class Single:
        def __init__(self):
            self.thread = threading.get_ident()
            self.inside = 0

        def enter(self):
            self.inside += 1
            alone = self.inside == 1
            time.sleep(0.02)
            self.inside -= 1
            return alone, threading.get_ident() == self.thread

    single = Single.remote()
    return ray.get([single.enter.remote() for _ in range(5)])


def contract_constructors_take_refs_and_options() -> object:
    counter = Counter.options(num_cpus=0.5, name="optioned").remote(ray.put(7))
    other = ray.remote(num_cpus=0.5)(Counter.__ray_actor_class__).remote(start=ray.put(8))
    return [ray.get(counter.add.remote(0)), ray.get(other.add.remote(0))]


def contract_a_ref_to_a_method_is_resolved() -> object:
    @ray.remote
    class Look:
        def at(self, top, listed):
            return type(top).__name__, type(listed[0]).__name__, ray.get(listed[0])

    one = ray.put(1)
    return ray.get(Look.remote().at.remote(one, [one]))


def contract_results_of_methods_go_to_methods() -> object:
    one, two = Counter.remote(1), Counter.remote(2)
    return ray.get(two.add.remote(one.add.remote(one.add.remote(1))))


def contract_method_num_returns() -> object:
    @ray.remote
    class Pairs:
        @ray.method(num_returns=2)
        def pair(self):
            return 1, 2

        def whole(self):
            return 3, 4

    pairs = Pairs.remote()
    first, second = pairs.pair.remote()
    third, fourth = pairs.whole.options(num_returns=2).remote()
    whole = pairs.pair.options(num_returns=1).remote()
    return [ray.get([first, second, third, fourth]), ray.get(pairs.whole.remote()), ray.get(whole)]


def contract_an_actor_class_is_not_called() -> object:
    return error_of(lambda: Counter(), "remote")


def contract_a_method_is_not_called() -> object:
    return error_of(lambda: Counter.remote().add(), "remote")


def contract_a_method_that_is_not_there() -> object:
    counter = Counter.remote()
    return [error_of(lambda: counter.missing, "missing"), hasattr(counter, "missing"), hasattr(counter, "add")]


def contract_attributes_are_not_methods() -> object:
    counter = Counter.remote()
    return [error_of(lambda: counter.unit), error_of(lambda: counter.n)]


def contract_wrong_arguments_of_methods_fail_at_once() -> object:
    counter = Counter.remote()
    return [
        error_of(lambda: counter.add.remote(1, 2)),
        error_of(lambda: counter.add.remote(no=1)),
        error_of(lambda: Counter.remote(1, 2)),
        error_of(lambda: Counter.remote(no=1)),
    ]


def contract_kinds_of_methods() -> object:
    counter = Counter.remote(1)
    calls = [counter._hidden, counter.named]
    return [ray.get([method.remote() for method in calls]), ray.get(counter.__call__.remote(1))]


def contract_a_static_method() -> object:
    return ray.get(Counter.remote().fixed.remote(1))


def contract_methods_of_bases() -> object:
    class Base:
        def __init__(self, x):
            self.x = x

        def get(self):
            return self.x

        def who(self):
            return "base"

    @ray.remote
    class Derived(Base):
        def __init__(self, x):
            super().__init__(x + 1)

        def who(self):
            return "derived of " + super().who()

    derived = Derived.remote(1)
    return ray.get([derived.get.remote(), derived.who.remote()])


def contract_an_exception_of_a_method_leaves_the_actor() -> object:
    counter = Counter.remote()
    error = error_of(lambda: ray.get(counter.fail.remote()), "lost", "fail")
    return [error, ray.get(counter.add.remote())]


def contract_an_exception_of_the_constructor_is_that_of_each_call() -> object:
    @ray.remote
    class Broken:
        def __init__(self):
            raise ValueError("boom")

        def go(self):
            return 1

    broken = Broken.remote()
    return [error_of(lambda: ray.get(broken.go.remote()), "boom", "ValueError", "__init__") for _ in range(2)]


def contract_a_failed_argument_of_the_constructor() -> object:
    @ray.remote
    def fail():
        raise ValueError("boom")

    counter = Counter.remote(fail.remote())
    return error_of(lambda: ray.get(counter.add.remote()), "boom")


def contract_a_failed_argument_of_a_method() -> object:
    counter = Counter.remote()
    other = Counter.remote()
    error = error_of(lambda: ray.get(counter.add.remote(other.fail.remote())), "lost")
    return [error, ray.get(counter.add.remote())]


def contract_an_actor_whose_process_dies() -> object:
    @ray.remote
    class Mortal:
        def die(self):
            os._exit(1)

        def go(self):
            return 1

    mortal = Mortal.remote()
    first = error_of(lambda: ray.get(mortal.die.remote()))
    return [first, error_of(lambda: ray.get(mortal.go.remote()))]


def contract_an_actor_ends_when_its_handles_are_gone() -> object:
    counter = Counter.remote()
    pid = ray.get(counter.pid.remote())
    was = is_running(pid)
    del counter
    return [was, until(lambda: not is_running(pid))]


def contract_calls_that_were_made_are_done_before_it_ends() -> object:
    tally = Tally()

    @ray.remote
    class Slow:
        def work(self, n):
            time.sleep(0.02)
            tally.add(n)
            return n

    slow = Slow.remote()
    refs = [slow.work.remote(n) for n in range(5)]
    del slow
    return [ray.get(refs), tally.lines()]


def contract_a_call_on_a_handle_that_nobody_keeps() -> object:
    return ray.get(Counter.remote(4).add.remote(1))


def contract_an_actor_lives_while_another_has_its_handle() -> object:
    @ray.remote
    class Keeper:
        def keep(self, handle):
            self.handle = handle

        def use(self):
            return ray.get(self.handle.add.remote())

        def drop(self):
            self.handle = None

    keeper, counter = Keeper.remote(), Counter.remote()
    pid = ray.get(counter.pid.remote())
    ray.get(keeper.keep.remote(counter))
    del counter
    time.sleep(0.3)
    found = [is_running(pid), ray.get([keeper.use.remote(), keeper.use.remote()])]
    ray.get(keeper.drop.remote())
    return [*found, until(lambda: not is_running(pid))]


def contract_actors_made_in_tasks_and_actors() -> object:
    @ray.remote
    class Parent:
        def __init__(self):
            self.child = Counter.remote(3)

        def ask(self):
            return ray.get(self.child.add.remote())

        def child_itself(self):
            return self.child

    @ray.remote
    def make():
        counter = Counter.remote(5)
        return ray.get(counter.add.remote())

    parent = Parent.remote()
    child = ray.get(parent.child_itself.remote())
    return [ray.get(parent.ask.remote()), ray.get(child.add.remote()), ray.get(make.remote())]


def contract_actors_are_processes_of_their_own() -> object:
    one, two = Counter.remote(), Counter.remote()
    pids = set(ray.get([one.pid.remote(), two.pid.remote(), one.pid.remote()]))
    return [len(pids), os.getpid() in pids]


def contract_an_actor_calls_itself_by_its_own_handle() -> object:
    @ray.remote
    class Selfish:
        def me(self):
            return ray.get_runtime_context().current_actor

        def x(self):
            return 5

    selfish = Selfish.remote()
    return ray.get(ray.get(selfish.me.remote()).x.remote())


def contract_a_result_that_cannot_be_pickled() -> object:
    @ray.remote
    class Locked:
        def lock(self):
            return threading.Lock()

        def go(self):
            return 1

    locked = Locked.remote()
    return [error_of(lambda: ray.get(locked.lock.remote()), "pickle"), ray.get(locked.go.remote())]


def contract_large_arguments_and_results() -> object:
    @ray.remote
    class Store:
        def put(self, data):
            self.data = data
            return len(data)

        def get(self):
            return self.data

    store, data = Store.remote(), b"x" * 2_000_000
    return [ray.get(store.put.remote(data)), ray.get(store.get.remote()) == data]


def contract_wrong_options_of_actors() -> object:
    wrong = [{"max_concurrency": -1}, {"max_restarts": -2}, {"num_cpus": -1}, {"lifetime": "long"}, {"name": 5}]
    wrong += [{"name": ""}, {"no_such_option": 1}, {"num_returns": 2}, {"max_task_retries": -2}, {"namespace": 5}]
    return [[str(given), error_of(lambda given=given: Counter.options(**given).remote())] for given in wrong]


def contract_many_calls() -> object:
    counter = Counter.remote()
    return ray.get([counter.add.remote() for _ in range(500)])[-1]


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
