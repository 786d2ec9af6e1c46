"""Region: which members a slice selects. numpy, indexing the same array, is the reference."""

import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.errors import AxisError, ExtentError, RankError
from monarch_async.ranks import Extent, Region
from monarch_async.ranks.layout import Listed, Strided

NAMES = list("abcdefgh")
NO_INDEX = "slice indices must be integers or None or have an __index__ method"


@pytest.fixture
def full() -> Region:
    return Region.full(Extent(hosts=2, gpus=4))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Region, np.ndarray]:
    """A region reached by up to five operations, and the numpy array reached by the same ones."""
    sizes = draw(st.lists(st.integers(1, 6), max_size=3))
    region = Region.full(Extent.of_pairs(zip(NAMES, sizes, strict=False)))
    array = np.arange(region.base_size).reshape(sizes)
    for _ in range(draw(st.integers(0, 5))):
        operation = draw(st.sampled_from([_slice, _slice, _flatten, _split, _rename]))
        region, array = operation(draw, region, array)
    return region, array


def _slice(draw: st.DrawFn, region: Region, array: np.ndarray) -> tuple[Region, np.ndarray]:
    index: dict[str, int | slice] = {}
    for axis, size in region.extent.items():
        kind = draw(st.sampled_from(["all", "int", "slice", "slice"]))
        if kind == "int":
            index[axis] = draw(st.integers(-size, size - 1))
        elif kind == "slice":
            cut = draw(st.slices(size))
            index[axis] = cut if range(size)[cut] else slice(None, None, -1)
    picked = array[tuple(index.get(axis, slice(None)) for axis in region.extent)]
    return region.slice(**index), np.asarray(picked)


def _flatten(draw: st.DrawFn, region: Region, array: np.ndarray) -> tuple[Region, np.ndarray]:
    return region.flatten(draw(st.sampled_from(NAMES))), array.reshape(-1)


