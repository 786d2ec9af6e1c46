"""Asynchronous reinforcement learning: CartPole solved on two cores, while one of the players is killed.

    generators ──put──► replay buffer ──get──► client ──train──► learner
        ▲                                                           │
        └────────────────────────── weights ────────────────────────┘

Nobody waits for a round to end. Every `Generator` moves to the newest weights, plays a short rollout and puts
it into the `ReplayBuffer`, which makes it wait while it is full. The `Learner` trains on what is there, with
PPO's clipped objective. By then the policy that played is a few versions old; so each trajectory carries its
version and the log-probabilities its actions had: the ratio in the objective is taken against those, and what
is too old is dropped.

Run it as ``python examples/async_rl.py`` or ``monarch-async demo``; ``--help`` lists the options.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium
import numpy
import torch
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from torch import Tensor, nn

import monarch_async as ma

ENVS, STEPS = 8, 64  # a rollout: this many environments, stepped together, for this many steps
BATCH = 4  # rollouts per update
CAPACITY = 4  # rollouts that may wait in the buffer
MAX_STALENESS = 4  # versions
EPOCHS, MINIBATCH, LEARNING_RATE, CLIP = 6, 512, 1e-3, 0.2
DISCOUNT, TRACE = 0.99, 0.95  # gamma and lambda


# ---- the algorithm ----


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What N environments did in T steps under one version of the policy."""

    pid: int  # of the process that played
    version: int
    returns: list[float]  # of the episodes that ended here
    observations: Tensor  # [T + 1, N, 4]
    actions: Tensor  # [T, N], like all below
    log_probs: Tensor  # of the actions, when they were played
    rewards: Tensor
    terminated: Tensor  # the pole fell: no reward will follow
    done: Tensor  # terminated, or out of time
    played: Tensor  # False where gymnasium spent the step on a reset


def network(outputs: int) -> nn.Module:
    """From an observation to the logits of both actions, or to the value of the state."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def estimate_advantages(rewards: Tensor, values: Tensor, terminated: Tensor, done: Tensor) -> Tensor:
    """Generalised advantage estimation, [T, N] (Schulman et al. 2015). ``values`` is [T + 1, N]."""
    advantages, following = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        surprise = rewards[t] + DISCOUNT * values[t + 1] * ~terminated[t] - values[t]
        advantages[t] = following = surprise + DISCOUNT * TRACE * following * ~done[t]
    return advantages


def clipped_loss(log_probs: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:
    """PPO's objective, negated (Schulman et al. 2017). ``behaviour``: the log-probabilities when played."""
    ratio = (log_probs - behaviour).exp()
    return -torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()


# ---- the actors ----


class ReplayBuffer(ma.Actor):
    """A bounded queue: `put` waits while it is full, `get` while it has too little."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.queue: deque[Trajectory] = deque()
        self.changed = asyncio.Condition()
        self.dropped = 0

    @ma.endpoint
    async def put(self, trajectory: Trajectory) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.queue) < self.capacity)
            self.queue.append(trajectory)
            self.changed.notify_all()

    @ma.endpoint
    async def get(self, count: int, oldest: int) -> list[Trajectory]:
        """Take ``count`` trajectories, first come first; drop those of a version before ``oldest``."""
        batch: list[Trajectory] = []
        async with self.changed:
            while len(batch) < count:
                await self.changed.wait_for(lambda: self.queue)
                if self.queue[0].version >= oldest:
                    batch.append(self.queue.popleft())
                else:
                    self.queue.popleft()
                    self.dropped += 1
                self.changed.notify_all()
        return batch

    @ma.endpoint
    async def fill(self) -> tuple[int, int]:
        """How many trajectories wait now, and how many were dropped so far."""
        return len(self.queue), self.dropped


class Learner(ma.Actor):
    """Trains. `train` is a plain function: it has a thread, and the loop stays free for those who ask for weights."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.actor, self.critic = network(2), network(1)
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, LEARNING_RATE)

    async def setup(self) -> None:
        self.publisher = ma.WeightPublisher("policy")
        await self.publish()

    @ma.endpoint
    async def policy(self) -> ma.WeightPublisher:
        return self.publisher

    @ma.endpoint
    async def publish(self) -> int:
        """Make the policy as it is now the newest; return its version."""
        return await self.publisher.publish(self.actor)

    @ma.endpoint
    def train(self, batch: list[Trajectory]) -> None:
        """Do one PPO update."""
        observations, actions, behaviour, rewards, terminated, done, played = (
            torch.cat([getattr(trajectory, name) for trajectory in batch], dim=1)
            for name in ("observations", "actions", "log_probs", "rewards", "terminated", "done", "played")
        )
        with torch.no_grad():
            values = self.critic(observations)[..., 0]
        advantages = estimate_advantages(rewards, values, terminated, done)
        targets = (advantages + values[:-1])[played]
        advantages = (advantages[played] - advantages[played].mean()) / advantages[played].std()
        observations, actions, behaviour = observations[:-1][played], actions[played], behaviour[played]
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(actions)).split(MINIBATCH):
                log_probs = self.actor(observations[rows]).log_softmax(-1).gather(-1, actions[rows, None])
                value_loss = (self.critic(observations[rows])[:, 0] - targets[rows]).square().mean()
                loss = clipped_loss(log_probs[:, 0], behaviour[rows], advantages[rows]) + 0.5 * value_loss
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, 0.5)
                self.optimizer.step()


