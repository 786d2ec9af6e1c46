"""`RuntimeEnv`: what a job, task or actor wants of the process that runs it.

Offered are ``env_vars``, ``working_dir``, ``py_modules`` and ``worker_process_setup_hook``. Directories are used where
they are, not copied: a change in them is seen at once, and nothing waits for an upload; hosts that do not share a file
system with the driver must have them at the same path, or their processes fail to start, with the path in the error.
Nothing is installed on the way to a process (pip, conda, containers): that takes minutes in the middle of a run and can
fail there. A host is started inside the environment that its workers are to have.
"""

import importlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

_START = "start the hosts (or the driver, for hosts of its own) inside the environment that workers are to have"
_PROFILE = "start the program, or a host, under the profiler; py-spy attaches to any worker"
_NATIVE: dict[str, str] = {
    "pip": _START,
    "uv": _START,
    "conda": _START,
    "container": _START,
    "image_uri": _START,
    "java_jars": "there is no Java here",
    "mpi": "hosts.spawn_procs(per_host=...) starts a mesh of ranks; torch.distributed works in it",
    "py_executable": "`hosts.spawn_procs(python=...)` takes another interpreter",
    "nsight": _PROFILE,
    "_nsight": _PROFILE,
    "rocprof_sys": _PROFILE,
    "_rocprof_sys": _PROFILE,
}
_OFFERED = ("env_vars", "working_dir", "py_modules", "worker_process_setup_hook")
_HINTS = ("excludes", "config", "_validate")  # of copies, which are not made, and of installing

SetupHook = Callable[[], object]


class RuntimeEnv(dict[str, Any]):
    """A checked runtime environment; also a dict of what was given.

    Raises TypeError or ValueError for what makes no sense, NotImplementedError for what is not offered.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__({name: value for name, value in given.items() if value is not None and name != "_validate"})
        for name, value in self.items():
            if name in _NATIVE:
                if value:
                    raise NotImplementedError(f"runtime_env[{name!r}] is not offered: {_NATIVE[name]}")
            elif name not in _OFFERED and name not in _HINTS:
                raise NotImplementedError(f"runtime_env[{name!r}] is not offered, only {', '.join(_OFFERED)}")
        _check_variables(self.get("env_vars", {}))
        if "working_dir" in self:
            self["working_dir"] = _directory("working_dir", self["working_dir"])
        if "py_modules" in self:
            self["py_modules"] = _modules(self["py_modules"])
        hook = self.get("worker_process_setup_hook")
        if hook is not None and not callable(hook) and not isinstance(hook, str):
            raise TypeError(f"runtime_env['worker_process_setup_hook']={hook!r}: expected a function or its name")

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (dict(self),)

    @property
    def env(self) -> dict[str, str]:
        """The variables to set. ``${NAME}`` in a value is that variable of this process, or nothing."""
        return {name: _VARIABLE.sub(_value_of, value) for name, value in self.get("env_vars", {}).items()}

    @property
    def cwd(self) -> str | None:
        """The directory to work in; None where nothing was said."""
        return self.get("working_dir")

    @property
    def paths(self) -> tuple[str, ...]:
        """What comes first in ``sys.path``."""
        parents = [os.path.dirname(path) for path in self.get("py_modules", ())]
        return tuple(dict.fromkeys(([self.cwd] if self.cwd else []) + parents))

    def run_setup_hook(self) -> None:
        """Call the ``worker_process_setup_hook``, if there is one; in a worker, before any user code."""
        hook = self.get("worker_process_setup_hook")
        if isinstance(hook, str):
            module, _, name = hook.rpartition(".")
            hook = getattr(importlib.import_module(module), name)
        if hook is not None:
            hook()

    def env_vars(self) -> dict[str, str]:
        """Return the variables as given."""
        return dict(self.get("env_vars", {}))

    def working_dir(self) -> str | None:
        """Return the directory to work in."""
        return self.cwd

    def py_modules(self) -> list[str]:
        """Return the directories of modules."""
        return list(self.get("py_modules", ()))

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict."""
        return dict(self)

    def serialize(self) -> str:
        """Return it as JSON, for a job's configuration."""
        return json.dumps({name: value for name, value in self.items() if not callable(value)}, sort_keys=True)

    @classmethod
    def deserialize(cls, text: str) -> "RuntimeEnv":
        """Return what `serialize` has written."""
        return cls(**json.loads(text))


def check_runtime_env(value: Mapping[str, Any]) -> RuntimeEnv:
    """Return ``value`` checked. Raises as `RuntimeEnv` does."""
    if isinstance(value, RuntimeEnv):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"runtime_env={value!r}: expected a dict, got {type(value).__name__}")
    return RuntimeEnv(**value)


def merge(outer: RuntimeEnv | None, own: RuntimeEnv | None) -> RuntimeEnv:
    """Return what holds for a task or actor with ``own`` in a job, or made by a task, with ``outer``.

    Variables are added up, ``own`` before ``outer``; of everything else ``own`` is taken where it says something.
    """
    if not outer or not own:
        return own or outer or RuntimeEnv()
    merged = {**outer, **own, "env_vars": {**outer.get("env_vars", {}), **own.get("env_vars", {})}}
    return restored(merged)


def inherited(outer: Mapping[str, Any] | None, own: RuntimeEnv | None) -> dict[str, Any] | None:
    """Return what holds for something with ``own`` that is made where ``outer`` holds, as a plain dict; None: nothing.

    ``outer`` was checked before.
    """
    if not outer and not own:
        return None
    return dict(merge(restored(outer) if outer else None, own)) or None


_VARIABLE = re.compile(r"\$\{(\w+)\}")


def _value_of(match: re.Match[str]) -> str:
    return os.environ.get(match[1], "")


def restored(checked: Mapping[str, Any]) -> RuntimeEnv:
    """Return one of what was checked before, in another process: its directories need not be there in this one."""
    made = RuntimeEnv()
    made.update(checked)
    return made


def _check_variables(variables: object) -> None:
    if not isinstance(variables, Mapping):
        raise TypeError(f"runtime_env['env_vars']={variables!r}: expected a dict of str to str")
    for name, value in variables.items():
        for what, part in (("the name", name), (f"the value of {name!r}", value)):
            if not isinstance(part, str):
                raise TypeError(f"runtime_env['env_vars']: {what} must be str, not {type(part).__name__}: {part!r}")


def _directory(name: str, path: object) -> str:
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str):
        raise TypeError(f"runtime_env[{name!r}]={path!r}: expected a path, got {type(path).__name__}")
    if "://" in path or path.endswith((".zip", ".whl")):
        raise NotImplementedError(
            f"runtime_env[{name!r}]={path!r}: only directories are offered; unpack it on the hosts"
        )
    absolute = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(absolute):
        raise ValueError(f"runtime_env[{name!r}]={path!r}: there is no such directory")
    return absolute


def _modules(given: object) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"runtime_env['py_modules']={given!r}: expected a list of directories or modules")
    return [_directory("py_modules", _path_of(each) if isinstance(each, ModuleType) else each) for each in given]


def _path_of(module: ModuleType) -> object:
    return next(iter(getattr(module, "__path__", ())), None)
