"""What somebody meets who brings programs written for Ray: what they lean on, and what is said of their mistakes."""

import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from monarch_async import ray
from monarch_async.ray.exceptions import ActorDiedError, GetTimeoutError, TaskCancelledError


@pytest.fixture(scope="module", autouse=True)
def driver() -> Iterator[None]:
    ray.init(num_cpus=2, ignore_reinit_error=True)
    yield
    ray.shutdown()


@ray.remote
class Counter:
    def __init__(self, start: int, *, step: int = 1) -> None:
        self.value, self.step = start, step

    def add(self) -> int:
        self.value += self.step
        return self.value


@ray.remote
def sleep(seconds: float) -> None:
    time.sleep(seconds)


# -- names -----------------------------------------------------------------------------------------------------------


def named(name: str, **options: Any) -> Any:
    actor = Counter.options(name=name, **options).remote(0)
    assert ray.get(actor.add.remote()) == 1
    return actor


def test_a_name_is_free_once_its_last_handle_is_gone() -> None:
    actor = named("fleeting")
    del actor
    actor = named("fleeting")  # at once
    assert ray.get(ray.get_actor("fleeting").add.remote()) == 2
    del actor
    actor = named("fleeting", get_if_exists=True)
    del actor
    assert "fleeting" not in ray.util.list_named_actors()
    with pytest.raises(ValueError, match=r"no actor named 'fleeting' lives in namespace '[^']*'$"):
        ray.get_actor("fleeting")


# -- values ----------------------------------------------------------------------------------------------------------


@ray.remote
def ones(count: int) -> torch.Tensor:
    return torch.ones(count)


@pytest.mark.parametrize("count", [10, 600, 5_000, 100_000, 500_000])
def test_who_writes_to_a_tensor_he_got_writes_to_his_own(count: int) -> None:
    for ref in (ray.put(torch.ones(count)), ones.remote(count)):
        mine = ray.get(ref)
        mine.add_(1)
        assert float(mine.sum()) == 2 * count and float(ray.get(ref).sum()) == count


# -- what is said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "Counter() misses a required argument: 'start'"),
        ((1, 2), {}, "Counter() takes 1 arguments by position, and 2 were given"),
        ((1,), {"stop": 2}, "Counter() got an unexpected keyword argument 'stop'"),
    ],
)
def test_wrong_arguments_of_a_class_are_told_with_its_name(args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        Counter.remote(*args, **kwargs)
    assert str(caught.value) == said


def test_what_waits_for_resources_is_told_with_what_it_asks_and_what_there_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "monarch_async"):
        task = sleep.options(num_gpus=8, resources={"tpu": 1}).remote(0)
        actor = Counter.options(num_cpus=1000).remote(0)
        with pytest.raises(GetTimeoutError):
            ray.get([task, actor.add.remote()], timeout=0.5)
    of_task, of_actor = [record.getMessage() for record in caplog.records]
    assert of_task.startswith("sleep asks for {'CPU': 1.0, 'GPU': 8.0, 'tpu': 1.0}") and "'CPU': 2" in of_task
    assert of_actor.startswith("actor Counter asks for {'CPU': 1000.0}")
    ray.cancel(task)


@ray.remote
def fail(text: str) -> None:
    raise ValueError(text)


@ray.remote
class Failing:
    def __init__(self, is_born: bool) -> None:
        if not is_born:
            raise ValueError("unborn")

    def fail(self, text: str) -> None:
        raise ValueError(text)


def told(caplog: pytest.LogCaptureFixture, text: str, seconds: float = 5) -> str:
    end = time.monotonic() + seconds
    while text not in caplog.text and time.monotonic() < end:
        time.sleep(0.01)
    return caplog.text


