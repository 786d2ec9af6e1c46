"""`install()` and ``python -m monarch_async.ray``: programs that import ray get the facade."""

import importlib
import importlib.util
import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest

import monarch_async.ray
from monarch_async.ray.install import install, is_installed, is_sync_on_loop, uninstall
from monarch_async.ray.missing import MissingModule, MissingName, missing, native_way

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def installed():
    install()
    yield
    uninstall()


def _run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "monarch_async.ray", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=50)


def test_ray_is_the_facade():
    ray = importlib.import_module("ray")
    assert ray is monarch_async.ray and ray.__version__
    assert ray.remote is monarch_async.ray.remote


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("ray.util.queue", "Queue"),
        ("ray.util.queue", "Empty"),
        ("ray.util", "placement_group"),
        ("ray.util.placement_group", "PlacementGroup"),
        ("ray.util.scheduling_strategies", "NodeAffinitySchedulingStrategy"),
        ("ray.util.collective", "init_collective_group"),
        ("ray.util.metrics", "Counter"),
        ("ray.util.actor_pool", "ActorPool"),
        ("ray.exceptions", "RayTaskError"),
        ("ray.actor", "ActorHandle"),
        ("ray.actor", "exit_actor"),
        ("ray.internal", "free"),
        ("ray.cloudpickle", "dumps"),
        ("ray.runtime_env", "RuntimeEnv"),
        ("ray.runtime_context", "get_runtime_context"),
        ("ray.job_config", "JobConfig"),
        ("ray.experimental.state.api", "get_actor"),
        ("ray._private.state", "available_resources_per_node"),
        ("ray._private.services", "get_node_ip_address"),
        ("ray._private.worker", "global_worker"),
        ("ray._private.runtime_env.constants", "RAY_JOB_CONFIG_JSON_ENV_VAR"),
    ],
)
def test_modules_and_what_is_in_them(module, name):
    alias = importlib.import_module(module)
    own = importlib.import_module(module.replace("ray", "monarch_async.ray", 1))
    assert alias is own and getattr(alias, name) is getattr(own, name)
    assert own.__name__ == own.__spec__.name == module.replace("ray", "monarch_async.ray", 1)


def test_import_statements():
    namespace: dict[str, object] = {}
    exec("import ray.util.queue\nfrom ray.util.queue import Queue\nimport ray.util.collective as collective", namespace)
    ray = namespace["ray"]
    assert ray.util.queue.Queue is namespace["Queue"]  # type: ignore[attr-defined]
    exec("from ray.util import collective as other", namespace)
    assert namespace["collective"] is namespace["other"]


def test_classes_pickle_by_their_own_name_whoever_imported_them():
    error = importlib.import_module("ray.exceptions").GetTimeoutError("x")
    data = pickle.dumps(error)
    assert b"monarch_async.ray.exceptions" in data
    uninstall()
    assert type(pickle.loads(data)) is monarch_async.ray.exceptions.GetTimeoutError


@pytest.mark.parametrize("module", ["ray.data", "ray.train.torch", "ray.serve", "ray.util.dask", "ray.nothing"])
def test_modules_that_are_not_offered(module):
    with pytest.raises(NotImplementedError, match=module.rsplit(".", 1)[0]) as caught:
        importlib.import_module(module)
    assert isinstance(caught.value, ModuleNotFoundError)
    with pytest.raises(NotImplementedError):
        exec(f"from {module.rsplit('.', 1)[0]} import {module.rsplit('.', 1)[1]}")


def test_who_tries_goes_on_without_what_is_missing():
    program = "try:\n    import ray.tune\nexcept ImportError as error:\n    said = str(error)\n"
    namespace: dict[str, str] = {}
    exec(program, namespace)
    assert "ma.map_unordered" in namespace["said"]
    assert not hasattr(importlib.import_module("ray"), "data")


def test_missing_names_have_the_native_way():
    assert "ma.ActorPool" in str(missing("ray.serve"))
    assert native_way("ray.train.torch.TorchTrainer") == native_way("train") != ""
    assert native_way("ray.nothing") == ""
    error = missing("ray.util.dask")
    assert isinstance(error, MissingName) and isinstance(error, AttributeError) and error.name == "dask"
    assert issubclass(MissingModule, ImportError)


def test_the_top_has_a_way_for_names_that_it_has_not():
    with pytest.raises(NotImplementedError, match="data"):
        monarch_async.ray.data  # noqa: B018
    with pytest.raises(AttributeError):
        monarch_async.ray.nothing  # noqa: B018


