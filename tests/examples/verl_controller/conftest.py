# pyright: reportMissingImports=false
"""One driver for each file of tests here, with the facade in the place of Ray.

With ``MONARCH_ASYNC_REAL_RAY=1`` the same tests run under Ray itself.
"""

import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REAL_RAY = os.environ.get("MONARCH_ASYNC_REAL_RAY") == "1"
RANKS = 2

if importlib.util.find_spec("verl") is not None:
    if not REAL_RAY:
        import monarch_async.ray

        monarch_async.ray.install()
    with warnings.catch_warnings():  # what verl's imports warn of is not ours
        warnings.simplefilter("ignore")
        import verl.single_controller.ray  # noqa: F401


def children() -> set[str]:
    """The pids of this process's living children."""
    return set(" ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split())


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Workers stay from test to test: ``driver`` looks at the end."""


@pytest.fixture(scope="module", autouse=True)
def driver() -> Iterator[None]:
    import ray

    before = children()
    with pytest.MonkeyPatch.context() as patch:
        if REAL_RAY:  # the facade's workers look where the driver looks
            patch.setenv("PYTHONPATH", str(Path(__file__).parent))
            patch.setenv("RAY_AUTH_MODE", "disabled")
        ray.init(num_cpus=100, num_gpus=2)  # counts: nothing here touches a device
        yield
        ray.shutdown()
    if not REAL_RAY:
        assert children() == before


@pytest.fixture(scope="module")
def group(driver: None) -> Any:
    """A group of `Everything`, of two ranks."""
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl_workers import Everything

    pool = RayResourcePool([RANKS], use_gpu=False, max_colocate_count=2, name_prefix="pool")
    made = RayClassWithInitArgs(Everything, 5, name="of a group")
    return RayWorkerGroup(pool, made, name_prefix="every", worker_env={"OWN_SETTING": "on"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(240))  # every worker imports verl, which takes seconds
            item.add_marker(pytest.mark.filterwarnings("default"))  # verl's and Ray's
