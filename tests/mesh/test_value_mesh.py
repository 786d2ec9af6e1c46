"""ValueMesh: what the members answered, addressed and sliced like the mesh that was called."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.errors import AxisError, ExtentError, RankError
from monarch_async.mesh.value_mesh import ValueMesh
from monarch_async.ranks import Extent


@pytest.fixture
def losses() -> ValueMesh[int]:
    return ValueMesh(Extent(hosts=2, gpus=4), [rank * 10 for rank in range(8)])


def test_values_are_read_by_rank_point_and_in_order(losses: ValueMesh[int]):
    assert len(losses) == 8
    assert losses[2] == 20
    assert losses[-1] == 70
    assert losses[np.int64(3)] == 30
    assert losses.at(hosts=1, gpus=-1) == 70
    assert list(losses) == list(losses.values()) == list(range(0, 80, 10))
    items = list(losses.items())
    assert items[5] == (losses.extent.point(5), 50)
    assert [(point.rank, value) for point, value in items] == [(rank, rank * 10) for rank in range(8)]
    assert all(losses.at(**point) == value for point, value in items)


def test_item_is_the_only_value(losses: ValueMesh[int]):
    assert losses.slice(hosts=1, gpus=2).item() == 60
    assert losses.slice(hosts=slice(1), gpus=slice(1)).item() == 0
    with pytest.raises(ExtentError) as caught:
        losses.item()
    assert str(caught.value) == "item() needs exactly one value; Extent(hosts=2, gpus=4) has 8"


def test_slicing_goes_by_axis(losses: ValueMesh[int]):
    assert losses.slice(hosts=1) == ValueMesh(Extent(gpus=4), [40, 50, 60, 70])
    assert losses.slice(gpus=slice(None, None, -2)).values() == (30, 10, 70, 50)
    assert losses.flatten("ranks") == ValueMesh(Extent(ranks=8), losses)
    assert losses.rename(gpus="tp").extent == Extent(hosts=2, tp=4)
    parts = losses.split(gpus=("dp", "tp"), tp=2)
    assert parts.extent == Extent(hosts=2, dp=2, tp=2)
    assert parts.slice(tp=1).flatten("x").values() == (10, 30, 50, 70)


@given(st.data())
def test_slices_of_slices_agree_with_numpy(data: st.DataObject):
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    extent = Extent.of_pairs(zip("abc", sizes, strict=False))
    array = np.arange(100, 100 + extent.size).reshape(sizes)
    mesh = ValueMesh(extent, array.reshape(-1).tolist())
    for _ in range(2):
        cuts = [data.draw(st.slices(size).filter(lambda cut, n=size: range(n)[cut])) for size in array.shape]
        mesh, array = mesh.slice(**dict(zip(mesh.extent, cuts, strict=True))), array[tuple(cuts)]
        assert mesh.extent.sizes == array.shape
        assert list(mesh) == array.reshape(-1).tolist()
        for point, value in mesh.items():
            assert array[tuple(point.values())] == value


def test_map_keeps_the_shape(losses: ValueMesh[int]):
    assert losses.slice(hosts=0).map(str) == ValueMesh(Extent(gpus=4), ["0", "10", "20", "30"])


def test_equality_is_of_extent_and_values(losses: ValueMesh[int]):
    assert losses == ValueMesh(Extent(hosts=2, gpus=4), range(0, 80, 10))
    assert hash(losses) == hash(ValueMesh(Extent(hosts=2, gpus=4), range(0, 80, 10)))
    assert losses != losses.map(float).map(lambda value: value + 1)
    assert losses != losses.rename(hosts="h")
    assert losses != list(losses)


def test_value_meshes_pickle(losses: ValueMesh[int]):
    again = pickle.loads(pickle.dumps(losses))
    assert again == losses
    assert again.slice(hosts=1)[0] == 40


def test_value_meshes_cannot_be_changed(losses: ValueMesh[int]):
    with pytest.raises(AttributeError):
        losses.extent = Extent(x=8)  # type: ignore[misc]
    with pytest.raises(TypeError):
        losses[0] = 1  # type: ignore[index]


class Lines:
    def __repr__(self) -> str:
        return "tensor([[1, 2],\n        [3, 4]])"


def test_text_shows_the_extent_and_the_first_values(losses: ValueMesh[int]):
    assert repr(losses.slice(gpus=0)) == "ValueMesh(Extent(hosts=2), [0, 40])"
    assert repr(losses).endswith("[0, 10, 20, 30, 40, 50, 60, 70])")
    assert repr(ValueMesh(Extent(gpus=9), range(9))).endswith("6, 7, ...])")
    assert repr(ValueMesh(Extent(), [Lines()])) == "ValueMesh(Extent(), [tensor([[1, 2], [3, 4]])])"
    assert len(repr(ValueMesh(Extent(gpus=9), ["long" * 1000] * 9))) < 600


def test_misuse_says_what_which_and_why(losses: ValueMesh[int]):
    with pytest.raises(RankError, match=r"^rank 8 is out of range: there are 8 \(0 to 7\)$"):
        losses[8]
    with pytest.raises(ExtentError, match=r"^rank slice\(0, 2, None\) is not an integer$"):
        losses[0:2]  # type: ignore[index]
    with pytest.raises(AxisError, match=r"^unknown axis 'tp'; this mesh has: hosts, gpus$"):
        losses.slice(tp=0)
    with pytest.raises(ExtentError, match=r"^no coordinate for hosts: "):
        losses.at(gpus=0)
    with pytest.raises(ExtentError, match=r"^gpus=4: selects nothing: axis gpus has size 4$"):
        losses.slice(gpus=slice(4, None))
    with pytest.raises(ExtentError, match=r"^Extent\(hosts=2, gpus=4\) takes 8 values, not 3$"):
        ValueMesh(losses.extent, [1, 2, 3])


def test_131072_values_are_sliced_by_axis():
    mesh = ValueMesh(Extent(hosts=4096, gpus=32), range(131_072))
    assert mesh.slice(gpus=0).values() == tuple(range(0, 131_072, 32))
    assert mesh.flatten("x")[-1] == 131_071
