"""How detached actors are called by the hosts that keep them; on a driver's own hosts they end with it."""

import os

from hypothesis import given
from hypothesis import strategies as st

import monarch_async.ray as ray
from monarch_async.ray.hub_detached import name_lease, read_lease

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(NAMES, NAMES)
def test_a_lease_says_whose_it_is_in_one_line(namespace: str, name: str) -> None:
    lease = name_lease(namespace, name)
    assert lease.isprintable()
    assert read_lease(lease) == (namespace, name)


def test_leases_of_other_programs_and_of_actors_without_names_are_told_apart() -> None:
    assert read_lease("train") is None
    assert read_lease("ray/a/b/c") is None
    assert read_lease("ray/#/0123") is None
    assert read_lease(name_lease("#", "0123")) == ("#", "0123")


def test_on_hosts_of_its_own_they_end_with_the_driver() -> None:
    ray.init(address="local", num_cpus=1)
    try:
        pid = ray.get(ray.remote(Lasting).options(name="a", lifetime="detached").remote().pid.remote())
        assert ray.util.list_named_actors() == ["a"]
    finally:
        ray.shutdown()
    assert not os.path.exists(f"/proc/{pid}")


class Lasting:
    def pid(self) -> int:
        return os.getpid()
