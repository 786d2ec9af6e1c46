"""`install()`: from here on ``import ray`` gives this facade, and ``import ray.x.y`` its modules.

``ray`` in `sys.modules` is the module `monarch_async.ray` itself, and each ``ray.x`` the one called
``monarch_async.ray.x``: classes pickle by that name, and are the same ones however they were imported. Submodules are
imported when they are asked for, by a finder before all others: a real Ray that is installed too is not mixed in.
Processes that multiprocessing spawns have it as well.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from monarch_async.ray.missing import missing_module

_OWN = "monarch_async.ray"
_TAKEN = "ray"

#: Has a ``ray.py`` for processes that get this `sys.path` and not our finder: those that multiprocessing spawns.
_IN_PLACE = os.path.join(os.path.dirname(__file__), "in_place")

_sync_on_loop = False


class _Alias(Loader):
    """Loads ``ray.x`` by importing ``monarch_async.ray.x``."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_own_name(spec.name))
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the machinery has set that of the other name
        _name_loaded()


class _Finder(MetaPathFinder):
    """Finds ``ray.x``, before all others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != _TAKEN:
            return None
        own = find_spec(_own_name(fullname))
        assert own is not None  # `_last` raises
        return ModuleSpec(fullname, _Alias(), origin=own.origin, is_package=own.submodule_search_locations is not None)


class _LastFinder(MetaPathFinder):
    """Asked where all others have found nothing; ``from ray import x`` asks for the module's own name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname.startswith(f"{_OWN}."):
            raise missing_module(fullname.removeprefix("monarch_async."))


_finder, _last = _Finder(), _LastFinder()


def install(sync_on_loop: bool = False) -> None:
    """Have ``import ray`` give `monarch_async.ray`, here and in all workers of this program.

    Args:
        sync_on_loop: run the plain methods of async actors on the event loop, as Ray does; otherwise they are run on a
            thread, where they may block.

    Raises:
        RuntimeError: the real Ray was imported already.
    """
    global _sync_on_loop
    present = sys.modules.get(_TAKEN)
    own = importlib.import_module(_OWN)
    if present is not None and present is not own:
        where = getattr(present, "__file__", None) or "somewhere"
        raise RuntimeError(f"ray is imported already, from {where}: call monarch_async.ray.install() before that")
    _sync_on_loop = sync_on_loop
    sys.modules[_TAKEN] = own
    _name_loaded()
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
        sys.meta_path.append(_last)
        sys.path.insert(1, _IN_PLACE)


def uninstall() -> None:
    """Undo `install`. Who has imported ``ray`` keeps what he has."""
    global _sync_on_loop
    if not is_installed():
        return
    _sync_on_loop = False
    sys.meta_path.remove(_finder)
    sys.meta_path.remove(_last)
    if _IN_PLACE in sys.path:
        sys.path.remove(_IN_PLACE)
    for name in [name for name in sys.modules if name == _TAKEN or name.startswith(f"{_TAKEN}.")]:
        del sys.modules[name]


def is_installed() -> bool:
    """Whether ``import ray`` gives this facade."""
    return _finder in sys.meta_path


def installation() -> bool | None:
    """Return what to say to `install` in a worker for it to be as here; None: nothing, it was not called here."""
    return _sync_on_loop if is_installed() else None


def is_sync_on_loop() -> bool:
    """Whether `install` was told ``sync_on_loop``."""
    return _sync_on_loop


def _name_loaded() -> None:
    """Give what is imported already its other name too, lest importing it by that has its package refer to the module
    where it had a function of the same name: `ray.util.placement_group`."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{_OWN}."):
            sys.modules.setdefault(_TAKEN + name.removeprefix(_OWN), module)


def _own_name(name: str) -> str:
    return _OWN + name.removeprefix(_TAKEN)
