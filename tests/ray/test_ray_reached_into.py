"""What libraries reach into besides Ray's public names: private modules, states, the runtime context, the command."""

import os
import time
from collections.abc import Callable, Iterator

import pytest

from monarch_async import ray
from monarch_async.ray import _private, cloudpickle
from monarch_async.ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from monarch_async.ray.exceptions import ActorDiedError, ObjectFreedError
from monarch_async.ray.experimental.state.api import get_actor, list_actors, list_nodes
from monarch_async.ray.internal import free
from monarch_async.ray.job_config import JobConfig, runtime_env_of_job
from monarch_async.ray.util import placement_group, remove_placement_group


@pytest.fixture(scope="module", autouse=True)
def driver() -> Iterator[None]:
    ray.init(num_cpus=4, namespace="here")
    yield
    ray.shutdown()


@ray.remote
class Subject:
    def __init__(self, fails: bool = False) -> None:
        if fails:
            raise ValueError("stillborn")

    def context(self) -> dict[str, object]:
        found = ray.get_runtime_context()
        return {
            "actor": found.get_actor_id(),
            "name": found.get_actor_name(),
            "task": found.get_task_id(),
            "node": found.get_node_id(),
            "worker": found.get_worker_id(),
            "job": found.get_job_id(),
            "namespace": found.namespace,
            "gpus": ray.get_gpu_ids(),
            "accelerators": found.get_accelerator_ids()["GPU"],
            "resources": found.get_assigned_resources(),
            "restarted": found.was_current_actor_reconstructed,
            "hub": found.gcs_address,
        }

    def me(self) -> object:
        return ray.get_runtime_context().current_actor

    def leave(self) -> None:
        ray.actor.exit_actor()


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_state_of_an_actor() -> None:
    subject = Subject.options(name="subject").remote()
    ray.get(subject.__ray_ready__.remote())
    row = get_actor(subject._actor_id.hex())
    assert row is not None and row.get("state", "undefined") == "ALIVE" == row.state
    assert row["class_name"] == "Subject" and row["name"] == "subject" and row["ray_namespace"] == "here"
    ray.kill(subject)
    _until(lambda: (get_actor(row["actor_id"]) or {})["state"] == "DEAD")
    assert get_actor("ab" * 16) is None


def test_lists_take_filters() -> None:
    subjects = [Subject.remote() for _ in range(2)]
    ray.get([subject.__ray_ready__.remote() for subject in subjects])
    ids = {subject._actor_id.hex() for subject in subjects}
    alive = {row["actor_id"] for row in list_actors(filters=[("state", "=", "ALIVE"), ("class_name", "=", "Subject")])}
    assert ids <= alive
    assert not ids & {row["actor_id"] for row in list_actors(filters=[("state", "!=", "ALIVE")])}
    with pytest.raises(ValueError, match="expected = or !="):
        list_actors(filters=[("state", "~", "A")])
    (node,) = list_nodes()
    assert node.node_id == ray.nodes()[0]["NodeID"] and node.state == "ALIVE"


def test_placement_groups_by_id_and_resources_by_node() -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    assert group.wait(10)
    table = _private.state.state.placement_group_table(group.id)
    (node,) = {row["NodeID"] for row in ray.nodes()}
    assert table["bundles_to_node_id"] == {0: node, 1: node}
    assert group.id.hex() in _private.state.state.placement_group_table()
    assert _private.state.available_resources_per_node()[node]["CPU"] <= 2
    remove_placement_group(group)


def test_addresses() -> None:
    address = _private.services.get_node_ip_address()
    assert address == ray.nodes()[0]["NodeManagerAddress"] == _private.worker.global_worker.node_ip_address
    hub = _private.worker.global_worker.gcs_client.address
    assert hub == ray.get_runtime_context().gcs_address and hub.startswith(f"{address}:")
    assert _private.worker.global_worker.connected


def test_context_of_the_driver() -> None:
    context = ray.get_runtime_context()
    assert context.get_actor_id() is None and context.get_task_id() is None and context.get_task_name() is None
    assert context.get_node_id() == ray.nodes()[0]["NodeID"] == context.node_id.hex()
    assert context.namespace == "here" and ray.get_gpu_ids() == [] and context.get_accelerator_ids()["GPU"] == []
    assert bytes.fromhex(context.get_job_id()) == context.job_id.binary()
    with pytest.raises(RuntimeError):
        context.current_actor  # noqa: B018
    with pytest.raises(TypeError):
        ray.actor.exit_actor()


