"""Tasks: arguments, results, options, and tasks within tasks."""

import os
import threading

import ray
from contract import Gate, Tally, answer, differs, error_of


@ray.remote
def add(a, b=10):
    return a + b


@ray.remote
def kinds(*arguments, **named):
    """What the task was given, as seen there."""
    return [type(x).__name__ for x in arguments], {key: type(x).__name__ for key, x in sorted(named.items())}


@ray.remote
def fail():
    raise ValueError("boom")


def contract_a_task_returns_its_value() -> object:
    ref = add.remote(1, 2)
    return [isinstance(ref, ray.ObjectRef), ray.get(ref)]


def contract_arguments_by_position_by_name_and_by_default() -> object:
    @ray.remote
    def gathered(a, /, b, *rest, c=3, **more):
        return a, b, rest, c, more

    refs = [gathered.remote(1, 2), gathered.remote(1, b=2, c=4), gathered.remote(1, 2, 5, 6, d=7)]
    return [*ray.get(refs), ray.get(add.remote(1)), ray.get(add.remote(a=1, b=1))]


def contract_a_ref_as_an_argument_is_resolved() -> object:
    one = ray.put(1)
    return [ray.get(add.remote(one, b=one)), ray.get(kinds.remote(one, x=one))]


def contract_a_ref_within_a_container_stays_a_ref() -> object:
    one = ray.put(1)

    @ray.remote
    def look(listed, named, pair):
        refs = [listed[0], named["x"], pair[1][0]]
        return [type(ref).__name__ for ref in refs], ray.get(refs)

    return ray.get(look.remote([one], {"x": one}, (0, (one,))))


def contract_results_flow_from_task_to_task() -> object:
    ref = add.remote(0, 1)
    for _ in range(5):
        ref = add.remote(ref, ref)
    return ray.get(ref)


def contract_a_task_waits_for_what_it_is_given() -> object:
    gate, tally = Gate(), Tally()

    @ray.remote
    def first():
        gate.wait()
        tally.add("first")
        return 1

    @ray.remote
    def second(one):
        tally.add("second")
        return one + 1

    ref = second.remote(first.remote())
    early, _ = ray.wait([ref], timeout=0.1)
    gate.open()
    return [len(early), ray.get(ref), tally.lines()]


def contract_what_depends_on_a_failed_task_fails_unrun() -> object:
    tally = Tally()

    @ray.remote
    def after(value):
        tally.add()
        return value

    error = error_of(lambda: ray.get(after.remote(fail.remote())), "boom")
    return [error, tally.lines()]


def contract_a_remote_function_cannot_be_called() -> object:
    return error_of(lambda: add(1, 2), ".remote()", "add")


def contract_wrong_arguments_fail_where_they_are_given() -> object:
    return [
        error_of(lambda: add.remote()),
        error_of(lambda: add.remote(1, 2, 3)),
        error_of(lambda: add.remote(1, c=3)),
    ]


def contract_a_lambda_and_a_closure_may_be_remote() -> object:
    def adder(n):
        def inner(x):
            return x + n

        return inner

    return ray.get([ray.remote(lambda x: x * 2).remote(4), ray.remote(adder(5)).remote(1)])


def contract_ray_remote_as_a_function_with_options() -> object:
    def pair():
        return 1, 2

    return [ray.get(ray.remote(num_returns=2)(pair).remote()), ray.get(ray.remote(pair).remote())]


def contract_what_the_decorator_gives() -> object:
    return [callable(kinds), hasattr(kinds, "remote"), hasattr(kinds, "options"), isinstance(kinds, type)]


def contract_num_returns_gives_as_many_refs() -> object:
    @ray.remote(num_returns=3)
    def three():
        return "a", "b", "c"

    refs = three.remote()
    return [type(refs).__name__, len(refs), ray.get(refs), ray.get(refs[1])]


def contract_num_returns_zero_and_one() -> object:
    @ray.remote
    def pair():
        return 1, 2

    return [pair.options(num_returns=0).remote(), ray.get(pair.options(num_returns=1).remote())]


def contract_num_returns_takes_any_sequence() -> object:
    @ray.remote(num_returns=2)
    def give(how):
        return [1, 2] if how == "list" else (3, 4)

    return [ray.get(give.remote("list")), ray.get(give.remote("tuple"))]


def contract_a_wrong_number_of_results_is_an_error_of_each() -> object:
    @ray.remote(num_returns=3)
    def two():
        return 1, 2

    return [error_of(lambda ref=ref: ray.get(ref), "num_returns") for ref in two.remote()]


def contract_an_error_is_that_of_each_result() -> object:
    refs = fail.options(num_returns=2).remote()
    return [error_of(lambda ref=ref: ray.get(ref), "boom") for ref in refs]


def contract_options_leave_the_function_as_it_was() -> object:
    @ray.remote
    def pair():
        return 1, 2

    doubled = pair.options(num_returns=2)
    return [len(ray.get(doubled.remote())), ray.get(pair.remote()), len(ray.get(doubled.remote()))]


