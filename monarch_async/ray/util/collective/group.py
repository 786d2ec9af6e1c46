"""One process' part in a group: a process group of torch's, which is not the process' default one.

Operations are in place: on tensors of torch, on NumPy arrays, on whatever shares its memory by ``__dlpack__`` (CuPy).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from monarch_async.ray.membership import Address, Membership
from monarch_async.ray.util.collective.types import Backend, ReduceOp

if TYPE_CHECKING:
    import numpy
    import torch
    import torch.distributed

    Array = torch.Tensor | numpy.ndarray


class Group:
    """See the module. One operation after the other, and in the same order on all ranks."""

    def __init__(self, membership: Membership, ip_address: str, meet: Callable[[Address | None], Address]) -> None:
        """Join a group; waits until all ranks have.

        Args:
            membership: which rank of which group.
            ip_address: where others reach this host.
            meet: brings the address of rank 0's store to the others; see `Rendezvous.meet`.

        Raises what torch raises where a rank does not come in time.
        """
        import torch.distributed as dist

        self.membership = membership
        self._timeout = timedelta(milliseconds=membership.timeout_ms)
        rank, size = membership.rank, membership.world_size
        if rank == 0:
            store = self._open(ip_address, 0)
            meet((ip_address, store.port))
        else:
            store = self._open(*meet(None))
        self._store = store  # that of rank 0 serves the others
        if membership.backend == Backend.NCCL:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
        else:
            self._group = dist.ProcessGroupGloo(store, rank, size, self._timeout)

    def _open(self, host: str, port: int) -> Any:
        from torch.distributed import TCPStore  # type: ignore[reportPrivateImportUsage]

        is_master = self.membership.rank == 0
        return TCPStore(host, port, is_master=is_master, wait_for_workers=False, timeout=self._timeout)

    @property
    def rank(self) -> int:
        """This process' rank."""
        return self.membership.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.membership.world_size

    def close(self) -> None:
        """End this process' part. The others' operations fail from then on."""
        self._group.shutdown()
        del self._group, self._store

    # -- reductions ------------------------------------------------------------------------------------------------

    def allreduce(self, tensor: "Array", op: ReduceOp) -> None:
        """Reduce ``tensor`` over all ranks, into that of each."""
        import torch.distributed as dist

        options = dist.AllreduceOptions()
        options.reduceOp = _torch_op(op)
        with _memory(tensor) as memory:
            self._group.allreduce([memory], options).wait()

    def reduce(self, tensor: "Array", dst_rank: int, op: ReduceOp) -> None:
        """Reduce ``tensor`` over all ranks into that of ``dst_rank``; what the others have in it then is not fixed."""
        import torch.distributed as dist

        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = _torch_op(op), self._checked("destination", dst_rank)
        with _memory(tensor) as memory:
            self._group.reduce([memory], options).wait()

    def reducescatter(self, tensor: "Array", tensors: "Sequence[Array]", op: ReduceOp) -> None:
        """Reduce each of ``tensors`` over all ranks; the r-th result goes into ``tensor`` of rank r."""
        import torch.distributed as dist

        options = dist.ReduceScatterOptions()
        options.reduceOp = _torch_op(op)
        self._check_list(tensors, tensor)
        with contextlib.ExitStack() as stack:
            sources = [stack.enter_context(_memory(source, is_read=True)) for source in tensors]
            memory = stack.enter_context(_memory(tensor))
            self._group.reduce_scatter([memory], [sources], options).wait()

    # -- moving ----------------------------------------------------------------------------------------------------

    def broadcast(self, tensor: "Array", src_rank: int) -> None:
        """Bring ``tensor`` of ``src_rank`` into that of all others."""
        import torch.distributed as dist

        options = dist.BroadcastOptions()
        options.rootRank = self._checked("source", src_rank)
        with _memory(tensor, is_read=src_rank == self.rank) as memory:
            self._group.broadcast([_bytes(memory)], options).wait()

    def allgather(self, tensors: "Sequence[Array]", tensor: "Array") -> None:
        """Bring ``tensor`` of each rank r into the r-th of ``tensors`` of all ranks."""
        self._check_list(tensors, tensor)
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(_memory(tensor, is_read=True))
            memories = [stack.enter_context(_memory(one)) for one in tensors]
            self._group.allgather([[_bytes(memory) for memory in memories]], [_bytes(source)]).wait()

    def send(self, tensor: "Array", dst_rank: int) -> None:
        """Send ``tensor`` to ``dst_rank``, which calls `recv`."""
        self._check_other("destination", dst_rank)
        with _memory(tensor, is_read=True) as memory:
            self._group.send([_bytes(memory)], dst_rank, 0).wait()

    def recv(self, tensor: "Array", src_rank: int) -> None:
        """Receive into ``tensor`` what ``src_rank`` sends."""
        self._check_other("source", src_rank)
        with _memory(tensor) as memory:
            self._group.recv([_bytes(memory)], src_rank, 0).wait()

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        import torch
        import torch.distributed as dist

        options = dist.BarrierOptions()
        if self.membership.backend == Backend.NCCL:
            options.device_ids = [torch.cuda.current_device()]
        self._group.barrier(options).wait()

    # -- checks ----------------------------------------------------------------------------------------------------

    def _checked(self, role: str, rank: int) -> int:
        if not 0 <= rank < self.world_size:
            raise ValueError(f"the {role} rank {rank} is none of group {self.membership.group!r} of {self.world_size}")
        return rank

    def _check_other(self, role: str, rank: int) -> None:
        if self._checked(role, rank) == self.rank:
            raise RuntimeError(f"the {role} rank {rank} is this process itself")

    def _check_list(self, tensors: "Sequence[Array]", tensor: "Array") -> None:
        if not isinstance(tensors, list | tuple):
            raise RuntimeError(f"a list of tensors is needed, got {type(tensors)}")
        if len(tensors) != self.world_size:
            raise RuntimeError(f"{len(tensors)} tensors for {self.world_size} ranks of {self.membership.group!r}")
        for one in tensors:
            if tuple(one.shape) != tuple(tensor.shape) or one.dtype != tensor.dtype:
                raise RuntimeError(
                    f"all tensors are of one shape and type, got {tuple(one.shape)} {one.dtype} and "
                    f"{tuple(tensor.shape)} {tensor.dtype}"
                )