def test_context_of_an_actor() -> None:
    subject = Subject.options(name="known", num_cpus=1).remote()
    one, two = ray.get([subject.context.remote(), subject.context.remote()])
    mine = ray.get_runtime_context()
    assert one["actor"] == subject._actor_id.hex() and one["name"] == "known" and one["namespace"] == "here"
    assert one["node"] == mine.get_node_id() and one["job"] == mine.get_job_id() and one["hub"] == mine.gcs_address
    assert one["worker"] == two["worker"] != mine.get_worker_id() and one["task"] != two["task"]
    assert one["gpus"] == [] == one["accelerators"] and one["resources"] == {"CPU": 1} and one["restarted"] is False


@ray.remote
class Looper:
    async def me(self) -> object:
        return ray.get_runtime_context().current_actor

    async def count(self) -> int:
        return 1


def test_current_actor_is_a_handle_also_on_an_event_loop() -> None:
    subject, looper = Subject.remote(), Looper.remote()
    assert ray.get(subject.me.remote()) == subject
    found = ray.get(looper.me.remote())
    assert found == looper and type(found) is ray.actor.ActorHandle
    del looper
    assert ray.get(found.count.remote()) == 1


def test_context_of_a_task() -> None:
    @ray.remote(num_cpus=2)
    def look() -> tuple[object, ...]:
        context = ray.get_runtime_context()
        return (
            context.get_actor_id(),
            context.get_task_id(),
            context.get_task_name(),
            context.namespace,
            context.get_assigned_resources(),
        )

    one, two = ray.get([look.remote(), look.options(name="other").remote()])
    assert one[0] is None and one[1] != two[1] and len(one[1]) == 48
    assert one[2].endswith("look") and two[2] == "other"
    assert one[3] == "here" and one[4] == {"CPU": 2}


def test_exit_actor_and_an_init_that_raises() -> None:
    leaving = Subject.remote()
    with pytest.raises(ActorDiedError):
        ray.get(leaving.leave.remote())
    failing = Subject.remote(fails=True)
    with pytest.raises(ActorDiedError, match="ValueError: stillborn") as caught:
        ray.get(failing.context.remote())
    assert caught.value.actor_init_failed and caught.value.actor_id == failing._actor_id.hex()


def test_free() -> None:
    ref, kept = ray.put([1] * 10), ray.put("kept")
    free([ref])
    with pytest.raises(ObjectFreedError, match="free"):
        ray.get(ref)
    assert ray.get(kept) == "kept"
    with pytest.raises(TypeError, match="int"):
        free([3])  # type: ignore[list-item]


def test_runtime_env_of_tasks_and_actors(tmp_path) -> None:
    (tmp_path / "only_in_working_dir.py").write_text("WORD = 'found'\n")

    @ray.remote
    def look() -> tuple[object, ...]:
        import only_in_working_dir  # type: ignore[import-not-found]

        return os.getcwd(), only_in_working_dir.WORD, os.environ["ADDED"], os.environ.get("HOOKED")

    def hook() -> None:
        os.environ["HOOKED"] = "before user code"

    env = {
        "working_dir": str(tmp_path),
        "env_vars": {"ADDED": "${HOME}:more"},
        "worker_process_setup_hook": hook,
    }
    expected = (str(tmp_path), "found", f"{os.environ['HOME']}:more", "before user code")
    assert ray.get(look.options(runtime_env=env).remote()) == expected

    @ray.remote
    class Looker:
        def look(self) -> tuple[object, ...]:
            return look._function()  # type: ignore[attr-defined]

    looker = Looker.options(runtime_env=env).remote()
    assert ray.get(looker.look.remote()) == expected


def test_cloudpickle_takes_what_pickle_does_not() -> None:
    assert cloudpickle.loads(cloudpickle.dumps(lambda x: x + 1))(1) == 2


def test_configuration_of_the_job(monkeypatch) -> None:
    assert runtime_env_of_job() == {}
    monkeypatch.setenv(RAY_JOB_CONFIG_JSON_ENV_VAR, '{"runtime_env": {"env_vars": {"A": "1"}}}')
    assert runtime_env_of_job() == {"env_vars": {"A": "1"}}
    monkeypatch.setenv(RAY_JOB_CONFIG_JSON_ENV_VAR, "[")
    with pytest.raises(ValueError, match=RAY_JOB_CONFIG_JSON_ENV_VAR):
        runtime_env_of_job()
    config = JobConfig(runtime_env={"env_vars": {"A": "1"}}, ray_namespace="n")
    assert config.runtime_env.env == {"A": "1"} and config.ray_namespace == "n"
    with pytest.raises(NotImplementedError):
        JobConfig(code_search_path=["/x"])