class Generator(ma.Actor):
    """Plays, always with the newest weights there are."""

    def __init__(self, policy: ma.WeightPublisher, buffer: ReplayBuffer, seed: int) -> None:
        seed += ma.context().rank
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.policy, self.buffer = ma.WeightSubscriber(policy), buffer
        self.actor = network(2)
        self.envs = gymnasium.make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
        self.observation, _ = self.envs.reset(seed=seed)
        self.done, self.score = numpy.zeros(ENVS, bool), numpy.zeros(ENVS)

    @ma.endpoint
    async def play(self) -> None:
        while True:
            await self.policy.update(self.actor)
            await self.buffer.put.call_one(self.rollout())

    @torch.no_grad()
    def rollout(self) -> Trajectory:
        """Play on for `STEPS` steps: about 10 ms."""
        returns, observations, columns = [], [self.observation], []
        for _ in range(STEPS):
            log_probs = self.actor(torch.from_numpy(self.observation)).log_softmax(-1)
            action = log_probs.exp().multinomial(1)
            played = ~self.done
            self.observation, reward, terminated, truncated, _ = self.envs.step(action[:, 0].numpy())
            self.done = terminated | truncated
            self.score += reward
            returns += self.score[self.done].tolist()
            self.score[self.done] = 0
            log_prob = log_probs.gather(-1, action)
            observations.append(self.observation)
            columns.append((action[:, 0], log_prob[:, 0], reward, terminated, self.done, played))
        arrays = [numpy.stack(column) for column in (observations, *zip(*columns, strict=True))]
        return Trajectory(os.getpid(), self.policy.version, returns, *map(torch.from_numpy, arrays))

    @ma.endpoint
    async def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


# ---- the program ----


async def solve(options: argparse.Namespace, progress: "Progress") -> None:
    """Play and train until the mean return reaches the target; kill a generator at a third of the way."""
    preload = ["torch", "pyarrow", "gymnasium"]  # imported once: every process is a fork of the one that did
    async with ma.local_hosts() as hosts:
        learner_proc = await hosts.spawn_procs({"cpus": 1}, name="learner", preload=preload)
        learner = await learner_proc.spawn("learner", Learner, options.seed)
        policy = await learner.policy.call_one()
        buffer_proc = await hosts.spawn_procs({"cpus": 1}, name="buffer", preload=preload)
        buffer = await buffer_proc.spawn("buffer", ReplayBuffer, CAPACITY)

        async def keep_playing(failure: ma.Failure) -> bool:
            await failure.mesh.restart(failure.rank)
            generators.at(failure.rank).play.broadcast()
            return isinstance(failure.error, ma.ProcDied)  # what `play` raises is a bug, and ends the program

        async with ma.supervise(keep_playing):
            procs = await hosts.spawn_procs({"cpus": options.generators}, name="generators", preload=preload)
            generators = await procs.spawn("generators", Generator, policy, buffer, options.seed)
            generators.play.broadcast()
            version, batch = 1, buffer.get.call_one(BATCH, oldest=1)
            while not progress.is_solved:
                trajectories = await batch
                # sent now, awaited later: the next batch gathers while the learner trains on this one
                batch = buffer.get.call_one(BATCH, oldest=version + 1 - MAX_STALENESS)
                await learner.train.call_one(trajectories)
                version = await learner.publish.call_one()
                progress.add(version, trajectories, *await buffer.fill.call_one())
                if options.kill and progress.killed_at is None and progress.mean_return > options.target / 3:
                    generators.at(0).die.broadcast()
                    progress.killed_at = progress.elapsed


