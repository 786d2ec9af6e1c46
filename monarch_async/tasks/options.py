"""What may be said about a task, checked where it is said."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from monarch_async.errors import BadDemand
from monarch_async.mesh.placement import Placement
from monarch_async.mesh.proc_recipe import ProcRecipe
from monarch_async.scheduler.demand import Bundle
from monarch_async.tasks.shape import Shape, as_pairs

RetryOn = type[BaseException] | tuple[type[BaseException], ...]


class TaskOptions(TypedDict, total=False):
    """The options of a task, all of them keyword arguments of `submit`.

    cpus, gpus, memory, custom: what it takes, as of `Bundle` (1 cpu); accounted, not enforced. CUDA_VISIBLE_DEVICES is
        set before anything is imported.
    labels, hosts: where it may run, as of `Demand`.
    placement, bundle: run on what a placement holds, in this bundle of it; where that is None, in one of those that
        are large enough, in turn.
    retries: how many times it may run again (3): when its worker or its host is lost, or with ``retry_on``.
    retry_on: exception classes which, raised by the function, are worth another try.
    poison: a task that has ended so many workers (3) is given up, with `Poisoned`, and the same function with the same
        arguments is refused from then on; see `quarantine`. Deaths that somebody asked for, and hosts that are lost, do
        not count.
    env, cwd: environment variables and working directory of the worker's process, set before anything is imported.
    name: what it is called in errors and tables; by default the function's name.
    as_ref: the result stays in the memory of the host where it ran, and the future gives a `Ref` to it.
    returns: the function returns a tuple or list of so many values; with ``as_ref`` each is kept by itself.
    """

    cpus: float
    gpus: float
    memory: int
    custom: Mapping[str, float] | None
    labels: Mapping[str, str] | None
    hosts: Sequence[str]
    placement: Placement | None
    bundle: int | None
    retries: int
    retry_on: RetryOn
    poison: int
    env: Mapping[str, str] | None
    cwd: str | None
    name: str | None
    as_ref: bool
    returns: int | None


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """The same, checked. ``returns``: 0 where the function returns one value."""

    shape: Shape
    retries: int
    retry_on: tuple[type[BaseException], ...]
    poison: int
    name: str
    as_ref: bool
    returns: int


def check_names(options: TaskOptions) -> None:
    """Raise BadDemand where there is an option that there is not."""
    unknown = [name for name in options if name not in TaskOptions.__annotations__]
    if unknown:
        known = ", ".join(sorted(TaskOptions.__annotations__))
        raise BadDemand(f"{unknown[0]}= of a task: there is no such option, only {known}")


def read_options(options: TaskOptions) -> CheckedOptions:
    """Check options, of names that there are. Raises BadDemand."""
    given: dict[str, Any] = dict(options)
    for name in ("custom", "labels", "env"):
        if name in given:
            given[name] = as_pairs(name, given[name])
    hosts = given.pop("hosts", ())
    if isinstance(hosts, str) or not all(isinstance(host, str) for host in hosts):
        raise BadDemand(f"hosts={hosts!r} of a task: expected a list of names")
    placement, bundle = given.pop("placement", None), given.pop("bundle", None)
    within = None if placement is None else (placement.id, _choose_bundle(placement, bundle, given))
    if placement is None and bundle is not None:
        raise BadDemand(f"bundle={bundle!r} of a task: of which placement?")
    return _checked(hosts=tuple(hosts), within=within, **given)


_turns = itertools.count()


def _choose_bundle(placement: Placement, bundle: int | None, given: dict[str, Any]) -> int:
    """Return the bundle, or, in turn, one of those that are large enough where none was said."""
    bundles = placement.demand.bundles
    if bundle is not None:
        if isinstance(bundle, bool) or not isinstance(bundle, int) or not 0 <= bundle < len(bundles):
            raise BadDemand(f"bundle={bundle!r} of a task: {placement.demand.name} has {len(bundles)}, from 0 on")
        return bundle
    need = Bundle(given.get("cpus", 1), given.get("gpus", 0), given.get("memory", 0), dict(given.get("custom", ())))
    fitting = [index for index, has in enumerate(bundles) if _has_room(has, need)]
    if not fitting:
        raise BadDemand(f"no bundle of {placement.demand.name} is large enough for a task with {need}")
    return fitting[next(_turns) % len(fitting)]


def _has_room(has: Bundle, need: Bundle) -> bool:
    amounts = has.cpus >= need.cpus and has.gpus >= need.gpus and has.memory >= need.memory
    return amounts and all(has.custom.get(name, 0) >= amount for name, amount in need.custom.items())


@functools.lru_cache(maxsize=256, typed=True)  # a loop that submits says the same each time
def _checked(
    *,
    cpus: float = 1,
    gpus: float = 0,
    memory: int = 0,
    custom: tuple[tuple[str, float], ...] = (),
    labels: tuple[tuple[str, str], ...] = (),
    hosts: tuple[str, ...] = (),
    within: tuple[int, int] | None = None,
    retries: int = 3,
    retry_on: RetryOn = (),
    poison: int = 3,
    env: tuple[tuple[str, str], ...] = (),
    cwd: str | None = None,
    name: str | None = None,
    as_ref: bool = False,
    returns: int | None = None,
) -> CheckedOptions:
    for what, count, least in (("retries", retries, 0), ("poison", poison, 1), ("returns", returns, 1)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < least):
            raise BadDemand(f"{what}={count!r} of a task: expected {least} or more")
    classes = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        raise BadDemand(f"retry_on={retry_on!r} of a task: expected exception classes")
    if not (name is None or (isinstance(name, str) and name.isprintable() and name.strip())):
        raise BadDemand(f"name={name!r} of a task: expected a text of one line")
    shape = Shape(float(cpus), float(gpus), memory, custom, labels, hosts, within, env, cwd)
    ProcRecipe(dict(env), (), "fork", None, cwd, ()).env_of(None)  # type: ignore[arg-type]  # nothing depends on where
    return CheckedOptions(shape, retries, classes, poison, name or "", bool(as_ref), returns or 0)
