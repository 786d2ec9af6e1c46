"""Ray's core API on this runtime: programs that ``import ray`` run unchanged.

    python -m monarch_async.ray script.py        # or, in a program: monarch_async.ray.install() before `import ray`

The names that programs use are here, with Ray's options and behaviour; what is not raises NotImplementedError and names
the native way. The event loop runs on a thread of its own in the background, so the functions block their callers as
Ray's do; coroutines await the references.

Chapters:

- ``install``, ``__main__``           ``import ray`` gives this facade
- ``driver``, ``init_context``        `init` and `shutdown`: the loop in the background, and hosts
- ``runtime``, ``worker``, ``context``, ``waiting``  what every process has: the loop, objects, the way to the hub
- ``api``                             `remote`, `get`, `put`, `wait`, `cancel`, `kill`, `get_actor`
- ``remote_function``, ``task_body``, ``compute_threads``  functions as tasks: where they are called, and in the worker
- ``actor_class``, ``actor_handle``, ``actor_host``, ``actor``, ``arity``  classes, handles, what holds the object
- ``calling``, ``actor_stream``       calls of actors: order, retries, restarts
- ``departure``                       how a process ends where its code says so
- ``generator``                       streams
- ``object_ref``, ``entry``, ``borrowing``, ``payload``  objects: references, values, who owns and who borrows them
- ``hub``, ``hub_tasks``, ``hub_actors``, ``hub_actor``  the driver's half: all that is placed or spawned
- ``hub_detached``                    actors that earlier drivers have left
- ``options``, ``runtime_env``, ``job_config``  what may be said
- ``placing``, ``amounts``, ``living``, ``seat``, ``spread``, ``strategies``, ``devices``  where things go
- ``placement_group``, ``group``, ``groups``, ``nodes``  placement groups; nodes and their resources
- ``exceptions``, ``task_error``      what is raised
- ``util``, ``metric_table``, ``rendezvous``, ``membership``  queues, metrics, collectives; the hub's part
- ``runtime_context``, ``cloudpickle``, ``internal``, ``missing``  the rest of Ray's surface
"""

from typing import Any

from monarch_async.ray import actor, exceptions
from monarch_async.ray.actor_class import ActorClass
from monarch_async.ray.actor_handle import ActorHandle, ActorID
from monarch_async.ray.api import cancel, get, get_actor, kill, method, put, remote, timeline, wait
from monarch_async.ray.driver import init, is_initialized, shutdown
from monarch_async.ray.generator import DynamicObjectRefGenerator, ObjectRefGenerator
from monarch_async.ray.init_context import VERSION
from monarch_async.ray.install import install, uninstall
from monarch_async.ray.job_config import JobConfig
from monarch_async.ray.missing import missing
from monarch_async.ray.nodes import available_resources, cluster_resources, nodes
from monarch_async.ray.object_ref import ObjectRef
from monarch_async.ray.runtime_context import get_gpu_ids, get_runtime_context
from monarch_async.ray.runtime_env import RuntimeEnv

__version__ = VERSION

__all__ = [
    "ActorClass",
    "ActorHandle",
    "ActorID",
    "DynamicObjectRefGenerator",
    "JobConfig",
    "ObjectRef",
    "ObjectRefGenerator",
    "RuntimeEnv",
    "actor",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exceptions",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "install",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "put",
    "remote",
    "shutdown",
    "timeline",
    "uninstall",
    "wait",
]

_SUBMODULES = frozenset({"_private", "cloudpickle", "experimental", "internal", "runtime_env", "util"})


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise missing(name)
