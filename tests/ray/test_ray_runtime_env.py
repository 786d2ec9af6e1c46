"""Runtime environments: what is checked, and what a worker is told of them."""

import pickle
import types

import pytest

from monarch_async.ray.runtime_env import RuntimeEnv, check_runtime_env, merge


@pytest.mark.parametrize("name", ["pip", "uv", "conda", "container", "image_uri", "nsight", "py_executable", "else"])
def test_what_is_not_offered_names_the_native_way(name):
    with pytest.raises(NotImplementedError, match=name):
        check_runtime_env({name: "x"})


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"env_vars": {"A": 1}}, TypeError),
        ({"env_vars": ["A"]}, TypeError),
        ({"working_dir": 1}, TypeError),
        ({"working_dir": "/nonexistent/directory"}, ValueError),
        ({"working_dir": "s3://bucket/code.zip"}, NotImplementedError),
        ({"py_modules": "one"}, TypeError),
        ({"worker_process_setup_hook": 3}, TypeError),
    ],
    ids=str,
)
def test_what_makes_no_sense(given, kind):
    with pytest.raises(kind) as caught:
        check_runtime_env(given)
    assert type(caught.value) is kind


def test_empty_ones_of_what_is_not_offered_are_fine():
    assert check_runtime_env({"pip": [], "conda": None, "config": {"setup_timeout_seconds": 1}}).env == {}


def test_variables_may_use_those_that_there_are(monkeypatch):
    monkeypatch.setenv("LIBRARIES", "/a:/b")
    monkeypatch.delenv("NOTHING", raising=False)
    env = check_runtime_env({"env_vars": {"P": "/c:${LIBRARIES}", "Q": "[${NOTHING}]", "R": "$LIBRARIES"}})
    assert env.env == {"P": "/c:/a:/b", "Q": "[]", "R": "$LIBRARIES"}
    assert env.env_vars()["P"] == "/c:${LIBRARIES}"


def test_directories(tmp_path, monkeypatch):
    package = tmp_path / "lib" / "package"
    package.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    env = check_runtime_env({"working_dir": ".", "py_modules": [str(package)], "excludes": ["*.bin"]})
    assert env.cwd == str(tmp_path) == env.working_dir()
    assert env.paths == (str(tmp_path), str(tmp_path / "lib"))
    assert check_runtime_env({}).cwd is None and check_runtime_env({}).paths == ()


def test_module_objects(tmp_path):
    module = types.ModuleType("package")
    module.__path__ = [str(tmp_path)]
    assert RuntimeEnv(py_modules=[module]).paths == (str(tmp_path.parent),)
    with pytest.raises(TypeError):
        RuntimeEnv(py_modules=[types.ModuleType("no_path")])


def test_is_a_dict_that_travels_also_to_where_its_directory_is_not(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = RuntimeEnv(working_dir=str(home), env_vars={"A": "1"})
    data = pickle.dumps(env)
    home.rmdir()
    again = pickle.loads(data)
    assert type(again) is RuntimeEnv and again == env == {"working_dir": str(home), "env_vars": {"A": "1"}}
    assert env.to_dict() == dict(env)


def test_serializes():
    env = RuntimeEnv(env_vars={"A": "1"})
    assert RuntimeEnv.deserialize(env.serialize()) == env


def test_merging_adds_variables_up_and_takes_the_inner_ones_otherwise(tmp_path):
    job = RuntimeEnv(env_vars={"A": "1", "B": "1"}, working_dir=str(tmp_path))
    own = RuntimeEnv(env_vars={"B": "2"})
    merged = merge(job, own)
    assert type(merged) is RuntimeEnv and merged.env == {"A": "1", "B": "2"} and merged.cwd == str(tmp_path)
    assert merge(None, own) is own and merge(job, None) is job and merge(None, None) == {}


def test_setup_hook_by_object_and_by_name(monkeypatch):
    called = []
    RuntimeEnv(worker_process_setup_hook=lambda: called.append("object")).run_setup_hook()
    monkeypatch.setattr("builtins._hook", lambda: called.append("name"), raising=False)
    RuntimeEnv(worker_process_setup_hook="builtins._hook").run_setup_hook()
    RuntimeEnv().run_setup_hook()
    assert called == ["object", "name"]
