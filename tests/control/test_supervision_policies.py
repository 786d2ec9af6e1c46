"""The ready-made policies, without processes and without time."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.control.supervision import Budget, Failure, escalate, ignore, restarting
from monarch_async.errors import Error, ProcDied


@dataclass(eq=False)
class Mesh:
    """Fails to restart as often as told, and counts."""

    name: str = "kids"
    failing: int = 0
    restarted: list[int] = field(default_factory=list)

    async def restart(self, rank: int) -> None:
        self.restarted.append(rank)
        if self.failing:
            self.failing -= 1
            raise Error("no weights")


class Clock:
    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


def failure(mesh: Mesh, rank: int = 0) -> Failure:
    return Failure(ProcDied(f"{mesh.name}[{rank}]", "host0", signal=9), mesh, rank)


async def test_escalate_and_ignore() -> None:
    assert not await escalate(failure(Mesh()))
    assert await ignore(failure(Mesh()))


def test_a_failure_says_where_and_what() -> None:
    assert str(failure(Mesh(), 2)) == "kids[2]: proc kids[2] on host0 died: killed by SIGKILL"


async def test_restarts_with_doubling_pauses_then_lets_it_through() -> None:
    mesh, clock = Mesh(), Clock()
    policy = restarting(Budget(3, 0.5), clock.sleep)
    assert [await policy(failure(mesh, 1)) for _ in range(3)] == [True, True, True]
    last = failure(mesh, 1)
    assert not await policy(last)
    assert mesh.restarted == [1, 1, 1]
    assert clock.pauses == [0.5, 1.0, 2.0]
    assert last.error.__notes__ == ["not restarted: 3 restarts of this member are used up"]


async def test_a_restart_that_fails_uses_up_another_try() -> None:
    mesh, clock = Mesh(failing=2), Clock()
    policy = restarting(Budget(3, 1), clock.sleep)
    assert await policy(failure(mesh))
    assert clock.pauses == [1, 2, 4]
    last = failure(mesh)
    assert not await policy(last)

    hopeless = Mesh(failing=5)
    last = failure(hopeless)
    assert not await policy(last)
    assert last.error.__notes__ == [
        "not restarted: 3 restarts of this member are used up; the last one failed: no weights"
    ]


async def test_members_and_meshes_of_one_name_have_budgets_of_their_own() -> None:
    one, other = Mesh(), Mesh()
    policy = restarting(Budget(1, 0), Clock().sleep)
    assert [await policy(failure(one, rank)) for rank in (0, 1)] == [True, True]
    assert await policy(failure(other, 0))
    assert not await policy(failure(one, 0))


async def test_what_a_restart_raises_that_is_no_failure_is_not_swallowed() -> None:
    class Broken(Mesh):
        async def restart(self, rank: int) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await restarting(Budget(3, 0), Clock().sleep)(failure(Broken()))


@pytest.mark.parametrize(("times", "backoff"), [(-1, 0.1), (1, -0.1)])
def test_bad_numbers(times: int, backoff: float) -> None:
    with pytest.raises(Error, match="neither may be negative"):
        Budget(times, backoff)


@given(st.integers(0, 6), st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=60))
def test_no_member_is_restarted_more_often_than_allowed(times: int, failures: list[tuple[int, int]]) -> None:
    meshes = [Mesh("kids"), Mesh("kids")]
    budget = Budget(times, 1.0)
    pauses: dict[tuple[int, int], list[float]] = {}
    for mesh, rank in failures:
        pause = budget.take(meshes[mesh], rank)
        if pause is not None:
            pauses.setdefault((mesh, rank), []).append(pause)
    for member, taken in pauses.items():
        assert taken == [2.0**n for n in range(min(times, failures.count(member)))]
