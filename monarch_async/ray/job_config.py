"""`JobConfig`: what `init(job_config=...)` takes; its runtime_env and namespace count, the rest is Ray's own affair."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from monarch_async.ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from monarch_async.ray.runtime_env import RuntimeEnv, check_runtime_env


class JobConfig:
    """Options of a whole program. ``code_search_path`` and ``default_actor_lifetime`` are not offered."""

    def __init__(
        self,
        jvm_options: Sequence[str] | None = None,
        code_search_path: Sequence[str] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        ray_namespace: str | None = None,
        default_actor_lifetime: str = "non_detached",
    ) -> None:
        if jvm_options or code_search_path:
            raise NotImplementedError("jvm_options= and code_search_path= are not offered: there is Python alone")
        if default_actor_lifetime not in ("non_detached", None):
            raise NotImplementedError('default_actor_lifetime=: say lifetime="detached" where an actor is made')
        self.runtime_env: RuntimeEnv = check_runtime_env(runtime_env or {})
        self.metadata = dict(metadata or {})
        self.ray_namespace = ray_namespace

    def set_runtime_env(self, runtime_env: Mapping[str, Any] | None) -> None:
        """Replace the runtime_env."""
        self.runtime_env = check_runtime_env(runtime_env or {})

    def set_ray_namespace(self, ray_namespace: str) -> None:
        """Replace the namespace."""
        self.ray_namespace = ray_namespace

    def set_metadata(self, key: str, value: str) -> None:
        """Note something; nobody reads it."""
        self.metadata[key] = value


def runtime_env_of_job() -> Mapping[str, Any]:
    """Return the runtime_env that whoever has started this driver hands it by an environment variable, as JSON.

    Raises ValueError where that is no JSON.
    """
    text = os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR)
    if not text:
        return {}
    try:
        return json.loads(text).get("runtime_env") or {}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"the variable {RAY_JOB_CONFIG_JSON_ENV_VAR} holds no configuration: {error}") from error
