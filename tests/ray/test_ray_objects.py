"""Objects: who owns them, who borrows them, and that they go."""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monarch_async import ray
from monarch_async.ray.runtime import current

pytestmark = pytest.mark.usefixtures("driver")


@ray.remote
class Keeper:
    """Holds what it is given."""

    def __init__(self) -> None:
        self.kept: Any = None

    def keep(self, value: Any) -> None:
        self.kept = value

    def read(self) -> Any:
        return ray.get(self.kept)

    def drop(self) -> None:
        self.kept = None
        gc.collect()

    def make(self, value: Any) -> Any:
        """Return a reference to an object of its own."""
        return [ray.put(value)]

    def append(self, item: int) -> list[int]:
        self.kept = [*(self.kept or []), item]
        return self.kept

    def die(self) -> None:
        os._exit(1)

    def pid(self) -> int:
        return os.getpid()


@ray.remote
def wait_for(path: str, value: Any) -> Any:
    while not Path(path).exists():
        time.sleep(0.005)
    return value


@ray.remote
def double(value: Any) -> Any:
    return 2 * value


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
        gc.collect()


def is_lent(number: int) -> bool:
    """Return whether another process borrows this object of the driver's."""
    return number in current().borrowing._lent


def stored() -> int:
    """Return how many shared objects this program holds."""
    return len(current().domain.holdings)


def test_an_object_lives_as_long_as_somebody_borrows_it() -> None:
    keeper = Keeper.remote()
    ref = ray.put([1, 2])
    number = ref._entry.number
    ray.get(keeper.keep.remote([ref]))
    wait_until(lambda: is_lent(number))
    del ref
    gc.collect()
    assert ray.get(keeper.read.remote()) == [[1, 2]]
    ray.get(keeper.drop.remote())
    wait_until(lambda: not is_lent(number))


def test_what_is_on_its_way_in_a_call_that_waits_lives(tmp_path: Path) -> None:
    """The call before it waits for an argument; meanwhile nobody else refers to the object."""
    flag = tmp_path / "flag"
    keeper = Keeper.remote()
    first = keeper.append.remote(wait_for.remote(str(flag), 1))
    ref = ray.put({"a": 1})
    keeping = keeper.keep.remote([ref])
    del ref
    gc.collect()
    flag.touch()
    assert ray.get([first, keeping]) == [[1], None]
    assert ray.get(keeper.read.remote()) == [{"a": 1}]


def test_a_borrower_that_dies_borrows_nothing() -> None:
    keeper = Keeper.remote()
    ref = ray.put(1)
    number = ref._entry.number
    ray.get(keeper.keep.remote([ref]))
    del ref
    wait_until(lambda: is_lent(number))
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(keeper.die.remote())
    wait_until(lambda: not is_lent(number))


def test_an_owner_that_dies_takes_its_objects_along() -> None:
    keeper = Keeper.remote()
    (ref,) = ray.get(keeper.make.remote("x"))
    (other,) = ray.get(keeper.make.remote("y"))
    assert ray.get(ref) == "x"
    pid = ray.get(keeper.pid.remote())
    ray.kill(keeper)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert ray.get(ref) == "x"  # it is here by now
    with pytest.raises(ray.exceptions.OwnerDiedError):
        ray.get(other)


def test_what_a_task_has_put_outlives_its_process() -> None:
    @ray.remote(max_calls=1)
    def make() -> Any:
        return [ray.put("small"), ray.put(np.arange(300_000)), double.remote(21)]

    small, large, nested = ray.get(make.remote())
    assert ray.get(small) == "small"
    assert ray.get(large).sum() == sum(range(300_000))
    assert ray.get(nested) == 42


def test_large_objects_go_with_their_last_reference() -> None:
    before = stored()
    ref = ray.put(np.ones(1 << 18))
    assert stored() == before + 1
    value = ray.get(ref)
    assert not value.flags.writeable
    keeper = Keeper.remote()
    ray.get(keeper.keep.remote([ref]))
    del ref
    assert value.sum() == 1 << 18
    assert ray.get(keeper.read.remote())[0].sum() == 1 << 18
    del value
    ray.get(keeper.drop.remote())
    wait_until(lambda: stored() == before)


