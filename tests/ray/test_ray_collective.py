"""Collective operations: where ranks find each other, and what the operations do to the tensors of all."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from monarch_async import ray
from monarch_async.ray.membership import Membership
from monarch_async.ray.rendezvous import Rendezvous
from monarch_async.ray.util import collective
from monarch_async.ray.util.collective import Backend, ReduceOp

# -- the hub's half ----------------------------------------------------------------------------------------------------

ADDRESS = ("192.0.2.1", 1234)
NEXT = ("192.0.2.2", 1234)


def rank(number: int, size: int = 2, timeout_ms: int = 5000) -> Membership:
    return Membership("group", size, number, "GLOO", timeout_ms)


async def test_ranks_meet_in_any_order() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        desk = Rendezvous()
        told = [desk.meet(10 + one, rank(one, 3), ADDRESS if one == 0 else None) for one in order]
        assert await asyncio.gather(*told) == [ADDRESS] * 3


async def test_a_name_may_be_used_again_once_all_have_come() -> None:
    desk = Rendezvous()
    for address in (ADDRESS, NEXT):
        told = [desk.meet(1, rank(1), None), desk.meet(0, rank(0), address)]
        assert await asyncio.gather(*told) == [address] * 2


async def test_rank_0_that_does_not_come() -> None:
    """And nothing of it stays."""
    desk = Rendezvous()
    with pytest.raises(TimeoutError, match="rank 0 of group 'group'"):
        await desk.meet(1, rank(1, timeout_ms=10), None)
    assert await desk.meet(0, rank(0, size=1), NEXT) == NEXT


@pytest.mark.parametrize("how", ["anew", "ended", "left"])
async def test_nobody_is_sent_to_a_rank_0_that_is_gone(how: str) -> None:
    desk = Rendezvous()
    assert await desk.meet(7, rank(0), ADDRESS) == ADDRESS
    match how:
        case "ended":
            desk.forget(lambda process: process == 7)
        case "left":
            await desk.leave(7, "group")
    if how == "anew":
        assert await desk.meet(8, rank(0), NEXT) == NEXT
        assert await desk.meet(1, rank(1), None) == NEXT
    else:
        told = asyncio.gather(desk.meet(1, rank(1), None), desk.meet(8, rank(0), NEXT))
        assert await told == [NEXT, NEXT]


async def test_ranks_that_disagree() -> None:
    desk = Rendezvous()
    await desk.meet(0, rank(0), ADDRESS)
    with pytest.raises(RuntimeError, match="3 ranks"):
        await desk.meet(1, rank(1, 3), None)


async def test_declared() -> None:
    desk = Rendezvous()
    await desk.declare(0, "group", {"aa": rank(0), "bb": rank(1)})
    with pytest.raises(RuntimeError, match="declared already"):
        await desk.declare(0, "group", {})
    assert await desk.declared(0, "group", "bb") == rank(1)
    assert await desk.declared(0, "group", "cc") is None
    await desk.withdraw(0, "group")
    assert await desk.declared(0, "group", "bb") is None


@pytest.mark.parametrize("numbers", [(0, 0), (1, -1), (2, 2)])
def test_no_rank_of_a_group(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="'group'"):
        Membership("group", *numbers, "GLOO", 1000)


def test_backends() -> None:
    assert Backend("gloo") == Backend("torch_gloo") == Backend.GLOO == "GLOO"
    assert Backend("nccl") == "NCCL"
    with pytest.raises(ValueError, match="mpi"):
        Backend("mpi")
    assert collective.gloo_available() and not collective.is_backend_available("mpi")


# -- among actors ------------------------------------------------------------------------------------------------------

SIZE = 2


@ray.remote
class Rank:
    def run(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)


@pytest.fixture(scope="module")
def ranks(driver: None) -> list[Any]:
    actors = [Rank.remote() for _ in range(SIZE)]
    on_all(actors, lambda rank: collective.init_collective_group(SIZE, rank, "gloo"))
    return actors


def on_all(actors: list[Any], work: Callable[..., Any], *args: Any) -> list[Any]:
    return ray.get([actor.run.remote(work, rank, *args) for rank, actor in enumerate(actors)])


def tensors(kind: str, values: list[float], dtype: str = "float32") -> Any:
    if kind == "numpy":
        return np.array(values, dtype)
    import torch

    return torch.tensor(values, dtype=getattr(torch, dtype))


def lists(results: list[Any]) -> list[Any]:
    return [result.tolist() for result in results]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ReduceOp.SUM, [3, 10]),
        (ReduceOp.PRODUCT, [2, 25]),
        (ReduceOp.MIN, [1, 5]),
        (ReduceOp.MAX, [2, 5]),
    ],
)
def test_allreduce(ranks: list[Any], kind: str, op: ReduceOp, expected: list[int]) -> None:
    def work(rank: int) -> Any:
        tensor = tensors(kind, [rank + 1, 5])
        assert collective.allreduce(tensor, op=op) is None  # type: ignore[func-returns-value]
        return tensor

    assert lists(on_all(ranks, work)) == [expected] * SIZE


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int32", "uint8"])
def test_allreduce_of_types(ranks: list[Any], dtype: str) -> None:
    def work(rank: int) -> Any:
        tensor = tensors("numpy", [rank + 1], dtype)
        collective.allreduce(tensor)
        return tensor

    results = on_all(ranks, work)
    assert lists(results) == [[3]] * SIZE
    assert {str(result.dtype) for result in results} == {dtype}


def test_reduce(ranks: list[Any]) -> None:
    def work(rank: int) -> Any:
        tensor = tensors("torch", [rank + 1, 5])
        collective.reduce(tensor, dst_rank=1)
        return tensor

    assert on_all(ranks, work)[1].tolist() == [3, 10]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "int16", "bool"])
def test_broadcast(ranks: list[Any], kind: str, dtype: str) -> None:
    def work(rank: int) -> Any:
        tensor = tensors(kind, [rank, 7], dtype)
        collective.broadcast(tensor, src_rank=1)
        return tensor

    expected = [True, True] if dtype == "bool" else [1, 7]
    assert lists(on_all(ranks, work)) == [expected] * SIZE


def test_allgather(ranks: list[Any]) -> None:
    def work(rank: int) -> Any:
        gathered = [np.zeros(2) for _ in range(SIZE)]
        collective.allgather(gathered, np.array([rank, 5.0]))
        return gathered

    assert [lists(result) for result in on_all(ranks, work)] == [[[0, 5], [1, 5]]] * SIZE


def test_reducescatter(ranks: list[Any]) -> None:
    def work(rank: int) -> Any:
        tensor = np.zeros(2)
        collective.reducescatter(tensor, [np.array([rank, 1.0]), np.array([10.0 * rank, 2.0])])
        return tensor

    assert lists(on_all(ranks, work)) == [[1, 2], [10, 4]]


def test_send_and_recv(ranks: list[Any]) -> None:
    def work(rank: int) -> Any:
        tensor = np.full(3, rank, np.int16)
        if rank == 0:
            collective.send(np.array([1, 2, 3], np.int16), 1)
        else:
            collective.recv(tensor, 0)
        return tensor

    assert lists(on_all(ranks, work)) == [[0, 0, 0], [1, 2, 3]]


def test_what_is_not_contiguous(ranks: list[Any]) -> None:
    def work(rank: int) -> Any:
        import torch

        array, tensor = np.zeros((3, 2)), torch.zeros(3, 2)
        for view in (array.T, tensor.t()):
            view[:] = rank + 1
            collective.allreduce(view)
        part = np.arange(6.0)
        collective.allreduce(part[::2])
        return array, tensor, part

    for array, tensor, part in on_all(ranks, work):
        assert array.tolist() == tensor.tolist() == [[3, 3]] * 3
        assert part.tolist() == [0, 1, 4, 3, 8, 5]


def test_what_cannot_be_written_to(ranks: list[Any]) -> None:
    """It may be sent."""

    def work(rank: int) -> Any:
        tensor = np.full(2, rank)
        with pytest.raises(ValueError, match="read-only"):
            collective.allreduce(frozen(tensor))
        collective.broadcast(frozen(tensor) if rank == 1 else tensor, src_rank=1)
        return tensor

    def frozen(array: Any) -> Any:
        view = array.view()
        view.setflags(write=False)
        return view

    assert lists(on_all(ranks, work)) == [[1, 1]] * SIZE


def test_mistakes(ranks: list[Any]) -> None:
    def work(rank: int) -> None:
        one = np.ones(2)
        for error, mistake in (
            (RuntimeError, lambda: collective.allreduce([1, 2])),  # type: ignore[arg-type]
            (RuntimeError, lambda: collective.send(one, rank)),
            (ValueError, lambda: collective.send(one, SIZE)),
            (ValueError, lambda: collective.broadcast(one, -1)),
            (RuntimeError, lambda: collective.allgather([one], one)),
            (RuntimeError, lambda: collective.allgather([one, np.ones(3)], one)),
            (RuntimeError, lambda: collective.barrier("another")),
            (RuntimeError, lambda: collective.init_collective_group(SIZE, rank, "gloo")),
        ):
            with pytest.raises(error):
                mistake()

    on_all(ranks, work)


def test_several_groups_and_their_end(ranks: list[Any]) -> None:
    def join(rank: int) -> Any:
        name = "reversed"
        assert not collective.is_group_initialized(name) and collective.get_rank(name) == -1
        collective.init_collective_group(SIZE, SIZE - 1 - rank, "torch_gloo", name)
        tensor = np.array([rank])
        collective.broadcast(tensor, 0, name)
        return tensor[0], collective.get_rank(name), collective.get_rank(), collective.get_collective_group_size(name)

    def leave(rank: int) -> None:
        collective.destroy_collective_group("reversed")
        assert not collective.is_group_initialized("reversed") and collective.is_group_initialized()
        with pytest.raises(RuntimeError, match="reversed"):
            collective.barrier("reversed")

    for _ in range(2):  # a name may be used again
        assert on_all(ranks, join) == [(1, 1, 0, 2), (1, 0, 1, 2)]
        on_all(ranks, leave)


def test_a_declared_group(ranks: list[Any]) -> None:
    def work(rank: int) -> Any:
        assert collective.get_rank("declared") == -1
        tensor = np.array([rank])
        collective.broadcast(tensor, 0, "declared")
        return tensor[0], collective.get_rank("declared")

    collective.create_collective_group(ranks, SIZE, [1, 0], "gloo", "declared")
    with pytest.raises(RuntimeError, match="declared already"):
        collective.create_collective_group(ranks, SIZE, [1, 0], "gloo", "declared")
    assert on_all(ranks, work) == [(1, 1), (1, 0)]
    collective.destroy_collective_group("declared")
    on_all(ranks, lambda rank: collective.destroy_collective_group("declared"))
    with pytest.raises(RuntimeError, match="no group"):
        ray.get(ranks[0].run.remote(collective.barrier, "declared"))


def test_bad_declarations(ranks: list[Any]) -> None:
    for error, actors, size, numbers in (
        (RuntimeError, ranks, SIZE, [0]),
        (RuntimeError, ranks, SIZE, [0, 0]),
        (ValueError, ranks, SIZE, [0, 2]),
    ):
        with pytest.raises(error):
            collective.create_collective_group(actors, size, numbers, "gloo", "bad")


def test_a_rank_that_does_not_come(ranks: list[Any]) -> None:
    def alone(rank: int) -> None:
        with pytest.raises((RuntimeError, TimeoutError)):
            collective.init_collective_group(SIZE, rank, "gloo", f"only {rank}", 300)
        assert not collective.is_group_initialized(f"only {rank}")

    on_all(ranks, alone)


@pytest.mark.gpu
@pytest.mark.usefixtures("driver")
def test_nccl() -> None:
    import torch

    collective.init_collective_group(1, 0, "nccl", "gpus")
    one, other = torch.arange(3.0, device="cuda"), torch.zeros(3, device="cuda")
    collective.allreduce(one, "gpus")
    collective.reduce(one, 0, "gpus")
    collective.broadcast(one, 0, "gpus")
    collective.allgather([other], one, "gpus")
    assert other.tolist() == [0, 1, 2]
    collective.reducescatter(other, [one * 2], "gpus")
    collective.barrier("gpus")
    assert other.tolist() == [0, 2, 4]
    with pytest.raises(RuntimeError):
        collective.allreduce(np.ones(2), "gpus")
    collective.destroy_collective_group("gpus")


@pytest.mark.slow
def test_a_rank_that_dies_is_seen_by_the_others(ranks: list[Any]) -> None:
    pair = [Rank.remote() for _ in range(2)]
    on_all(pair, lambda rank: collective.init_collective_group(2, rank, "gloo", "pair"))
    waits = pair[0].run.remote(collective.barrier, "pair")
    ray.kill(pair[1])
    with pytest.raises(RuntimeError):
        ray.get(waits, timeout=20)
    ray.kill(pair[0])
