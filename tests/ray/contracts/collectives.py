"""ray.util.collective over gloo."""

import numpy as np
import ray
import torch
from contract import answer, error_of
from ray.util import collective


@ray.remote
class Rank:
    def init(self, size, rank, group):
        collective.init_collective_group(size, rank, backend="gloo", group_name=group)
        return [
            collective.is_group_initialized(group),
            collective.get_rank(group),
            collective.get_collective_group_size(group),
        ]

    def state(self, group):
        return [collective.is_group_initialized(group), collective.get_rank(group)]

    def allreduce(self, group, op=None):
        tensor = torch.arange(3, dtype=torch.float32) + collective.get_rank(group)
        if op is None:
            collective.allreduce(tensor, group_name=group)
        else:
            collective.allreduce(tensor, group_name=group, op=getattr(collective.types.ReduceOp, op))
        return tensor.tolist()

    def broadcast(self, group, source):
        tensor = torch.full((2,), float(collective.get_rank(group)))
        collective.broadcast(tensor, src_rank=source, group_name=group)
        return tensor.tolist()

    def barrier(self, group):
        collective.barrier(group_name=group)
        return "passed"

    def allgather(self, group):
        size = collective.get_collective_group_size(group)
        tensors = [torch.zeros(1) for _ in range(size)]
        collective.allgather(tensors, torch.full((1,), float(collective.get_rank(group))), group_name=group)
        return [tensor.item() for tensor in tensors]

    def pass_on(self, group):
        tensor = torch.zeros(1)
        if collective.get_rank(group) == 0:
            collective.send(tensor + 7, 1, group_name=group)
        else:
            collective.recv(tensor, 0, group_name=group)
        return tensor.item()

    def numpy(self, group):
        array = np.ones(2, dtype=np.float32)
        collective.allreduce(array, group_name=group)
        return array.tolist()

    def destroy(self, group):
        collective.destroy_collective_group(group)
        return collective.is_group_initialized(group)


RANKS: list = []


def ranks() -> list:
    """Two actors that are a group, made once."""
    if not RANKS:
        RANKS.extend(Rank.remote() for _ in range(2))
        ray.get([rank.init.remote(2, n, "pair") for n, rank in enumerate(RANKS)])
    return RANKS


def contract_a_group_is_made_by_its_members() -> object:
    members = [Rank.remote() for _ in range(2)]
    found = ray.get([rank.init.remote(2, n, "own") for n, rank in enumerate(members)])
    return [found, ray.get([rank.destroy.remote("own") for rank in members])]


def contract_allreduce_sums() -> object:
    return ray.get([rank.allreduce.remote("pair") for rank in ranks()])


def contract_allreduce_with_other_operations() -> object:
    return [ray.get([rank.allreduce.remote("pair", op) for rank in ranks()]) for op in ("MAX", "MIN", "PRODUCT")]


def contract_broadcast() -> object:
    return ray.get([rank.broadcast.remote("pair", 1) for rank in ranks()])


def contract_barrier() -> object:
    return ray.get([rank.barrier.remote("pair") for rank in ranks()])


def contract_allgather() -> object:
    return ray.get([rank.allgather.remote("pair") for rank in ranks()])


def contract_send_and_receive() -> object:
    return ray.get([rank.pass_on.remote("pair") for rank in ranks()])


def contract_arrays_too() -> object:
    return ray.get([rank.numpy.remote("pair") for rank in ranks()])


def contract_a_group_is_made_by_the_driver() -> object:
    members = [Rank.remote() for _ in range(2)]
    collective.create_collective_group(members, 2, [0, 1], backend="gloo", group_name="made")
    return [ray.get([rank.allreduce.remote("made") for rank in members])]


def contract_without_a_group() -> object:
    alone = Rank.remote()
    return [ray.get(alone.state.remote("none")), error_of(lambda: ray.get(alone.allreduce.remote("none")), "none")]


def contract_a_group_twice() -> object:
    first = ranks()[0]
    return error_of(lambda: ray.get(first.init.remote(2, 0, "pair")))


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
