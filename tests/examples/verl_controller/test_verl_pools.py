# pyright: reportMissingImports=false
"""Resource pools: split, merged, taken over."""

import pytest

pytest.importorskip("verl", reason="verl is not installed")

import ray
from verl.single_controller.base import ResourcePool
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePoolManager,
)
from verl.single_controller.ray.base import (
    extract_pg_from_exist,
    merge_resource_pool,
    split_resource_pool,
)
from verl_workers import Player, one_rank


def test_what_a_pool_says_of_its_ranks() -> None:
    pool = ResourcePool([2, 3], max_colocate_count=4)
    assert pool.world_size == 5 and pool() == [2, 3]
    assert pool.local_world_size_list() == [2, 2, 3, 3, 3]
    assert pool.local_rank_list() == [0, 1, 0, 1, 2]
    pool.add_node(1)
    assert pool.store == [2, 3, 1] and pool.world_size == 6


def test_a_pool_has_a_placement_group_for_each_node() -> None:
    pool = RayResourcePool([2, 1], use_gpu=False, max_colocate_count=3, name_prefix="two")
    groups = pool.get_placement_groups()
    assert [group.bundle_count for group in groups] == [2, 1]
    assert all(bundle == {"CPU": 3} for group in groups for bundle in group.bundle_specs)
    assert pool.get_placement_groups() is not None and len(pool.get_placement_groups()) == 2
    table = ray.util.placement_group_table(groups[0])
    assert table["name"].startswith("twoverl_group_2_1:") and table["state"] == "CREATED"


def test_split_pools_hold_their_parts_of_the_bundles() -> None:
    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=2)
    first, second = split_resource_pool(pool, 1)
    assert (first.world_size, second.world_size) == (1, 1)
    groups = [RayWorkerGroup(part, RayClassWithInitArgs(Player, number)) for number, part in enumerate((first, second))]
    (place,), (other,) = (group.place() for group in groups)
    assert place[0] == other[0] == 0 and place[1] != other[1]
    assert [group.add(1) for group in groups] == [[1], [2]]
    with pytest.raises(AssertionError):
        split_resource_pool(pool, [1, 2])


def test_merged_pools_have_the_groups_of_both() -> None:
    one, two = (RayResourcePool([1], use_gpu=False, max_colocate_count=1) for _ in range(2))
    merged = merge_resource_pool(one, two)
    assert merged.world_size == 2 and merged.store == [1, 1]
    made = RayWorkerGroup(merged, RayClassWithInitArgs(Player, 1))
    assert [rank for rank, _ in made.place()] == [0, 1]


def test_groups_of_a_role_can_be_taken_over() -> None:
    have = {"small": RayResourcePool([1], use_gpu=False), "big": RayResourcePool([2], use_gpu=False)}
    found = extract_pg_from_exist(have, ["big"], RayResourcePool([1], use_gpu=False))
    assert [group.id for group in found] == [group.id for group in have["big"].get_placement_groups()]
    assert [group.bundle_count for group in found] == [2]


def test_groups_of_a_pool_share_its_devices() -> None:
    manager = ResourcePoolManager({"all": [2]}, mapping={"actor": "all", "critic": "all"}, max_colocate_count=2)
    manager.create_resource_pool()
    assert ray._private.state.available_resources_per_node().popitem()[1]["GPU"] == 2
    actor = RayWorkerGroup(manager.get_resource_pool("actor"), RayClassWithInitArgs(Player, 1), detached=True)
    critic = RayWorkerGroup(manager.get_resource_pool("critic"), RayClassWithInitArgs(Player, 2))
    assert actor.devices() == critic.devices() == [("0", ["0"]), ("1", ["1"])]
    assert {pid for _, pid in actor.place()}.isdisjoint(pid for _, pid in critic.place())
    again = RayWorkerGroup.from_detached(
        worker_names=actor.worker_names, ray_cls_with_init=RayClassWithInitArgs(Player)
    )
    assert again.place() == actor.place()


def test_pools_for_devices_that_are_not_there() -> None:
    manager = ResourcePoolManager({"all": [1000]}, mapping={0: "all"})
    assert manager.get_n_gpus() == 1000
    with pytest.raises(ValueError, match="less than total desired"):
        manager.create_resource_pool()


def test_the_same_port_for_all_is_one_of_those_allowed() -> None:
    made = one_rank(Player, 0, master_port_range=[20100, 20200])
    assert 20100 <= int(made.master_port) < 20200
