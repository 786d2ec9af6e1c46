"""The session that most tests of the facade run in."""

from collections.abc import Iterator

import pytest

from monarch_async import ray


@pytest.fixture(scope="module")
def driver() -> Iterator[None]:
    """A host of its own with four CPUs, for one module. (The check of what is left knows it by this name.)"""
    ray.init(num_cpus=4)
    yield
    ray.shutdown()
