"""Nodes and their resources, and where things run, through the facade alone."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

import monarch_async as ma
from monarch_async import ray
from monarch_async.ray.exceptions import ActorUnschedulableError, GetTimeoutError, TaskUnschedulableError
from monarch_async.ray.runtime import current
from monarch_async.ray.util import placement_group, placement_group_table, remove_placement_group
from monarch_async.ray.util.scheduling_strategies import In, NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy


@pytest.fixture(scope="module", autouse=True)
def driver() -> Iterator[None]:
    ray.init(num_cpus=4, num_gpus=2, resources={"tokens": 2}, labels={"zone": "a"})
    yield
    ray.shutdown()


@ray.remote
def seen() -> tuple[str, str | None]:
    return ray.get_runtime_context().get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES")


@ray.remote
class Seeing:
    def seen(self) -> tuple[str, str | None]:
        return ray.get_runtime_context().get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES")


def until(is_so: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not (found := is_so()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def free(name: str = "CPU") -> float:
    return ray.available_resources().get(name, 0)


def test_a_node_has_its_row() -> None:
    (row,) = ray.nodes()
    assert row["Alive"] and len(row["NodeID"]) == 56
    assert row["NodeID"] == ray.get_runtime_context().get_node_id() == ray.get(seen.remote())[0]
    resources = row["Resources"]
    assert (resources["CPU"], resources["GPU"], resources["tokens"]) == (4, 2, 2)
    assert resources["node:__internal_head__"] == resources[f"node:{row['NodeManagerAddress']}"] == 1
    assert row["Labels"]["ray.io/node-id"] == row["NodeID"]
    assert row["Labels"]["zone"] == "a"


def test_resources_are_those_of_all_nodes_and_what_is_free_of_them() -> None:
    assert ray.cluster_resources() == ray.nodes()[0]["Resources"]
    actor = Seeing.options(num_cpus=1.5, num_gpus=2, resources={"tokens": 1}).remote()
    assert ray.get(actor.seen.remote())[1] == "0,1"
    left = ray.available_resources()
    assert (left["CPU"], left["tokens"], "GPU" in left) == (2.5, 1, False)
    ray.kill(actor)
    assert until(lambda: ray.available_resources() == ray.cluster_resources())


def test_a_worker_that_waits_for_tasks_holds_nothing() -> None:
    ray.get([seen.remote() for _ in range(4)])
    assert until(lambda: free() == 4)


def test_actors_hold_what_they_ask_for() -> None:
    """Nothing by default; a cpu as well where they ask for devices or resources of one's own."""
    for given, held in [({}, 0), ({"num_gpus": 1}, 1), ({"resources": {"tokens": 1}}, 1), ({"num_cpus": 0}, 0)]:
        actor = Seeing.options(**given).remote()
        ray.get(actor.seen.remote())
        assert free() == 4 - held
        ray.kill(actor)
        assert until(lambda: free() == 4)


def test_an_actor_waits_for_room() -> None:
    first, second = [Seeing.options(num_cpus=3).remote() for _ in range(2)]
    ray.get(first.seen.remote())
    ref = second.seen.remote()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.2)
    ray.kill(first)
    ray.get(ref, timeout=10)
    ray.kill(second)


def test_what_fits_nowhere_waits() -> None:
    ref = seen.options(num_cpus=100).remote()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.1)
    ray.cancel(ref)


def test_affinity_to_a_node() -> None:
    here = ray.get_runtime_context().get_node_id()
    on_it = NodeAffinitySchedulingStrategy(here, soft=False)
    assert ray.get(seen.options(scheduling_strategy=on_it).remote())[0] == here
    actor = Seeing.options(scheduling_strategy=on_it).remote()
    assert ray.get(actor.seen.remote())[0] == here
    ray.kill(actor)
    gone, soft = [NodeAffinitySchedulingStrategy("ab" * 28, soft=soft) for soft in (False, True)]
    assert ray.get(seen.options(scheduling_strategy=soft).remote())[0] == here
    for strategy, given in [(gone, {}), (on_it, {"num_cpus": 50})]:
        with pytest.raises(TaskUnschedulableError):
            ray.get(seen.options(scheduling_strategy=strategy, **given).remote(), timeout=10)
        actor = Seeing.options(scheduling_strategy=strategy, **given).remote()
        with pytest.raises(ActorUnschedulableError):
            ray.get(actor.seen.remote(), timeout=10)
    for id in "xyz", "f" * 56:
        with pytest.raises(ValueError, match="node_id"):
            NodeAffinitySchedulingStrategy(id, soft=False)


