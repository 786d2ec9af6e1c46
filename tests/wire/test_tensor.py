import dataclasses
import pickle
import subprocess
import sys

import msgpack
import pyarrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.wire import payload
from monarch_async.wire.tensor import describe, parse_header, restore

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta:UserWarning"),
]

QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)} - QUANTIZED, key=str)
SOME_DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


def filled(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of any dtype, every byte different from its neighbours and none zero."""
    count = torch.Size(shape).numel()
    if not count:
        return torch.empty(shape, dtype=dtype)
    data = (torch.arange(count * dtype.itemsize) % 251 + 1).to(torch.uint8)
    return torch.frombuffer(bytearray(data.numpy().tobytes()), dtype=dtype).view(shape)


def raw(tensor: torch.Tensor) -> bytes:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.itemsize == 1:
        tensor = tensor.view(torch.uint8)
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().tobytes()


def assert_same(got: object, want: torch.Tensor) -> None:
    assert type(got) is type(want)
    assert isinstance(got, torch.Tensor)
    assert (got.dtype, got.shape, got.requires_grad) == (want.dtype, want.shape, want.requires_grad)
    assert got.device == want.device
    assert raw(got) == raw(want)


def travel(value: object) -> object:
    """As over a network: what arrives is in memory of its own."""
    skeleton, buffers = payload.dumps(value)
    return payload.loads(skeleton, [bytearray(buffer) for buffer in buffers])


def arrow_message(header: bytes, body: memoryview) -> pyarrow.Tensor:
    return pyarrow.ipc.read_tensor(pyarrow.BufferReader(parse_header(header).arrow_prefix + bytes(body)))


def test_the_dtypes_that_matter_are_among_those_tested() -> None:
    assert {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.bool} <= set(
        DTYPES
    )
    assert len(DTYPES) > 20


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_round_trips(dtype: torch.dtype) -> None:
    for shape in [(), (1,), (7,), (3, 5), (2, 3, 4), (0,), (3, 0, 2)]:
        tensor = filled(shape, dtype)
        header, body = describe(tensor)
        assert_same(restore(header, bytearray(body)), tensor)
        assert_same(restore(header, bytes(body)), tensor)
        assert_same(travel(tensor), tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_an_arrow_message(dtype: torch.dtype) -> None:
    tensor = filled((3, 5), dtype)
    header, body = describe(tensor)
    assert len(parse_header(header).arrow_prefix) % 64 == 0
    arrow = arrow_message(header, body)
    native = dtype in {getattr(torch, f"{kind}{n}") for kind in ("int", "uint") for n in (8, 16, 32, 64)}
    if native or dtype in {torch.float16, torch.float32, torch.float64}:
        assert arrow.shape == (3, 5)
        assert (arrow.to_numpy() == tensor.numpy()).all()
    else:
        assert arrow.type == pyarrow.uint8()
        assert arrow.shape == ((3, 5) if dtype.itemsize == 1 else (3, 5, dtype.itemsize))
    assert arrow.to_numpy().tobytes() == raw(tensor)


def test_arrow_reads_it_without_copying() -> None:
    tensor = filled((64, 64), torch.float32)
    header, body = describe(tensor)
    message = pyarrow.py_buffer(parse_header(header).arrow_prefix + bytes(body))
    arrow = pyarrow.ipc.read_tensor(pyarrow.BufferReader(message))
    inside = arrow.to_numpy().ctypes.data - message.address
    assert inside == len(parse_header(header).arrow_prefix)
    assert inside % 64 == 0


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,) * 12, (300, 300)], ids=str)
def test_odd_shapes_are_arrow_messages(shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape) + 3
    arrow = arrow_message(*describe(tensor))
    assert arrow.shape == (shape or (1,))
    assert arrow.to_numpy().tobytes() == raw(tensor)


VIEWS = {
    "steps": lambda t: t[::2, 1::2],
    "expanded": lambda t: t[:1].expand(9, t.shape[1]),
    "expanded 0-d": lambda t: t[0, 0].expand(2, 3),
    "transposed": lambda t: t.t(),
    "column": lambda t: t[:, 2],
    "row": lambda t: t[2],
    "diagonal": lambda t: t.diagonal(),
    "narrow": lambda t: t[1:4],
    "windows": lambda t: t.unfold(0, 3, 1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex128, torch.uint4], ids=str
)
def test_views_travel_as_what_they_show(view: str, dtype: torch.dtype) -> None:
    tensor = VIEWS[view](filled((6, 8), dtype))
    header, body = describe(tensor)
    assert body.nbytes == tensor.numel() * tensor.itemsize
    assert_same(restore(header, bytearray(body)), tensor)


def test_conjugate_and_negative_views() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    negative = tensor.conj().imag
    assert tensor.conj().is_conj()
    assert negative.is_neg()
    assert_same(travel(tensor.conj()), tensor.conj())
    assert_same(travel(negative), negative)
    assert_same(travel(torch.view_as_real(tensor)), torch.view_as_real(tensor))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.arange(24).view(2, 3, 4).permute(1, 2, 0),
    ],
    ids=["transposed", "channels_last", "permuted"],
)
def test_permuted_dense_tensors_are_not_copied_and_keep_their_strides(tensor: torch.Tensor) -> None:
    header, body = describe(tensor)
    memory = bytearray(body)
    back = restore(header, memory)
    assert_same(back, tensor)
    assert back.stride() == tensor.stride()
    tensor.fill_(7)
    assert raw(torch.frombuffer(body, dtype=tensor.dtype)) == raw(
        torch.full((tensor.numel(),), 7, dtype=tensor.dtype)
    )


def test_the_body_is_the_memory_of_the_tensor() -> None:
    tensor = torch.zeros(1000)
    _, body = describe(tensor)
    tensor += 1
    assert torch.frombuffer(body, dtype=torch.float32).sum() == 1000
    assert (body.format, body.ndim, body.contiguous) == ("B", 1, True)


def test_restore_uses_writable_memory_and_copies_what_is_read_only() -> None:
    header, body = describe(torch.zeros(4))
    memory = bytearray(body)
    there = restore(header, memory)
    there += 1
    assert bytes(memory) == raw(torch.ones(4))
    constant = bytes(body)
    copied = restore(header, constant)
    copied += 1
    assert constant == raw(torch.zeros(4))


def test_restore_copies_misaligned_memory() -> None:
    tensor = filled((100,), torch.float64)
    header, body = describe(tensor)
    memory = bytearray(b"x" + bytes(body))
    back = restore(header, memoryview(memory)[1:])
    assert back.data_ptr() % 8 == 0
    assert_same(back, tensor)


def test_a_small_view_does_not_drag_its_storage_along() -> None:
    _, body = describe(torch.zeros(1_000_000)[5:7])
    assert body.nbytes == 8


def test_grad_parameters_and_attributes_survive() -> None:
    leaf = torch.ones(3, requires_grad=True)
    assert_same(travel(leaf), leaf)
    assert_same(travel(leaf * 2), (leaf * 2).detach().requires_grad_())
    for tensor in (torch.ones(3), torch.ones(0), torch.tensor(2.0), torch.ones(40, 30).t()):
        parameter = torch.nn.Parameter(tensor)
        assert_same(travel(parameter), parameter)
    frozen = torch.nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
    frozen.tensor_parallel = "row"  # pyright: ignore[reportAttributeAccessIssue]
    back = travel(frozen)
    assert_same(back, frozen)
    assert vars(back)["tensor_parallel"] == "row"


def test_the_same_tensor_twice_stays_one() -> None:
    tensor = torch.zeros(5000)
    skeleton, buffers = payload.dumps({"a": tensor, "b": [tensor]})
    assert len(buffers) == 1
    back = payload.loads(skeleton, [bytearray(buffers[0])])
    assert isinstance(back, dict)
    assert back["a"] is back["b"][0]


def test_tied_weights_of_a_module_stay_tied() -> None:
    module = torch.nn.ModuleDict({"into": torch.nn.Linear(40, 30), "out": torch.nn.Linear(40, 30)})
    module["out"].weight = module["into"].weight
    back = travel(module)
    assert isinstance(back, torch.nn.ModuleDict)
    assert back["out"].weight is back["into"].weight
    x = torch.ones(2, 40)
    assert torch.equal(back["into"](x), module["into"](x))


def test_state_dicts_and_dataclasses() -> None:
    state = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).state_dict()
    skeleton, buffers = payload.dumps(state)
    assert sorted(b.nbytes for b in buffers) == [64 * 64 * 4]  # the small ones stay in the skeleton
    back = payload.loads(skeleton, buffers)
    assert isinstance(back, dict)
    assert list(back) == list(state)
    for name in state:
        assert_same(back[name], state[name])
        back[name] += 1  # small or large, writable
    batch = travel(Batch(torch.arange(3), {"reward": torch.ones(2, dtype=torch.bfloat16)}))
    assert isinstance(batch, Batch)
    assert_same(batch.tokens, torch.arange(3))
    assert_same(batch.extra["reward"], torch.ones(2, dtype=torch.bfloat16))


@dataclasses.dataclass
class Batch:
    tokens: torch.Tensor
    extra: dict[str, torch.Tensor]


class Labelled(torch.Tensor):
    pass


def test_meta_sparse_and_subclasses() -> None:
    meta = torch.empty(10, 20, dtype=torch.bfloat16, device="meta")
    back = travel(meta)
    assert isinstance(back, torch.Tensor)
    assert (back.device.type, back.shape, back.dtype) == ("meta", meta.shape, meta.dtype)
    for sparse in (torch.eye(5).to_sparse(), torch.eye(5).to_sparse_csr()):
        again = travel(sparse)
        assert isinstance(again, torch.Tensor)
        assert again.layout == sparse.layout
        assert torch.equal(again.to_dense(), torch.eye(5))
    labelled = torch.ones(3).as_subclass(Labelled)
    assert_same(travel(labelled), labelled)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantized_tensors_travel_as_torch_pickles_them() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 3, torch.qint8)
    back = travel(quantized)
    assert isinstance(back, torch.Tensor)
    assert torch.equal(back.dequantize(), quantized.dequantize())


def test_a_device_this_process_lacks_leaves_the_tensor_on_the_cpu() -> None:
    header, body = describe(torch.ones(2))
    name, shape, order, flags, _, prefix = msgpack.unpackb(header)
    elsewhere = msgpack.packb((name, shape, order, flags, "npu:3", prefix))
    assert isinstance(elsewhere, bytes)
    assert_same(restore(elsewhere, bytearray(body)), torch.ones(2))


def test_a_header_that_is_none() -> None:
    bad = msgpack.packb(("nn", (1,), None, 0, "cpu", b""))
    assert isinstance(bad, bytes)
    with pytest.raises(ValueError, match="unknown tensor dtype 'nn'"):
        restore(bad, bytearray(4))


@given(st.data())
def test_any_view_of_any_tensor_round_trips(data: st.DataObject) -> None:
    dtype = data.draw(
        st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
    )
    shape = data.draw(st.lists(st.integers(0, 5), max_size=4))
    tensor = filled(tuple(shape), dtype)
    if shape:
        index = [slice(data.draw(st.integers(0, 2)), None, data.draw(st.integers(1, 3))) for _ in shape]
        tensor = tensor[tuple(index)].permute(data.draw(st.permutations(range(len(shape)))))
    assert_same(travel((tensor,))[0], tensor)  # type: ignore[index]


def test_torch_and_pyarrow_load_only_with_the_first_tensor() -> None:
    script = """
import sys
from monarch_async.wire import payload, tensor
payload.loads(*payload.dumps(({"a": object}, lambda: 1)))
assert not {"torch", "pyarrow", "numpy"} & set(sys.modules), "loaded too early"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)


def test_what_was_pickled_needs_only_this_package_to_load() -> None:
    skeleton, buffers = payload.dumps(torch.arange(1000))
    assert_same(pickle.loads(skeleton, buffers=[bytearray(b) for b in buffers]), torch.arange(1000))
