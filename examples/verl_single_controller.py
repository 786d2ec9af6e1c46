# pyright: reportMissingImports=false
"""A bandit learned by a worker group of verl: its single controller on `monarch_async.ray` in place of Ray, unchanged.

    driver ── batch, a part for each rank ──► ┌ rank 0: Actor, Judge ┐
           ◄── what became of it, joined ──── └ rank 1: Actor, Judge ┘   gradients: torch.distributed between the ranks

verl writes a distributed program as one driver that calls methods of worker groups. How a call is split over the
ranks and how the answers are joined is said where the method is defined (`@register(dispatch_mode=...)`). Here a
resource pool has room for two ranks, and two roles are fused into the same two processes: the actor picks one of four
arms for each observation, the judge pays for the right one, and the actor learns from that. Its answers stay where
they are until the judge asks for them (`blocking=False`): the driver only passes futures on.

Install `verl` without what it needs for training, and what its single controller imports:

    pip install torch==2.13.0 monarch-async
    pip install --no-deps "verl==0.9.*"
    pip install "tensordict>=0.8,!=0.9.0,<=0.10" numpy packaging omegaconf "transformers>=5.5.3,!=5.6.0,<5.11"

Then either of

    python -m monarch_async.ray examples/verl_single_controller.py   # Ray need not be installed
    python examples/verl_single_controller.py                        # after pip install "ray==2.60.*"
"""

import argparse
import time

import ray
import torch
from torch import distributed
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, Execute, register
from verl.single_controller.ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls_fused,
)

RANKS, ARMS, BATCH = 2, 4, 256


@ray.remote
class Actor(Worker):
    """A linear policy: one copy on each rank, kept equal by summing the gradients."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.policy = torch.nn.Linear(ARMS, ARMS)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def setup(self, seed: int) -> str:
        # verl has set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
        distributed.init_process_group("gloo")
        torch.manual_seed(seed)
        torch.nn.init.zeros_(self.policy.weight)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=self.learning_rate)
        torch.manual_seed(seed + self.rank)  # each rank plays another game
        return f"rank {distributed.get_rank()} of {distributed.get_world_size()}"

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def act(self, batch: DataProto) -> DataProto:
        with torch.no_grad():
            choice = torch.distributions.Categorical(logits=self.policy(batch.batch["observations"]))
        return batch.union(DataProto.from_dict({"actions": choice.sample()}))

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def learn(self, batch: DataProto) -> DataProto:
        choice = torch.distributions.Categorical(logits=self.policy(batch.batch["observations"]))
        advantages = batch.batch["rewards"] - batch.batch["rewards"].mean()
        losses = -choice.log_prob(batch.batch["actions"]) * advantages
        self.optimizer.zero_grad()
        losses.mean().backward()
        for parameter in self.policy.parameters():
            distributed.all_reduce(parameter.grad)
        self.optimizer.step()
        return DataProto.from_dict({"losses": losses.detach()})

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def weights(self) -> torch.Tensor:
        return self.policy.weight.detach()


@ray.remote
class Judge(Worker):
    """Pays 1 for the arm that is worth most."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def pay(self, batch: DataProto) -> DataProto:
        best = batch.batch["observations"].argmax(-1)
        return batch.union(DataProto.from_dict({"rewards": (batch.batch["actions"] == best).float()}))


def make_group() -> RayWorkerGroup:
    """A process for each rank, with both roles in it."""
    pool = RayResourcePool([RANKS], use_gpu=False, max_colocate_count=1)
    roles = {"actor": RayClassWithInitArgs(Actor, learning_rate=0.1), "judge": RayClassWithInitArgs(Judge)}
    group = RayWorkerGroup(pool, create_colocated_worker_cls_fused(roles))
    group.fuse(roles)
    return group


def main() -> None:
    options = argparse.ArgumentParser(description="A bandit learned by a worker group of verl.")
    options.add_argument("--steps", type=int, default=60)
    steps = options.parse_args().steps

    ray.init(num_cpus=8)
    print("ray is", ray.__file__)
    start = time.perf_counter()
    group = make_group()
    actor, judge = group.actor, group.judge
    print(*actor.setup(seed=0), sep="\n")
    print(f"ready after {time.perf_counter() - start:.1f} s")

    start, reward = time.perf_counter(), 0.0
    for step in range(1, steps + 1):
        batch = DataProto.from_dict({"observations": torch.randn(BATCH, ARMS)})
        played = actor.act(batch)  # a future: nothing has come here yet
        paid = judge.pay(played)
        actor.learn(paid)
        reward = paid.batch["rewards"].mean().item()
        if step in (1, steps) or step % 20 == 0:
            print(f"step {step:3}: reward {reward:.2f}")
    took = time.perf_counter() - start
    print(f"{steps} steps, {3 * RANKS * steps} calls of workers, {took * 1000 / steps:.1f} ms a step")
    print("each arm looks for itself:", bool((actor.weights().argmax(-1) == torch.arange(ARMS)).all()))
    ray.shutdown()


if __name__ == "__main__":
    main()
