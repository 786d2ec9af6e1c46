"""Detached actors on hosts that were joined: they outlive their driver, and the next one finds them by their names."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_async as ma

pytestmark = pytest.mark.slow  # programs of their own for every test

HERE = Path(__file__).parent
CONFIG = ma.Config(resume_window=1.0, heartbeat=0.2, stop_grace=0.5)
ENVIRON = {**os.environ, **CONFIG.as_env(), "MONARCH_ASYNC_TOKEN": "a token of the tests", "PYTHONPATH": str(HERE)}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A host that stays: where its agent listens. It has 4 CPUs and 2 devices."""
    url = f"unix://{tmp_path_factory.mktemp('agent') / 'socket'}"
    words = "agent --name h --cpus 4 --gpus 2 --listen".split()
    command = [sys.executable, "-m", "monarch_async.cli.main", *words, url]
    process = subprocess.Popen(command, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert "listens on" in process.stdout.readline()
    yield url
    process.terminate()
    process.communicate(timeout=10)


class Driver:
    """A program that is told what to do."""

    def __init__(self, url: str, namespace: str) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, str(HERE / "lasting.py"), url, namespace]
        self._process = subprocess.Popen(command, env=ENVIRON, stdin=pipe, stdout=pipe, text=True)
        self.pid = self._process.pid

    def do(self, code: str) -> str:
        """Have it evaluate an expression, and get it where it is a reference; return what it says of that."""
        self.begin(code)
        return self.said()

    def begin(self, code: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(code + "\n")
        self._process.stdin.flush()

    def said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip()

    def leave(self) -> None:
        """It ends in order."""
        self._process.communicate(timeout=20)
        assert self._process.returncode == 0

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def driver(url: str, namespace: str = "ours") -> Iterator[Driver]:
    """A driver, which ends in order after the block, if it has not ended before."""
    made = Driver(url, namespace)
    try:
        yield made
        if made._process.poll() is None:
            made.leave()
    finally:
        made.kill()


@pytest.fixture(autouse=True)
def no_lease_left(agent: str) -> Iterator[None]:
    yield
    said = monarch("status", agent)
    left = re.findall(r"^ *detached (\S+): ", said, re.M)
    for name in left:
        monarch("release", name, agent)
    assert not left, said


def monarch(*words: str) -> str:
    command = [sys.executable, "-m", "monarch_async.cli.main", *words]
    return subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=False).stdout


