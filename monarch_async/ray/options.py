"""What may be said about tasks, actors and methods in `@remote(...)`, `.options(...)` and `@method(...)`.

It is checked where it is said. Names, defaults and kinds of errors are Ray's: an unknown name or a wrong value is
ValueError, a wrong type TypeError. What is valid there and not offered here is NotImplementedError, with the native
way. ``None`` is "not given".
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from monarch_async.ray.runtime_env import RuntimeEnv, check_runtime_env
from monarch_async.ray.strategies import (
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

_STRATEGIES = (PlacementGroupSchedulingStrategy, NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy)


@dataclass(frozen=True, slots=True)
class _Placed:
    """What tasks and actors have in common. ``label_selector``: labels that a host must have.

    ``scheduling_strategy``: a text, ``DEFAULT`` or ``SPREAD``, or one of `util.scheduling_strategies`; the older
    ``placement_group=`` becomes one. ``resources``: named ones of the user's own. ``memory`` in bytes.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    resources: dict[str, float] | None = None
    label_selector: dict[str, str] | None = None
    scheduling_strategy: object = None
    runtime_env: RuntimeEnv | None = None
    name: str | None = None

    def _merged(self, given: Mapping[str, Any], what: str, known: Mapping[str, "_Check"], fixed: str) -> Self:
        if fixed in given:
            raise ValueError(f"{fixed}= cannot be said in .options() of {what}: say it where they are defined")
        names = {each.name for each in fields(self)}
        return replace(self, **{name: value for name, value in _checked(given, what, known).items() if name in names})


@dataclass(frozen=True, slots=True)
class TaskOptions(_Placed):
    """Options of a remote function. ``num_returns``: a count or ``"streaming"``; None: 1, or streaming where it yields.

    ``max_retries``: how often it is run again after its worker or host was lost (3, -1 for no end);
    ``retry_exceptions``: whether also after any exception, or after which. ``generator_backpressure``: how many
    items a streaming task may be ahead of who reads them.
    """

    num_returns: int | str | None = None
    max_retries: int | None = None
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    max_calls: int | None = None
    generator_backpressure: int | None = None

    def merged(self, given: Mapping[str, Any]) -> "TaskOptions":
        """Return these with what ``.options(...)`` was given."""
        return self._merged(given, "tasks", _TASK, "max_calls")


@dataclass(frozen=True, slots=True)
class ActorOptions(_Placed):
    """Options of an actor class. ``concurrency_groups``: the calls that each group runs at a time, by its name.

    ``max_restarts``: how often it is made anew after its process or host was lost (0, -1 for no end);
    ``max_task_retries``: how often a call that was under way then is run again. ``max_concurrency``: calls at a time
    (None: 1, or 1000 in an async actor). ``max_pending_calls``: -1 for no limit. ``lifetime``: ``"detached"``: it
    outlives who made it, and on hosts that were joined also the driver.
    """

    namespace: str | None = None
    get_if_exists: bool = False
    lifetime: str | None = None
    max_concurrency: int | None = None
    concurrency_groups: dict[str, int] | None = None
    max_restarts: int | None = None
    max_task_retries: int | None = None
    max_pending_calls: int | None = None
    generator_backpressure: int | None = None

    def merged(self, given: Mapping[str, Any]) -> "ActorOptions":
        """Return these with what ``.options(...)`` was given."""
        return _check_names(self._merged(given, "actors", _ACTOR, "concurrency_groups"))


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """Options of a method: of ``@method(...)`` and of ``handle.method.options(...)``."""

    num_returns: int | str | None = None
    concurrency_group: str | None = None
    max_task_retries: int | None = None
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    name: str | None = None
    generator_backpressure: int | None = None

    def merged(self, given: Mapping[str, Any]) -> "MethodOptions":
        """Return these with what ``.options(...)`` was given."""
        return replace(self, **_checked(given, "methods", _METHOD))


def check_task_options(given: Mapping[str, Any]) -> TaskOptions:
    """Check what ``@remote(...)`` of a function was given."""
    return TaskOptions(**_checked(given, "remote functions", _TASK))


def check_actor_options(given: Mapping[str, Any]) -> ActorOptions:
    """Check what ``@remote(...)`` of a class was given."""
    return _check_names(ActorOptions(**_checked(given, "actors", _ACTOR)))


def check_method_options(given: Mapping[str, Any]) -> MethodOptions:
    """Check what ``@method(...)`` was given. Raises AssertionError for a name that there is not, as Ray does."""
    for name in given:
        assert name in _METHOD, _unknown(name, "a method", _METHOD)
    return MethodOptions(**_checked(given, "methods", _METHOD))


def _check_names(options: ActorOptions) -> ActorOptions:
    if options.name == "":
        raise ValueError("name='' of an actor: a name has letters, or is None")
    if options.get_if_exists and not options.name:
        raise ValueError("get_if_exists=True of an actor needs its name=")
    return options


# -- one check for each name: it takes the value and returns what is kept, or `_DROP` for a mere hint

