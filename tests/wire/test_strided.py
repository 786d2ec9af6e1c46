import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.errors import BufferMismatch
from monarch_async.wire.strided import MOST_RUNS, Strided, dense, merge

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def strided(tensor: torch.Tensor) -> Strided:
    size = tensor.itemsize
    return Strided(
        size, tuple(tensor.shape), tuple(s * size for s in tensor.stride()), tensor.storage_offset() * size
    )


def memory_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.untyped_storage())


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of any shape, permuted, sliced, expanded."""
    shape = draw(shapes)
    tensor = torch.arange(max(torch.Size(shape).numel(), 0), dtype=torch.int32).reshape(shape)
    tensor = tensor.permute(draw(st.permutations(range(len(shape)))))
    for axis in range(tensor.dim()):
        start, step = draw(st.integers(0, 3)), draw(st.integers(1, 3))
        tensor = tensor[(slice(None),) * axis + (slice(start, None, step),)]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor


parts = st.one_of(
    st.integers(-7, 7),
    st.just(Ellipsis),
    st.builds(
        slice,
        st.none() | st.integers(-7, 7),
        st.none() | st.integers(-7, 7),
        st.none() | st.integers(1, 4),
    ),
)


@given(views())
def test_runs_are_the_elements_in_order(tensor: torch.Tensor) -> None:
    memory = memory_of(tensor)
    found = b"".join(memory[start : start + length] for start, length in strided(tensor).runs())
    assert found == tensor.contiguous().numpy().tobytes()
    assert found == b"".join(memory[start : start + length] for start, length in merge(strided(tensor).runs()))


@given(views(), st.lists(parts, max_size=5))
def test_slicing_agrees_with_torch(tensor: torch.Tensor, index: list[object]) -> None:
    try:
        want = tensor[tuple(index)]
        assert index.count(Ellipsis) <= 1, "which torch allows"
    except (IndexError, AssertionError):
        with pytest.raises(BufferMismatch):
            strided(tensor).take(tuple(index), "it")  # type: ignore[arg-type]
        return
    got = strided(tensor).take(tuple(index), "it")  # type: ignore[arg-type]
    assert got.shape == want.shape
    memory = memory_of(tensor)
    assert b"".join(memory[a : a + n] for a, n in got.runs()) == want.contiguous().numpy().tobytes()
    if want.numel():
        assert got == strided(want)


@given(views())
def test_dense_is_what_a_permutation_makes_contiguous(tensor: torch.Tensor) -> None:
    array = strided(tensor)
    want = not tensor.numel() or tensor.permute(array.order()).is_contiguous()
    assert array.is_dense == want
    if want and tensor.numel():
        ordered = array.permuted(array.order())
        assert merge(ordered.runs()) == [array.bounds()] == [(array.offset, array.nbytes)]


@given(views())
def test_overlaps_are_noticed(tensor: torch.Tensor) -> None:
    runs = [start for start, length in strided(tensor).runs() for start in range(start, start + length, 4)]
    assert strided(tensor).has_overlaps == (len(set(runs)) < len(runs))


@given(shapes, st.randoms())
def test_dense_arrays(shape: tuple[int, ...], random: object) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)  # type: ignore[attr-defined]
    array = dense(4, shape, order)
    assert array.is_dense
    made = numpy.empty([shape[axis] for axis in order], "f4").transpose(numpy.argsort(order).astype(int))
    assert made.shape == array.shape
    if 0 not in shape:
        assert made.strides == array.strides


def test_backwards_and_bounds() -> None:
    array = numpy.arange(6, dtype="u1").reshape(2, 3)[::-1, ::-1]
    place = Strided(1, array.shape, array.strides, 5)
    assert place.bounds() == (0, 6)
    assert [start for start, _ in place.runs()] == [5, 4, 3, 2, 1, 0]
    assert not place.is_dense


def test_neighbouring_axes_are_one() -> None:
    assert dense(4, (2, 3, 4)).runs() == [(0, 96)]
    column = Strided(4, (10, 20, 1), (800, 40, 4))
    assert column.runs() == [(i * 40, 4) for i in range(200)]


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ((0, 0, 0), "3 indices"),
        ((5,), "5 is out of range for axis 0 of size 4"),
        ((-5,), "-5 is out of range"),
        ((slice(None, None, -1),), "[::-1] goes backwards"),
        ((slice(None, None, 0),), "zero"),
        ((Ellipsis, Ellipsis), "more than one ellipsis"),
        ((None,), "None is neither"),
        ((True,), "True is neither"),
        (("x",), "'x' is neither"),
        ((slice("a", None),), "slice"),
        ((torch.tensor([0, 1]),), "is neither"),
    ],
)
def test_bad_slices_say_why(index: object, why: str) -> None:
    with pytest.raises(BufferMismatch, match="weights") as caught:
        dense(4, (4, 5)).take(index, "weights")  # type: ignore[arg-type]
    assert why in str(caught.value)


def test_what_is_too_scattered_is_refused() -> None:
    with pytest.raises(BufferMismatch, match="pieces"):
        Strided(4, (MOST_RUNS + 1,), (8,)).runs()
