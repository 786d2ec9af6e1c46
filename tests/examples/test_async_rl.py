"""The async RL example: pure parts by hand-computed values, actors as plain objects, then the whole."""

import asyncio
import io
import math
import os
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")

import monarch_async as ma  # noqa: E402
from monarch_async.examples import async_rl  # noqa: E402
from monarch_async.examples.async_rl import (  # noqa: E402
    CLIP,
    DISCOUNT,
    ENVS,
    STEPS,
    TRACE,
    Generator,
    Learner,
    Progress,
    ReplayBuffer,
    Trajectory,
    clipped_loss,
    estimate_advantages,
    network,
)

PROGRAM = Path(__file__).parents[2] / "examples" / "async_rl.py"
T = TypeVar("T")


@pytest.fixture(scope="module", autouse=True)
def _fonts() -> None:
    """Matplotlib opens its fonts once per process and keeps them open."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.text(0, 0, "text")
    figure.savefig(io.BytesIO())


def trajectory(version: int = 0, returns: tuple[float, ...] = (), pid: int = 1, envs: int = 2) -> Trajectory:
    steps = 3
    flags = torch.zeros(steps, envs, dtype=torch.bool)
    numbers = torch.zeros(steps, envs)
    observations = torch.randn(steps + 1, envs, 4)
    actions = torch.zeros(steps, envs, dtype=torch.int64)
    return Trajectory(pid, version, list(returns), observations, actions, numbers, numbers + 1, flags, flags, ~flags)


def column(*numbers: float) -> Any:
    """One environment, [T, 1]."""
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def flags(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.bool)[:, None]


async def settle(task: "asyncio.Task[T]") -> bool:
    """Let the loop run until nothing moves any more; return whether the task is done."""
    for _ in range(20):
        await asyncio.sleep(0)
    return task.done()


def start(coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    return asyncio.get_running_loop().create_task(coroutine)


# estimate_advantages


def test_advantages_of_an_episode_that_goes_on() -> None:
    found = estimate_advantages(column(1, 1), column(10, 20, 30), flags(0, 0), flags(0, 0))
    last = 1 + DISCOUNT * 30 - 20
    first = 1 + DISCOUNT * 20 - 10 + DISCOUNT * TRACE * last
    assert found.flatten().tolist() == pytest.approx([first, last])


def test_a_fall_is_worth_nothing_after_it() -> None:
    found = estimate_advantages(column(1, 1), column(10, 20, 30), flags(1, 0), flags(1, 0))
    assert found[0].item() == pytest.approx(1 - 10)


def test_running_out_of_time_is_not_a_fall() -> None:
    found = estimate_advantages(column(1, 1), column(10, 20, 30), flags(0, 0), flags(1, 0))
    # the state it reached still counts, what follows the reset does not
    assert found[0].item() == pytest.approx(1 + DISCOUNT * 20 - 10)


def test_advantages_keep_environments_apart() -> None:
    one = estimate_advantages(column(1, 1), column(10, 20, 30), flags(0, 0), flags(0, 0))
    other = estimate_advantages(column(1, 0), column(1, 2, 3), flags(1, 0), flags(1, 0))
    both = estimate_advantages(
        torch.cat([column(1, 1), column(1, 0)], 1),
        torch.cat([column(10, 20, 30), column(1, 2, 3)], 1),
        torch.cat([flags(0, 0), flags(1, 0)], 1),
        torch.cat([flags(0, 0), flags(1, 0)], 1),
    )
    assert torch.equal(both, torch.cat([one, other], 1))


# clipped_loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [
        (1.0, 2.0, 2.0),
        (1.5, 2.0, 2.0 * (1 + CLIP)),  # too far in a good direction: clipped
        (0.5, -2.0, -2.0 * (1 - CLIP)),  # the same for what was bad
        (1.5, -2.0, -3.0),  # too far in a bad direction: not clipped
        (0.5, 2.0, 1.0),
    ],
)
def test_loss_of_one_action(ratio: float, advantage: float, objective: float) -> None:
    behaviour = torch.tensor([math.log(0.4)])
    loss = clipped_loss(behaviour + math.log(ratio), behaviour, torch.tensor([advantage]))
    assert loss.item() == pytest.approx(-objective)


def test_loss_is_the_mean_and_has_no_gradient_where_clipped() -> None:
    log_probs = torch.tensor([0.0, 1.0], requires_grad=True)  # ratios 1 and e, the latter clipped
    loss = clipped_loss(log_probs, torch.zeros(2), torch.tensor([3.0, 5.0]))
    assert loss.item() == pytest.approx(-(3 + 5 * (1 + CLIP)) / 2)
    loss.backward()
    assert log_probs.grad.tolist() == pytest.approx([-1.5, 0.0])


# ReplayBuffer


async def test_put_waits_while_the_buffer_is_full() -> None:
    buffer = ReplayBuffer(capacity=2)
    await buffer.put(trajectory(1))
    await buffer.put(trajectory(2))
    third = start(buffer.put(trajectory(3)))
    assert not await settle(third)
    assert [t.version for t in await buffer.get(1, oldest=0)] == [1]
    assert await settle(third)
    assert await buffer.fill() == (2, 0)


async def test_get_waits_until_there_is_enough_and_keeps_the_order() -> None:
    buffer = ReplayBuffer(capacity=2)
    batch = start(buffer.get(3, oldest=0))
    for version in (1, 2):
        await buffer.put(trajectory(version))
        assert not await settle(batch)
    await buffer.put(trajectory(3))
    assert await settle(batch)
    assert [t.version for t in batch.result()] == [1, 2, 3]


async def test_get_drops_what_is_too_old_and_lets_others_in_for_it() -> None:
    buffer = ReplayBuffer(capacity=2)
    await buffer.put(trajectory(3))
    await buffer.put(trajectory(5))
    waiting = start(buffer.put(trajectory(6)))
    assert [t.version for t in await buffer.get(2, oldest=4)] == [5, 6]
    assert await settle(waiting)
    assert await buffer.fill() == (0, 1)


async def test_a_cancelled_put_leaves_nothing() -> None:
    buffer = ReplayBuffer(capacity=1)
    await buffer.put(trajectory(1))
    second = start(buffer.put(trajectory(2)))
    assert not await settle(second)
    second.cancel()
    assert await settle(second)
    assert [t.version for t in await buffer.get(1, oldest=0)] == [1]
    assert await buffer.fill() == (0, 0)


# Learner and Generator


@pytest.mark.slow
async def test_each_version_is_what_the_policy_was() -> None:
    async with ma.local_hosts():
        learner = Learner(seed=0)
        await learner.setup()
        generator = ma.WeightSubscriber(await learner.policy())
        policy = network(2)
        for version in (1, 2):
            published = {name: weight.clone() for name, weight in learner.actor.state_dict().items()}
            learner.train([trajectory(), trajectory()])
            assert await generator.update(policy) == version
            assert all(torch.equal(policy.state_dict()[name], published[name]) for name in published)
            assert any(not torch.equal(learner.actor.state_dict()[name], published[name]) for name in published)
            assert await learner.publish() == version + 1


@pytest.mark.slow
def test_training_makes_what_paid_more_likely() -> None:
    learner = Learner(seed=0)
    observations = torch.randn(65, 4, 4)
    actions = torch.randint(2, (64, 4))
    with torch.no_grad():
        log_probs = learner.actor(observations[:-1]).log_softmax(-1)
    behaviour = log_probs.gather(-1, actions[..., None])[..., 0]
    every = torch.ones(64, 4, dtype=torch.bool)  # every step is an episode, and action 1 pays
    played = Trajectory(1, 0, [], observations, actions, behaviour, actions.float(), every, every, every)
    for _ in range(3):
        learner.train([played])
    with torch.no_grad():
        now = learner.actor(observations[:-1]).log_softmax(-1)
    assert now[..., 1].mean() > log_probs[..., 1].mean()


def test_a_rollout_says_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_rl.ma, "context", lambda: type("Context", (), {"rank": 0}))
    monkeypatch.setattr(async_rl.ma, "WeightSubscriber", lambda publisher: type("Subscriber", (), {"version": 3}))
    generator = Generator(None, None, seed=0)  # type: ignore[arg-type]
    generator.actor = network(2)
    first, second = generator.rollout(), generator.rollout()
    assert first.observations.shape == (STEPS + 1, ENVS, 4)
    assert torch.equal(first.observations[-1], second.observations[0])  # it plays on where it stopped
    with torch.no_grad():
        log_probs = generator.actor(first.observations[:-1]).log_softmax(-1)
    expected = log_probs.gather(-1, first.actions[..., None])[..., 0]
    assert torch.allclose(first.log_probs, expected, atol=1e-6)
    assert first.pid == os.getpid() and first.version == 3
    # a beginner's episodes last some ten to forty steps: each that ended is reported once, with its length
    assert len(first.returns) == int(first.done.sum())
    assert len(first.returns) > 0
    assert torch.equal(first.played[1:], ~first.done[:-1])  # the step after an end is spent on the reset
    total = sum(first.returns) + sum(second.returns) + float(generator.score.sum())
    assert total == float(first.rewards.sum() + second.rewards.sum())
    assert first.rewards.sum() == first.played.sum()


# Progress


def test_progress_is_solved_only_by_a_hundred_episodes() -> None:
    progress = Progress(target=10)
    progress.add(1, [trajectory(0, (20.0,) * 99)], 0, 0)
    assert not progress.is_solved
    progress.add(2, [trajectory(0, (20.0,))], 3, 1)
    assert progress.is_solved
    assert (progress.version, progress.staleness, progress.waiting, progress.dropped) == (2, 1.0, 3, 1)
    progress.add(3, [trajectory(2, (0.0,) * 80)], 0, 0)
    assert not progress.is_solved


def test_progress_notices_the_successor_of_the_killed(tmp_path: Path) -> None:
    progress = Progress(target=10)
    progress.add(1, [trajectory(pid=1), trajectory(pid=2)], 0, 0)
    assert progress.back_at is None
    progress.killed_at = progress.elapsed
    progress.add(2, [trajectory(pid=1)], 0, 0)
    assert progress.back_at is None
    progress.add(3, [trajectory(pid=3)], 0, 0)
    assert progress.back_at is not None
    progress.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


# the whole


def test_the_installed_program_is_the_example() -> None:
    assert Path(async_rl.__file__).read_text() == PROGRAM.read_text()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_program_solves_cartpole_and_survives_a_kill(tmp_path: Path) -> None:
    plot = tmp_path / "new" / "plot.png"
    command = [sys.executable, str(PROGRAM), "--seconds", "150", "--out", str(plot)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=190, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "\nsolved" in ended.stdout
    assert "generator 0 killed" in ended.stdout
    assert "back after" in ended.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_the_program_says_when_it_did_not_get_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "monarch_async.examples.async_rl", "--seconds", "15", "--target", "501"]
    ended = subprocess.run(
        [*command, "--generators", "2"], capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "not solved" in ended.stdout
