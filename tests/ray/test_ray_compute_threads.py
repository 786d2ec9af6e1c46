"""How many threads libraries compute with in tasks and actors."""

import os
from collections.abc import Iterator

import pytest

from monarch_async import ray

VARIABLE = "OMP_NUM_THREADS"


@pytest.fixture(autouse=True)
def session(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        if (threads := getattr(request, "param", None)) is not None:
            patch.setenv(VARIABLE, threads)
        ray.init(num_cpus=8)
        yield
        ray.shutdown()


@ray.remote
def told() -> str | None:
    return os.environ.get(VARIABLE)


@ray.remote
class Told:
    def told(self) -> str | None:
        return os.environ.get(VARIABLE)


def said(**options: object) -> list[str | None]:
    """What a task and an actor with these options are told."""
    return ray.get([told.options(**options).remote(), Told.options(**options).remote().told.remote()])


def test_as_many_as_they_have_cpus() -> None:
    assert said(num_cpus=3) == ["3", "3"]
    assert said() == said(num_cpus=0) == said(num_cpus=0.5) == ["1", "1"]
    assert said(num_cpus=2.5) == ["2", "2"]


def test_env_vars_say_otherwise() -> None:
    assert said(runtime_env={"env_vars": {VARIABLE: "7"}}) == ["7", "7"]


@pytest.mark.parametrize("session", ["5"], indirect=True)
def test_the_drivers_environment_says_otherwise() -> None:
    assert said(num_cpus=2) == ["5", "5"]