def _split(draw: st.DrawFn, region: Region, array: np.ndarray) -> tuple[Region, np.ndarray]:
    if not region.extent:
        return region, array
    axis = draw(st.sampled_from(region.extent.axes))
    size = region.extent[axis]
    first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    spare = [name for name in NAMES if name not in region.extent]
    new = {spare[0]: first, spare[1]: size // first}
    given = dict(new)
    if left_out := draw(st.sampled_from([None, *new])):
        del given[left_out]
    at = region.extent.index(axis)
    shape = (*array.shape[:at], *new.values(), *array.shape[at + 1 :])
    return region.split(**{axis: tuple(new)}, **given), array.reshape(shape)


def _rename(draw: st.DrawFn, region: Region, array: np.ndarray) -> tuple[Region, np.ndarray]:
    new = draw(st.permutations(NAMES))[: len(region.extent)]
    return region.rename(**dict(zip(region.extent, new, strict=True))), array


@settings(max_examples=300)
@given(histories())
def test_every_chain_of_operations_agrees_with_numpy(history: tuple[Region, np.ndarray]):
    region, array = history
    expected = array.reshape(-1).tolist()
    assert region.extent.sizes == array.shape
    assert list(region.base_ranks) == expected
    assert len(region) == len(expected)
    assert [region.base_rank(rank) for rank in range(len(region))] == expected
    assert region.base_rank(-1) == expected[-1]
    assert region.is_full == (expected == list(range(region.base_size)))


@settings(max_examples=200)
@given(histories())
def test_replies_find_their_way_back(history: tuple[Region, np.ndarray]):
    region, _ = history
    places = {base_rank: rank for rank, base_rank in enumerate(region.base_ranks)}
    for base_rank in range(-2, region.base_size + 2):
        assert region.rank_of(base_rank) == places.get(base_rank)


@settings(max_examples=200)
@given(histories())
def test_the_layout_depends_on_the_selection_and_not_on_the_road_to_it(history: tuple[Region, np.ndarray]):
    region, _ = history
    back = region
    if region.extent.size > 1:  # there and back again: through one axis, reversed twice
        back = region.flatten("h").slice(h=slice(None, None, -1)).slice(h=slice(None, None, -1))
        *outer, _last = region.extent.axes
        back = back.split(h=[f"x{n}" for n in range(len(region.extent))], **_sizes(region.extent, len(outer)))
        back = back.rename(**{f"x{n}": axis for n, axis in enumerate(region.extent)})
    assert back == region
    assert hash(back) == hash(region)
    again = pickle.loads(pickle.dumps(region))
    assert again == region
    assert hash(again) == hash(region)
    assert list(again.base_ranks) == list(region.base_ranks)


def _sizes(extent: Extent, count: int) -> dict[str, int]:
    return {f"x{n}": size for n, size in enumerate(extent.sizes[:count])}


def test_strides_are_used_wherever_they_can_say_it(full: Region):
    ends = full.slice(gpus=slice(None, None, 3))
    assert ends.layout == Strided(0, (4, 3))
    listed = ends.flatten("x")
    assert listed.layout == Listed((0, 3, 4, 7))
    assert listed.slice(x=slice(2)).layout == Strided(0, (3,))
    assert listed.split(x=("hosts", "gpus"), gpus=2) == ends
    assert full.slice(hosts=slice(1)).layout == Strided(0, (0, 1))  # the stride of a size of 1 means nothing
    assert full.flatten("x").layout == Strided(0, (1,))


def test_evenly_spaced_members_are_a_range_and_come_from_a_cache(full: Region):
    assert full.base_ranks == range(8)
    assert full.slice(gpus=1).base_ranks == range(1, 9, 4)
    assert full.slice(hosts=1, gpus=slice(None, None, -1)).base_ranks == range(7, 3, -1)
    assert full.slice(hosts=1, gpus=1).base_ranks == range(5, 6)
    gaps = full.slice(gpus=slice(2))
    assert gaps.base_ranks == (0, 1, 4, 5)
    assert gaps.base_ranks is gaps.base_ranks


def test_a_region_is_full_only_in_order(full: Region):
    assert full.is_full
    assert full.flatten("x").is_full
    assert full.slice(gpus=slice(None)).is_full
    assert not full.slice(gpus=slice(3)).is_full
    assert not full.slice(gpus=slice(None, None, -1)).is_full
    assert not full.slice(hosts=0).is_full


def test_regions_of_meshes_of_other_sizes_differ(full: Region):
    assert full.slice(hosts=0) != Region.full(Extent(gpus=4))
    assert full.slice(hosts=0) != full.slice(hosts=1)


def test_a_point_slices_one_member(full: Region):
    one = full.slice(**full.extent.point(6))
    assert one.extent == Extent()
    assert list(one.base_ranks) == [6]


def test_split_several_axes_at_once_and_reuse_a_name():
    full = Region.full(Extent(hosts=4, gpus=8))
    both = full.split(hosts=("pp", "hosts"), gpus=["dp", "tp"], pp=2, tp=4)
    assert both.extent == Extent(pp=2, hosts=2, dp=2, tp=4)
    assert both.is_full
    assert full.split(gpus=("x",)).extent == Extent(hosts=4, x=8)


def test_axes_may_swap_names(full: Region):
    assert full.rename(hosts="gpus", gpus="hosts").extent == Extent(gpus=2, hosts=4)


def test_text_of_a_region(full: Region):
    assert repr(full.slice(gpus=0)) == "Region(Extent(hosts=2), base ranks 0, 4 of 8)"
    big = Region.full(Extent(gpus=100))
    assert repr(big) == "Region(Extent(gpus=100), base ranks 0, 1, 2, 3, 4, 5, 6, 7, ... of 100)"


def test_a_region_cannot_be_changed(full: Region):
    with pytest.raises(AttributeError):
        full.base_size = 3  # type: ignore[misc]


# Any, because half of it is what a type checker would already refuse.
BAD: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda r: r.slice(tp=0), AxisError, "unknown axis 'tp'; this mesh has: hosts, gpus"),
    (lambda r: r.slice(gpus=4), RankError, "gpus index 4 is out of range: there are 4 (0 to 3)"),
    (lambda r: r.slice(gpus=-5), RankError, "gpus index -5 is out of range: there are 4 (0 to 3)"),
    (lambda r: r.slice(gpus="1"), ExtentError, "gpus index '1' is not an integer"),
    (lambda r: r.slice(gpus=True), ExtentError, "gpus index True is not an integer"),
    (lambda r: r.slice(gpus=[0, 1]), ExtentError, "gpus index [0, 1] is not an integer"),
    (lambda r: r.slice(gpus=slice(4, 9)), ExtentError, "gpus=4:9 selects nothing: axis gpus has size 4"),
    (
        lambda r: r.slice(gpus=slice(2, 2, -1)),
        ExtentError,
        "gpus=2:2:-1 selects nothing: axis gpus has size 4",
    ),
    (
        lambda r: r.slice(gpus=slice(0, 4, 0)),
        ExtentError,
        "axis gpus cannot be sliced by 0:4:0: slice step cannot be zero",
    ),
    (lambda r: r.slice(gpus=slice("a", None)), ExtentError, "axis gpus cannot be sliced by a:: " + NO_INDEX),
    (
        lambda r: r.flatten("class"),
        ExtentError,
        "'class' cannot name an axis: a name is an identifier, is no keyword and starts with no underscore",
    ),
    (
        lambda r: r.flatten(None),
        ExtentError,
        "None cannot name an axis: a name is an identifier, is no keyword and starts with no underscore",
    ),
    (lambda r: r.split(tp=("a", "b"), a=2), AxisError, "unknown axis 'tp'; this mesh has: hosts, gpus"),
    (
        lambda r: r.split(gpus=("dp", "tp"), tp=3),
        ExtentError,
        "axis gpus of size 4 cannot be split into dp x tp: tp=3 does not divide it",
    ),
    (
        lambda r: r.split(gpus=("dp", "tp"), dp=2, tp=4),
        ExtentError,
        "axis gpus of size 4 cannot be split into dp x tp: dp=2 x tp=4 makes 8",
    ),
    (
        lambda r: r.split(gpus=("dp", "tp", "pp"), tp=2),
        ExtentError,
        "axis gpus of size 4 cannot be split into dp x tp x pp: give the sizes of all but one of dp, pp",
    ),
    (
        lambda r: r.split(gpus=("dp", "tp"), tp=0),
        ExtentError,
        "axis tp cannot have size 0: a size is an integer of at least 1",
    ),
    (
        lambda r: r.split(gpus=("dp", "tp"), pp=2),
        ExtentError,
        "pp is given a size, but no axis is split into it",
    ),
    (
        lambda r: r.split(gpus="dp"),
        ExtentError,
        "axis gpus cannot be split into 'dp': give a sequence of names",
    ),
    (lambda r: r.split(gpus=()), ExtentError, "axis gpus cannot be split into (): give a sequence of names"),
    (
        lambda r: r.split(gpus=None),
        ExtentError,
        "axis gpus cannot be split into None: give a sequence of names",
    ),
    (lambda r: r.split(gpus=("a", "a"), a=2), ExtentError, "axis a is given twice"),
    (lambda r: r.split(gpus=("hosts", "tp"), tp=2), ExtentError, "axis hosts is given twice"),
    (
        lambda r: r.split(gpus=("dp", 2)),
        ExtentError,
        "2 cannot name an axis: a name is an identifier, is no keyword and starts with no underscore",
    ),
    (lambda r: r.rename(tp="x"), AxisError, "unknown axis 'tp'; this mesh has: hosts, gpus"),
    (lambda r: r.rename(gpus="hosts"), ExtentError, "axis hosts is given twice"),
    (
        lambda r: r.rename(gpus=["x"]),
        ExtentError,
        "['x'] cannot name an axis: a name is an identifier, is no keyword and starts with no underscore",
    ),
    (lambda r: r.base_rank(8), RankError, "rank 8 is out of range: there are 8 (0 to 7)"),
    (lambda r: r.slice(hosts=1).base_rank(-5), RankError, "rank -5 is out of range: there are 4 (0 to 3)"),
]


@pytest.mark.parametrize(("use", "error", "message"), BAD, ids=[message[:50] for _, _, message in BAD])
def test_misuse_says_what_which_and_why(
    full: Region, use: Callable[[Region], object], error: type[Exception], message: str
):
    with pytest.raises(error) as caught:
        use(full)
    assert str(caught.value) == message


def test_131072_members_are_sliced_in_no_time():
    """The budget is 5 ms a slice; the limit here has twenty times that, for slow and busy machines."""
    full = Region.full(Extent(hosts=4096, gpus=32))
    gaps = full.slice(gpus=slice(0, 31))
    listed = gaps.flatten("x")
    operations: list[Callable[[], Region]] = [
        lambda: full.slice(hosts=slice(None, None, -2), gpus=slice(1, None)),
        lambda: listed.slice(x=slice(1, None)),
        lambda: listed.slice(x=slice(None, None, -1)),
        lambda: gaps.flatten("y"),
    ]
    for operation in operations:
        assert min(_seconds(operation) for _ in range(3)) < 0.1
    assert gaps.rank_of(131_070) == 4096 * 31 - 1
    assert gaps.rank_of(131_071) is None
    assert len(pickle.dumps(full)) < 1000


def _seconds(operation: Callable[[], object]) -> float:
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start
