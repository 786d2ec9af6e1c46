# pyright: reportMissingImports=false
"""What verl makes of refs and loops."""

import asyncio

import pytest

pytest.importorskip("verl", reason="verl is not installed")

import ray
import torch
from verl.utils.ray_utils import auto_await, get_event_loop, parallel_put, ray_noset_visible_devices
from verl_workers import Everything, one_rank, rows


@pytest.mark.parametrize("workers", [None, 1, 2, 100])
def test_values_put_at_once_keep_their_order(workers: int | None) -> None:
    values = [{"row": i, "x": torch.full((100,), i)} for i in range(20)]
    refs = parallel_put(values, max_workers=workers)
    assert all(isinstance(ref, ray.ObjectRef) for ref in refs)
    assert [value["row"] for value in ray.get(refs)] == list(range(20))
    assert ray.get(refs[3])["x"].tolist() == [3] * 100


def test_nothing_cannot_be_put() -> None:
    with pytest.raises(AssertionError):
        parallel_put([])


def test_workers_put_at_once_too() -> None:
    assert one_rank(Everything).put_some(10) == [list(range(10))]


def test_data_that_was_put_is_data_again() -> None:
    (ref,) = parallel_put([rows(5, step=3)])
    found = ray.get(ref)
    assert found.batch["x"].tolist() == [0, 1, 2, 3, 4] and found.meta_info == {"step": 3}


@auto_await
async def double_of(ref: "ray.ObjectRef[int]") -> int:
    return 2 * await ref


def test_a_coroutine_runs_where_there_is_no_loop() -> None:
    assert double_of(ray.put(4)) == 8


def test_a_coroutine_is_awaited_where_one_awaits_it() -> None:
    async def awaits() -> int:
        return await double_of(ray.put(5))

    assert asyncio.run(awaits()) == 10


def test_a_coroutine_runs_under_a_plain_function_on_a_loop() -> None:
    async def calls() -> int:
        return (lambda: double_of(ray.put(6)))()

    assert asyncio.run(calls()) == 12


def test_there_is_always_a_loop() -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        assert get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    made = get_event_loop()
    try:
        assert made.run_until_complete(asyncio.sleep(0, 1)) == 1
    finally:
        asyncio.set_event_loop(None)
        made.close()


def test_whether_the_devices_are_left_visible() -> None:
    assert not ray_noset_visible_devices({})
    assert ray_noset_visible_devices({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"})