def contract_an_unknown_option_is_refused() -> object:
    return [
        error_of(lambda: add.options(no_such_option=1), "no_such_option"),
        error_of(lambda: ray.remote(no_such_option=1)(lambda: 1), "no_such_option"),
        error_of(lambda: add.options(max_restarts=1), "max_restarts"),
    ]


def contract_wrong_values_of_options_are_refused() -> object:
    wrong = [{"num_cpus": -1}, {"num_returns": -1}, {"max_retries": -2}, {"num_returns": "many"}, {"num_gpus": -0.5}]
    wrong += [{"resources": {"CPU": 1}}, {"resources": [1]}, {"num_cpus": "1"}, {"scheduling_strategy": "NOWHERE"}]
    return [[str(given), error_of(lambda given=given: add.options(**given).remote(1))] for given in wrong]


def contract_async_functions_cannot_be_remote() -> object:
    async def waits():
        return 1

    return error_of(lambda: ray.remote(waits), "async")


NO_TYPE = {"types": ["TypeError"], "says": []}


@differs("what is of a wrong type is a TypeError here", [NO_TYPE, NO_TYPE, NO_TYPE])
def contract_what_cannot_be_remote() -> object:
    def decorated():
        @ray.remote()
        def function():
            return 1

    return [error_of(lambda: ray.remote(5)), error_of(lambda: ray.remote("f")), error_of(decorated)]


def contract_what_cannot_be_pickled_is_refused_where_it_is_given() -> object:
    lock = threading.Lock()

    @ray.remote
    def holds():
        return lock

    return [error_of(lambda: add.remote(lock), "pickle"), error_of(lambda: holds.remote(), "pickle")]


def contract_a_result_that_cannot_be_pickled_is_an_error() -> object:
    @ray.remote
    def locked():
        return threading.Lock()

    return error_of(lambda: ray.get(locked.remote()), "pickle")


def contract_arguments_are_copies() -> object:
    mine = [1]

    @ray.remote
    def grow(listed):
        listed.append(2)
        return listed

    return [ray.get(grow.remote(mine)), mine]


def contract_tasks_run_in_other_processes() -> object:
    pid = ray.remote(lambda: os.getpid()).remote()
    return ray.get(pid) == os.getpid()


def contract_tasks_run_side_by_side() -> object:
    gates = [Gate(), Gate()]

    @ray.remote
    def meet(mine):
        gates[mine].open()
        return gates[1 - mine].wait()

    return ray.get([meet.remote(0), meet.remote(1)])


def contract_a_task_in_a_task() -> object:
    @ray.remote
    def outer(n):
        return ray.get(add.remote(n, 1))

    return ray.get([outer.remote(n) for n in range(4)])


def contract_waiting_tasks_give_their_room_to_others() -> object:
    """A chain of tasks, each of which waits for the next, deeper than there are CPUs."""

    @ray.remote
    def deep(n):
        return 0 if n == 0 else 1 + ray.get(deep.remote(n - 1))

    return ray.get(deep.remote(6))


def contract_a_tree_of_tasks() -> object:
    @ray.remote
    def fib(n):
        return n if n < 2 else sum(ray.get([fib.remote(n - 1), fib.remote(n - 2)]))

    return ray.get(fib.remote(5))


def contract_a_task_returns_the_refs_of_others() -> object:
    @ray.remote
    def outer():
        return [add.remote(n, 1) for n in range(3)]

    refs = ray.get(outer.remote())
    return [[type(ref).__name__ for ref in refs], ray.get(refs)]


def contract_a_task_returns_a_ref_itself() -> object:
    @ray.remote
    def outer():
        return add.remote(1, 2)

    inner = ray.get(outer.remote())
    return [type(inner).__name__, ray.get(inner)]


def contract_large_arguments_and_results() -> object:
    @ray.remote
    def turn(data):
        return data[::-1]

    data = bytes(1_000_000) + b"end"
    return [ray.get(turn.remote(data))[:3].decode(), len(ray.get(turn.remote(ray.put(data))))]


def contract_globals_are_those_of_the_first_call() -> object:
    """A function travels by value, once: with the globals it has when it is first called."""
    global SETTING
    SETTING = "before"
    seen = [ray.get(setting.remote())]
    SETTING = "after"
    return [*seen, ray.get(setting.remote())]


SETTING = "at first"


@ray.remote
def setting():
    return SETTING


def contract_a_class_of_main_travels_by_value() -> object:
    @ray.remote
    def move(point):
        return Point(point.x + 1)

    moved = ray.get(move.remote(Point(1)))
    return [isinstance(moved, Point), moved.x]


class Point:
    def __init__(self, x):
        self.x = x


def contract_many_tasks() -> object:
    return sum(ray.get([add.remote(n, 0) for n in range(200)]))


def contract_a_name_for_tasks_is_accepted() -> object:
    named = ray.remote(max_calls=10)(lambda a, b: a + b).options(name="sums", num_cpus=0.5, max_retries=0)
    return ray.get(named.remote(1, 2))


def contract_remote_functions_may_be_given_to_tasks() -> object:
    @ray.remote
    def call(function):
        return ray.get(function.remote(1, 2))

    return ray.get(call.remote(add))


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
