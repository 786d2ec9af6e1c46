"""How the procs of a mesh are made. Checked where it is given, so that a mistake starts nothing."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from monarch_async.errors import BadCall, ExtentError
from monarch_async.ranks import Extent, Point

Env = Mapping[str, str] | Callable[[Point], Mapping[str, str]]

_WHAT = "spawn_procs"


@dataclass(frozen=True)
class ProcRecipe:
    """What `HostMesh.spawn_procs` was given, for which see there. Raises BadCall where that makes no sense."""

    env: Env | None
    preload: Sequence[str]
    start: str
    python: str | None
    cwd: str | None
    sys_path: tuple[str, ...]

    @classmethod
    def of(
        cls, env: Env | None, preload: Sequence[str] | None, start: str, python: str | None, cwd: str | None
    ) -> "ProcRecipe":
        """Return the recipe for what a user gave; modules are found where this program finds them."""
        if preload is None:
            preload = default_preload()
        return cls(env, preload, start if python is None else "spawn", python, cwd, client_path())

    def __post_init__(self) -> None:
        """Check all but what `env` returns."""
        if self.start not in ("fork", "spawn"):
            raise BadCall(_WHAT, f"start={self.start!r}: expected 'fork' or 'spawn'")
        if isinstance(self.preload, str) or not all(isinstance(module, str) for module in self.preload):
            raise BadCall(_WHAT, f"preload={self.preload!r}: expected a list of module names")
        for name in ("python", "cwd"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value and "\0" not in value):
                raise BadCall(_WHAT, f"{name}={value!r}: expected a path")
        if not (self.env is None or callable(self.env) or isinstance(self.env, Mapping)):
            raise BadCall(_WHAT, f"env={self.env!r}: expected a mapping of str to str, or a function that returns one")

    def env_of(self, point: Point) -> dict[str, str]:
        """Return the variables of the proc at ``point``. Raises BadCall, and whatever a function for them does."""
        env = self.env(point) if callable(self.env) else self.env or {}
        if not isinstance(env, Mapping):
            raise BadCall(_WHAT, f"env returned {env!r} for {point!r}: expected a mapping of str to str")
        bad = [f"{name}={value!r}" for name, value in env.items() if not _can_be_set(name, value)]
        if bad:
            raise BadCall(_WHAT, f"env must map str to str: {', '.join(bad)}")
        return dict(env)


def _can_be_set(name: object, value: object) -> bool:
    if not (isinstance(name, str) and isinstance(value, str)):
        return False
    return bool(name) and "=" not in name and "\0" not in name + value


#: What workers import before they are forked, where this program has imported the first of each.
_PRELOADED = (("torch", "pyarrow", "cloudpickle"), ("numpy",), ("monarch_async.ray",))


def default_preload() -> tuple[str, ...]:
    """Return what workers import before they are forked, of what takes long: what this program has, too."""
    return tuple([module for modules in _PRELOADED if modules[0] in sys.modules for module in modules])


def client_path() -> tuple[str, ...]:
    """Return where this program finds its modules, for workers to find them too."""
    return tuple(os.path.abspath(path) for path in sys.path if path)


def extent_of_procs(hosts: Extent, per_host: Mapping[str, int] | None) -> tuple[Extent, int]:
    """Return the extent of a proc mesh, and how many procs each host gets. Raises ExtentError."""
    inner = Extent.of({} if per_host is None else per_host)
    for axis in inner:
        if axis == "hosts" or axis in hosts:
            raise ExtentError(f"the axis name {axis!r} is taken: the axes of the hosts come first in every proc mesh")
    return Extent.of({**hosts, **inner}), inner.size


def check_mesh_name(what: str, name: object) -> None:
    """Raise BadCall unless ``name`` is a text that can stand in one line of a log."""
    if not (isinstance(name, str) and name.strip() and name.isprintable()):
        raise BadCall(what, f"name={name!r}: expected a text of one line")
