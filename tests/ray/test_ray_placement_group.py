"""Placement groups through the facade alone."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch_async import ray
from monarch_async.ray.exceptions import GetTimeoutError, RayActorError, RaySystemError, TaskPlacementGroupRemoved
from monarch_async.ray.util import placement_group_table, remove_placement_group
from monarch_async.ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
)
from monarch_async.ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@pytest.fixture(scope="module", autouse=True)
def driver() -> Iterator[None]:
    ray.init(num_cpus=4, num_gpus=2, resources={"tokens": 2})
    yield
    ray.shutdown()


@pytest.fixture
def groups() -> Iterator[Callable[..., PlacementGroup]]:
    """Makes groups, which end with the test; nobody holds anything then."""
    made: list[PlacementGroup] = []

    def make(bundles: list[dict[str, float]], **options: Any) -> PlacementGroup:
        made.append(placement_group(bundles, **options))
        return made[-1]

    yield make
    for group in made:
        remove_placement_group(group)
    assert until(lambda: ray.available_resources() == ray.cluster_resources()), ray.available_resources()


Make = Callable[..., PlacementGroup]


def until(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not (found := is_so()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def within(group: PlacementGroup | None, bundle: int = -1, captures: bool | None = None) -> dict[str, Any]:
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, bundle, captures)}


@ray.remote
def where() -> tuple[str | None, str | None]:
    group = get_current_placement_group()
    return (None if group is None else group.id.hex()), os.environ.get("CUDA_VISIBLE_DEVICES")


@ray.remote
def sleep_long() -> None:
    time.sleep(60)


@ray.remote
class Member:
    def where(self) -> tuple[str | None, str | None]:
        group = get_current_placement_group()
        return (None if group is None else group.id.hex()), os.environ.get("CUDA_VISIBLE_DEVICES")

    def child(self, **options: Any) -> str | None:
        return ray.get(where.options(num_cpus=0, **options).remote())[0]

    def make(self) -> PlacementGroup:
        group = placement_group([{"CPU": 1}])
        assert group.wait(10)
        return group


# -- what a group is -----------------------------------------------------------------------------------------------


def test_ready_is_a_reference_to_the_group(groups: Make) -> None:
    group = groups([{"CPU": 1, "GPU": 1}, {"CPU": 1}])
    got = ray.get(group.ready(), timeout=10)
    assert (got, got.bundle_specs) == (group, group.bundle_specs)
    assert group.wait(1)
    assert group.wait(timeout_seconds=1)


def test_what_a_group_says_of_itself(groups: Make) -> None:
    group, other = groups([{"CPU": 1}, {"CPU": 1, "GPU": 0}]), groups([{"CPU": 1}])
    assert group.bundle_count == 2
    assert group.bundle_specs == [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 0.0}]
    again = pickle.loads(pickle.dumps(group))
    assert again == group != other
    assert len({group, again, other}) == 2
    assert group.id == again.id and group.id.hex() == group.id.binary().hex()
    assert not group.is_empty and PlacementGroup.empty().is_empty


def test_the_table_has_a_row_for_each_group(groups: Make) -> None:
    group = groups([{"CPU": 1}, {"GPU": 1}], name="tabled", strategy="STRICT_PACK")
    assert group.wait(10)
    row = placement_group_table(group)
    node = ray.nodes()[0]["NodeID"]
    assert row["placement_group_id"] == group.id.hex()
    assert (row["name"], row["strategy"], row["state"]) == ("tabled", "STRICT_PACK", "CREATED")
    assert row["bundles"] == {0: {"CPU": 1.0}, 1: {"GPU": 1.0}}
    assert row["bundles_to_node_id"] == {0: node, 1: node}
    assert row["stats"]["end_to_end_creation_latency_ms"] > 0
    assert placement_group_table()[group.id.hex()] == row
    remove_placement_group(group)
    assert until(lambda: placement_group_table(group)["state"] == "REMOVED")
    assert placement_group_table(PlacementGroup.empty()) == {}


def test_groups_by_name(groups: Make) -> None:
    group = groups([{"CPU": 1}], name="known")
    found = get_placement_group("known")
    assert (found, found.bundle_specs) == (group, [{"CPU": 1.0}])
    with pytest.raises(RaySystemError, match="known"):
        placement_group([{"CPU": 1}], name="known")
    remove_placement_group(group)
    for name in ("known", "unknown", ""):
        with pytest.raises(ValueError, match="placement group"):
            get_placement_group(name)
    assert groups([{"CPU": 1}], name="known").wait(10)


@pytest.mark.parametrize(
    ("bundles", "options"),
    [
        ([], {}), ([{}], {}), ([{"CPU": 0}], {}), ([{"CPU": "1"}], {}), ({"CPU": 1}, {}), (None, {}),
        ([{"CPU": 1}], {"strategy": "NO"}), ([{"CPU": 1}], {"lifetime": "long"}),
        ([{"CPU": 1}], {"_soft_target_node_id": "ab" * 28}),
    ],
)  # fmt: skip
def test_wrong_groups(bundles: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # which of them it is says the text
        placement_group(bundles, **options)


def test_the_module_and_the_function_have_one_name() -> None:
    """Whatever was imported first."""
    code = (
        "import monarch_async.ray; monarch_async.ray.install(); import ray; from ray.util.placement_group import"
        " PlacementGroup; import ray.util.placement_group; from ray.util import placement_group as function;"
        " assert ray.util.placement_group is function is not ray.util.scheduling_strategies;"
        " assert PlacementGroup.__module__ == 'monarch_async.ray.placement_group'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_group_waits_for_room(groups: Make) -> None:
    first, second = groups([{"CPU": 4}]), groups([{"CPU": 1}])
    assert first.wait(10)
    assert not second.wait(0.1)
    assert placement_group_table(second)["state"] == "PENDING"
    remove_placement_group(first)
    assert second.wait(10)


def test_one_that_fits_nowhere_waits(groups: Make) -> None:
    for group in groups([{"CPU": 100}]), groups([{"CPU": 1}] * 2, strategy="STRICT_SPREAD"):
        ready = group.ready()
        assert not group.wait(0.1)
        assert placement_group_table(group)["bundles_to_node_id"][0] == ""
        remove_placement_group(group)
        with pytest.raises(TaskPlacementGroupRemoved):
            ray.get(ready, timeout=10)
        with pytest.raises(TaskPlacementGroupRemoved):
            group.wait(1)


# -- what runs in it -----------------------------------------------------------------------------------------------


def test_tasks_in_bundles(groups: Make) -> None:
    group = groups([{"CPU": 1, "GPU": 1}, {"CPU": 1}])
    for given in within(group), within(group, 0), within(group, 1), {"placement_group": group}:
        assert ray.get(where.options(**given).remote(), timeout=10)[0] == group.id.hex()
    assert ray.get(where.options(num_gpus=1, **within(group)).remote(), timeout=10)[1] in ("0", "1")
    assert ray.get(where.remote(), timeout=10)[0] is None
    assert get_current_placement_group() is None


def test_actors_in_bundles(groups: Make) -> None:
    group = groups([{"CPU": 1, "GPU": 1}] * 2)
    members = [Member.options(num_gpus=1, **within(group, bundle)).remote() for bundle in (1, -1)]
    seen = ray.get([member.where.remote() for member in members], timeout=10)
    assert sorted(seen) == [(group.id.hex(), "0"), (group.id.hex(), "1")]
    third = Member.options(num_cpus=1, **within(group)).remote()
    with pytest.raises(GetTimeoutError):
        ray.get(third.where.remote(), timeout=0.2)
    ray.kill(members[0])
    assert ray.get(third.where.remote(), timeout=10)[0] == group.id.hex()


def test_what_does_not_fit_is_refused_at_once(groups: Make) -> None:
    group = groups([{"CPU": 1, "GPU": 1}, {"CPU": 1}])
    for given in (
        {"num_cpus": 3, **within(group)},
        {"resources": {"other": 1}, **within(group)},
        {"num_gpus": 1, **within(group, 1)},
        within(group, 2),
        within(group, -2),
    ):
        for remote in where, Member:
            with pytest.raises(ValueError, match="group"):
                remote.options(**given).remote()


def test_children_go_to_the_group_of_their_parent_where_it_captures_them(groups: Make) -> None:
    group = groups([{"CPU": 1}])
    captures, lets_go = [Member.options(**within(group, 0, captured)).remote() for captured in (True, False)]
    assert ray.get(captures.child.remote(), timeout=10) == group.id.hex()
    assert ray.get(lets_go.child.remote(), timeout=10) is None
    assert ray.get(captures.child.remote(**within(None)), timeout=10) is None


def test_a_group_made_in_an_actor_is_there_for_all(groups: Make) -> None:
    member = Member.remote()
    group = ray.get(member.make.remote(), timeout=10)
    assert group.wait(1)
    assert ray.get(where.options(**within(group)).remote(), timeout=10)[0] == group.id.hex()
    remove_placement_group(group)
    ray.kill(member)


# -- its end -------------------------------------------------------------------------------------------------------


def test_removing_a_group_ends_what_runs_in_it(groups: Make) -> None:
    group = groups([{"CPU": 3}])
    member = Member.options(num_cpus=1, max_restarts=3, **within(group)).remote()
    ray.get(member.where.remote(), timeout=10)
    running = sleep_long.options(num_cpus=2, **within(group)).remote()
    waiting = sleep_long.options(num_cpus=2, **within(group)).remote()
    assert not ray.wait([running, waiting], timeout=0.3)[0]
    remove_placement_group(group)
    remove_placement_group(group)
    for ref in running, waiting:
        with pytest.raises(TaskPlacementGroupRemoved):
            ray.get(ref, timeout=10)
    with pytest.raises(RayActorError):
        ray.get(member.where.remote(), timeout=10)


def test_creating_and_removing_many(groups: Make) -> None:
    for _ in range(3):
        many = [groups([{"tokens": 0.001}] * 2) for _ in range(100)]
        assert all(group.wait(30) for group in many)
        for group in many:
            remove_placement_group(group)


def test_async_waiting(groups: Make) -> None:
    @ray.remote
    class Waiter:
        async def wait(self) -> bool:
            group = placement_group([{"CPU": 1}])
            got = await group.ready()
            remove_placement_group(group)
            return got == group

    waiter = Waiter.remote()
    assert ray.get(waiter.wait.remote(), timeout=10)
    ray.kill(waiter)