def test_what_nobody_asks_for_is_told_where_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A task or call without a ``get`` would fail unseen."""
    actor = Failing.remote(True)
    fail.remote("lost task")
    assert "nobody has asked for the result of fail: fail raised ValueError: lost task" in told(caplog, "lost task")
    actor.fail.remote("lost call")
    assert "result of Failing.fail: Failing.fail raised ValueError: lost call" in told(caplog, "lost call")
    unborn = Failing.remote(False)
    assert "actor Failing" in told(caplog, "ValueError: unborn")
    del unborn


def test_what_somebody_asks_for_is_told_to_him_alone(caplog: pytest.LogCaptureFixture) -> None:
    refs = [fail.remote(f"{index}") for index in range(20)]
    with pytest.raises(ValueError, match="raised ValueError"):
        ray.get(refs)
    with pytest.raises(ValueError, match="raised ValueError: passed on"):
        ray.get(sleep.remote(fail.remote("passed on")))
    refs.append(sleep.remote(100))
    ray.cancel(refs[-1])
    ray.wait(refs[-1:])
    del refs
    gc.collect()
    assert told(caplog, "nobody", seconds=0.5) == ""


def test_what_was_cancelled_is_told_with_its_name() -> None:
    running, waiting = sleep.remote(100), sleep.options(name="patience").remote(sleep.remote(100))
    for ref, name in ((waiting, "patience"), (running, "sleep")):
        ray.cancel(ref)
        with pytest.raises(TaskCancelledError, match=rf"^{name} was cancelled$"):
            ray.get(ref, timeout=10)


@pytest.mark.parametrize("is_up", [False, True])
def test_a_dead_actor_is_told_with_its_name_and_how_it_ended(is_up: bool) -> None:
    actor = Counter.options(name="victim").remote(0)
    if is_up:
        ray.get(actor.add.remote())
    ray.kill(actor)
    with pytest.raises(ActorDiedError, match=r"^actor victim is dead: ray\.kill has ended it\n"):
        ray.get(actor.add.remote())


def test_what_keeps_something_from_being_sent_can_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert ray.util.inspect_serializability({"a": [1]}, "config") == (True, set())
    can, (failure,) = ray.util.inspect_serializability({"a": [gc, threading.Lock()]}, "config")
    assert not can and "config['a'][1]" in failure.name
    assert "config can be pickled" in (said := capsys.readouterr().out) and "config['a'][1]" in said


def test_what_is_logged_in_every_iteration_is_logged_once() -> None:
    assert [ray.util.log_once("here") for _ in range(3)] == [True, False, False]


# -- processes -------------------------------------------------------------------------------------------------------

_SPAWNED = """
import ray
from ray.util.queue import Queue

def names(tell):
    import ray.util.placement_group
    tell.put((ray.__name__, Queue.__module__, ray.util.placement_group.__name__))
"""

_SPAWNING = """
import multiprocessing, ray, spawned

@ray.remote
def spawn():
    context = multiprocessing.get_context("spawn")
    tell = context.Queue()
    child = context.Process(target=spawned.names, args=(tell,))
    child.start()
    told = tell.get(timeout=20)
    child.join()
    return told, child.exitcode

if __name__ == "__main__":
    ray.init(num_cpus=1)
    print(spawn._function(), ray.get(spawn.remote()))
"""


@pytest.mark.slow
def test_processes_that_multiprocessing_spawns_have_the_facade_too(tmp_path: Path) -> None:
    """As engines of inference and data loaders do, in the driver or in workers."""
    program = tmp_path / "spawning.py"
    program.write_text(_SPAWNING)
    (tmp_path / "spawned.py").write_text(_SPAWNED)
    command = [sys.executable, "-m", "monarch_async.ray", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    expected = ("monarch_async.ray", "monarch_async.ray.util.queue", "placement_group"), 0
    assert done.stdout.strip() == f"{expected} {expected}", done.stderr


# -- sessions --------------------------------------------------------------------------------------------------------


def test_functions_and_classes_of_a_new_session_see_what_is_there_then() -> None:
    """As in notebooks: change something, start over."""
    seen = {"now": "first"}  # part of what is pickled

    @ray.remote
    def look() -> str:
        return seen["now"]

    @ray.remote
    class Looker:
        def look(self) -> str:
            return seen["now"]

    assert ray.get([look.remote(), Looker.remote().look.remote()]) == ["first", "first"]
    seen["now"] = "second"
    assert ray.get([look.remote(), Looker.remote().look.remote()]) == ["first", "first"]
    ray.shutdown()
    ray.init(num_cpus=2)
    assert ray.get([look.remote(), Looker.remote().look.remote()]) == ["second", "second"]
    ray.shutdown()  # it is the last test: nothing of the module's is left
