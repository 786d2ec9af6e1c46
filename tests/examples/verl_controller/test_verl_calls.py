# pyright: reportMissingImports=false
"""How calls of a group are split over its ranks and joined again: dispatch modes, futures, meshes, padding."""

import pytest

pytest.importorskip("verl", reason="verl is not installed")

import ray
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.protocol import DataProtoConfig, DataProtoFuture
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import (
    DISPATCH_MODE_FN_REGISTRY,
    Dispatch,
    get_predefined_dispatch_fn,
    register,
    register_dispatch_mode,
    update_dispatch_mode,
)
from verl.single_controller.ray import RayWorkerGroup
from verl_workers import Everything, Player, doubled, every_second, one_rank, only_last, rows


def test_only_registered_methods_are_methods_of_the_group(group: RayWorkerGroup) -> None:
    assert not hasattr(group, "not_registered")
    assert ray.get(group.execute_all("not_registered")) == [-1, -1]
    assert group.execute_all_sync("not_registered") == [-1, -1]
    assert group.execute_rank_zero_sync("not_registered") == -1


def test_one_to_all_gives_the_same_to_all_and_keeps_the_order_of_ranks(group: RayWorkerGroup) -> None:
    before = [number for _, _, number, *_ in group.itself()]
    assert group.add(2) == [number + 2 for number in before]
    assert group.add(1, times=3) == [number + 5 for number in before]


def test_one_rank_answers_for_all(group: RayWorkerGroup) -> None:
    assert group.only_on_zero() == 0


def test_all_to_all_passes_what_it_is_given(group: RayWorkerGroup) -> None:
    assert group.same_for_all(["a", "b"]) == ["a", "b"]  # a list with one for each rank is dealt out
    assert group.same_for_all(7) == [7, 7]
    assert group.same_for_all([1, 2, 3]) == [[1, 2, 3]] * 2


def test_dp_compute_deals_out_a_list_and_wants_one_for_each(group: RayWorkerGroup) -> None:
    assert group.own_share([None, {"a": 1}]) == [(0, None), (1, {"a": 1})]
    with pytest.raises(AssertionError):
        group.own_share([1, 2, 3])


def test_what_is_split_is_joined_in_order(group: RayWorkerGroup) -> None:
    out = group.part(rows(6, note="kept"))
    assert out.batch["x"].tolist() == [1, 2, 3, 4, 5, 6]
    assert out.batch["rank"].tolist() == [0, 0, 0, 1, 1, 1]
    assert out.meta_info == {"note": "kept"}


def test_metrics_are_not_joined(group: RayWorkerGroup) -> None:
    assert group.metric(rows(4)) == [{"sum": 1.0, "rows": 2}, {"sum": 5.0, "rows": 2}]


def test_a_function_travels_with_its_part(group: RayWorkerGroup) -> None:
    assert group.execute_with_func_generator(doubled, rows(4)).batch["x"].tolist() == [0, 2, 5, 7]
    shift = 100
    lifted = group.execute_with_func_generator(lambda worker, data: doubled(worker, data, shift), rows(2))
    assert lifted.batch["x"].tolist() == [0, 101]


def test_a_function_runs_on_rank_zero(group: RayWorkerGroup) -> None:
    shift = 3
    assert group.execute_func_rank_zero(lambda x: x + shift, 4) == 7


def test_own_modes_split_and_join_as_they_say(group: RayWorkerGroup) -> None:
    assert group.own_mode(10) == 10  # the last rank's: 10 * 1
    assert group.own_mode(10, plus=5) == 15


def test_a_mode_can_be_registered_and_changed() -> None:
    mode = register_dispatch_mode("TEST_MODE", every_second, only_last)
    try:
        mode = Dispatch.TEST_MODE if mode is None else mode
        assert get_predefined_dispatch_fn(mode) == {"dispatch_fn": every_second, "collect_fn": only_last}
        with pytest.raises(ValueError, match="already registered"):
            register_dispatch_mode("TEST_MODE", every_second, only_last)
        update_dispatch_mode(mode, only_last, every_second)
        assert get_predefined_dispatch_fn(mode) == {"dispatch_fn": only_last, "collect_fn": every_second}
    finally:
        DISPATCH_MODE_FN_REGISTRY.pop(Dispatch.TEST_MODE)
        Dispatch.remove("TEST_MODE")


def test_a_mode_needs_both_functions() -> None:
    with pytest.raises(AssertionError, match="collect_fn"):
        register(dispatch_mode={"dispatch_fn": every_second})
    with pytest.raises(AssertionError):
        register(dispatch_mode="ONE_TO_ALL")


def test_direct_rollout_methods_cannot_be_called_on_a_group(group: RayWorkerGroup) -> None:
    mode = get_predefined_dispatch_fn(Dispatch.DIRECT_ROLLOUT_METHOD)
    with pytest.raises(NotImplementedError):
        mode["dispatch_fn"](group)


def test_methods_may_be_coroutines() -> None:
    player = one_rank(Player, 1)
    assert player.slowly(5) == [5]
    assert player.shifted(rows(2)).batch["x"].tolist() == [1, 2]


# not waited for


def test_calls_that_are_not_waited_for_give_refs(group: RayWorkerGroup) -> None:
    refs = group.later(1)
    assert all(isinstance(ref, ray.ObjectRef) for ref in refs)
    assert ray.get(refs) == [1, 2]


def test_calls_that_are_not_waited_for_run_in_order(group: RayWorkerGroup) -> None:
    before = len(group.in_which_order()[0])
    refs = [group.later(number) for number in range(20)]
    assert [order[before:] for order in group.in_which_order()] == [list(range(20))] * 2
    assert ray.get([ref for pair in refs for ref in pair]) == [n + rank for n in range(20) for rank in (0, 1)]


