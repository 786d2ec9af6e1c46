"""What is said about the parts of Ray that are not here: that they are not, and the native way.

A missing name is NotImplementedError and AttributeError at once, a missing module NotImplementedError and
ModuleNotFoundError: who tries whether something is there (``hasattr(ray, "data")``, ``except ImportError``) goes on
without it, as where a smaller Ray is installed.
"""


class MissingName(NotImplementedError, AttributeError):
    """A name of Ray that this facade has not."""


class MissingModule(NotImplementedError, ModuleNotFoundError):
    """A module of Ray that this facade has not."""


_WAYS: dict[str, str] = {
    "data": "`ma.map_unordered(function, items)` maps over any number of items, with retries and bounded memory",
    "train": "`hosts.spawn_procs(...)`, and torch.distributed in its actors; `ma.supervise`, `ma.restart` for losses",
    "tune": "`ma.map_unordered`, one configuration per task; `ma.task_status` shows them",
    "serve": "`ma.ActorPool` (grows and shrinks by load) behind any asyncio web server",
    "rllib": "examples/ has RL loops on meshes of actors; `ma.WeightPublisher` moves weights",
    "air": "`ma.ActorPool`, `ma.submit` and torch.distributed",
    "dag": "await the results, or give references as arguments: a call waits for them by itself",
    "workflow": "a plain coroutine; what must survive the program is written by it",
    "llm": "an engine in an actor; `ma.ActorPool` for several",
    "job_submission": "start the program anywhere with `ma.attach(...)`; what is to outlive it is a detached lease",
    "dashboard": "`monarch-async status`",
    "autoscaler": "`ma.HostSource` adds and removes hosts",
    "client": "`ma.attach(...)` joins running hosts from any machine",
    "client_builder": "`ma.attach(...)` joins running hosts from any machine",
    "ClientBuilder": "`ma.attach(...)` joins running hosts from any machine",
    "cross_language": "there is Python alone",
    "java_function": "there is Python alone",
    "java_actor_class": "there is Python alone",
    "widgets": "`monarch-async status`",
    "LoggingConfig": "logging.basicConfig in the program; workers' output comes with their names before it",
    "DynamicObjectRefGenerator": 'num_returns="streaming", whose items can be read while the task runs',
    "util.multiprocessing": "`ma.submit`, or concurrent.futures on one host",
    "util.joblib": "`ma.submit`",
    "util.dask": "`ma.submit`",
    "util.spark": "`ma.attach(...)`",
    "util.iter": "`ma.map_unordered`",
    "util.rpdb": "py-spy, or debugpy listening in the worker",
    "util.tracing": "`ray.timeline`",
    "util.client": "`ma.attach(...)` joins running hosts from any machine",
    "util.tpu": "hosts with labels: `ma.Demand(labels=...)`",
    "experimental.channel": "`ma.channel()`, `ma.Port`",
    "experimental.compiled_dag": "await the results; a call costs tens of microseconds here",
    "experimental.collective": "ray.util.collective, or torch.distributed",
    "experimental.internal_kv": "a named actor, or `ma.Queue`",
    "experimental.tqdm_ray": "`ma.progress`",
    "_private.test_utils": "`ma.local_hosts(...)` starts several hosts on one machine",
    "_raylet": "it is Ray's own core, in C++",
    "cluster_utils": "`ma.local_hosts(...)` starts several hosts on one machine",
}


def native_way(name: str) -> str:
    """Return the native way for ``data``, ``util.dask`` or what is below; empty where there is nothing to say."""
    parts = name.removeprefix("ray.").split(".")
    for end in range(len(parts), 0, -1):
        way = _WAYS.get(".".join(parts[:end]))
        if way:
            return way
    return ""


def missing(name: str) -> MissingName:
    """Return what to raise for a name that is not here: ``missing("ray.data")``."""
    error = MissingName(_text(name))
    error.name = name.rpartition(".")[2]
    return error


def missing_module(name: str) -> MissingModule:
    """Return what to raise where a module is imported that is not here.

    Its ``name`` is not set: the import machinery would take that for its own error, and drop the text.
    """
    return MissingModule(_text(name))


def _text(name: str) -> str:
    way = native_way(name)
    name = name if name.startswith("ray.") else f"ray.{name}"
    told = f"the native way (import monarch_async as ma): {way}" if way else "help('monarch_async.ray') says what is"
    return f"{name} is not offered by monarch_async.ray; {told}"
