"""Layouts without a network: the region is a list of views, and a transfer copies between those and what is here."""

import pickle
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.bulk.memory import copy, pair
from monarch_async.bulk.region import cut_runs
from monarch_async.errors import BadCall, BufferMismatch, NoTransport, UnknownPart
from monarch_async.wire.exchange import reading, writing
from monarch_async.wire.layout import Layout, Registered, describe, new_pairs, pair_up

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")

QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)} - QUANTIZED, key=str)


def take(size: int) -> memoryview:
    return memoryview(bytearray(size))


def fetch(registered: Registered, out: Any = None, layout: Layout | None = None) -> Any:
    layout = pickle.loads(pickle.dumps(layout or registered.layout))
    if out is None:
        pairs, finish = new_pairs(layout, take, None, "it")
    else:
        pairs, finish = pair_up(layout, out, "it", "out"), lambda: out
    exchange = reading(pairs, take, "it")
    for into, source in pair(exchange.views, tuple(cut_runs(registered.spans, exchange.runs)), 1 << 20):
        copy(into, source)
    exchange.copy()
    return finish()


def write(registered: Registered, source: Any, layout: Layout | None = None) -> None:
    pairs = pair_up(layout or registered.layout, source, "it", "source")
    exchange = writing(pairs, take, "it")
    exchange.copy()
    for into, part in pair(tuple(cut_runs(registered.spans, exchange.runs)), exchange.views, 1 << 20):
        copy(into, part)


def raw(tensor: torch.Tensor) -> bytes:
    if not tensor.numel():
        return b""
    if tensor.itemsize == 1:
        tensor = tensor.view(torch.uint8)
    return tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def filled(shape: tuple[int, ...], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty(shape, dtype=dtype)
    data = (torch.arange(count * dtype.itemsize) % 251 + 1).to(torch.uint8)
    return torch.frombuffer(bytearray(data.numpy().tobytes()), dtype=dtype).view(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (0,), (3, 0, 2), (300, 2)], ids=str)
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = filled(shape, dtype)
    registered = describe(tensor, "it")
    got = fetch(registered)
    assert (got.dtype, got.shape, raw(got)) == (dtype, tensor.shape, raw(tensor))
    out = torch.empty(shape, dtype=dtype)
    assert fetch(registered, out) is out
    assert raw(out) == raw(tensor)
    turned = filled(tuple(reversed(shape)), dtype).permute(tuple(reversed(range(len(shape)))))
    write(registered, turned)
    assert raw(tensor) == raw(turned)


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...]) -> torch.Tensor:
    """An int16 tensor of this shape with any strides, in memory of -1."""
    steps = [draw(st.integers(1, 2)) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    whole = torch.full([shape[axis] * steps[axis] + 1 for axis in order], -1, dtype=torch.int16)
    turned = whole.permute(sorted(range(len(shape)), key=order.__getitem__))
    return turned[tuple(slice(1, 1 + size * step, step) for size, step in zip(shape, steps, strict=True))]


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 12]), max_size=3).map(tuple))
    index = tuple(
        draw(
            st.sampled_from([0, size - 1] if size else [slice(None)])
            | st.builds(slice, st.none() | st.integers(0, size), st.none(), st.integers(1, 3))
        )
        for size in shape[: draw(st.integers(0, len(shape)))]
    )
    tensor = draw(arrays(shape))
    tensor.copy_(torch.arange(tensor.numel()).view(shape))
    return tensor, draw(arrays(tuple(tensor[index].shape))), index


@given(cases())
def test_any_slice_of_any_strides_into_any_strides(case: tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]) -> None:
    tensor, out, index = case
    registered = describe(tensor, "it")
    part = registered.layout.sliced(index, "it")
    assert torch.equal(fetch(registered, layout=part), tensor[index])
    fetch(registered, out, part)
    assert torch.equal(out, tensor[index])
    assert (out._base if out._base is not None else out).flatten().eq(-1).sum() >= (
        out._base.numel() - out.numel() if out._base is not None else 0
    ), "the gaps are untouched"
    changed = tensor.clone()
    base = tensor._base if tensor._base is not None else tensor
    gaps = int(base.eq(-1).sum())
    changed[index] = out + 100
    write(registered, out + 100, part)
    assert torch.equal(tensor, changed)
    assert int(base.eq(-1).sum()) == gaps


@given(cases())
def test_numpy_alike(case: tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]) -> None:
    tensor, out, index = case
    registered = describe(tensor.numpy(), "it")
    part = registered.layout.sliced(index, "it")
    got = fetch(registered, layout=part)
    assert isinstance(got, numpy.ndarray) and numpy.array_equal(got, tensor.numpy()[index])
    assert torch.equal(fetch(registered, out, part), tensor[index]), "numpy's into torch's"


