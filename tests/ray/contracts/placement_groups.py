"""Placement groups: made, waited for, used, looked up, removed."""

import os
import pickle

import ray
from contract import answer, error_of, is_running, until
from ray.util.placement_group import PlacementGroup, get_current_placement_group, get_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def pid():
    return os.getpid()


@ray.remote
class Sitting:
    def pid(self):
        return os.getpid()

    def has_group(self):
        return get_current_placement_group() is not None


def free(name: str = "CPU") -> float:
    return ray.available_resources().get(name, 0.0)


def all_free() -> bool:
    return until(lambda: free() == ray.cluster_resources()["CPU"])


def made(bundles, **options) -> PlacementGroup:
    group = ray.util.placement_group(bundles, **options)
    assert group.wait(20)
    return group


def contract_ready_is_a_ref() -> object:
    group = ray.util.placement_group([{"CPU": 1}])
    ready = group.ready()
    got = ray.get(ready, timeout=20)
    found = [isinstance(ready, ray.ObjectRef), type(got).__name__, got.id == group.id]
    ray.util.remove_placement_group(group)
    return found


def contract_wait_says_whether_it_is_there() -> object:
    group = ray.util.placement_group([{"CPU": 1}])
    too_big = ray.util.placement_group([{"CPU": 1000}])
    found = [group.wait(20), too_big.wait(0.3), group.wait(timeout_seconds=20)]
    for each in (group, too_big):
        ray.util.remove_placement_group(each)
    return found


def contract_what_a_group_says_of_itself() -> object:
    group = made([{"CPU": 1}, {"CPU": 2}])
    found = [group.bundle_count, group.bundle_specs, len(group.id.hex()), isinstance(group, PlacementGroup)]
    ray.util.remove_placement_group(group)
    return found


def contract_groups_are_hashable_and_pickle() -> object:
    group, other = made([{"CPU": 1}]), made([{"CPU": 1}])
    again = pickle.loads(pickle.dumps(group))
    found = [again == group, group == other, len({group, again, other}), again.bundle_specs, again.bundle_count]
    for each in (group, other):
        ray.util.remove_placement_group(each)
    return found


def contract_strategies_on_one_node() -> object:
    found = {}
    for strategy in ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"):
        group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}], strategy=strategy)
        found[strategy] = group.wait(0.5 if strategy == "STRICT_SPREAD" else 20)
        ray.util.remove_placement_group(group)
    return found


def contract_wrong_groups() -> object:
    wrong = [([], {}), ([{}], {}), ([{"CPU": 0}], {}), ([{"CPU": 1}], {"strategy": "NO"})]
    wrong += [({"CPU": 1}, {}), ([{"CPU": 1}], {"lifetime": "long"}), ([5], {}), ([{"CPU": "1"}], {})]
    return [
        [str(given), error_of(lambda given=given: ray.util.placement_group(given[0], **given[1]))] for given in wrong
    ]


def contract_the_table() -> object:
    group = made([{"CPU": 1}, {"CPU": 2}], strategy="PACK", name="tabled")
    row = ray.util.placement_group_table(group)
    everything = ray.util.placement_group_table()
    node = ray.nodes()[0]["NodeID"]
    found = [
        row["state"],
        row["strategy"],
        row["name"],
        {str(index): bundle["CPU"] for index, bundle in row["bundles"].items()},
        {str(index): where == node for index, where in row["bundles_to_node_id"].items()},
        row["placement_group_id"] == group.id.hex(),
        group.id.hex() in everything,
    ]
    ray.util.remove_placement_group(group)
    return [*found, until(lambda: ray.util.placement_group_table(group)["state"] == "REMOVED")]


def contract_a_group_holds_its_resources() -> object:
    start = all_free()
    group = made([{"CPU": 1}, {"CPU": 2}])
    held = until(lambda: free() == ray.cluster_resources()["CPU"] - 3)
    ray.util.remove_placement_group(group)
    return [start, held, all_free()]


def contract_tasks_in_bundles() -> object:
    group = made([{"CPU": 1}, {"CPU": 1}])
    strategies = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=n) for n in (0, 1, -1)]
    strategies.append(PlacementGroupSchedulingStrategy(placement_group=group))
    found = [isinstance(ray.get(pid.options(scheduling_strategy=each).remote()), int) for each in strategies]
    ray.util.remove_placement_group(group)
    return found


def contract_actors_in_bundles() -> object:
    group = made([{"CPU": 1}, {"CPU": 1}])
    actors = [
        Sitting.options(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)).remote()
        for index in (0, 1)
    ]
    found = [len(set(ray.get([actor.pid.remote() for actor in actors]))), ray.get(actors[0].has_group.remote())]
    ray.util.remove_placement_group(group)
    return found


