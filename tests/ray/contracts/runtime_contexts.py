"""get_runtime_context, and a few names beside it."""

import ray
from contract import answer, until


@ray.remote
def context():
    found = ray.get_runtime_context()
    return {
        "job": found.get_job_id(),
        "node": found.get_node_id(),
        "actor": found.get_actor_id(),
        "task": found.get_task_id(),
        "worker": found.get_worker_id(),
        "namespace": found.namespace,
        "name": found.get_task_name(),
    }


@ray.remote
class Context:
    def context(self):
        found = ray.get_runtime_context()
        return {
            "job": found.get_job_id(),
            "node": found.get_node_id(),
            "actor": found.get_actor_id(),
            "task": found.get_task_id(),
            "worker": found.get_worker_id(),
            "namespace": found.namespace,
            "actor name": found.get_actor_name(),
        }


def contract_of_the_driver() -> object:
    found = ray.get_runtime_context()
    return [
        len(found.get_job_id()),
        len(found.get_node_id()),
        found.get_actor_id(),
        found.namespace,
        len(found.get_worker_id()),
    ]


def contract_of_a_task() -> object:
    found, driver = ray.get(context.remote()), ray.get_runtime_context()
    return [
        found["job"] == driver.get_job_id(),
        found["node"] == driver.get_node_id(),
        found["worker"] == driver.get_worker_id(),
        found["actor"],
        len(found["task"]),
        found["namespace"],
    ]


def contract_of_an_actor() -> object:
    actor = Context.options(name="known").remote()
    found, driver = ray.get(actor.context.remote()), ray.get_runtime_context()
    again = ray.get(actor.context.remote())
    return [
        found["job"] == driver.get_job_id(),
        found["node"] == driver.get_node_id(),
        found["actor"] == actor._actor_id.hex(),
        found["task"] == again["task"],
        found["worker"] == again["worker"],
        found["namespace"],
        found["actor name"],
    ]


def contract_task_names() -> object:
    return [ray.get(context.remote())["name"], ray.get(context.options(name="mine").remote())["name"]]


def contract_tasks_have_ids_of_their_own() -> object:
    one, two = ray.get([context.remote(), context.remote()])
    return one["task"] == two["task"]


def contract_current_actor() -> object:
    @ray.remote
    class Me:
        def me(self):
            return ray.get_runtime_context().current_actor

        def restarted(self):
            return ray.get_runtime_context().was_current_actor_reconstructed

    actor = Me.remote()
    return [ray.get(actor.me.remote()) == actor, ray.get(actor.restarted.remote())]


def contract_the_context_as_a_dict() -> object:
    found = ray.get_runtime_context().get()
    return [key in found for key in ("job_id", "node_id", "namespace")]


def contract_timeline_is_a_list_of_events() -> object:
    ray.get([context.remote() for _ in range(3)])
    events: list = []

    def there():
        events[:] = [event for event in ray.timeline() if "context" in str(event.get("name"))]
        return events

    return [
        isinstance(ray.timeline(), list),
        until(there, 10),
        [key in events[0] for key in ("name", "ph", "ts", "pid")],
    ]


def contract_names_that_code_looks_at() -> object:
    names = (
        "init shutdown is_initialized remote get put wait kill cancel get_actor nodes cluster_resources get_gpu_ids "
    )
    names += (
        "available_resources timeline method ObjectRef get_runtime_context cloudpickle actor internal exceptions util"
    )
    return [[name for name in names.split() if not hasattr(ray, name)], isinstance(ray.__version__, str)]


def contract_private_names_that_libraries_use() -> object:
    from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

    address = ray._private.worker.global_worker.gcs_client.address
    return [RAY_JOB_CONFIG_JSON_ENV_VAR, isinstance(address, str), ray._private.services.get_node_ip_address() != ""]


def contract_tasks_are_initialized() -> object:
    @ray.remote
    def task():
        return ray.is_initialized(), ray.init(ignore_reinit_error=True) is not None

    return ray.get(task.remote())


def contract_cloudpickle_takes_closures() -> object:
    n = 5
    return [ray.cloudpickle.loads(ray.cloudpickle.dumps(lambda x: x + n))(1), ray.is_initialized()]


def contract_ray_put_in_tasks_and_nested_gets() -> object:
    @ray.remote
    def put(x):
        return ray.put([x])

    return ray.get(ray.get(put.remote(5)))


if __name__ == "__main__":
    answer(globals(), num_cpus=4, namespace="contexts")