def is_alive(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


def wait_gone(pid: str) -> None:
    until = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < until, f"{pid} lives on"
        time.sleep(0.01)


def test_an_actor_outlives_its_driver_and_the_next_one_finds_calls_and_ends_it(agent: str) -> None:
    with driver(agent) as first:
        assert first.do("ray.get(counter('a', Plain, 10).add.remote(1))") == "11"
        pid = first.do("get('a').pid.remote()")
        other = first.do("ray.get(ray.remote(Plain).options(name='plain').remote().pid.remote())")
    assert is_alive(pid)
    wait_gone(other)
    with driver(agent) as second:
        assert second.do("ray.util.list_named_actors()") == "['a']"
        assert second.do("get('a').add.remote(1)") == "12"
        assert second.do("counter('a', get_if_exists=True).add.remote(1)") == "13"
        assert second.do("counter('a')").startswith("ActorAlreadyExistsError: ")
        assert second.do("get('a').pid.remote()") == pid
        assert second.do("ray.util.list_named_actors(all_namespaces=True)") == "[{'name': 'a', 'namespace': 'ours'}]"
    with driver(agent) as third:
        assert third.do("counter('a', get_if_exists=True).add.remote(1)") == "14"
        assert third.do("ray.kill(get('a'))") == "None"
        wait_gone(pid)
        assert third.do("get('b')").startswith("ValueError: no actor named 'b' lives in namespace 'ours'")
        assert third.do("ray.util.list_named_actors()") == "[]"
        assert third.do("counter('a').add.remote(1)") == "1"
        assert third.do("ray.kill(get('a'))") == "None"


def test_the_next_driver_waits_for_one_that_was_killed_to_be_given_up(agent: str) -> None:
    with driver(agent) as first:
        assert first.do("counter('a/1 é', Async).add.remote(1)") == "1"
        pid = first.do("get('a/1 é').__ray_call__.remote(lambda self: os.getpid())")
        first.kill()
    with driver(agent) as second:
        assert is_alive(pid)
        assert second.do("get('a/1 é').add.remote(1)") == "2"
        assert second.do("ray.kill(get('a/1 é'))") == "None"
    wait_gone(pid)


def test_one_driver_has_it_at_a_time(agent: str) -> None:
    with driver(agent) as first, driver(agent) as second, driver(agent, "theirs") as third:
        assert first.do("counter('a').add.remote(1)") == "1"
        assert second.do("ray.util.list_named_actors()") == "[]"
        words = f"belongs to another driver, client {first.pid}"
        said = second.do("get('a')")
        assert said.startswith("ValueError: the actor named 'a' in namespace 'ours'") and words in said
        assert words in second.do("counter('a', get_if_exists=True)")
        assert "no actor named 'a'" in third.do("get('a')")
        first.leave()
        assert "no actor named 'a'" in third.do("get('a')")
        assert third.do("ray.get_actor('a', 'ours').add.remote(1)") == "2"
        assert f"client {third.pid}" in second.do("get('a')")
        assert third.do("ray.kill(ray.get_actor('a', 'ours'))") == "None"


def test_what_it_holds_is_held_as_long_as_it_lives(agent: str) -> None:
    with driver(agent) as first:
        assert first.do("counter('a', num_cpus=3, num_gpus=1).devices.remote()") == "('0', None)"
        assert first.do("counter('b', num_cpus=0, num_gpus=0.5).devices.remote()") == "('1', None)"
    with driver(agent) as second:
        assert second.do("ray.available_resources()['CPU']") == "1.0"
        assert second.do("ray.available_resources()['GPU']") == "0.5"
        assert second.do("get('a').devices.remote()") == "('0', None)"
        assert second.do("ray.kill(get('a'))") == "None"
        assert second.do("counter('c', num_cpus=4, num_gpus=1).devices.remote()") == "('0', None)"
        assert second.do("[ray.kill(get(name)) for name in 'bc']") == "[None, None]"
        assert second.do("ray.get(ray.remote(num_cpus=4, num_gpus=2)(os.getpid).remote()) > 0") == "True"


def test_one_in_a_placement_group_outlives_that(agent: str) -> None:
    with driver(agent) as first:
        assert first.do("known.update(group=ray.util.placement_group([{'CPU': 2}, {'CPU': 1}]))") == "None"
        strategy = "ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(known['group'], 0)"
        assert first.do(f"counter('a', num_cpus=2, scheduling_strategy={strategy}).add.remote(1)") == "1"
        assert first.do(f"counter('b', num_cpus=0, scheduling_strategy={strategy}).add.remote(1)") == "1"
    with driver(agent) as second:
        assert second.do("get('a').add.remote(1)") == "2"
        assert second.do("get('b').add.remote(1)") == "2"
        assert second.do("ray.available_resources()['CPU']") == "1.0"  # all of the group is kept
        assert second.do("ray.kill(get('a'))") == "None"
        assert second.do("get('b').add.remote(1)") == "3"
        assert second.do("ray.available_resources()['CPU']") == "1.0"
        assert second.do("ray.kill(get('b'))") == "None"
        assert second.do("ray.get(ray.remote(num_cpus=4)(os.getpid).remote()) > 0") == "True"


def test_it_asks_the_driver_that_has_adopted_it(agent: str) -> None:
    with driver(agent) as first:
        assert first.do("counter('a').by_task.remote(1)") == "2"
        assert first.do("counter('b').add.remote(1)") == "1"
        assert first.do("get('a').hold.remote(get('b'), counter(None, Plain, 100))") == "None"
    with driver(agent) as second:
        assert second.do("get('a').by_task.remote(2)") == "4"
        assert second.do("get('a').by_name.remote('b')") == "2"
        assert second.do("get('a').add_to_other.remote(1)") == "3"
        assert second.do("ray.get(get('a').me.remote()) == get('a')") == "True"
        others = "get('a').__ray_call__.remote(lambda self: self.others)"
        assert second.do(f"ray.get(ray.get({others})[1].add.remote(1))") == "101"
        assert second.do(f"[ray.kill(other) for other in [*ray.get({others}), get('a')]]") == "[None, None, None]"


def test_what_it_asks_for_while_it_has_no_driver_fails_then_and_is_had_later(agent: str, tmp_path: Path) -> None:
    with driver(agent) as first:
        assert first.do("ray.get(counter('b').add.remote(1)) and counter('a').hold.remote(get('b'))") == "None"
        asked = "self.others[0].add.remote(1)", "double.remote(1)"
        assert first.do(f"get('a').ask_when_told.remote({str(tmp_path)!r}, *{asked})") == "None"
    assert said_now(tmp_path) == "ActorDiedError OwnerDiedError"
    with driver(agent) as second:
        assert second.do("get('a').add_to_other.remote(1)") == "2"
        assert second.do("get('a').by_task.remote(2)") == "4"
        assert second.do("[ray.kill(get(name)) for name in 'ab']") == "[None, None]"


def test_who_has_called_it_before_it_was_made_anew_and_adopted_goes_on(agent: str) -> None:
    again = "ray.wait([get('a').add_to_other.remote(1)]) and get('a').add_to_other.remote(1)"  # the first may be lost
    with driver(agent) as first:
        pid = first.do("counter('b', max_restarts=-1).pid.remote()")
        assert first.do("counter('a').hold.remote(get('b'))") == "None"
        assert first.do("get('a').add_to_other.remote(1)") == "1"
        assert first.do(f"os.kill({pid}, 9)") == "None"
        assert first.do("ray.wait([get('b').add.remote(1)]) and get('b').add.remote(1)") in ("1", "2")
        assert first.do("ray.kill(get('b'), no_restart=False)") == "None"
        assert first.do(again) in ("1", "2")
    with driver(agent) as second:
        assert second.do("get('a').add_to_other.remote(1)") in ("2", "3")
        pid = second.do("get('b').pid.remote()")
        assert second.do("get('b').is_restarted.remote()") == "True"
        assert second.do(f"os.kill({pid}, 9)") == "None"
        wait_gone(pid)
        assert second.do(again) in (
            "1",
            "2",
        )
        assert second.do("ray.kill(get('b'))") == "None"
        assert "ActorDiedError" in second.do("get('a').add_to_other.remote(1)")
        assert second.do("ray.kill(get('a'))") == "None"


def said_now(folder: Path) -> str:
    """Tell an actor to do what it was asked; return what came of it."""
    (folder / "go").touch()
    until = time.monotonic() + 20
    while not (folder / "said").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return (folder / "said").read_text()


def test_one_that_leaves_by_itself_while_it_has_no_driver_has_ended(agent: str, tmp_path: Path) -> None:
    with driver(agent) as first:
        pid = first.do("counter('b').pid.remote()")
        assert first.do("counter('a').hold.remote(get('b'))") == "None"
        assert first.do("get('a').add_to_other.remote(1)") == "1"
        asked = "self.others[0].add.remote(1)", "self.others[0].leave.remote()"
        assert first.do(f"get('a').ask_when_told.remote({str(tmp_path)!r}, *{asked})") == "None"
    assert said_now(tmp_path) == "2 ActorDiedError"
    wait_gone(pid)
    with driver(agent) as second:
        assert second.do("ray.util.list_named_actors()") == "['a']"
        assert second.do("get('b')").startswith("ValueError: no actor named 'b'")
        assert second.do("ray.kill(get('a'))") == "None"


def test_a_later_driver_makes_it_anew_where_it_was_given_no_objects(agent: str) -> None:
    with driver(agent) as first:
        assert first.do("counter('a', Plain, 10, max_restarts=1, max_task_retries=1).add.remote(1)") == "11"
        assert first.do("counter('b', Plain, ray.put(10), max_restarts=1).add.remote(1)") == "11"
    with driver(agent) as second:
        for name in "ab":
            pid = second.do(f"get('{name}').pid.remote()")
            assert second.do(f"os.kill({pid}, 9)") == "None"
            wait_gone(pid)
            if name == "a":
                assert second.do("get('a').add.remote(1)") == "11"
                assert second.do("get('a').is_restarted.remote()") == "True"
            else:
                assert second.do("get('b').add.remote(1)").startswith(("ActorDiedError", "ValueError"))
    with driver(agent) as third:
        assert third.do("get('b')").startswith("ValueError: no actor named")
        assert third.do("get('a').add.remote(1)") == "12"
        assert third.do("ray.kill(get('a'))") == "None"


def test_one_that_dies_while_it_has_no_driver_is_gone(agent: str) -> None:
    with driver(agent) as first:
        pid = first.do("counter('a', max_restarts=1).pid.remote()")
    os.kill(int(pid), 9)
    wait_gone(pid)
    with driver(agent) as second:
        assert second.do("ray.util.list_named_actors()") == "[]"
        assert second.do("get('a')").startswith("ValueError: no actor named 'a'")
        assert second.do("counter('a').add.remote(1)") == "1"
        assert second.do("ray.kill(get('a'))") == "None"


def test_one_that_is_being_made_as_its_driver_ends(agent: str) -> None:
    with driver(agent) as first:
        assert first.do("counter('a', Slow)").startswith("Actor(")
    with driver(agent) as second:
        assert second.do("get('a').add.remote(1)") == "1"
        second.begin("get('a').wait.remote(1)")
        second.kill()
    with driver(agent) as third:  # it is busy still
        assert third.do("get('a').add.remote(1)") == "2"
        assert third.do("ray.kill(get('a'))") == "None"


def test_sessions_of_one_program(agent: str) -> None:
    session = "ray.shutdown() or ray.init(address=sys.argv[1], namespace='ours')"
    with driver(agent) as program:
        assert program.do("counter('a').add.remote(1)") == "1"
        for count in (2, 3):
            assert program.do(session).startswith("RayContext" if count == 0 else ("InitContext", "<", "RayContext"))
            assert program.do("get('a').add.remote(1)") == str(count)
        assert program.do("ray.kill(get('a'))") == "None"
