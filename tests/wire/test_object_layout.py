"""The bytes of shared objects, and what is rebuilt over them."""

import mmap
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch_async.errors import BadFrame
from monarch_async.wire.object_layout import Laid, cut_object, lay_out
from monarch_async.wire.payload import Encoded, Ticketed, dumps, dumps_call, loads, loads_shared
from monarch_async.wire.ticket import collector


def written(laid: Laid) -> memoryview:
    """The object, in private memory at the start of a page."""
    memory = memoryview(mmap.mmap(-1, max(1, laid.size)))
    for part, (offset, size) in zip(laid.parts, laid.runs, strict=True):
        memory[offset : offset + size] = part
    return memory[: laid.size]


@given(st.binary(max_size=100), st.lists(st.binary(max_size=200), max_size=5))
def test_parts_come_back_each_aligned(skeleton: bytes, buffers: list[bytes]) -> None:
    laid = lay_out(Encoded(skeleton, [memoryview(buffer) for buffer in buffers]))
    assert all(offset % 64 == 0 for offset, _ in laid.runs)
    assert sum(map(len, laid.parts)) <= laid.size
    first, rest = cut_object(written(laid))
    assert first == skeleton and [bytes(view) for view in rest] == buffers


@given(st.binary(max_size=64))
def test_other_bytes_are_refused_or_in_range(data: bytes) -> None:
    try:
        skeleton, buffers = cut_object(memoryview(data))
    except BadFrame:
        return
    assert len(skeleton) + sum(map(len, buffers)) <= len(data)


def test_one_that_is_cut_short_is_refused() -> None:
    memory = written(lay_out(Encoded(b"x" * 100, [memoryview(b"y" * 100)])))
    with pytest.raises(BadFrame, match="announces"):
        cut_object(memory[:-1])


def test_what_is_rebuilt_over_shared_memory_is_read_only_and_no_copy() -> None:
    value = {"array": np.arange(1000.0), "tensor": torch.arange(1000.0), "bytes": bytes(100_000)}
    memory = written(lay_out(dumps(value)))
    found = loads_shared(*cut_object(memory))
    assert isinstance(found, dict)
    assert np.array_equal(found["array"], value["array"]) and torch.equal(found["tensor"], value["tensor"])
    assert found["bytes"] == value["bytes"]
    assert not found["array"].flags.writeable
    found["tensor"][0] = 7.0  # torch knows no read-only memory: whoever maps it makes that private
    assert loads_shared(*cut_object(memory))["tensor"][0] == 7.0  # type: ignore[index]


def test_other_values_are_not_touched_by_it() -> None:
    encoded = dumps(torch.arange(1000.0))
    tensor = loads(encoded.skeleton, [memoryview(bytes(buffer)) for buffer in encoded.buffers])
    assert isinstance(tensor, torch.Tensor)
    tensor[0] = 1.0  # its own copy


class Sealed:
    """Notes a ticket when it is pickled."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, bool]] = []

    def sent(self, receiver: int, call: int, is_answer: bool) -> None:
        self.told.append((receiver, call, is_answer))

    def __reduce__(self) -> tuple[type, tuple[()]]:
        tickets = collector.get()
        if tickets is not None:
            tickets.append(self)
        return Sealed, ()


def test_who_is_pickled_learns_who_it_is_sent_to() -> None:
    sealed = Sealed()
    for encoded in (dumps({"in": [sealed]}), dumps_call((sealed,), {}, "x")):
        sealed.told.clear()
        assert type(encoded) is Ticketed
        skeleton, buffers = encoded
        assert loads(skeleton, buffers)
        encoded.sent_to([7, 8], 3)
        encoded.sent_to([7], 4, is_answer=True)
        assert sealed.told == [(7, 3, False), (8, 3, False), (7, 4, True)]


def test_pickled_by_other_means_it_learns_nothing() -> None:
    assert collector.get() is None
    pickle.dumps(Sealed())
    assert type(dumps(object())) is Encoded
    with pytest.raises(pickle.PicklingError):
        dumps([Sealed(), (i for i in ())])
    assert collector.get() is None