def has_backend(backend: Backend) -> bool:
    """Whether torch is here and has it."""
    try:
        import torch.distributed as dist
    except ImportError:
        return False
    return dist.is_nccl_available() if backend == Backend.NCCL else dist.is_gloo_available()


def _torch_op(op: ReduceOp) -> Any:
    import torch.distributed as dist

    return getattr(dist.ReduceOp, op.name)


@contextlib.contextmanager
def _memory(value: "Array", is_read: bool = False) -> "Iterator[torch.Tensor]":
    """The memory of ``value`` as a contiguous tensor, or a copy where it is none, which is copied back at the end.

    ``is_read``: nothing is written to it.
    """
    tensor = _tensor(value, is_read)
    memory = tensor.contiguous()
    yield memory
    if memory is not tensor and not is_read:
        tensor.copy_(memory)


def _tensor(value: "Array", is_read: bool) -> "torch.Tensor":
    import numpy
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach()
    if not isinstance(value, numpy.ndarray):
        if not hasattr(value, "__dlpack__"):
            raise RuntimeError(f"a tensor of torch, NumPy or CuPy is needed, got {type(value)}")
        return torch.from_dlpack(value)
    if value.flags.writeable and min(value.strides, default=0) >= 0:
        return torch.from_numpy(value)
    if not is_read:
        raise ValueError("this array cannot be written to: it is read-only, or its axes are reversed")
    return torch.from_numpy(value.copy())


def _bytes(memory: "torch.Tensor") -> "torch.Tensor":
    """What is only moved may be of any type, also of those the backend does not know."""
    import torch

    return memory.reshape(-1).view(torch.uint8)
