# pyright: reportMissingImports=false
"""Several roles in the same processes."""

import copy

import pytest

pytest.importorskip("verl", reason="verl is not installed")

from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
)
from verl_workers import Critic, Player, rows

RANKS = 2


def two_roles() -> dict[str, RayClassWithInitArgs]:
    return {"player": RayClassWithInitArgs(Player, 10), "critic": RayClassWithInitArgs(Critic, scale=2)}


@pytest.fixture(scope="module")
def fused(driver: None) -> RayWorkerGroup:
    pool = RayResourcePool([RANKS], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(pool, create_colocated_worker_cls_fused(two_roles()), name_prefix="fused")


def test_roles_of_a_fused_group_share_processes(fused: RayWorkerGroup) -> None:
    roles = fused.spawn({"player", "critic"})
    places = roles["player"].place()
    assert places == roles["critic"].place()
    assert [rank for rank, _ in places] == [0, 1] and places[0] != places[1]
    assert fused.worker_names == ["fusedFusedWorker_player_critic_0:0", "fusedFusedWorker_player_critic_0:1"]


def test_roles_of_a_fused_group_have_their_own_state_and_see_each_other(fused: RayWorkerGroup) -> None:
    roles = fused.spawn({"player", "critic"})
    number = roles["player"].add(1)[0]
    assert roles["player"].add(0) == [number] * 2
    assert roles["critic"].of_player() == [number * 2] * 2
    assert roles["player"].shifted(rows(4)).batch["x"].tolist() == [number, number + 1, number + 2, number + 3]


def test_fuse_makes_roles_attributes(fused: RayWorkerGroup) -> None:
    fused.fuse({"player", "critic"})
    assert fused.player.add(0) == [int(n / 2) for n in fused.critic.of_player()]
    with pytest.raises(AttributeError):
        _ = fused.critic.shifted


def test_a_fused_group_can_be_copied(fused: RayWorkerGroup) -> None:
    twin = copy.deepcopy(fused)
    assert [each._actor_id.hex() for each in twin.workers] == [each._actor_id.hex() for each in fused.workers]
    assert twin.spawn({"player"})["player"].place() == fused.spawn({"player"})["player"].place()


def test_one_class_with_the_methods_of_all_roles() -> None:
    pool = RayResourcePool([RANKS], use_gpu=False, max_colocate_count=1)
    both = RayWorkerGroup(pool, create_colocated_worker_cls(two_roles()), name_prefix="colocated")
    assert both.worker_names == ["colocatedWorkerDict_0:0", "colocatedWorkerDict_0:1"]
    assert both.player_add(1) == [11, 11]
    roles = both.spawn({"player", "critic"})
    assert roles["player"].add(1) == [12, 12]
    assert roles["player"].slowly(5) == [5, 6]
    assert roles["player"].place() == roles["critic"].place()
    assert roles["player"].shifted(rows(2)).batch["x"].tolist() == [12, 13]