_Check = Callable[[str, Any], Any]
_DROP = object()
_RENAMED = {
    "_generator_backpressure_num_objects": "generator_backpressure",
    "_actor_generator_backpressure_num_objects": "generator_backpressure",
}
_PLACEMENT_GROUP = ("placement_group", "placement_group_bundle_index", "placement_group_capture_child_tasks")


def _unknown(name: str, what: str, known: Mapping[str, object]) -> str:
    public = sorted([each for each in known if not each.startswith("_")])
    close = difflib.get_close_matches(name, public, 1)
    hint = f"did you mean {close[0]}=? " if close else ""
    return f"{name}= of {what}: there is no such option. {hint}There are {', '.join(public)}"


def _checked(given: Mapping[str, Any], what: str, known: Mapping[str, _Check]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in given.items():
        check = known.get(name)
        if check is None:
            raise ValueError(_unknown(name, what, known))
        checked = check(name, value)
        if checked is not _DROP:
            kept[_RENAMED.get(name, name)] = checked
    if any(name in given for name in _PLACEMENT_GROUP):
        kept["scheduling_strategy"] = _older_strategy(given)
    return kept


def _of(types: type | tuple[type, ...], name: str, value: Any) -> None:
    allowed = types if isinstance(types, tuple) else (types,)
    if value is not None and not isinstance(value, allowed):
        names = " or ".join(each.__name__ for each in allowed)
        raise TypeError(f"{name}={value!r}: expected {names}, got {type(value).__name__}")


def _amount(name: str, value: Any) -> float | None:
    _of((int, float), name, value)
    if value is None:
        return None
    if not value >= 0:
        raise ValueError(f"{name}={value!r}: an amount cannot be negative")
    if round(value, 4) != value:
        raise ValueError(f"{name}={value!r}: amounts are counted in steps of 0.0001")
    return value


def _devices(name: str, value: Any) -> float | None:
    amount = _amount(name, value)
    if amount is not None and amount > 1 and amount != int(amount):
        raise ValueError(f"{name}={value!r}: whole devices, or a fraction of one")
    return amount


def _memory(name: str, value: Any) -> int | None:
    amount = _amount(name, value if not isinstance(value, float) else float(int(value)))
    return None if amount is None else int(amount)


def _resources(name: str, value: Any) -> dict[str, float] | None:
    _of(dict, name, value)
    for key, amount in (value or {}).items():
        if key in ("CPU", "GPU"):
            raise ValueError(f"{name}={value!r}: say num_{key.lower()}s={amount!r} instead")
        _of((int, float), f"{name}[{key!r}]", amount)
        _amount(f"{name}[{key!r}]", amount)
    return None if value is None else {key: amount for key, amount in value.items() if amount is not None}


def _count(least: int, meaning: str = "") -> _Check:
    def check(name: str, value: Any) -> int | None:
        _of(int, name, value)
        if value is not None and value < least:
            raise ValueError(f"{name}={value!r}: expected {least} or more{meaning}")
        return value

    return check


_no_end = _count(-1, ", where -1 is no end")


def _positive_or_default(name: str, value: Any) -> int | None:
    return _count(0, ", where 0 is the default")(name, value) or None


def _returns(name: str, value: Any) -> int | str | None:
    _of((int, str), name, value)
    if value == "dynamic":
        raise NotImplementedError(f'{name}="dynamic": say "streaming", whose items can be read while the task runs')
    if isinstance(value, str) and value != "streaming":
        raise TypeError(f'{name}={value!r}: expected an int, or "streaming" where it yields')
    if isinstance(value, int) and value < 0:
        raise ValueError(f'{name}={value!r}: expected None, 0 or more, or "streaming" where it yields')
    return value


def _retry_exceptions(name: str, value: Any) -> bool | tuple[type[BaseException], ...]:
    _of((bool, list, tuple), name, value)
    if value is None or isinstance(value, bool):
        return bool(value)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in value):
        raise ValueError(f"{name}={value!r}: expected a bool or a list of exception classes")
    return tuple(value)


def _kind(*types: type) -> _Check:
    def check(name: str, value: Any) -> Any:
        _of(types, name, value)
        return value

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: expected bool, got {type(value).__name__}")
    return value


def _lifetime(name: str, value: Any) -> str | None:
    _of(str, name, value)
    if value not in (None, "detached", "non_detached"):
        raise ValueError(f'{name}={value!r} of an actor: expected "detached", "non_detached" or None')
    return "detached" if value == "detached" else None


def _concurrency_groups(name: str, value: Any) -> dict[str, int] | None:
    _of((dict, list), name, value)
    if isinstance(value, list):
        value = {each["name"]: each["max_concurrency"] for each in value}
    for group, count in (value or {}).items():
        _of(str, f"a name in {name}", group)
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"{name}[{group!r}]={count!r}: expected int, got {type(count).__name__}")
        if count < 1:
            raise ValueError(f"{name}[{group!r}]={count!r}: expected 1 or more")
    return value