def test_installing_twice_is_fine_and_says_how_plain_methods_run():
    assert is_installed() and not is_sync_on_loop()
    install(sync_on_loop=True)
    assert is_sync_on_loop()
    assert sum(type(finder).__module__ == "monarch_async.ray.install" for finder in sys.meta_path) == 2


def test_uninstalling_leaves_nothing():
    importlib.import_module("ray.util.queue")
    uninstall()
    uninstall()
    assert not is_installed()
    assert not [name for name in sys.modules if name == "ray" or name.startswith("ray.")]
    assert importlib.util.find_spec("ray") is None or "monarch_async" not in str(importlib.util.find_spec("ray"))


def test_a_real_ray_that_is_there_already_is_not_replaced(monkeypatch):
    uninstall()
    real = types.ModuleType("ray")
    real.__file__ = "/somewhere/ray/__init__.py"
    monkeypatch.setitem(sys.modules, "ray", real)
    with pytest.raises(RuntimeError, match="/somewhere/ray"):
        install()
    assert not is_installed() and sys.modules["ray"] is real


def test_other_modules_are_found_as_before():
    assert importlib.import_module("json") and importlib.util.find_spec("rays_of_light") is None


# -- the command -------------------------------------------------------------------------------------------------------


def test_script_runs_as_python_runs_it(tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    script = tmp_path / "script.py"
    script.write_text(
        """
import sys, ray, beside
print(__name__, sys.argv[1:], sys.argv[0] == __file__, beside.WORD, ray.__name__)
print(sys.modules["__main__"].__dict__ is globals())
"""
    )
    done = _run(str(script), "-x", "y")
    assert done.stdout.splitlines() == ["__main__ ['-x', 'y'] True beside monarch_async.ray", "True"], done.stderr
    assert done.returncode == 0


def test_module_runs_as_python_runs_it(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys, ray\nprint(__name__, sys.argv[1:], ray.__name__)\n")
    done = _run("-m", "package", "a", cwd=tmp_path)
    assert done.stdout == "__main__ ['a'] monarch_async.ray\n", done.stderr


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('bad luck')", 1, "bad luck\n"),
        ("import sys; sys.exit()", 0, ""),
    ],
)
def test_exit_status_is_the_programs(tmp_path, code, status, said):
    (tmp_path / "script.py").write_text(code)
    done = _run(str(tmp_path / "script.py"))
    assert (done.returncode, done.stderr) == (status, said)


def test_traceback_begins_in_the_program(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def fail():\n    raise ValueError('oh')\n\nfail()\n")
    done = _run(str(script))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0].startswith("Traceback") and str(script) in lines[1] and lines[-1] == "ValueError: oh"
    assert "runpy" not in done.stderr


def test_usage():
    assert _run().returncode == 2
    assert _run("-m").returncode == 2
    assert "usage" in _run("--help").stdout
    missing_script = _run("/nonexistent/script.py")
    assert missing_script.returncode == 2 and "/nonexistent/script.py" in missing_script.stderr


@pytest.mark.slow
def test_program_with_classes_of_main_and_nested_tasks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import ray
from ray.exceptions import RayTaskError

class Wrong(Exception):
    def __init__(self, code, why):
        super().__init__(why)
        self.code = code

@ray.remote
def inner(x):
    raise Wrong(x, "inner")

@ray.remote
def outer(x):
    import ray as again
    return again.get(inner.remote(x))

ray.init(num_cpus=2)
try:
    ray.get(outer.remote(5))
except Wrong as error:
    print(isinstance(error, RayTaskError), error.code, type(error.cause) is Wrong)
"""
    )
    done = _run(str(script))
    assert done.stdout == "True 5 True\n", done.stderr
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.slow
def test_workers_have_what_the_driver_was_told(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import threading
import ray

@ray.remote
class Async:
    async def on_loop(self):
        return threading.get_ident()

    def plain(self):
        return threading.get_ident()

@ray.remote
def in_a_task():
    actor = Async.remote()
    return len(set(ray.get([actor.on_loop.remote(), actor.plain.remote()])))

ray.init(num_cpus=2)
print(in_a_task.remote.__module__.partition(".")[0], ray.get(in_a_task.remote()))
"""
    )
    assert _run(str(script)).stdout == "monarch_async 2\n"
    assert _run("--sync-on-loop", str(script)).stdout == "monarch_async 1\n"
