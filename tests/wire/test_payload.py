import collections
import dataclasses
import enum
import functools
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.errors import Error, PicklingError, ProcDied
from monarch_async.wire.payload import Encoded, dump_exception, dumps, dumps_call, load_exception, loads

KIB = 1 << 10


def travel(value: object) -> object:
    """As over a network: what arrives is in memory of its own."""
    skeleton, buffers = dumps(value)
    return loads(skeleton, [bytearray(buffer) for buffer in buffers])


# What is plain

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=30,
)


@given(plain)
def test_plain_values_round_trip(value: object) -> None:
    back = travel(value)
    assert back == value
    assert type(back) is type(value)


@given(st.lists(plain).map(tuple), st.dictionaries(st.text(), plain))
def test_calls_round_trip(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    skeleton, buffers = dumps_call(args, kwargs, "trainers.step")
    assert loads(skeleton, buffers) == (args, kwargs)


def test_plain_values_are_what_pickle_makes_of_them() -> None:
    for value in (
        ((1, "a"), {"k": 2.0}),
        (([1, 2], {"a": {"b": None}}), {}),
        ((), {}),
        None,
        "text",
        b"x" * 10,
    ):
        assert dumps(value) == Encoded(pickle.dumps(value, 5), [])


def test_containers_that_hold_themselves() -> None:
    ring: list[object] = [1]
    ring.append(ring)
    back = travel(ring)
    assert isinstance(back, list)
    assert back[1] is back


def test_long_and_deep_containers() -> None:
    deep: object = "end"
    for i in range(50):
        deep = [i, {"k": (deep,)}]
    for value in (list(range(100_000)), {i: [i] for i in range(1000)}, deep):
        assert travel(value) == value


# Bytes


@pytest.mark.parametrize("size", [0, 1, 2 * KIB, 64 * KIB - 1, 64 * KIB, 300 * KIB])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_bytes_come_back_as_they_were_and_leave_the_skeleton_when_large(
    size: int, kind: type[bytes] | type[bytearray]
) -> None:
    for depth in (0, 1, 7):
        check_bytes(kind(i % 251 for i in range(size)), depth)


def check_bytes(data: bytes | bytearray, depth: int) -> None:
    value: object = data
    for _ in range(depth):
        value = [value, {"again": value}]
    skeleton, buffers = dumps(value)
    assert [b.nbytes for b in buffers] == ([len(data)] if len(data) >= 64 * KIB else [])
    assert len(skeleton) < 64 * KIB + 1000
    back = travel(value)
    for _ in range(depth):
        assert isinstance(back, list)
        assert back[1]["again"] is back[0]
        back = back[0]
    assert back == data
    assert type(back) is type(data)


def test_large_bytes_are_not_copied_at_the_sender() -> None:
    data = bytearray(100 * KIB)
    _, [view] = dumps({"a": [data]})
    data[5] = 9
    assert view[5] == 9
    constant = bytes(100 * KIB)
    assert dumps((constant,)).buffers[0].obj is constant


def test_large_bytes_among_everything_else() -> None:
    big, array, text = b"b" * (70 * KIB), np.arange(10_000), "t" * (200 * KIB)
    frames = [str(i) * 50 for i in range(3000)]  # more than one pickle frame on either side
    value = [frames, big, array, text, bytearray(big), frames[::-1], array[:100], big, "B\x00" * 100, set()]
    skeleton, buffers = dumps(value)
    assert [b.nbytes for b in buffers] == [70 * KIB, 80_000, 70 * KIB]
    back = loads(skeleton, buffers)
    assert isinstance(back, list)
    assert back[1] is back[7]
    for i in (0, 1, 3, 4, 5, 8, 9):
        assert back[i] == value[i]
    assert (back[2] == array).all()


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("bBsna"), st.integers(60 * KIB, 70 * KIB)), max_size=6))
def test_any_order_of_large_things(parts: list[tuple[str, int]]) -> None:
    make = {
        "b": lambda n: b"b" * n,
        "B": lambda n: bytearray(b"B" * n),
        "s": lambda n: "s" * n,
        "n": lambda n: list(range(n // 8)),
        "a": lambda n: np.full(n, 3, dtype=np.uint8),
    }
    value = [make[kind](size) for kind, size in parts]
    back = travel(value)
    assert isinstance(back, list)
    assert len(back) == len(value)
    for got, want in zip(back, value, strict=True):
        assert type(got) is type(want)
        assert np.array_equal(got, want) if isinstance(want, np.ndarray) else got == want


# Buffers

ARRAYS = {
    "C": np.arange(6000.0).reshape(60, 100),
    "F": np.asfortranarray(np.arange(6000.0).reshape(60, 100)),
    "0-d": np.array(3.5),
    "empty": np.empty((0, 4), dtype=np.int16),
    "small": np.arange(5),
    "steps": np.arange(6000)[::3],
    "structured": np.array([(1, 2.5, b"ab")] * 500, dtype=[("i", "i4"), ("x", "f8"), ("s", "S3")]),
    "bool": np.ones(5000, dtype=bool),
    "complex": np.ones(5000, dtype=np.complex64),
    "unicode": np.array(["été"] * 2000),
    "dates": np.arange("2020-01", "2030-01", dtype="datetime64[D]"),
    "objects": np.array([{"a": 1}, None, "x"], dtype=object),
    "big-endian": np.arange(3000, dtype=">i4"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_arrays_come_back_equal_and_writable(name: str) -> None:
    array = ARRAYS[name]
    skeleton, buffers = dumps({"x": [array]})
    for received in (bytes, bytearray, memoryview):
        back = loads(skeleton, [received(b) for b in buffers])["x"][0]  # type: ignore[index]
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert np.array_equal(back, array)
        assert back.flags.writeable
        assert back.flags.f_contiguous == array.flags.f_contiguous or name == "steps"
    if array.nbytes >= 2 * KIB and name not in ("steps", "dates"):  # numpy itself copies those
        assert [b.nbytes for b in buffers] == [array.nbytes]


def test_read_only_arrays_stay_so() -> None:
    array = np.arange(6000)
    array.flags.writeable = False
    back = travel(array)
    assert isinstance(back, np.ndarray)
    assert not back.flags.writeable


def test_buffers_are_used_where_they_are_writable_and_never_changed_where_not() -> None:
    skeleton, [view] = dumps(np.zeros(1000))
    memory, constant = bytearray(view), bytes(view)
    loads(skeleton, [memory])[:] = 1.0  # type: ignore[index]
    assert (np.frombuffer(memory) == 1).all()
    loads(skeleton, [constant])[:] = 1.0  # type: ignore[index]
    assert (np.frombuffer(constant) == 0).all()


def test_buffers_below_2_kib_stay_in_the_skeleton() -> None:
    assert dumps(np.zeros(2 * KIB - 1, dtype=np.uint8)).buffers == []
    _, [view] = dumps(np.zeros((2, KIB), dtype=np.uint8, order="F"))
    assert (view.format, view.ndim, view.nbytes, view.contiguous) == ("B", 1, 2 * KIB, True)


def test_a_wrong_number_of_buffers_is_an_error() -> None:
    skeleton, buffers = dumps([np.zeros(1000), np.zeros(2000)])
    for wrong in ([], buffers[:1]):
        with pytest.raises(pickle.UnpicklingError):
            loads(skeleton, wrong)


def test_skeletons_may_be_any_buffer() -> None:
    for value in (((1, "a"), {}), {"x": b"z" * (80 * KIB)}):
        skeleton, buffers = dumps(value)
        assert loads(memoryview(skeleton), buffers) == value
        assert loads(bytearray(skeleton), buffers) == value


def test_arrow_tables_travel_out_of_band() -> None:
    table = pyarrow.table({"n": np.arange(10_000), "s": ["text"] * 10_000})
    batch = table.to_batches()[0]
    for value in (table, batch, pyarrow.array(np.arange(5000))):
        skeleton, buffers = dumps({"data": value})
        assert sum(b.nbytes for b in buffers) >= value.nbytes - 100
        assert len(skeleton) < 5000
        for received in (bytes, bytearray):
            assert loads(skeleton, [received(b) for b in buffers]) == {"data": value}


# Objects


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    prompt: str
    tokens: np.ndarray


class Holder:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def method(self) -> None: ...


Pair = collections.namedtuple("Pair", ["left", "right"])


def test_objects_of_all_kinds() -> None:
    sample = travel(Sample("p", np.arange(1000)))
    assert isinstance(sample, Sample)
    assert (sample.tokens == np.arange(1000)).all()
    values = [Colour.RED, Pair(1, [2]), {1, 2}, frozenset("a"), 1 << 200, range(3), collections.deque([1])]
    assert travel(values) == values
    assert travel(Path("a/b")) == Path("a/b")
    assert travel(len) is len
    assert travel(Sample) is Sample


def test_lambdas_closures_and_local_classes_travel() -> None:
    base = np.arange(1000)

    class Local:
        def total(self, k: int) -> int:
            return int(base.sum()) + k

    function = travel(lambda k: Local().total(k))
    assert callable(function)
    assert function(1) == int(base.sum()) + 1
    assert travel(functools.partial(pow, 2))(5) == 32  # type: ignore[operator]


MAIN_SCRIPT = """
import dataclasses, pathlib, sys
from monarch_async.wire.payload import dumps

FACTOR = 3

def scale(x):
    return x * FACTOR

@dataclasses.dataclass
class Task:
    n: int
    def run(self):
        return scale(self.n)

class TaskFailed(Exception):
    pass

from monarch_async.wire.payload import dump_exception
where = pathlib.Path(sys.argv[1])
skeleton, buffers = dumps(([Task(5)], {"f": scale, "l": lambda: scale(2)}))
assert not buffers
(where / "call").write_bytes(skeleton)
(where / "error").write_bytes(dump_exception(TaskFailed("no luck")))
"""


def test_what_a_script_defines_travels_by_value(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(MAIN_SCRIPT)
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=50)
    (tasks, functions) = loads((tmp_path / "call").read_bytes())  # type: ignore[misc]
    assert tasks[0].run() == 15
    assert (functions["f"](4), functions["l"]()) == (12, 6)
    error = load_exception((tmp_path / "error").read_bytes())
    assert (type(error).__name__, str(error)) == ("TaskFailed", "no luck")


# What cannot travel


def lock_in_closure() -> object:
    guard = threading.Lock()

    def guarded() -> bool:
        return guard.locked()

    return guarded


class Loop:
    """Reduces to ever more of itself."""

    def __reduce__(self) -> tuple[object, ...]:
        return Loop, (Loop(),)


class Refuses:
    def __reduce__(self) -> tuple[object, ...]:
        raise MemoryError("no room")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class RaisesUnprintable:
    def __reduce__(self) -> tuple[object, ...]:
        raise Unprintable


class LeavesTheLockOut:
    def __init__(self, inner: object) -> None:
        self.lock, self.inner = threading.Lock(), inner

    def __getstate__(self) -> dict[str, object]:
        return {"inner": self.inner}


def parent_and_child() -> Holder:
    parent = Holder(children=[], lock=threading.Lock())
    parent.children.append(Holder(parent=parent))  # type: ignore[attr-defined]
    return parent


LOCK = threading.Lock()
CULPRITS: list[tuple[object, str, str]] = [
    (LOCK, "", "cannot pickle '_thread.lock' object"),
    ({"lock": LOCK}, "['lock']", "lock"),
    ([1, (2, {"deep": [LOCK]})], "[1][1]['deep'][0]", "lock"),
    ([*range(1000), LOCK], "[1000]", "lock"),
    ({3: LOCK}, "[3]", "lock"),
    ({"%d": [LOCK]}, "['%d'][0]", "lock"),
    ({("k", 1): LOCK}, "[('k', 1)]", "lock"),
    ({LOCK: 1}, ".<key <unlocked _thread.lock", "lock"),
    (Holder(a=1, lock=LOCK), ".lock", "lock"),
    (Sample("p", LOCK), ".tokens", "lock"),  # type: ignore[arg-type]
    (Pair(1, LOCK), ".right", "lock"),
    (collections.deque([0, LOCK]), "[1]", "lock"),
    (collections.defaultdict(list, {"x": LOCK}), "['x']", "lock"),
    (functools.partial(print, end=LOCK), ".keywords['end']", "lock"),
    (Holder(lock=LOCK).method, ".__self__.lock", "lock"),
    (lock_in_closure(), ".__closure__['guard']", "lock"),
    (lambda x=LOCK: x, ".__defaults__[0]", "lock"),
    (parent_and_child(), ".lock", "lock"),
    (LeavesTheLockOut([LOCK]), ".inner[0]", "lock"),
    ((i for i in range(3)), "", "cannot pickle 'generator' object"),
    ({"r": [Refuses()]}, "['r'][0]", "MemoryError: no room"),
    ([RaisesUnprintable()], "[0]", "Unprintable: (it has no text: its __str__ fails)"),
    ({LOCK}, ".<element 0>", "lock"),
]


@pytest.mark.parametrize(("value", "path", "why"), CULPRITS, ids=[case[1] or "itself" for case in CULPRITS])
def test_errors_name_the_path_to_the_culprit(value: object, path: str, why: str) -> None:
    with pytest.raises(PicklingError) as caught:
        dumps(value, "result")
    assert caught.value.where.startswith(f"result{path}")
    assert len(caught.value.where) < len(f"result{path}") + (40 if "key" in path else 1)
    assert why in caught.value.why
    assert caught.value.__cause__ is not None


def test_errors_of_calls_name_the_argument_and_the_endpoint() -> None:
    with pytest.raises(PicklingError) as caught:
        dumps_call((1, {"lock": LOCK}), {"k": 2}, "trainers.step")
    assert caught.value.where == "argument args[1]['lock'] of trainers.step"
    assert caught.value.why == "TypeError: cannot pickle '_thread.lock' object"
    assert str(caught.value) == f"cannot pickle {caught.value.where}: {caught.value.why}"
    with pytest.raises(PicklingError) as caught:
        dumps_call((), {"callback": lock_in_closure()}, "trainers.step")
    assert caught.value.where == "argument kwargs['callback'].__closure__['guard'] of trainers.step"
    with pytest.raises(PicklingError) as caught:
        dumps({"lock": LOCK}, "result", "trainers.step")
    assert caught.value.where == "result['lock'] of trainers.step"


def test_the_globals_of_a_function_by_value_are_named() -> None:
    namespace: dict[str, object] = {"LOCK": LOCK, "__name__": "__main__"}
    exec("def f():\n    return LOCK", namespace)
    with pytest.raises(PicklingError) as caught:
        dumps(namespace["f"], "f")
    assert caught.value.where == "f.__globals__['LOCK']"


def test_local_classes_that_hold_a_lock() -> None:
    class Local:
        lock = threading.Lock()

    with pytest.raises(PicklingError) as caught:
        dumps([Local()], "v")
    assert caught.value.where == "type(v[0]).lock"


def test_what_recurses_too_deep_is_named_as_a_whole() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for bad in (deep, Loop()):
        with pytest.raises(PicklingError, match="recursion") as caught:
            dumps_call((1, bad), {}, "a.f")
        assert caught.value.where.startswith("argument args[1]")
    # Taking apart a list nested so deep recurses too, in the interpreter's own way: do it by hand
    while deep:
        deep = deep.pop()  # type: ignore[assignment]


def test_a_culprit_in_something_large_is_found() -> None:
    value = {"rows": [{"i": i, "x": [i]} for i in range(20_000)], "arrays": [np.zeros(10_000)] * 100}
    value["rows"][15_000]["x"].append(LOCK)
    with pytest.raises(PicklingError) as caught:
        dumps(value, "v")
    assert caught.value.where == "v['rows'][15000]['x'][1]"


def test_a_failure_that_does_not_repeat_is_reported_all_the_same() -> None:
    class Moody:
        fails = True

        def __reduce__(self) -> tuple[object, ...]:
            if Moody.fails:
                Moody.fails = False
                raise OSError("not now")
            return int, ()

    with pytest.raises(PicklingError) as caught:
        dumps([Moody()], "v")
    assert caught.value.why == "OSError: not now"


def test_loads_raises_what_rebuilding_raises() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        loads(dumps(FailsToLoad()).skeleton)
    with pytest.raises(pickle.UnpicklingError):
        loads(b"garbage")


class FailsToLoad:
    def __reduce__(self) -> tuple[object, ...]:
        return int, ("x",)


# Exceptions


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class SaysTwice(Exception):
    def __init__(self, code: object) -> None:
        super().__init__(f"code {code}")


class Detailed(ValueError):
    def __init__(self, what: str, detail: dict[str, int]) -> None:
        super().__init__(what, detail)
        self.detail = detail


def test_exceptions_travel() -> None:
    original = Detailed("bad", {"a": 1})
    original.add_note("while testing")
    back = load_exception(dump_exception(original))
    assert type(back) is Detailed
    assert (back.args, back.detail, back.__notes__) == (original.args, {"a": 1}, ["while testing"])
    for exc in (
        KeyError("k"),
        OSError(2, "gone", "file"),
        StopIteration(3),
        ProcDied("p[0]", "h", 1),
        SystemExit(3),
    ):
        back = load_exception(dump_exception(exc))
        assert (type(back), str(back)) == (type(exc), str(exc))
    group = load_exception(dump_exception(ExceptionGroup("several", [ValueError("a"), KeyError("b")])))
    assert isinstance(group, ExceptionGroup)
    assert [type(e) for e in group.exceptions] == [ValueError, KeyError]


def with_field(value: object) -> Exception:
    exc = ValueError("holds something")
    exc.field = value  # type: ignore[attr-defined]
    return exc


class RefusesError(Exception):
    def __reduce__(self) -> tuple[object, ...]:
        raise RuntimeError("no")


class BecomesOther(Exception):
    def __reduce__(self) -> tuple[object, ...]:
        return KeyError, ("other",)


@pytest.mark.parametrize(
    "exc",
    [
        KeywordOnly(code=3),
        SaysTwice(4),
        with_field(LOCK),
        RefusesError(),
        BecomesOther(),
        ValueError(b"x" * (2 << 20)),
        Unprintable(),
        ExceptionGroup("g", [with_field(LOCK)]),
    ],
    ids=lambda exc: type(exc).__name__,
)
def test_exceptions_that_cannot_travel_become_nothing(exc: Exception) -> None:
    assert dump_exception(exc) == b""
    assert load_exception(b"") is None


def test_an_argument_without_a_stable_text_does_not_stop_an_exception() -> None:
    back = load_exception(dump_exception(ValueError(Holder(a=1))))
    assert isinstance(back, ValueError)
    assert back.args[0].a == 1


def raised(cause: BaseException | None, context: BaseException) -> BaseException:
    try:
        try:
            raise context
        except BaseException:
            if cause is None:
                raise Error("outer")  # noqa: B904
            raise Error("outer") from cause
    except Error as error:
        return error


def test_cause_and_context_travel_one_level_where_they_can() -> None:
    back = load_exception(dump_exception(raised(KeyError("cause"), ValueError("context"))))
    assert back is not None
    assert (repr(back.__cause__), repr(back.__context__)) == ("KeyError('cause')", "ValueError('context')")
    assert back.__suppress_context__

    back = load_exception(dump_exception(raised(None, ValueError("context"))))
    assert back is not None
    assert (back.__cause__, repr(back.__context__), back.__suppress_context__) == (
        None,
        "ValueError('context')",
        False,
    )

    cause = ValueError("both")
    back = load_exception(dump_exception(raised(cause, cause)))
    assert back is not None
    assert back.__cause__ is back.__context__

    back = load_exception(dump_exception(raised(KeywordOnly(code=1), KeywordOnly(code=2))))
    assert isinstance(back, Error)
    assert (back.__cause__, back.__context__) == (None, None)


def test_load_exception_of_half_the_bytes_is_none() -> None:
    data = dump_exception(raised(KeyError("cause"), ValueError("context")))
    for size in range(len(data)):
        assert load_exception(data[:size]) is None


def test_load_exception_of_a_class_that_is_not_here() -> None:
    data = dump_exception(Detailed("bad", {}))
    assert load_exception(data.replace(b"Detailed", b"Retailed")) is None
    assert load_exception(pickle.dumps((1, 2))) is None