def contract_a_full_bundle_makes_wait() -> object:
    group = made([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    holder = Sitting.options(num_cpus=1, scheduling_strategy=strategy).remote()
    ray.get(holder.pid.remote())
    ref = pid.options(scheduling_strategy=strategy).remote()
    early = len(ray.wait([ref], timeout=0.3)[0])
    ray.kill(holder)
    found = [early, isinstance(ray.get(ref, timeout=20), int)]
    ray.util.remove_placement_group(group)
    return found


def contract_a_bundle_that_is_not_there() -> object:
    group = made([{"CPU": 1}])
    wrong = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index) for index in (1, -2)]
    found = [error_of(lambda each=each: pid.options(scheduling_strategy=each).remote()) for each in wrong]
    ray.util.remove_placement_group(group)
    return found


def contract_what_does_not_fit_a_bundle_is_refused() -> object:
    group = made([{"CPU": 1}])
    whole = PlacementGroupSchedulingStrategy(group)
    found = [
        error_of(lambda: pid.options(num_cpus=2, scheduling_strategy=whole).remote()),
        error_of(lambda: pid.options(resources={"other": 1}, scheduling_strategy=whole).remote()),
        error_of(lambda: Sitting.options(num_cpus=2, scheduling_strategy=whole).remote()),
    ]
    ray.util.remove_placement_group(group)
    return found


def contract_removal_ends_the_actors_in_it() -> object:
    group = made([{"CPU": 1}])
    actor = Sitting.options(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()
    number = ray.get(actor.pid.remote())
    ray.util.remove_placement_group(group)
    ended = until(lambda: not is_running(number))
    return [ended, "RayActorError" in error_of(lambda: ray.get(actor.pid.remote())).get("types", [])]


def contract_removal_twice() -> object:
    group = made([{"CPU": 1}])
    return [ray.util.remove_placement_group(group), ray.util.remove_placement_group(group)]


def contract_groups_by_name() -> object:
    group = made([{"CPU": 1}], name="known")
    found = [get_placement_group("known").id == group.id, get_placement_group("known").bundle_specs]
    ray.util.remove_placement_group(group)
    return [*found, error_of(lambda: get_placement_group("unknown"), "unknown")]


def contract_the_current_group() -> object:
    @ray.remote
    def group_id():
        group = get_current_placement_group()
        return None if group is None else group.id.hex()

    group = made([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(group)
    inside = ray.get(group_id.options(scheduling_strategy=strategy).remote())
    found = [get_current_placement_group(), ray.get(group_id.remote()), inside == group.id.hex()]
    ray.util.remove_placement_group(group)
    return found


def contract_children_are_in_the_group_where_asked() -> object:
    @ray.remote(num_cpus=0)
    def group_id():
        group = get_current_placement_group()
        return None if group is None else group.id.hex()

    @ray.remote(num_cpus=1)
    def parent():
        return ray.get(group_id.remote())

    group = made([{"CPU": 1}])
    found = []
    for capture in (True, False):
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=capture)
        found.append(ray.get(parent.options(scheduling_strategy=strategy).remote()) == group.id.hex())
    ray.util.remove_placement_group(group)
    return found


def contract_a_group_made_in_a_task() -> object:
    @ray.remote
    def make():
        group = ray.util.placement_group([{"CPU": 1}], lifetime="detached", name="from a task")
        ray.get(group.ready())
        return group

    group = ray.get(make.remote())
    found = [
        group.wait(20),
        isinstance(ray.get(pid.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()), int),
    ]
    ray.util.remove_placement_group(group)
    return found


def contract_a_group_waits_for_room() -> object:
    first = made([{"CPU": 4}])
    second = ray.util.placement_group([{"CPU": 1}])
    early = second.wait(0.3)
    ray.util.remove_placement_group(first)
    found = [early, second.wait(20)]
    ray.util.remove_placement_group(second)
    return found


def contract_old_ways_to_name_the_group() -> object:
    group = made([{"CPU": 1}])
    found = isinstance(ray.get(pid.options(placement_group=group, placement_group_bundle_index=0).remote()), int)
    ray.util.remove_placement_group(group)
    return found


def contract_the_private_table_that_verl_reads() -> object:
    group = made([{"CPU": 1}, {"CPU": 1}])
    row = ray._private.state.state.placement_group_table(group.id)
    nodes = [node["NodeID"] for node in ray.nodes()]
    found = [
        [where in nodes for _, where in sorted(row["bundles_to_node_id"].items())],
        sorted(map(str, row["bundles"])),
    ]
    ray.util.remove_placement_group(group)
    return found


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
