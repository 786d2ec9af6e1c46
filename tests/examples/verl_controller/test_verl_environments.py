# pyright: reportMissingImports=false
"""What verl tells its workers, what they are called, and how they fail."""

import os

import pytest

pytest.importorskip("verl", reason="verl is not installed")

import ray
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl_workers import Everything, one_rank

REAL_RAY = "monarch_async" not in str(ray.__file__)


def test_each_rank_is_told_where_it_is(group: RayWorkerGroup) -> None:
    told = group.environment()
    assert [(env["RANK"], env["WORLD_SIZE"]) for env in told] == [("0", "2"), ("1", "2")]
    assert {env["RAY_LOCAL_WORLD_SIZE"] for env in told} == {"2"}
    assert {env["WG_BACKEND"] for env in told} == {"ray"}
    assert {env["WG_PREFIX"] for env in told} == {"every"}
    assert {env["MASTER_PORT"] for env in told} == {group.master_port}
    assert {env["MASTER_ADDR"] for env in told} == {group.master_address} == {ray.util.get_node_ip_address()}


def test_workers_have_the_settings_of_their_group_and_no_other(group: RayWorkerGroup) -> None:
    assert {env["OWN_SETTING"] for env in group.environment()} == {"on"}
    assert "OWN_SETTING" not in os.environ and "RANK" not in os.environ


def test_a_setting_that_verl_makes_itself_is_refused(group: RayWorkerGroup) -> None:
    made = RayClassWithInitArgs(Everything)
    with pytest.raises(ValueError, match="protected"):
        RayWorkerGroup(group.resource_pool, made, worker_env={"RANK": "7"}, master_addr="127.0.0.1", master_port="1")


def test_workers_are_processes_with_the_arguments_of_their_class(group: RayWorkerGroup) -> None:
    ranks, sizes, _, names, pids, masters = zip(*group.itself(), strict=True)
    assert ranks == (0, 1) and set(sizes) == {2} and set(names) == {"of a group"}
    assert len({os.getpid(), *pids}) == 3
    assert set(masters) == {(group.master_address, group.master_port)}


def test_workers_have_the_name_of_their_class(group: RayWorkerGroup) -> None:
    assert group.worker_names == ["everyEverything_0:0", "everyEverything_0:1"]
    found = [ray.get_actor(name=name) for name in group.worker_names]
    assert [each._actor_id.hex() for each in found] == [each._actor_id.hex() for each in group.workers]
    assert ray.get([each.only_on_zero.remote() for each in found]) == [0, 1]


def test_a_second_group_finds_the_workers_of_the_first(group: RayWorkerGroup) -> None:
    made = RayClassWithInitArgs(Everything)
    again = RayWorkerGroup.from_detached(worker_names=group.worker_names, ray_cls_with_init=made)
    assert again.world_size == 2
    assert [pid for *_, pid, _ in again.itself()] == [pid for *_, pid, _ in group.itself()]


# failures


@pytest.mark.parametrize("rank", [0, 1])
def test_the_error_of_a_rank_is_the_error_of_the_call(group: RayWorkerGroup, rank: int) -> None:
    with pytest.raises(KeyError, match=f"rank {rank}") as caught:
        group.fail(rank)
    assert isinstance(caught.value, ray.exceptions.RayTaskError)
    assert group.same_for_all(1) == [1, 1]


def kill_only(group: RayWorkerGroup) -> None:
    """Kill the only worker; return when its calls say so."""
    ray.kill(group.workers[0])
    with pytest.raises(ray.exceptions.RayActorError):
        for _ in range(10_000):  # a kill is on its way while calls are still answered
            group.itself()


def test_the_death_of_a_worker_is_the_error_of_the_call() -> None:
    doomed = one_rank(Everything)
    doomed.itself()
    kill_only(doomed)


@pytest.mark.skipif(REAL_RAY, reason="asks Ray's dashboard, which comes with ray[default] only")
def test_whether_a_worker_lives(group: RayWorkerGroup) -> None:
    doomed = one_rank(Everything)
    doomed.itself()
    assert doomed._is_worker_alive(doomed.workers[0])
    kill_only(doomed)
    assert not doomed._is_worker_alive(doomed.workers[0])
    assert group._is_worker_alive(group.workers[0])
