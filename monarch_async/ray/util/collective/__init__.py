"""Collective operations among actors: all-reduce, broadcast and their like, over torch's gloo and nccl.

Ideas
- A group is a process group of torch's, made without the default one: a process has any number of them, and may use
  ``torch.distributed`` for itself besides.
- The ranks find each other at the hub (``ray/rendezvous.py``), which the first one brings the address of its store
  to. Nothing else is needed, and nothing stays once all have come.
- Operations are in place: on tensors of torch, on NumPy arrays, and on what shares its memory by ``__dlpack__``.

What it refuses
- Several GPUs of one process as ranks of their own: one process a GPU.

Reading order
- ``types.py``        how it reduces, what over
- ``group.py``        one process' part in a group
- ``collective.py``   what programs call
"""

from monarch_async.ray.missing import missing
from monarch_async.ray.util.collective.collective import (
    allgather,
    allreduce,
    barrier,
    broadcast,
    create_collective_group,
    destroy_collective_group,
    get_collective_group_size,
    get_group_handle,
    get_rank,
    gloo_available,
    init_collective_group,
    is_backend_available,
    is_group_initialized,
    nccl_available,
    recv,
    reduce,
    reducescatter,
    send,
)
from monarch_async.ray.util.collective.types import Backend, ReduceOp

__all__ = [
    "Backend",
    "ReduceOp",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "create_collective_group",
    "destroy_collective_group",
    "get_collective_group_size",
    "get_group_handle",
    "get_rank",
    "gloo_available",
    "init_collective_group",
    "is_backend_available",
    "is_group_initialized",
    "nccl_available",
    "recv",
    "reduce",
    "reducescatter",
    "send",
]


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise missing(f"ray.util.collective.{name}")
