"""`get_runtime_context()`: where the code that asks runs, and as what: a task, an actor, or the driver."""

from typing import Any

from monarch_async.ray.actor_handle import ActorHandle, current_actor
from monarch_async.ray.devices import held_devices
from monarch_async.ray.placement_group import get_current_placement_group
from monarch_async.ray.runtime import current
from monarch_async.ray.runtime_env import RuntimeEnv, restored
from monarch_async.runtime.context import current_context

_OTHER_KINDS = ("NPU", "TPU", "HPU", "neuron_cores")


class Id(str):
    """An id as a text, which also answers what Ray's own classes for ids do."""

    __slots__ = ()

    def hex(self) -> str:
        """Return the text."""
        return str(self)

    def binary(self) -> bytes:
        """Return its bytes."""
        return bytes.fromhex(self)


class RuntimeContext:
    """Ids are texts of hexadecimal digits. Each call says what holds where it is made."""

    def get_job_id(self) -> str:
        """Return the id of this program's run."""
        return current().job_id

    def get_node_id(self) -> str:
        """Return the id of this process's host, as `nodes` names it."""
        return current().node_id

    def get_worker_id(self) -> str:
        """Return the id of this process: one for each process of the program."""
        return f"{current().address:056x}"

    def get_task_id(self) -> str | None:
        """Return the id of the task or of the method's call that runs here; None in the driver."""
        context = current().context
        if not context.actor_id:
            return f"{context.task_id:0>48}" if context.task_id else None
        call = current_context()
        return None if call is None else f"{call.src:032x}{call.call:016x}"

    def get_task_name(self) -> str | None:
        """Return the name of the task that runs here; None in the driver."""
        return current().context.task_name or None

    def get_task_function_name(self) -> str | None:
        """Return the name of the function or method that runs here; None in the driver."""
        return self.get_task_name()

    def get_actor_id(self) -> str | None:
        """Return the id of the actor that runs here; None where there is none."""
        return current().context.actor_id or None

    def get_actor_name(self) -> str | None:
        """Return the name that the actor was given; empty where it has none, None outside of actors."""
        context = current().context
        return context.actor_name if context.actor_id else None

    def get_placement_group_id(self) -> str | None:
        """Return the id of the placement group that this process was placed in; None where it is in none."""
        group = get_current_placement_group()
        return None if group is None else group.id.hex()

    def get_assigned_resources(self) -> dict[str, float]:
        """Return what the task or actor that runs here holds; nothing in the driver."""
        return dict(current().context.assigned_resources)

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the GPUs that the task or actor that runs here holds: ``{"GPU": ["0"]}``; of other kinds none."""
        return {"GPU": _own_gpus(), **{kind: [] for kind in _OTHER_KINDS}}

    def get_runtime_env_string(self) -> str:
        """Return the runtime_env as JSON."""
        return self.runtime_env.serialize()

    def get_node_labels(self) -> dict[str, str]:
        """Return the labels of this process's host."""
        runtime = current()
        rows: list[dict[str, Any]] = runtime.ask_hub("nodes.rows")
        return next((dict(row["Labels"]) for row in rows if row["NodeID"] == runtime.node_id), {})

    def get(self) -> dict[str, Any]:
        """Return the main ones in a dict."""
        told = {"job_id": self.get_job_id(), "node_id": self.get_node_id(), "namespace": self.namespace}
        own = {"task_id": self.get_task_id(), "actor_id": self.get_actor_id()}
        return told | {name: value for name, value in own.items() if value is not None}

    @property
    def namespace(self) -> str:
        """In which names of actors are looked up."""
        return current().context.namespace or current().namespace

    @property
    def runtime_env(self) -> RuntimeEnv:
        """What was said of the process that this runs in."""
        return restored(current().context.runtime_env or {})

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor that runs here is not the first of its name: it was restarted."""
        return current().context.is_restarted

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether what is started here goes to this process's placement group."""
        return current().context.captures

    @property
    def current_actor(self) -> ActorHandle:
        """A handle to the actor that runs here. Raises RuntimeError outside of actors."""
        return current_actor()

    @property
    def gcs_address(self) -> str:
        """Where the hub is, which knows what there is: ``host:port``-like; nothing of Ray's can connect to it."""
        return hub_address()

    @property
    def job_id(self) -> Id:
        """As `get_job_id`."""
        return Id(self.get_job_id())

    @property
    def node_id(self) -> Id:
        """As `get_node_id`."""
        return Id(self.get_node_id())

    @property
    def actor_id(self) -> Id | None:
        """As `get_actor_id`."""
        found = self.get_actor_id()
        return None if found is None else Id(found)

    @property
    def task_id(self) -> Id | None:
        """As `get_task_id`."""
        found = self.get_task_id()
        return None if found is None else Id(found)


_context = RuntimeContext()


def get_runtime_context() -> RuntimeContext:
    """Return what tells where the code that asks runs."""
    current()
    return _context


def get_gpu_ids() -> list[int | str]:
    """Return the GPUs that the task or actor that runs here holds; in the driver, which holds none, nothing."""
    return [int(gpu) if gpu.isdigit() else gpu for gpu in _own_gpus()]


def _own_gpus() -> list[str]:
    """Read what the scheduler has set for this process; the driver has what its user has set, which is no holding."""
    return held_devices() if current().context.assigned_resources.get("GPU") else []


def hub_address() -> str:
    """Return ``address:number``: the driver's host, and its own number among the processes."""
    runtime = current()
    rows: list[dict[str, Any]] = runtime.ask_hub("nodes.rows")
    head = rows[0]["NodeManagerAddress"] if rows else "127.0.0.1"
    return f"{head}:{runtime.hub_address & 0xFFFF}"
