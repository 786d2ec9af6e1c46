"""Extent and Point: named sizes, ranks and coordinates, and every way to get them wrong."""

import copy
import pickle
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.errors import AxisError, ExtentError, RankError
from monarch_async.ranks import Extent, Point

extents = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), max_size=4).map(Extent.of)


@pytest.fixture
def extent() -> Extent:
    return Extent(hosts=2, gpus=4)


def test_an_extent_is_an_ordered_mapping_of_axes_to_sizes(extent: Extent):
    assert extent.axes == ("hosts", "gpus")
    assert extent.sizes == (2, 4)
    assert extent.size == 8
    assert extent.strides == (4, 1)
    assert dict(extent) == {"hosts": 2, "gpus": 4}
    assert list(extent) == ["hosts", "gpus"]
    assert len(extent) == 2
    assert "gpus" in extent
    assert "tp" not in extent
    assert extent.get("gpus") == 4
    assert extent.get("tp") is None
    assert extent.get("tp", 7) == 7


def test_an_extent_without_axes_has_one_member():
    scalar = Extent()
    assert (scalar.axes, scalar.sizes, scalar.size) == ((), (), 1)
    assert scalar.rank() == 0
    assert [dict(point) for point in scalar.points()] == [{}]


def test_text_of_extents_and_points(extent: Extent):
    assert repr(extent) == "Extent(hosts=2, gpus=4)"
    assert str(extent) == "hosts=2 gpus=4"
    assert repr(extent.point(3)) == "Point(hosts=0, gpus=3)"
    assert str(extent.point(7)) == "hosts=1 gpus=3"
    assert (repr(Extent()), str(Extent())) == ("Extent()", "")


def test_equality_follows_order_between_extents_but_not_against_a_dict(extent: Extent):
    assert extent == Extent.of({"hosts": 2, "gpus": 4})
    assert hash(extent) == hash(Extent.of(OrderedDict(hosts=2, gpus=4)))
    assert extent != Extent(gpus=4, hosts=2)
    assert extent != Extent(hosts=2, gpus=5)
    assert extent == {"gpus": 4, "hosts": 2}
    assert extent != {"gpus": 4}
    assert extent != (2, 4)


def test_points_are_equal_where_rank_and_extent_are(extent: Extent):
    assert extent.point(3) == Extent(hosts=2, gpus=4).point(3)
    assert extent.point(3) != extent.point(2)
    assert extent.point(3) != Extent(gpus=4, hosts=2).point(6)  # the same coordinates, in another order
    assert extent.point(3) == {"gpus": 3, "hosts": 0}
    assert extent.point(0) != Extent(hosts=1, gpus=1)
    assert len({*extent.points(), *Extent(hosts=2, gpus=4).points()}) == 8


def test_a_point_is_a_mapping_that_can_be_passed_on(extent: Extent):
    point = extent.point(6)
    assert isinstance(point, Point)
    assert point.extent is extent
    assert (point.rank, point["hosts"], point["gpus"]) == (6, 1, 2)
    assert extent.rank(**point) == 6
    assert "tp" not in point
    assert point.get("tp", -1) == -1
    with pytest.raises(AxisError, match="unknown axis 'tp'; this mesh has: hosts, gpus"):
        point["tp"]


def test_negative_indices_count_from_the_end(extent: Extent):
    assert extent.point(-1) == extent.point(7)
    assert extent.rank(hosts=-1, gpus=-4) == 4


def test_integers_of_other_libraries_become_ints():
    extent = Extent(gpus=np.int64(4))  # type: ignore[arg-type]
    assert type(extent["gpus"]) is int
    assert type(extent.point(np.int32(-1)).rank) is int


@given(extents)
def test_ranks_points_and_numpy_agree(extent: Extent):
    points = list(extent.points())
    assert [point.rank for point in points] == list(range(extent.size))
    for point, index in zip(points, np.ndindex(*extent.sizes), strict=True):
        assert tuple(point.values()) == index
        assert extent.point(point.rank) == point
        assert extent.rank(**point) == point.rank
        assert extent.rank(**{axis: at - extent[axis] for axis, at in point.items()}) == point.rank


