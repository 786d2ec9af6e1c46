"""Names of actors: get_actor, namespaces, get_if_exists, detached ones."""

import os

import ray
from contract import answer, differs, error_of, is_running, until


@ray.remote
class Counter:
    def __init__(self, start=0):
        self.n = start

    def add(self):
        self.n += 1
        return self.n

    def pid(self):
        return os.getpid()

    def name(self):
        return ray.get_runtime_context().get_actor_name()


def name_is_free(name: str, namespace: str | None = None) -> bool:
    try:
        ray.get_actor(name, namespace)
    except ValueError:
        return True
    return False


def contract_get_actor_finds_it_by_name() -> object:
    counter = Counter.options(name="one").remote()
    ray.get(counter.add.remote())
    found = ray.get_actor("one")
    return [ray.get(found.add.remote()), found._actor_id.hex() == counter._actor_id.hex(), ray.get(found.name.remote())]


def contract_get_actor_in_a_task_and_an_actor() -> object:
    counter = Counter.options(name="shared").remote()

    @ray.remote
    def task():
        return ray.get(ray.get_actor("shared").add.remote())

    @ray.remote
    class Asking:
        def ask(self):
            return ray.get(ray.get_actor("shared").add.remote())

    found = [ray.get(task.remote()), ray.get(Asking.remote().ask.remote())]
    del counter
    return found


def contract_an_unknown_name() -> object:
    return [error_of(lambda: ray.get_actor("nobody"), "nobody"), error_of(lambda: ray.get_actor(""))]


def contract_a_name_is_taken_once() -> object:
    kept = Counter.options(name="taken").remote()
    error = error_of(lambda: Counter.options(name="taken").remote(), "taken")
    return [error, ray.get(kept.add.remote())]


def contract_get_if_exists() -> object:
    one = Counter.options(name="only", get_if_exists=True).remote(10)
    two = Counter.options(name="only", get_if_exists=True).remote(20)
    return ray.get([one.add.remote(), two.add.remote()])


def contract_get_if_exists_wants_a_name() -> object:
    return error_of(lambda: Counter.options(get_if_exists=True).remote())


def contract_namespaces_are_apart() -> object:
    here = Counter.options(name="same").remote(1)
    there = Counter.options(name="same", namespace="elsewhere").remote(2)
    values = [ray.get(ray.get_actor("same").add.remote()), ray.get(ray.get_actor("same", "elsewhere").add.remote())]
    unknown = error_of(lambda: ray.get_actor("same", namespace="nowhere"))
    del here, there
    return [values, unknown]


def contract_a_killed_actor_frees_its_name() -> object:
    counter = Counter.options(name="freed").remote()
    ray.get(counter.add.remote())
    ray.kill(counter)
    freed = until(lambda: name_is_free("freed"))
    return [freed, ray.get(Counter.options(name="freed").remote().add.remote())]


def contract_a_named_actor_ends_with_its_handles() -> object:
    counter = Counter.options(name="brief").remote()
    pid = ray.get(counter.pid.remote())
    del counter
    return [until(lambda: not is_running(pid)), until(lambda: name_is_free("brief"))]


def contract_a_detached_actor_lives_on() -> object:
    pid = ray.get(Counter.options(name="lasting", lifetime="detached").remote().pid.remote())
    late = until(lambda: not is_running(pid), 0.5)
    again = ray.get_actor("lasting")
    found = [late, ray.get(again.add.remote())]
    ray.kill(again)
    return [*found, until(lambda: name_is_free("lasting"))]


def contract_a_detached_actor_outlives_its_maker() -> object:
    @ray.remote
    class Maker:
        def make(self):
            Counter.options(name="orphan", lifetime="detached").remote()
            return ray.get(ray.get_actor("orphan").add.remote())

    maker = Maker.remote()
    first = ray.get(maker.make.remote())
    ray.kill(maker)
    found = [first, ray.get(ray.get_actor("orphan").add.remote())]
    ray.kill(ray.get_actor("orphan"))
    return found


def contract_list_named_actors() -> object:
    kept = [Counter.options(name="listed").remote(), Counter.options(name="far", namespace="away").remote()]
    ray.get([counter.add.remote() for counter in kept])
    here = ray.util.list_named_actors()
    everywhere = ray.util.list_named_actors(all_namespaces=True)
    return ["listed" in here, "far" in here, {"name": "far", "namespace": "away"} in everywhere]


@differs("whoever has a handle keeps the actor, however it came by it", [False, False])
def contract_the_handle_of_a_name_is_no_owner() -> object:
    """What get_actor gave does not keep the actor alive."""
    counter = Counter.options(name="weak").remote()
    pid = ray.get(counter.pid.remote())
    found = ray.get_actor("weak")
    del counter
    ended = until(lambda: not is_running(pid), 2)
    return [ended, "RayActorError" in error_of(lambda: ray.get(found.add.remote())).get("types", [])]


def contract_options_of_the_decorator_and_of_the_call() -> object:
    @ray.remote(name="decorated", namespace="d")
    class Named:
        def name(self):
            context = ray.get_runtime_context()
            return context.get_actor_name(), context.namespace

    one, two = Named.remote(), Named.options(name="called").remote()
    return ray.get([one.name.remote(), two.name.remote()])


if __name__ == "__main__":
    answer(globals(), num_cpus=4, namespace="contracts")
