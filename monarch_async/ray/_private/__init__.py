"""Those of Ray's private modules that libraries reach into, for these libraries; nothing else should use them.

They promise what verl, SkyRL and OpenRLHF ask of them, and no more:

- ``state``        tables of placement groups, and what each node has left
- ``services``     the address of a node
- ``worker``       ``global_worker``, and where its cluster would be reached
- ``runtime_env``  the name of a variable
"""

from monarch_async.ray._private import runtime_env, services, state, worker

__all__ = ["runtime_env", "services", "state", "worker"]
