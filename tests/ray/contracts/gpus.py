"""GPUs, which are told by number: there need not be any for that."""

import os

import ray
from contract import answer, error_of, until
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


def seen() -> list:
    ids = ray.get_gpu_ids()
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [[int(each) for each in ids], told, ray.get_runtime_context().get_accelerator_ids()["GPU"]]


@ray.remote
def task():
    return seen()


@ray.remote
class Holder:
    def seen(self):
        return seen()


def all_free() -> bool:
    return until(lambda: ray.available_resources().get("GPU") == 2)


def contract_there_are_two() -> object:
    return [ray.cluster_resources()["GPU"], ray.nodes()[0]["Resources"]["GPU"], all_free()]


def contract_a_task_has_its_own() -> object:
    ids, told, accelerators = ray.get(task.options(num_gpus=1).remote())
    return [len(ids), told == str(ids[0]), accelerators == [str(ids[0])]]


def contract_actors_have_different_ones() -> object:
    all_free()
    holders = [Holder.options(num_gpus=1).remote() for _ in range(2)]
    return sorted(ray.get([holder.seen.remote() for holder in holders]))


def contract_both_at_once() -> object:
    all_free()
    return ray.get(task.options(num_gpus=2).remote())


def contract_halves() -> object:
    all_free()
    holders = [Holder.options(num_gpus=0.5).remote() for _ in range(4)]
    found = ray.get([holder.seen.remote() for holder in holders])
    return sorted(ids for ids, _, _ in found)


def contract_none_where_none_was_asked_for() -> object:
    return [ray.get(task.remote())[0], ray.get_gpu_ids()]


def contract_no_fractions_above_one() -> object:
    return error_of(lambda: task.options(num_gpus=1.5).remote())


def contract_held_ones_make_wait() -> object:
    all_free()
    holder = Holder.options(num_gpus=2).remote()
    ray.get(holder.seen.remote())
    ref = task.options(num_gpus=1).remote()
    early, _ = ray.wait([ref], timeout=0.3)
    ray.kill(holder)
    return [len(early), len(ray.get(ref, timeout=20)[0])]


def contract_bundles_have_their_own() -> object:
    all_free()
    group = ray.util.placement_group([{"GPU": 1, "CPU": 1}] * 2, strategy="PACK")
    ray.get(group.ready())
    holders = [
        Holder.options(num_gpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)).remote()
        for index in range(2)
    ]
    found = sorted(ray.get([holder.seen.remote() for holder in holders]))
    ray.util.remove_placement_group(group)
    return [found, all_free()]


def contract_shares_of_a_bundle() -> object:
    """Several actors on the GPU of one bundle, as fused worker groups have them."""
    all_free()
    group = ray.util.placement_group([{"GPU": 1, "CPU": 2}])
    ray.get(group.ready())
    strategy = PlacementGroupSchedulingStrategy(group, 0)
    holders = [Holder.options(num_gpus=0.4, num_cpus=1, scheduling_strategy=strategy).remote() for _ in range(2)]
    one, two = ray.get([holder.seen.remote() for holder in holders])
    ray.util.remove_placement_group(group)
    return [one == two, len(one[0]), all_free()]


def contract_the_variable_is_left_alone_where_asked() -> object:
    env = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
    holders = [Holder.options(num_gpus=1, runtime_env=env).remote() for _ in range(2)]
    found = sorted(ray.get([holder.seen.remote() for holder in holders]))
    for holder in holders:
        ray.kill(holder)
    ids, told, _ = ray.get(task.options(num_gpus=1, runtime_env=env).remote())
    return [found, len(ids), told]


if __name__ == "__main__":
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    answer(globals(), num_cpus=4, num_gpus=2)