def test_other_strategies() -> None:
    here = ray.get_runtime_context().get_node_id()
    address = ray.nodes()[0]["NodeManagerAddress"]
    ways = [{"scheduling_strategy": name} for name in ("SPREAD", "DEFAULT")]
    ways += [{"scheduling_strategy": NodeLabelSchedulingStrategy({"zone": In("a")})}]
    ways += [{"label_selector": {"zone": "a"}}, {"resources": {f"node:{address}": 0.01}}]
    for given in ways:
        assert ray.get(seen.options(**given).remote())[0] == here
    nowhere = seen.options(scheduling_strategy=NodeLabelSchedulingStrategy({"zone": In("b")})).remote()
    with pytest.raises(GetTimeoutError):
        ray.get(nowhere, timeout=0.1)
    ray.cancel(nowhere)


def test_wrong_strategies() -> None:
    with pytest.raises(ValueError, match="neither"):
        NodeLabelSchedulingStrategy({})
    with pytest.raises(ValueError, match="text"):
        In(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected In"):
        NodeLabelSchedulingStrategy({"zone": "a"})  # type: ignore[dict-item]


# -- two nodes -----------------------------------------------------------------------------------------------------


class SecondNode:
    """A host more, that the test may let go."""

    def __init__(self) -> None:
        self.hosts = current().run(self._join())
        self.id = f"{self.hosts.hosts[0].id:056x}"
        assert until(lambda: self.id in alive())

    @staticmethod
    async def _join() -> ma.HostMesh:
        return await ma.cluster().grow(1, ma.Resources(cpus=4, custom={"rare": 1}))

    async def _leave(self) -> None:
        await ma.cluster().leave(self.hosts)

    def leave(self) -> None:
        current().run(self._leave())
        assert until(lambda: self.id not in alive())


def alive() -> set[str]:
    return {row["NodeID"] for row in ray.nodes() if row["Alive"]}


@pytest.fixture
def second() -> Iterator[SecondNode]:
    node = SecondNode()
    yield node
    node.leave()
    assert until(lambda: free() == 4)


@ray.remote
def slowly() -> str:
    time.sleep(0.3)
    return ray.get_runtime_context().get_node_id()


def test_a_node_that_joins_and_goes(second: SecondNode) -> None:
    assert ray.cluster_resources()["CPU"] == 8
    assert ray.get(seen.options(resources={"rare": 1}).remote(), timeout=10)[0] == second.id
    second.leave()
    assert ray.cluster_resources()["CPU"] == 4
    (row,) = [row for row in ray.nodes() if row["NodeID"] == second.id]
    assert (row["Alive"], row["Resources"]) == (False, {})
    strategy = NodeAffinitySchedulingStrategy(second.id, soft=False)
    with pytest.raises(TaskUnschedulableError):
        ray.get(seen.options(scheduling_strategy=strategy).remote(), timeout=10)


def test_tasks_and_actors_are_spread(second: SecondNode) -> None:
    refs = [seen.options(scheduling_strategy="SPREAD").remote() for _ in range(4)]
    assert sorted(node for node, _ in ray.get(refs, timeout=10)) == sorted([*alive()] * 2)
    for given in {}, {"num_cpus": 1, "scheduling_strategy": "SPREAD"}:
        actors = [Seeing.options(**given).remote() for _ in range(4)]
        found = [node for node, _ in ray.get([actor.seen.remote() for actor in actors], timeout=10)]
        assert sorted(found) == sorted([*alive()] * 2)
        for actor in actors:
            ray.kill(actor)


def test_affinity_to_either_node(second: SecondNode) -> None:
    for node in alive():
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        assert ray.get(seen.options(scheduling_strategy=strategy).remote(), timeout=10)[0] == node


def test_a_group_is_spread_over_nodes(second: SecondNode) -> None:
    group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
    assert group.wait(10)
    assert set(placement_group_table(group)["bundles_to_node_id"].values()) == alive()
    second.leave()
    assert until(lambda: placement_group_table(group)["state"] == "RESCHEDULING")
    assert not group.wait(0.1)
    third = SecondNode()
    assert group.wait(10)
    assert set(placement_group_table(group)["bundles_to_node_id"].values()) == alive()
    remove_placement_group(group)
    third.leave()


@pytest.mark.slow  # a host that was lost has ten seconds to come back, before what was to run there runs elsewhere
def test_tasks_of_a_node_that_goes_run_elsewhere(second: SecondNode) -> None:
    refs = [slowly.options(scheduling_strategy="SPREAD").remote() for _ in range(16)]
    ray.wait(refs, num_returns=2, timeout=10)
    second.leave()
    assert set(ray.get(refs[8:], timeout=20)) <= {second.id, *alive()}
