"""Scopes: what ends a block, and what the block raises. No processes: failures are reported by hand."""

import asyncio
from collections.abc import Callable

import pytest

import monarch_async as ma
from monarch_async.control.supervision import Failure, Policy, escalate
from monarch_async.mesh.scope import Scope, current_scope, supervise


class Mesh:
    name = "kids"

    async def restart(self, rank: int) -> None: ...


def failure(text: str = "boom") -> Failure:
    return Failure(ValueError(text), Mesh(), 0)


def later(function: Callable[[BaseException], None], error: BaseException) -> None:
    asyncio.get_running_loop().call_soon(function, error)


async def forever() -> None:
    async with asyncio.timeout(5):
        await asyncio.Event().wait()


async def test_s1_a_failure_cancels_the_body_and_is_raised() -> None:
    error = ValueError("boom")
    seen: list[str] = []
    with pytest.raises(ValueError, match="boom") as info:
        async with Scope() as scope:
            later(scope.fail, error)
            try:
                await forever()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
    assert info.value is error
    assert error.__suppress_context__  # how the body was ended is not shown
    assert seen == ["cancelled"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing is left to hit the next await


async def test_s1_only_the_first_counts() -> None:
    with pytest.raises(ValueError, match="first"):
        async with Scope() as scope:
            later(scope.fail, ValueError("first"))
            later(scope.fail, ValueError("second"))
            await forever()


async def test_a_failure_the_body_does_not_wait_for_is_raised_at_its_end() -> None:
    with pytest.raises(ValueError, match="boom"):
        async with Scope() as scope:
            scope.fail(ValueError("boom"))


async def test_s2_a_failure_replaces_what_the_body_makes_of_it() -> None:
    with pytest.raises(ValueError, match="boom") as info:
        async with Scope() as scope:
            later(scope.fail, ValueError("boom"))
            try:
                await forever()
            finally:
                raise KeyError("while cleaning up")
    assert isinstance(info.value.__context__, KeyError)
    assert not info.value.__suppress_context__


async def test_s2_an_error_of_the_body_before_it_stands() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with Scope() as scope:
            raise KeyError("mine")
    scope.fail(ValueError("late"))  # nobody is cancelled


@pytest.mark.parametrize("cls", [KeyboardInterrupt, SystemExit])
async def test_s2_an_interrupt_stands(cls: type[BaseException]) -> None:
    with pytest.raises(cls):
        async with Scope() as scope:
            scope.fail(ValueError("boom"))
            raise cls


async def test_a_body_that_is_cancelled_from_outside_stays_cancelled() -> None:
    entered = asyncio.Event()

    async def body() -> None:
        async with Scope():
            entered.set()
            await forever()

    task = asyncio.create_task(body())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_timeout_around_still_works() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), Scope():
            await forever()
    with pytest.raises(ValueError, match="boom"):
        async with asyncio.timeout(5), Scope() as scope:
            later(scope.fail, ValueError("boom"))
            await forever()


async def test_both_at_once_show_the_failure() -> None:
    """Cancelled from outside in the same turn: the cause is worth more, as in a TaskGroup."""

    async def body() -> None:
        async with Scope() as scope:
            later(scope.fail, ValueError("boom"))
            await forever()

    task = asyncio.create_task(body())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(ValueError, match="boom"):
        await task


async def test_nested_blocks_end_from_the_one_that_failed_outwards() -> None:
    left: list[str] = []
    with pytest.raises(ValueError, match="outer") as info:
        async with Scope() as outer:
            try:
                async with Scope() as inner:
                    later(inner.fail, ValueError("inner"))
                    later(outer.fail, ValueError("outer"))
                    await forever()
            except ValueError:
                left.append("inner")
                raise
    assert left == ["inner"]
    assert str(info.value.__context__) == "inner"  # both are shown

    with pytest.raises(ValueError, match="outer"):
        async with Scope() as outer:
            async with Scope():
                later(outer.fail, ValueError("outer"))
                await forever()
            left.append("not reached")
    assert left == ["inner"]


async def test_a_handled_inner_failure_leaves_the_outer_block_alone() -> None:
    async with Scope():
        with pytest.raises(ValueError, match="inner"):
            async with Scope() as inner:
                later(inner.fail, ValueError("inner"))
                await forever()
        await asyncio.sleep(0)


async def test_s3_a_block_that_was_left_passes_failures_on() -> None:
    asked: list[str] = []

    async def policy(failure: Failure) -> bool:
        asked.append("inner")
        return True

    with pytest.raises(ValueError, match="late"):
        async with Scope() as outer:
            async with supervise(policy) as inner:
                assert current_scope() is inner
                assert inner.has_policy
            assert current_scope() is outer
            assert not inner.has_policy
            assert not await inner.handle(failure())
            later(inner.fail, ValueError("late"))
            await forever()
    assert asked == []


async def test_s3_a_task_that_outlives_its_block_belongs_to_the_one_around() -> None:
    go = asyncio.Event()

    async def work() -> Scope | None:
        await go.wait()
        return current_scope()

    async with Scope() as outer:
        async with Scope():
            task = asyncio.create_task(work())
            await asyncio.sleep(0)
        go.set()
        assert await task is outer
    assert current_scope() is None


async def test_v1_policies_are_asked_from_the_inside_out() -> None:
    asked: list[str] = []

    def policy(name: str, answer: bool) -> Policy:
        async def ask(failure: Failure) -> bool:
            asked.append(name)
            return answer

        return ask

    async with (
        supervise(policy("a", True)), supervise(policy("b", True)), supervise(escalate),
        supervise(policy("c", False)) as inner,
    ):  # fmt: skip
        assert await inner.handle(failure())
    assert asked == ["c", "b"]


async def test_what_a_policy_raises_says_what_it_was_about() -> None:
    async def policy(failure: Failure) -> bool:
        raise LookupError("no spare")

    async with supervise(policy) as scope:
        with pytest.raises(LookupError, match="no spare") as info:
            await scope.handle(failure())
    assert info.value.__notes__ == ["raised by a supervision policy while it handled: kids[0]: boom"]


def test_what_is_no_policy() -> None:
    with pytest.raises(TypeError, match="expected `async def policy"):
        supervise("restart")  # type: ignore[arg-type]


async def test_a_block_may_be_entered_again() -> None:
    scope = Scope()
    with pytest.raises(ValueError, match="once"):
        async with scope:
            later(scope.fail, ValueError("once"))
            await forever()
    async with scope:
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="twice"):
        async with scope:
            later(scope.fail, ValueError("twice"))
            await forever()


def test_the_ready_made_policies_are_public() -> None:
    assert (ma.escalate, ma.ignore, ma.supervise) == (escalate, ma.ignore, supervise)
    assert callable(ma.restart())