@given(extents)
def test_extents_and_points_pickle_and_copy(extent: Extent):
    for thing in (extent, extent.point(-1)):
        for again in (pickle.loads(pickle.dumps(thing)), copy.copy(thing), copy.deepcopy(thing)):
            assert again == thing
            assert hash(again) == hash(thing)
            assert list(again.items()) == list(thing.items())
    assert pickle.loads(pickle.dumps(extent)).strides == extent.strides


def test_extents_and_points_cannot_be_changed(extent: Extent):
    with pytest.raises(AttributeError):
        extent.sizes = (1, 1)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        extent.point(0).rank = 1  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        extent.colour = "red"  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [0, -1, True, False, 2.0, "2", None])
def test_a_size_is_an_integer_of_at_least_one(size: object):
    with pytest.raises(ExtentError) as caught:
        Extent.of({"gpus": size})  # type: ignore[dict-item]
    assert str(caught.value) == f"axis gpus cannot have size {size!r}: a size is an integer of at least 1"


@pytest.mark.parametrize("name", ["", "2d", "a b", "class", "_private", "__class__", 3, None])
def test_a_name_can_stand_as_a_keyword_argument(name: object):
    with pytest.raises(ExtentError) as caught:
        Extent.of({name: 2})  # type: ignore[dict-item]
    assert str(caught.value) == (
        f"{name!r} cannot name an axis: a name is an identifier, is no keyword and starts with no underscore"
    )


def test_any_word_may_be_an_axis():
    sizes = {"self": 2, "cls": 2, "size": 2, "rank": 2, "axes": 2, "sizes": 2}
    extent = Extent(**sizes)
    assert extent == Extent.of(sizes)
    assert extent.rank(**extent.point(37)) == 37


def test_an_axis_is_given_once():
    with pytest.raises(ExtentError, match=r"^axis gpus is given twice$"):
        Extent.of_pairs([("gpus", 2), ("gpus", 2)])


@pytest.mark.parametrize("sizes", [4, None, ["gpus"], (("gpus", 2),)])
def test_an_extent_is_made_of_a_mapping(sizes: object):
    with pytest.raises(ExtentError) as caught:
        Extent.of(sizes)  # type: ignore[arg-type]
    assert str(caught.value) == f"an extent maps axis names to sizes, which {sizes!r} does not"


def test_unknown_axes(extent: Extent):
    with pytest.raises(AxisError, match=r"^unknown axis 'tp'; this mesh has: hosts, gpus$"):
        extent["tp"]
    with pytest.raises(AxisError, match="unknown axis 'tp'"):
        extent.rank(hosts=0, gpus=0, tp=0)
    with pytest.raises(AxisError, match="this mesh has: no axes"):
        Extent().rank(tp=0)


@pytest.mark.parametrize("rank", [8, -9])
def test_ranks_out_of_range(extent: Extent, rank: int):
    with pytest.raises(RankError) as caught:
        extent.point(rank)
    assert str(caught.value) == f"rank {rank} is out of range: there are 8 (0 to 7)"


@pytest.mark.parametrize("index", [4, -5])
def test_coordinates_out_of_range(extent: Extent, index: int):
    with pytest.raises(RankError) as caught:
        extent.rank(hosts=0, gpus=index)
    assert str(caught.value) == f"gpus index {index} is out of range: there are 4 (0 to 3)"


@pytest.mark.parametrize("rank", [True, 1.0, "1", None, slice(1)])
def test_ranks_that_are_no_integers(extent: Extent, rank: object):
    with pytest.raises(ExtentError) as caught:
        extent.point(rank)  # type: ignore[arg-type]
    assert str(caught.value) == f"rank {rank!r} is not an integer"


def test_a_member_is_named_by_all_axes(extent: Extent):
    with pytest.raises(ExtentError) as caught:
        extent.rank(gpus=1)
    assert str(caught.value) == "no coordinate for hosts: a member is named by all of Extent(hosts=2, gpus=4)"