def _label_selector(name: str, value: Any) -> dict[str, str] | None:
    _of(dict, name, value)
    for key, wanted in (value or {}).items():
        _of(str, f"a key of {name}", key)
        _of(str, f"{name}[{key!r}]", wanted)
        if wanted.startswith("!") or "(" in wanted:
            way = "scheduling_strategy=NodeLabelSchedulingStrategy({...: NotIn(...)}) says the same"
            raise NotImplementedError(f"{name}[{key!r}]={wanted!r}: only equality is offered here; {way}")
    return value


def _strategy(name: str, value: Any) -> object:
    if isinstance(value, str):
        if value not in ("DEFAULT", "SPREAD"):
            raise ValueError(
                f'{name}={value!r}: expected "DEFAULT", "SPREAD" or a strategy of util.scheduling_strategies'
            )
    elif value is not None and not isinstance(value, _STRATEGIES):
        raise TypeError(f"{name}={value!r}: expected a text or a strategy, got {type(value).__name__}")
    return value


def _older_strategy(given: Mapping[str, Any]) -> object:
    """Return the strategy that ``placement_group=`` and its two companions are another way to say."""
    group = given.get("placement_group", "default")
    if group == "default":
        return given.get("scheduling_strategy")
    if given.get("scheduling_strategy") is not None:
        raise ValueError(
            "placement_group= and scheduling_strategy= were both given: say the group in the strategy alone"
        )
    index = given.get("placement_group_bundle_index", -1)
    return PlacementGroupSchedulingStrategy(group, index, given.get("placement_group_capture_child_tasks"))


def _runtime_env(name: str, value: Any) -> RuntimeEnv | None:
    _of(dict, name, value)
    return None if value is None else check_runtime_env(value)


def _placement_group(name: str, value: Any) -> object:
    if value is not None and value != "default" and type(value).__name__ != "PlacementGroup":
        raise TypeError(f"{name}={value!r}: expected a PlacementGroup, got {type(value).__name__}")
    return _DROP


def _hint(*types: type) -> _Check:
    """Return a check for what changes no result: whether its events are kept, how objects are batched."""

    def check(name: str, value: Any) -> object:
        _of(types, name, value)
        return _DROP

    return check


def _not_offered(way: str) -> _Check:
    def check(name: str, value: Any) -> object:
        if value is None or value is False:
            return _DROP
        raise NotImplementedError(f"{name}={value!r} is not offered: {way}")

    return check


_PLACED: dict[str, _Check] = {
    "num_cpus": _amount,
    "num_gpus": _devices,
    "memory": _memory,
    "resources": _resources,
    "label_selector": _label_selector,
    "scheduling_strategy": _strategy,
    "placement_group": _placement_group,
    "placement_group_bundle_index": _hint(int),
    "placement_group_capture_child_tasks": _hint(bool),
    "runtime_env": _runtime_env,
    "name": _kind(str),
    "enable_task_events": _hint(bool),
    "_labels": _hint(dict),
    "accelerator_type": _not_offered(
        "label the hosts (`ma.Resources(labels=...)`, `MONARCH_ASYNC_RESOURCES`) and say label_selector={...}"
    ),
    "fallback_strategy": _not_offered("try again with other options where the first cannot be placed"),
}
_TASK: dict[str, _Check] = {
    **_PLACED,
    "num_returns": _returns,
    "max_retries": _no_end,
    "retry_exceptions": _retry_exceptions,
    "max_calls": _positive_or_default,
    "_generator_backpressure_num_objects": _kind(int),
    "_num_objects_per_yield": _hint(int),
}
_ACTOR: dict[str, _Check] = {
    **_PLACED,
    "namespace": _kind(str),
    "get_if_exists": _flag,
    "lifetime": _lifetime,
    "max_concurrency": _positive_or_default,
    "concurrency_groups": _concurrency_groups,
    "max_restarts": _no_end,
    "max_task_retries": _no_end,
    "max_pending_calls": _no_end,
    "object_store_memory": _hint(int, float),
    "allow_out_of_order_execution": _hint(bool),
    "_actor_generator_backpressure_num_objects": _kind(int),
    "enable_tensor_transport": _not_offered("tensors on a GPU travel as ma.Handle of a registered buffer"),
}
_METHOD: dict[str, _Check] = {
    "num_returns": _returns,
    "concurrency_group": _kind(str),
    "max_task_retries": _no_end,
    "retry_exceptions": _retry_exceptions,
    "name": _kind(str),
    "enable_task_events": _hint(bool),
    "_generator_backpressure_num_objects": _kind(int),
    "_num_objects_per_yield": _hint(int),
    "tensor_transport": _not_offered("tensors on a GPU travel as ma.Handle of a registered buffer"),
}


#: What ``@remote(...)`` takes, for its own messages.
TASK_OPTION_NAMES: Sequence[str] = tuple(_TASK)
ACTOR_OPTION_NAMES: Sequence[str] = tuple(_ACTOR)
