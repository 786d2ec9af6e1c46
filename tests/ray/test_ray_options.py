"""Options are checked where they are said; kinds of errors are those that Ray gives for the same."""

import pytest

from monarch_async.ray.options import (
    ActorOptions,
    MethodOptions,
    TaskOptions,
    check_actor_options,
    check_method_options,
    check_task_options,
)
from monarch_async.ray.strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

_BOTH = [
    ({"num_cpus": -1}, ValueError),
    ({"num_cpus": "1"}, TypeError),
    ({"num_cpus": 0.00001}, ValueError),
    ({"num_gpus": float("nan")}, ValueError),
    ({"resources": {"CPU": 1}}, ValueError),
    ({"resources": {"GPU": 1}}, ValueError),
    ({"resources": ["a"]}, TypeError),
    ({"resources": {"a": -1}}, ValueError),
    ({"resources": {"a": "b"}}, TypeError),
    ({"memory": -1}, ValueError),
    ({"memory": "1G"}, TypeError),
    ({"no_such_option": 1}, ValueError),
    ({"name": 1}, TypeError),
    ({"scheduling_strategy": 1}, TypeError),
    ({"scheduling_strategy": "SIDEWAYS"}, ValueError),
    ({"runtime_env": "x"}, TypeError),
    ({"runtime_env": {"env_vars": {"A": 1}}}, TypeError),
    ({"runtime_env": {"pip": ["numpy"]}}, NotImplementedError),
    ({"label_selector": 1}, TypeError),
    ({"label_selector": {"zone": "!a"}}, NotImplementedError),
    ({"accelerator_type": "A100"}, NotImplementedError),
    ({"fallback_strategy": [{}]}, NotImplementedError),
]
_TASK = [
    ({"num_returns": -1}, ValueError),
    ({"num_returns": 1.5}, TypeError),
    ({"num_returns": "many"}, TypeError),
    ({"num_returns": "dynamic"}, NotImplementedError),
    ({"max_retries": -2}, ValueError),
    ({"max_retries": 1.5}, TypeError),
    ({"retry_exceptions": 1}, TypeError),
    ({"retry_exceptions": ["x"]}, ValueError),
    ({"retry_exceptions": ValueError}, TypeError),
    ({"max_calls": -1}, ValueError),
    ({"namespace": "n"}, ValueError),
    ({"lifetime": "detached"}, ValueError),
    ({"max_restarts": 1}, ValueError),
    ({"max_concurrency": 2}, ValueError),
    ({"object_store_memory": 1}, ValueError),
]
_ACTOR = [
    ({"num_returns": 1}, ValueError),
    ({"max_retries": 1}, ValueError),
    ({"lifetime": "for ever"}, ValueError),
    ({"get_if_exists": True}, ValueError),
    ({"get_if_exists": 1, "name": "x"}, TypeError),
    ({"max_concurrency": -1}, ValueError),
    ({"max_concurrency": 2.5}, TypeError),
    ({"max_restarts": -2}, ValueError),
    ({"max_task_retries": -2}, ValueError),
    ({"concurrency_groups": 3}, TypeError),
    ({"concurrency_groups": {"io": 0}}, ValueError),
    ({"namespace": 1}, TypeError),
    ({"name": ""}, ValueError),
    ({"enable_tensor_transport": True}, NotImplementedError),
]


@pytest.mark.parametrize(("given", "kind"), _BOTH + _TASK, ids=str)
def test_wrong_option_of_a_task(given, kind):
    for check in (check_task_options, TaskOptions().merged):
        with pytest.raises(kind, match=next(iter(given))) as caught:
            check(given)
        assert type(caught.value) is kind


@pytest.mark.parametrize(("given", "kind"), _BOTH + _ACTOR, ids=str)
def test_wrong_option_of_an_actor(given, kind):
    with pytest.raises(kind, match=next(iter(given))) as caught:
        check_actor_options(given)
    assert type(caught.value) is kind


def test_given_ones_are_kept_and_all_others_are_none():
    options = check_task_options({"num_cpus": 0.5, "num_gpus": 1, "memory": 2.0, "resources": {"a": 1, "b": None}})
    assert (options.num_cpus, options.num_gpus, options.memory, options.resources) == (0.5, 1, 2, {"a": 1})
    assert options.max_retries is None and options.num_returns is None and options.retry_exceptions is False
    assert check_actor_options({}) == ActorOptions()


def test_merging_takes_what_is_said_later():
    options = check_task_options({"num_cpus": 2, "max_retries": 0, "name": "a"})
    merged = options.merged({"num_cpus": None, "name": "b", "retry_exceptions": [ValueError]})
    assert merged == TaskOptions(max_retries=0, name="b", retry_exceptions=(ValueError,))
    assert options.name == "a"


def test_what_is_fixed_where_it_is_defined_cannot_be_merged():
    assert check_task_options({"max_calls": 1}).max_calls == 1
    with pytest.raises(ValueError, match="max_calls"):
        TaskOptions().merged({"max_calls": 1})
    with pytest.raises(ValueError, match="concurrency_groups"):
        ActorOptions().merged({"concurrency_groups": {"io": 1}})


def test_get_if_exists_may_have_its_name_from_the_decorator():
    assert check_actor_options({"name": "x"}).merged({"get_if_exists": True}).get_if_exists
    with pytest.raises(ValueError, match="name"):
        ActorOptions().merged({"get_if_exists": True})


def test_defaults_said_in_words():
    assert check_actor_options({"lifetime": "non_detached"}).lifetime is None
    assert check_actor_options({"max_concurrency": 0}).max_concurrency is None
    assert check_task_options({"scheduling_strategy": "DEFAULT"}).scheduling_strategy == "DEFAULT"


def test_hints_change_nothing():
    hints = {"enable_task_events": False, "_labels": {"a": "b"}, "_num_objects_per_yield": 3}
    assert check_task_options(hints) == TaskOptions()
    assert check_actor_options({"allow_out_of_order_execution": True, "object_store_memory": 1}) == ActorOptions()


def test_concurrency_groups_may_be_a_list():
    groups = [{"name": "io", "max_concurrency": 2}, {"name": "compute", "max_concurrency": 4}]
    assert check_actor_options({"concurrency_groups": groups}).concurrency_groups == {"io": 2, "compute": 4}


def test_older_placement_group_options_become_a_strategy():
    said = check_task_options({"placement_group": None}).scheduling_strategy
    assert isinstance(said, PlacementGroupSchedulingStrategy) and said.placement_group is None
    affinity = NodeAffinitySchedulingStrategy("ab" * 28, soft=False)
    assert check_task_options({"scheduling_strategy": affinity}).scheduling_strategy is affinity
    with pytest.raises(ValueError, match="both"):
        check_task_options({"placement_group": None, "scheduling_strategy": "SPREAD"})
    with pytest.raises(TypeError, match="placement_group"):
        check_task_options({"placement_group": "x"})


def test_methods():
    options = check_method_options({"num_returns": 2, "concurrency_group": "io"})
    assert options == MethodOptions(num_returns=2, concurrency_group="io")
    assert options.merged({"num_returns": "streaming", "name": "n"}) == MethodOptions("streaming", "io", name="n")
    with pytest.raises(AssertionError, match="no such option"):
        check_method_options({"num_cpus": 1})
    with pytest.raises(ValueError, match="no such option"):
        options.merged({"num_cpus": 1})
