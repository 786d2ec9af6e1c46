"""Those of Ray's private modules that libraries reach into, for these libraries; nothing else should use them."""

from monarch_async.ray._private import runtime_env, services, state, worker

__all__ = ["runtime_env", "services", "state", "worker"]
