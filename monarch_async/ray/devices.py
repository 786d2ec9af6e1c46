"""Which GPUs a process holds: it sees those alone, unless its environment wants CUDA_VISIBLE_DEVICES left alone."""

import os
from collections.abc import Mapping, Sequence

#: Who has this in its environment sees all devices of its host, as under Ray.
NOSET_VARIABLE = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_HELD = "MONARCH_ASYNC_RAY_DEVICES"  # where the other is left alone


def device_env(devices: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that tell a process its devices; one that holds none sees what its host does, as under Ray.

    ``env``: what it has beside.
    """
    if not devices:
        return {}
    return {_HELD if _is_left_alone({**os.environ, **env}) else _VISIBLE: ",".join(devices)}


def _is_left_alone(env: Mapping[str, str]) -> bool:
    return env.get(NOSET_VARIABLE, "") not in ("", "0")


def leave_alone() -> None:
    """In a worker of tasks, which has been told them in CUDA_VISIBLE_DEVICES: keep them elsewhere, where asked to."""
    if NOSET_VARIABLE in os.environ and _VISIBLE in os.environ and _is_left_alone(os.environ):
        os.environ[_HELD] = os.environ.pop(_VISIBLE)


def held_devices() -> list[str]:
    """Return the ids of those that this process holds, where it holds any."""
    told = os.environ.get(_HELD) or os.environ.get(_VISIBLE, "")
    return [device for device in told.split(",") if device]