def test_results_are_independent_of_each_other() -> None:
    ref = ray.put({"a": [1]})
    first, second = ray.get([ref, ref])
    first["a"].append(2)
    assert second == {"a": [1]} == ray.get(ref)


def test_references_inside_of_objects_inside_of_objects() -> None:
    inner = ray.put("core")
    for _ in range(5):
        inner = ray.put([inner])
    keeper = Keeper.remote()
    ray.get(keeper.keep.remote([inner]))
    del inner
    gc.collect()
    value = ray.get(keeper.read.remote())[0]
    while isinstance(value, list):
        value = ray.get(value[0])
    assert value == "core"


def test_an_actor_goes_with_its_last_handle_and_not_before_its_calls_have_ended(tmp_path: Path) -> None:
    keeper = Keeper.remote()
    pid = ray.get(keeper.pid.remote())
    last = keeper.append.remote(wait_for.remote(str(tmp_path / "flag"), 7))
    del keeper
    gc.collect()
    (tmp_path / "flag").touch()
    assert ray.get(last) == [7]
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_handle_elsewhere_keeps_an_actor() -> None:
    keeper, other = Keeper.remote(), Keeper.remote()
    pid = ray.get(other.pid.remote())
    ray.get(keeper.keep.remote(other))
    del other
    gc.collect()
    assert ray.get(ray.get(keeper.__ray_call__.remote(lambda self: [self.kept.pid.remote()]))[0]) == pid
    ray.get(keeper.drop.remote())
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_calls_keep_their_order_whatever_their_arguments_wait_for(tmp_path: Path) -> None:
    keeper = Keeper.remote()
    first = keeper.append.remote(wait_for.remote(str(tmp_path / "flag"), 0))
    others = [keeper.append.remote(number) for number in range(1, 20)]
    (tmp_path / "flag").touch()
    assert ray.get(first) == [0]
    assert ray.get(others[-1]) == list(range(20))


def test_freed_objects_are_gone_for_everybody() -> None:
    keeper = Keeper.remote()
    ref = ray.put(1)
    ray.get(keeper.keep.remote([ref]))
    ray.internal.free([ref])
    with pytest.raises(ray.exceptions.ObjectFreedError):
        ray.get(ref)
    with pytest.raises(ray.exceptions.ObjectFreedError):
        ray.get(keeper.read.remote())


def test_get_says_what_did_not_come() -> None:
    keeper = Keeper.remote()
    refs = [ray.put(1), wait_for.remote("/nowhere", 1)]
    with pytest.raises(ray.exceptions.GetTimeoutError, match="1 of 2 are not there, first wait_for"):
        ray.get(refs, timeout=0.01)
    ray.cancel(refs[1], force=True)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(refs[1])
    del keeper


@ray.remote
def size_of(value: Any) -> int:
    return value.nbytes


def test_the_arguments_of_a_task_that_has_ended_are_kept_by_nobody() -> None:
    """What the hub remembers of a task's options is not the task."""
    before = stored()
    assert ray.get(size_of.remote(np.ones(1 << 18))) == 2 << 20
    wait_until(lambda: stored() == before)


def test_the_arguments_of_an_actor_that_is_dead_are_kept_by_nobody() -> None:
    @ray.remote
    class Sized:
        def __init__(self, value: Any) -> None:
            self.size = value.nbytes

        def read(self) -> int:
            return self.size

    before = stored()
    actor = Sized.remote(np.ones(1 << 18))
    other = Sized.remote(ray.put(np.ones(1 << 18)))
    assert ray.get([actor.read.remote(), other.read.remote()]) == [2 << 20, 2 << 20]
    for each in (actor, other):
        ray.kill(each)
        with pytest.raises(ray.exceptions.ActorDiedError):
            ray.get(each.read.remote())
    wait_until(lambda: stored() == before)


def test_an_actor_class_hides_nothing_of_the_class_it_was_made_of() -> None:
    class Settings:
        _options = _given = _data = _methods = ("mine",)

        def _create(self) -> tuple[str]:
            return self._options

    made: Any = ray.remote(Settings)
    assert made._options == made._given == made._data == made._methods == ("mine",)
    assert made._create() == ("mine",)
    assert ray.get(made.remote()._create.remote()) == ("mine",)
