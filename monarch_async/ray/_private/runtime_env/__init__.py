"""Names of Ray's private package `runtime_env`.

Libraries ask under which variable a job finds its configuration, and pass that on to what they start. Runtime
environments themselves are in `monarch_async.ray.runtime_env`.

- ``constants``    the name of that variable
"""

from monarch_async.ray._private.runtime_env import constants

__all__ = ["constants"]
