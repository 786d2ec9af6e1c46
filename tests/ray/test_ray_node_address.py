"""What a process says of where its host is reached, and who has a name."""

from collections.abc import Iterator

import pytest

from monarch_async import ray
from monarch_async.ray import util


@pytest.fixture(scope="module", autouse=True)
def driver() -> Iterator[None]:
    ray.init(num_cpus=4, namespace="here")
    yield
    ray.shutdown()


@ray.remote
def in_a_task() -> str:
    return util.get_node_ip_address()


@ray.remote
class Sync:
    def address(self) -> str:
        return util.get_node_ip_address()

    def named(self) -> list:
        return util.list_named_actors()


@ray.remote
class Async:
    async def address(self) -> str:
        return util.get_node_ip_address()


def test_all_say_what_the_row_of_their_node_says() -> None:
    (row,) = ray.nodes()
    asked = [in_a_task.remote(), Sync.remote().address.remote(), Async.remote().address.remote()]
    assert [util.get_node_ip_address(), *ray.get(asked)] == [row["NodeManagerAddress"]] * 4


def test_named_actors() -> None:
    here, elsewhere = Sync.options(name="a").remote(), Sync.options(name="b", namespace="there").remote()
    ray.get([elsewhere.named.remote(), here.named.remote()])
    assert util.list_named_actors() == ["a"]
    assert ray.get(here.named.remote()) == ["a"]
    found = util.list_named_actors(all_namespaces=True)
    assert sorted(found, key=str) == [{"name": "a", "namespace": "here"}, {"name": "b", "namespace": "there"}]
