"""Handles and classes of actors as things: pickled, copied, compared, looked into."""

import copy
import os
import pickle

import ray
from contract import answer, error_of, is_running, until


def marked(function):
    function.mark = {"how": "marked"}
    return function


class Base:
    def inherited(self):
        return "inherited"


@ray.remote
class Counter(Base):
    """Counts."""

    unit = "apples"

    def __init__(self, start=0):
        self.n = start

    @marked
    def add(self, k=1):
        """Adds."""
        self.n += k
        return self.n

    def pid(self):
        return os.getpid()


def contract_a_handle_pickles() -> object:
    counter = Counter.remote()
    copies = [ray.cloudpickle.loads(ray.cloudpickle.dumps(counter)), pickle.loads(pickle.dumps(counter))]
    return [ray.get([handle.add.remote() for handle in (counter, *copies)]), type(copies[0]).__name__]


def contract_a_handle_copies() -> object:
    counter = Counter.remote()
    deep, shallow = copy.deepcopy(counter), copy.copy(counter)
    nested = copy.deepcopy({"a": [counter]})["a"][0]
    return ray.get([handle.add.remote() for handle in (counter, deep, shallow, nested)])


def contract_handles_in_containers() -> object:
    counters = [Counter.remote(), Counter.remote(10)]

    @ray.remote
    def use(listed, named):
        return ray.get([listed[0].add.remote(), named["x"].add.remote()])

    return ray.get(use.remote(counters, {"x": counters[1]}))


def contract_a_handle_in_an_object() -> object:
    class Box:
        def __init__(self, handle):
            self.handle = handle

    counter = Counter.remote(5)

    @ray.remote
    def use(box):
        return ray.get(box.handle.add.remote())

    return [ray.get(use.remote(Box(counter))), ray.get(ray.get(ray.put([counter]))[0].add.remote())]


def contract_a_handle_in_a_closure() -> object:
    counter = Counter.remote(5)

    @ray.remote
    def use():
        return ray.get(counter.add.remote())

    return ray.get([use.remote()])


def contract_handles_are_equal_where_the_actor_is_one() -> object:
    one, two = Counter.remote(), Counter.remote()
    again = pickle.loads(pickle.dumps(one))
    return [one == again, one == two, hash(one) == hash(again), len({one, again, two})]


def contract_ids() -> object:
    @ray.remote
    class Who:
        def me(self):
            return ray.get_runtime_context().get_actor_id()

    who = Who.remote()
    number = who._actor_id.hex()
    return [len(number), ray.get(who.me.remote()) == number, copy.deepcopy(who)._actor_id.hex() == number]


def contract_repr_names_the_class() -> object:
    counter = Counter.remote()
    return ["Counter" in repr(counter), counter._actor_id.hex() in repr(counter)]


def contract_dir_of_a_handle_has_the_methods() -> object:
    there = dir(Counter.remote())
    return [name in there for name in ("add", "pid", "inherited", "missing")]


def contract_isinstance_of_a_handle() -> object:
    return [isinstance(Counter.remote(), ray.actor.ActorHandle), isinstance(5, ray.actor.ActorHandle)]


def contract_ray_call_runs_a_function_there() -> object:
    counter = Counter.remote(3)
    return ray.get(
        [
            counter.__ray_call__.remote(lambda self: self.n),
            counter.__ray_call__.remote(lambda self, x, y=0: self.n + x + y, 1, y=2),
            counter.__ray_call__.remote(lambda self: type(self).__name__),
        ]
    )


def contract_ray_ready() -> object:
    @ray.remote
    class Broken:
        def __init__(self):
            raise ValueError("boom")

    return [
        ray.get(Counter.remote().__ray_ready__.remote()),
        error_of(lambda: ray.get(Broken.remote().__ray_ready__.remote()), "boom"),
    ]


def contract_the_class_is_wrapped() -> object:
    return [
        hasattr(Counter, "remote"),
        hasattr(Counter, "options"),
        isinstance(Counter, ray.actor.ActorClass),
        "add" in dir(Counter),
        Counter.unit,
        Counter.__module__ == __name__,
    ]


def contract_ray_actor_class_is_the_users_class() -> object:
    user = Counter.__ray_actor_class__
    plain = user(2)
    return [
        user.__name__,
        [kind.__name__ for kind in user.__mro__],
        user.add.mark,
        user.add.__doc__,
        plain.add(3),
        isinstance(plain, Base),
    ]


def contract_methods_are_seen_through_the_actor_class() -> object:
    return [
        Counter.add.mark,
        callable(Counter.inherited),
        [name for name in dir(Counter) if name in ("add", "pid", "inherited")],
    ]


def contract_attributes_of_methods_are_there_in_the_actor() -> object:
    counter = Counter.remote()
    return ray.get(counter.__ray_call__.remote(lambda self: [type(self).add.mark, type(self).add.__doc__]))


def contract_the_users_class_may_be_subclassed() -> object:
    class More(Counter.__ray_actor_class__):
        def twice(self):
            return self.add() + self.add()

    more = ray.remote(More).remote(1)
    return ray.get([more.twice.remote(), more.add.remote(), more.inherited.remote()])


def contract_an_actor_class_itself_is_not_subclassed() -> object:
    def subclass():
        class More(Counter):
            pass

        return More

    return error_of(subclass)


def contract_a_class_made_by_type() -> object:
    made = type("Made", (Counter.__ray_actor_class__,), {"extra": lambda self: self.n * 10})
    return ray.get(ray.remote(made).remote(4).extra.remote())


def contract_remote_of_an_actor_class() -> object:
    return error_of(lambda: ray.remote(Counter))


def contract_options_keep_apart() -> object:
    one = Counter.options(name="handles_one")
    handles = [one.remote(), Counter.remote()]
    name = [handle.__ray_call__.remote(lambda self: ray.get_runtime_context().get_actor_name()) for handle in handles]
    return ray.get(name)


def contract_a_class_of_a_function_with_a_closure() -> object:
    def make(factor):
        class Scaled:
            def scale(self, x):
                return factor * x

        return ray.remote(Scaled)

    two, three = make(2).remote(), make(3).remote()
    return ray.get([two.scale.remote(5), three.scale.remote(5)])


def contract_an_actor_class_goes_to_tasks() -> object:
    @ray.remote
    def make(kind):
        return ray.get(kind.remote(7).add.remote())

    return ray.get([make.remote(Counter), make.remote(Counter.options(num_cpus=0))])


def contract_a_method_object_may_be_kept() -> object:
    counter = Counter.remote()
    add = counter.add
    return ray.get([add.remote(), add.remote(), getattr(counter, "add").remote()])  # noqa: B009


def contract_a_method_of_a_handle_in_one_line() -> object:
    """A method object keeps its actor while it is in use."""
    method = Counter.remote(1).add
    return ray.get(method.remote())


def contract_handles_returned_by_tasks() -> object:
    @ray.remote
    def make():
        return Counter.remote(1)

    counter = ray.get(make.remote())
    pid = ray.get(counter.pid.remote())
    values = ray.get([counter.add.remote(), counter.add.remote()])
    del counter
    return [values, until(lambda: not is_running(pid))]


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
