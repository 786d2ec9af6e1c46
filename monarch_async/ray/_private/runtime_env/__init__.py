"""Names of Ray's private package `runtime_env`: see `constants`."""

from monarch_async.ray._private.runtime_env import constants

__all__ = ["constants"]
