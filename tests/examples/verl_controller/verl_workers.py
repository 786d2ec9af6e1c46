# pyright: reportMissingImports=false
"""The classes whose groups the tests call. Workers import this file, so it is apart from the tests."""

import asyncio
import os
from typing import Any

import ray
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, Execute, make_nd_compute_dataproto_dispatch_fn, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.ray_utils import parallel_put


def rows(count: int, **meta: Any) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(count)}, meta_info=meta)


def one_rank(cls: Any, *args: Any, **kwargs: Any) -> RayWorkerGroup:
    """A group of its own, of one process."""
    pool = RayResourcePool([1], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(pool, RayClassWithInitArgs(cls, *args), **kwargs)


def every_second(worker_group: RayWorkerGroup, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Give rank r the number it is told, times its rank."""
    ranks = range(worker_group.world_size)
    return tuple([arg * rank for rank in ranks] for arg in args), {k: [v for _ in ranks] for k, v in kwargs.items()}


def only_last(worker_group: RayWorkerGroup, output: list[Any]) -> Any:
    return output[-1]


def doubled(worker: "Everything", data: DataProto, times: int = 2) -> DataProto:
    return DataProto.from_dict({"x": data.batch["x"] * times + worker.rank})


@ray.remote
class Everything(Worker):
    """One method for each way to call a group."""

    def __init__(self, start: int = 0, *, name: str = "") -> None:
        super().__init__()
        self.number, self.name = start, name
        self.order: list[int] = []
        self._register_dispatch_collect_info("dp", dp_rank=self.rank, is_collect=True)
        self._register_dispatch_collect_info("tp", dp_rank=0, is_collect=self.rank == 0)  # all ranks do the same

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def itself(self) -> tuple[Any, ...]:
        return self.rank, self.world_size, self.number, self.name, os.getpid(), self.get_master_addr_port()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, number: int, *, times: int = 1) -> int:
        self.number += number * times
        return self.number

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def only_on_zero(self) -> int:
        return self.rank

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def same_for_all(self, value: Any) -> Any:
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def own_share(self, value: Any) -> tuple[int, Any]:
        return self.rank, value

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def part(self, data: DataProto) -> DataProto:
        ranks = torch.full((len(data),), self.rank)
        return DataProto.from_dict({"x": data.batch["x"] + 1, "rank": ranks}, meta_info=data.meta_info)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def part_later(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"x": data.batch["x"] * 10})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def metric(self, data: DataProto) -> dict[str, float]:
        return {"sum": data.batch["x"].sum().item(), "rows": len(data)}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def later(self, number: int) -> int:
        self.order.append(number)
        return number + self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def in_which_order(self) -> list[int]:
        return self.order

    @register(dispatch_mode={"dispatch_fn": every_second, "collect_fn": only_last})
    def own_mode(self, number: int, plus: int = 0) -> int:
        return number + plus

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("dp"))
    def along_dp(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"x": data.batch["x"], "rank": torch.full((len(data),), self.rank)})

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("tp"))
    def along_tp(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"x": data.batch["x"], "rank": torch.full((len(data),), self.rank)})

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("dp"))
    def tensors_along_dp(self, data: TensorDict) -> TensorDict:
        return TensorDict({"x": data["x"] * 3}, batch_size=data.batch_size)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("dp"), blocking=False)
    def along_dp_later(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"x": data.batch["x"] - 1})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, on: int) -> None:
        if self.rank == on:
            raise KeyError(f"rank {self.rank}")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def put_some(self, count: int) -> list[int]:
        return ray.get(parallel_put(list(range(count))))

    def not_registered(self) -> int:
        return -1


@ray.remote
class Player(Worker):
    def __init__(self, start: int) -> None:
        super().__init__()
        self.number = start

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, number: int) -> int:
        self.number += number
        return self.number

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def place(self) -> tuple[int, int]:
        return self.rank, os.getpid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def devices(self) -> tuple[str, list[str]]:
        return self.get_cuda_visible_devices(), ray.get_runtime_context().get_accelerator_ids()["GPU"]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def shifted(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"x": data.batch["x"] + self.number})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def slowly(self, number: int) -> int:
        await asyncio.sleep(0.01)
        return number + self.rank


@ray.remote
class Critic(Worker):
    def __init__(self, *, scale: int = 1) -> None:
        super().__init__()
        self.scale = scale

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def of_player(self) -> int | None:
        player = self.get_fused_worker_by_name("player")
        return None if player is None else player.number * self.scale

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def place(self) -> tuple[int, int]:
        return self.rank, os.getpid()