def test_the_order_of_the_axes_is_kept() -> None:
    for tensor in [filled((4, 6)).t(), filled((2, 3, 4, 5)).to(memory_format=torch.channels_last)]:
        got = fetch(describe(tensor, "it"))
        assert got.stride() == tensor.stride() and torch.equal(got, tensor)
    assert fetch(describe(torch.zeros(1).expand(3, 4), "it")).is_contiguous()


def test_few_runs() -> None:
    def runs(tensor: Any, index: Any = ..., out: Any = None) -> list[tuple[int, int]]:
        layout = describe(tensor, "it").layout
        part = layout.sliced(index, "it") if index is not ... else layout
        pairs = new_pairs(part, take, None, "it")[0] if out is None else pair_up(part, out, "it", "out")
        return reading(pairs, take, "it").runs

    whole = torch.zeros(100, 100)
    assert runs(whole) == runs(whole.t()) == runs(whole, out=torch.zeros(100, 100).t()) == [(0, 40000)]
    assert runs(whole, slice(10, 20)) == [(4000, 4000)]
    assert runs(whole, (slice(2), slice(50))) == [(0, 200), (400, 200)]
    assert len(runs(whole, (..., 3))) == 100, "columns, too far apart for an image"
    assert runs(whole[:, ::2]) == [(0, 39996)], "small gaps are read along"
    assert runs({"a": torch.zeros(3), "b": [torch.zeros(4), torch.zeros(0)]}) == [(0, 28)]


def test_the_smallest_pieces_in_mass() -> None:
    tensor = torch.arange(400 * 30, dtype=torch.int32).view(400, 30)
    registered = describe(tensor, "it")
    for index in [(slice(None), slice(None, None, 2)), (..., 7), (slice(None), slice(3, 5))]:
        part = registered.layout.sliced(index, "it")
        out = torch.zeros(3, *tensor[index].shape, dtype=torch.int32)[1]
        assert torch.equal(fetch(registered, out, part), tensor[index])
        write(registered, out + 1, part)
        assert torch.equal(tensor[index], out + 1)


class Pairing(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_structures() -> None:
    value = OrderedDict(
        w=torch.rand(3, 3), nested={"list": [torch.rand(2), torch.rand(())], 7: (numpy.arange(3.0),)},
        named=Pairing(torch.ones(1), torch.zeros(2)), empty={},
    )  # fmt: skip
    registered = describe(value, "it")
    got = fetch(registered)
    assert type(got) is OrderedDict and list(got) == list(value)
    assert torch.equal(got["w"], value["w"]) and torch.equal(got["nested"]["list"][1], value["nested"]["list"][1])
    assert isinstance(got["nested"][7], tuple) and numpy.array_equal(got["nested"][7][0], [0, 1, 2])
    assert isinstance(got["named"], Pairing) and got["empty"] == {}
    assert registered.layout.nbytes == 36 + 8 + 4 + 24 + 4 + 8
    part = registered.layout.part("nested", "it").part("list", "it").part(-2, "it")
    assert torch.equal(fetch(registered, layout=part), value["nested"]["list"][0])
    out = {key: fetch(registered)[key] for key in reversed(list(value))}
    out["w"].zero_()
    fetch(registered, out)
    assert torch.equal(out["w"], value["w"])
    for layout, key, why in [
        (registered.layout, "nope", "it has: 'w', 'nested'"),
        (part, 0, "one array"),
        (registered.layout.part("named", "it"), 2, "it has: 0, 1"),
    ]:
        with pytest.raises(UnknownPart, match="part") as caught:
            layout.part(key, "it")
        assert why in str(caught.value) and isinstance(caught.value, KeyError)
    with pytest.raises(BadCall, match="handle"):
        registered.layout.sliced((0,), "it")


def test_shared_memory_is_registered_once() -> None:
    flat = torch.arange(12, dtype=torch.float32)
    tied = {"a": flat[:8], "b": flat[4:12].view(2, 4), "c": flat[:8], "apart": torch.ones(2), "whole": flat.numpy()}
    registered = describe(tied, "it")
    assert sorted(map(len, registered.spans)) == [8, 48]
    got = fetch(registered)
    assert torch.equal(got["b"], tied["b"]) and torch.equal(got["apart"], tied["apart"])
    assert got["a"] is got["c"], "tied here as it is there"
    source = {key: got[key].clone() for key in ("a", "b", "apart")}
    write(registered, {**source, "c": got["c"] * 2, "whole": flat.numpy() + 1})
    assert flat.tolist() == [x + 1.0 for x in range(12)], "the last one wins"
    flat_views = {"a": flat[:6], "b": flat[6:]}
    assert len(describe(flat_views, "it").spans) == 1


def test_memory_is_the_owners() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    registered = describe({"p": parameter}, "it")
    write(registered, {"p": torch.ones(4)})
    assert parameter.tolist() == [1, 1, 1, 1]
    assert not fetch(registered)["p"].requires_grad
    with pytest.raises(RuntimeError, match="resiz"):
        parameter.data.resize_(1 << 20)


def test_numpy_dtypes() -> None:
    for dtype in ["f4", ">f4", "M8[s]", "U3", [("a", "i2"), ("b", "f8")], "g", "?"]:
        array = numpy.zeros(5, dtype)
        array[2] = numpy.ones(1, "i4").astype(dtype)[0] if dtype != [("a", "i2"), ("b", "f8")] else (1, 2)
        got = fetch(describe(array, "it"))
        assert got.dtype == array.dtype and numpy.array_equal(got, array)
    records = numpy.zeros(100, [("a", "i2"), ("b", "f8")])
    records["b"] = range(100)
    out = torch.zeros(100, dtype=torch.float64)
    assert fetch(describe(records["b"], "it"), out).tolist() == list(range(100))
    with pytest.raises(BadCall, match="objects"):
        describe(numpy.array([{}]), "it")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": [torch.ones(1), None]}, r"it\['a'\]\[1\] is neither a tensor nor an array, but NoneType"),
        (torch.nn.Linear(1, 1), r"but Linear: take its state_dict\(\)"),
        (torch.nn.Linear(1, 1).parameters(), "but generator: make it a list"),
        ([bytearray(4)], "but bytearray: wrap it"),
        ({"step": 3}, r"it\['step'\] is neither"),
        (torch.ones(2, 2).to_sparse(), "sparse"),
        (torch.ones(2, device="meta"), "no memory of its own"),
        (torch.ones(2, dtype=torch.complex64).conj(), "resolve_conj"),
        (numpy.float32(1), "neither"),
    ],
)
def test_what_cannot_be_registered(value: object, why: str) -> None:
    with pytest.raises(BadCall, match=why):
        describe(value, "register")


