"""Collective operations among actors and tasks, over torch's gloo and nccl.

A process may be in any number of groups, each with a rank of its own. Operations block the thread, and are called in
the same order on all ranks of a group.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_async.ray import runtime
from monarch_async.ray.actor import ActorHandle
from monarch_async.ray.membership import Address, Membership
from monarch_async.ray.util.collective.types import Backend, ReduceOp
from monarch_async.ray.util.node_address import get_node_ip_address

if TYPE_CHECKING:
    from monarch_async.ray.util.collective.group import Array, Group

#: Milliseconds that joining a group and each of its operations may take.
TIMEOUT_MS = 30_000

_groups: "dict[str, Group]" = {}
_joining: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by name: threads join groups side by side

# -- groups ------------------------------------------------------------------------------------------------------------


def init_collective_group(
    world_size: int,
    rank: int,
    backend: str = Backend.NCCL,
    group_name: str = "default",
    gloo_timeout: int = TIMEOUT_MS,
) -> None:
    """Join a group as one of its ranks; waits until all ``world_size`` of them have called this.

    Args:
        world_size: how many ranks there are.
        rank: which one this process is.
        backend: "nccl" or "gloo"; see `Backend`.
        group_name: the same on all ranks.
        gloo_timeout: milliseconds that this and each operation may take.

    Raises ValueError for a bad argument, RuntimeError where this process is in a group of that name, and TimeoutError
    or what torch raises where not all ranks come.
    """
    membership = Membership(group_name, world_size, rank, Backend(backend), gloo_timeout)
    with _joining[group_name]:
        if group_name in _groups:
            raise RuntimeError(f"this process is in a group {group_name!r} already")
        _join(membership)


def create_collective_group(
    actors: Sequence[ActorHandle],
    world_size: int,
    ranks: Sequence[int],
    backend: str = Backend.NCCL,
    group_name: str = "default",
    gloo_timeout: int = TIMEOUT_MS,
) -> None:
    """Declare ``actors`` to be the ``ranks`` of a group. Each joins it with its first operation.

    Arguments and errors as of `init_collective_group`, with one rank for each actor.
    """
    if len(actors) != len(ranks):
        raise RuntimeError(f"{len(actors)} actors for {len(ranks)} ranks")
    if len(set(ranks)) < len(ranks):
        raise RuntimeError(f"two actors with one rank: {ranks}")
    members = {
        actor._actor_id.hex(): Membership(group_name, world_size, rank, Backend(backend), gloo_timeout)
        for actor, rank in zip(actors, ranks, strict=True)
    }
    mine = runtime.current()
    mine.ask_hub("collective.declare", group_name, members)


def destroy_collective_group(group_name: str = "default") -> None:
    """Leave a group, and forget that it was declared. Its other ranks leave it themselves."""
    with _joining[group_name]:
        group = _groups.pop(group_name, None)
        if group is not None:
            group.close()
    mine = runtime.current()
    mine.ask_hub("collective.withdraw", group_name)


def is_group_initialized(group_name: str = "default") -> bool:
    """Whether this process has joined a group."""
    return group_name in _groups


def get_rank(group_name: str = "default") -> int:
    """Return which rank of a group this process is; -1 where it has joined none of that name."""
    group = _groups.get(group_name)
    return -1 if group is None else group.rank


def get_collective_group_size(group_name: str = "default") -> int:
    """Return how many ranks a group has; -1 where this process has joined none of that name."""
    group = _groups.get(group_name)
    return -1 if group is None else group.world_size


def get_group_handle(group_name: str = "default") -> "Group":
    """Return the group, which this process joins now where it was declared for its actor.

    Raises RuntimeError where this process is in none of that name.
    """
    group = _groups.get(group_name)
    if group is not None:
        return group
    with _joining[group_name]:
        group = _groups.get(group_name)
        return _join_declared(group_name) if group is None else group


def _join_declared(group_name: str) -> "Group":
    mine = runtime.current()
    actor_id = mine.context.actor_id
    membership = mine.ask_hub("collective.declared", group_name, actor_id) if actor_id else None
    if membership is None:
        raise RuntimeError(
            f"this process is in no group {group_name!r}: call init_collective_group in it, or "
            "create_collective_group with its actor"
        )
    return _join(membership)


def _join(membership: Membership) -> "Group":
    from monarch_async.ray.util.collective.group import Group

    mine = runtime.current()

    def meet(address: Address | None) -> Address:
        return mine.ask_hub("collective.meet", membership, address)

    try:
        group = _groups[membership.group] = Group(membership, get_node_ip_address(), meet)
    except BaseException:
        if membership.rank == 0:
            mine.ask_hub("collective.leave", membership.group)
        raise
    return group


def is_backend_available(backend: str) -> bool:
    """Whether torch is here and has it."""
    from monarch_async.ray.util.collective.group import has_backend

    try:
        return has_backend(Backend(backend))
    except ValueError:
        return False


def nccl_available() -> bool:
    """Whether "nccl" is there."""
    return is_backend_available(Backend.NCCL)


def gloo_available() -> bool:
    """Whether "gloo" is there."""
    return is_backend_available(Backend.GLOO)


# -- operations --------------------------------------------------------------------------------------------------------


def allreduce(tensor: "Array", group_name: str = "default", op: ReduceOp = ReduceOp.SUM) -> None:
    """Reduce ``tensor`` over all ranks, into that of each."""
    get_group_handle(group_name).allreduce(tensor, op)


def reduce(tensor: "Array", dst_rank: int = 0, group_name: str = "default", op: ReduceOp = ReduceOp.SUM) -> None:
    """Reduce ``tensor`` over all ranks, into that of ``dst_rank``. What the others then have in it is not fixed."""
    get_group_handle(group_name).reduce(tensor, dst_rank, op)


def broadcast(tensor: "Array", src_rank: int = 0, group_name: str = "default") -> None:
    """Bring ``tensor`` of ``src_rank`` into that of all others."""
    get_group_handle(group_name).broadcast(tensor, src_rank)


def allgather(tensor_list: "list[Array]", tensor: "Array", group_name: str = "default") -> None:
    """Bring ``tensor`` of each rank r into ``tensor_list[r]`` of all ranks."""
    get_group_handle(group_name).allgather(tensor_list, tensor)


def reducescatter(
    tensor: "Array", tensor_list: "list[Array]", group_name: str = "default", op: ReduceOp = ReduceOp.SUM
) -> None:
    """Reduce each ``tensor_list[r]`` over all ranks, into ``tensor`` of rank r."""
    get_group_handle(group_name).reducescatter(tensor, tensor_list, op)


def send(tensor: "Array", dst_rank: int, group_name: str = "default") -> None:
    """Send ``tensor`` to ``dst_rank``, which calls `recv`."""
    get_group_handle(group_name).send(tensor, dst_rank)


def recv(tensor: "Array", src_rank: int, group_name: str = "default") -> None:
    """Receive into ``tensor`` what ``src_rank`` sends."""
    get_group_handle(group_name).recv(tensor, src_rank)


def barrier(group_name: str = "default") -> None:
    """Wait until all ranks are here."""
    get_group_handle(group_name).barrier()