def test_a_future_of_data_is_fetched_by_the_driver(group: RayWorkerGroup) -> None:
    future = group.part_later(rows(4))
    assert isinstance(future, DataProtoFuture)
    assert future.get().batch["x"].tolist() == [0, 10, 20, 30]


def test_a_future_of_data_is_fetched_by_the_workers_it_goes_to(group: RayWorkerGroup) -> None:
    out = group.part(group.part_later(group.part_later(rows(4))))  # the driver keeps none of these refs
    assert out.batch["x"].tolist() == [1, 101, 201, 301]
    assert out.batch["rank"].tolist() == [0, 0, 1, 1]


def test_a_future_goes_from_one_group_to_another(group: RayWorkerGroup) -> None:
    out = one_rank(Everything).part(group.part_later(rows(4)))
    assert out.batch["x"].tolist() == [1, 11, 21, 31]
    assert out.batch["rank"].tolist() == [0, 0, 0, 0]


def test_megabytes_travel_through_futures(group: RayWorkerGroup) -> None:
    data = DataProto.from_dict({"x": torch.arange(1 << 20, dtype=torch.float64)})
    out = group.part(group.part_later(data))
    assert torch.equal(out.batch["x"], data.batch["x"] * 10 + 1)


# meshes


def test_a_mesh_deals_out_by_its_ranks(group: RayWorkerGroup) -> None:
    out = group.along_dp(rows(4))
    assert out.batch["x"].tolist() == [0, 1, 2, 3]
    assert out.batch["rank"].tolist() == [0, 0, 1, 1]


def test_ranks_of_one_replica_get_the_same_and_one_answers(group: RayWorkerGroup) -> None:
    out = group.along_tp(rows(4))
    assert out.batch["x"].tolist() == [0, 1, 2, 3]
    assert out.batch["rank"].tolist() == [0, 0, 0, 0]


def test_a_mesh_takes_tensordicts(group: RayWorkerGroup) -> None:
    out = group.tensors_along_dp(TensorDict({"x": torch.arange(4)}, batch_size=4))
    assert out["x"].tolist() == [0, 3, 6, 9]


def test_a_mesh_takes_and_gives_futures(group: RayWorkerGroup) -> None:
    out = group.along_dp(group.along_dp_later(group.part_later(rows(4))))
    assert out.batch["x"].tolist() == [-1, 9, 19, 29]


def test_a_group_asks_its_workers_once_about_a_mesh(group: RayWorkerGroup) -> None:
    group.along_dp(rows(2))
    group.along_tp(rows(2))
    assert group._dispatch_info == {"dp": [0, 1], "tp": [0, 0]}
    assert group._collect_info == {"dp": [True, True], "tp": [True, False]}
    assert ray.get(group.workers[1].get_dispatch_collect.remote()) == {
        "dispatch_dp_rank": {"dp": 1, "tp": 0},
        "collect_dp_rank": {"dp": True, "tp": False},
    }


def test_a_mesh_that_nobody_registered(group: RayWorkerGroup) -> None:
    with pytest.raises(AssertionError, match="nowhere"):
        group._query_dispatch_info("nowhere")


@pytest.fixture
def plain_worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker in this process, with no group around it."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}.items():
        monkeypatch.setenv(name, value)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "REDIS_STORE_SERVER_HOST"):  # the worker sets them
        monkeypatch.setenv(name, "0")
    return Worker()


def test_what_a_worker_knows_of_meshes(plain_worker: Worker) -> None:
    plain_worker._register_dispatch_collect_info("a", dp_rank=3, is_collect=False)
    with pytest.raises(ValueError, match="a has been registered"):
        plain_worker._register_dispatch_collect_info("a", dp_rank=1, is_collect=True)
    assert plain_worker._query_dispatch_info("a") == 3
    assert plain_worker._query_collect_info("a") is False
    plain_worker.set_dispatch_collect("b", dispatch_dp_rank={"a": 3}, collect_dp_rank={"a": True})
    assert plain_worker.get_dispatch_collect() == {
        "dispatch_dp_rank": {"a": 3, "b": 3},
        "collect_dp_rank": {"a": False, "b": True},
    }
    with pytest.raises(AssertionError, match="already registered"):
        plain_worker.set_dispatch_collect("b", dispatch_dp_rank={"b": 0}, collect_dp_rank={"b": True})


# padding


@pytest.mark.parametrize("count", [1, 3, 5, 6])
def test_what_does_not_divide_is_padded_and_cut_again(group: RayWorkerGroup, count: int) -> None:
    data = DataProto.from_dict({"x": torch.arange(count)}, auto_padding=True)
    out = group.part(data)
    assert out.batch["x"].tolist() == list(range(1, count + 1))


def test_answers_that_are_not_data_are_cut_too(group: RayWorkerGroup) -> None:
    data = DataProto.from_dict({"x": torch.arange(3)}, auto_padding=True)
    assert group.metric(data) == [{"sum": 1.0, "rows": 2}]


def test_without_padding_it_is_an_error(group: RayWorkerGroup) -> None:
    with pytest.raises(AssertionError):
        group.part(rows(3))


def test_padding_for_the_whole_program(group: RayWorkerGroup) -> None:
    DataProtoConfig.auto_padding = True
    try:
        assert group.part(rows(3)).batch["x"].tolist() == [1, 2, 3]
    finally:
        DataProtoConfig.auto_padding = False