def test_what_contains_itself() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(BadCall, match="contain itself"):
        describe(value, "register")


@pytest.mark.parametrize(
    ("out", "why"),
    [
        (torch.full((3, 4), 7.0), "that of out"),
        (torch.full((4, 3), 7.0, dtype=torch.float64), "dtype is float32, that of out float64"),
        (numpy.full((4, 3), 7, ">f4"), "dtype"),
        (torch.full((1, 3), 7.0).expand(4, 3), "share memory"),
        ({"x": torch.full((4, 3), 7.0)}, "neither a tensor"),
    ],
)
def test_what_does_not_fit_is_left_untouched(out: Any, why: str) -> None:
    registered = describe(torch.zeros(4, 3), "it")
    with pytest.raises((BufferMismatch, BadCall), match=why):
        fetch(registered, out)
    if isinstance(out, torch.Tensor | numpy.ndarray):
        assert (out == 7).all()


def test_structures_that_differ() -> None:
    registered = describe({"a": torch.zeros(1), "b": [torch.zeros(1)]}, "it")
    one = torch.zeros(1)
    for out, why in [
        ({"a": one}, r"out lacks \[\"'b'\"\]"),
        ({"a": one, "b": [one], "c": one}, "'c'\"] too many"),
        ({"a": one, "b": []}, "list of 0, and it has a list of 1"),
        ({"a": one, "b": one}, "is a Tensor, and it has a list of 1"),
        ([one, one], "is a list, and it has a dict"),
    ]:
        with pytest.raises(BufferMismatch) as caught:
            fetch(registered, out)
        assert why.replace("\\", "") in str(caught.value)


def test_read_only_and_shared_targets() -> None:
    frozen = numpy.zeros(3)
    frozen.flags.writeable = False
    registered = describe({"a": frozen, "b": numpy.ones(3)}, "it")
    assert not registered.is_writable
    with pytest.raises(BufferMismatch, match="out is read-only"):
        fetch(registered, {"a": frozen, "b": numpy.ones(3)})
    with pytest.raises(BufferMismatch, match="share memory"):
        write(describe(torch.zeros(1).expand(4), "it"), torch.ones(4))
    assert fetch(describe(torch.ones(1).expand(4), "it")).tolist() == [1, 1, 1, 1]


def test_devices_that_are_not_here() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is one")
    with pytest.raises(NoTransport, match="no accelerator"):
        new_pairs(describe(torch.ones(3), "it").layout, take, "cuda:0", "it")


def test_a_layout_is_small() -> None:
    state = {f"layers.{i}.weight": torch.zeros(4, 4) for i in range(300)}
    assert len(pickle.dumps(describe(state, "it").layout)) < 300 * 90