@dataclass
class Progress:
    """What the client has seen: drawn as a live table on the way, as a plot at the end."""

    target: float
    started: float = field(default_factory=time.monotonic)
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    curve: list[tuple[float, float]] = field(default_factory=list)  # seconds, mean return
    pids: set[int] = field(default_factory=set)  # of the processes that played
    killed_at: float | None = None
    back_at: float | None = None
    version: int = 0
    staleness: float = 0.0  # versions, mean over the last batch
    steps: int = 0
    waiting: int = 0
    dropped: int = 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def mean_return(self) -> float:
        return sum(self.returns) / max(1, len(self.returns))

    @property
    def is_solved(self) -> bool:
        return len(self.returns) == self.returns.maxlen and self.mean_return >= self.target

    def add(self, version: int, trajectories: Sequence[Trajectory], waiting: int, dropped: int) -> None:
        self.staleness = sum(version - 1 - t.version for t in trajectories) / len(trajectories)
        self.version, self.waiting, self.dropped = version, waiting, dropped
        for trajectory in trajectories:
            self.returns.extend(trajectory.returns)
            self.steps += int(trajectory.played.sum())
            if self.killed_at and not self.back_at and trajectory.pid not in self.pids:
                self.back_at = self.elapsed
            self.pids.add(trajectory.pid)
        self.curve.append((self.elapsed, self.mean_return))

    def __rich__(self) -> Table:
        table = Table.grid(padding=(0, 2))
        if not self.curve:
            table.add_row(f"starting processes: {self.elapsed:.0f} s")
            return table
        (began, _), (now, _) = self.curve[0], self.curve[-1]
        table.add_row("mean return", ProgressBar(self.target, self.mean_return, width=50))
        table.add_row("", f"{self.mean_return:.0f} of {self.target:.0f} (last {len(self.returns)} episodes)")
        table.add_row("policy", f"version {self.version}, trained on data {self.staleness:.1f} versions old")
        table.add_row("play", f"{self.steps:,} steps, {self.steps / max(now - began, 1):,.0f} a second")
        table.add_row("buffer", f"{self.waiting} of {CAPACITY} rollouts wait, {self.dropped} were too old")
        if self.killed_at:
            back = f", back after {self.back_at - self.killed_at:.1f} s" if self.back_at else ""
            table.add_row("deaths", f"generator 0 killed at {self.killed_at:.0f} s{back}")
        return table

    def plot(self, path: Path) -> None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*self.curve, strict=True), label="mean return of the last 100 episodes")
        axes.axhline(self.target, color="green", linestyle="--", label=f"solved: {self.target:.0f}")
        if self.killed_at:
            axes.axvline(self.killed_at, color="red", linestyle=":", label="generator 0 killed")
        if self.back_at:
            axes.axvline(self.back_at, color="orange", linestyle=":", label="its successor plays")
        axes.set(xlabel="seconds", ylabel="mean return", xlim=(0, None), ylim=(0, None))
        axes.set_title("CartPole-v1 by asynchronous PPO")
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=150)


async def run(options: argparse.Namespace) -> int:
    """Solve, show, draw; return the exit status."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    progress = Progress(options.target)
    with Live(get_renderable=lambda: progress, refresh_per_second=10):
        try:
            async with asyncio.timeout(options.seconds):
                await solve(options, progress)
        except TimeoutError:
            pass
    if progress.curve:
        progress.plot(options.out)
        print("\nplot:", options.out.resolve())
    if progress.is_solved:
        print(f"solved in {progress.curve[-1][0]:.0f} s")
        return 0
    print(f"not solved in {options.seconds:.0f} s: allow more --seconds or try another --seed")
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="CartPole by asynchronous reinforcement learning.")
    parser.add_argument("--generators", type=int, default=4, help="how many processes play (4)")
    parser.add_argument("--target", type=float, default=475, help="mean return that counts as solved (475)")
    parser.add_argument("--seconds", type=float, default=120, help="give up after this time (120)")
    parser.add_argument("--seed", type=int, default=0, help="of networks and environments (0)")
    parser.add_argument("--out", type=Path, default=Path("async_rl.png"), help="the plot (async_rl.png)")
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="kill no generator on the way")
    return ma.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
