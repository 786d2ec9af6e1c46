"""Actor classes and their interfaces: what the decorator notes, how arguments are checked, what runs without a task."""

import asyncio
import functools
import inspect
import pickle
from collections.abc import AsyncIterator, Callable
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import monarch_async as ma
from monarch_async.runtime.actor import EndpointSpec, Interface, Style, interface_of, never_waits


class Base(ma.Actor):
    """Of every style."""

    def __init__(self, base: int = 0) -> None:
        self.base = base

    @ma.endpoint
    async def add(self, x: int, y: int = 1) -> int:
        """Adds."""
        return self.base + x + y

    @ma.endpoint
    def plain(self) -> int:
        return self.base

    @ma.endpoint
    async def items(self) -> AsyncIterator[int]:
        yield self.base

    def method(self) -> int:
        return 1

    def _hidden(self) -> int:
        return 2


class Derived(Base):
    """Adds one, changes one, takes one away."""

    @ma.endpoint
    async def extra(self) -> int:
        return await self.add(1)

    @ma.endpoint
    def add(self, x: int) -> int:  # type: ignore[override]
        return x

    def plain(self) -> int:  # type: ignore[override]
        return 3


def test_an_interface_lists_endpoints_by_style_and_other_methods() -> None:
    interface = interface_of(Base)
    assert interface.name == "Base"
    assert {name: spec.style for name, spec in interface.endpoints.items()} == {
        "add": Style.COROUTINE,
        "plain": Style.THREAD,
        "items": Style.STREAM,
    }
    assert interface.methods == {"method"}
    assert interface_of(Base) is interface


def test_a_subclass_inherits_replaces_and_takes_away() -> None:
    interface = interface_of(Derived)
    assert {name: spec.style for name, spec in interface.endpoints.items()} == {
        "add": Style.THREAD,
        "items": Style.STREAM,
        "extra": Style.COROUTINE,
    }
    assert interface.methods == {"method", "plain"}
    assert str(interface.endpoints["add"].signature) == "(x)"
    assert interface_of(Base).endpoints["add"].style is Style.COROUTINE


def test_inside_its_class_an_endpoint_is_an_ordinary_method() -> None:
    base: Any = Base(10)
    assert asyncio.run(base.add(1)) == 12
    assert base.plain() == 10
    assert inspect.isasyncgen(base.items())
    assert Base.__dict__["add"].__doc__ == "Adds."
    assert Base.__dict__["add"].__wrapped__.__qualname__ == "Base.add"
    assert repr(base.plain).startswith("<bound method Base.plain")


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_an_interface_travels_without_its_class(dumps: Callable[[object], bytes]) -> None:
    data = dumps(interface_of(Base))
    assert b"test_actor" not in data
    found = pickle.loads(data)
    assert isinstance(found, Interface)
    assert found == interface_of(Base)
    assert str(found.endpoints["add"].signature) == "(x, y=...)"


def test_a_default_value_stays_in_the_worker() -> None:
    class Odd(ma.Actor):
        @ma.endpoint
        async def step(self, lock: Any = asyncio.Event(), *, note: "NotImported" = object()) -> "NotImported": ...  # type: ignore # noqa: B008, F821

    spec = interface_of(Odd).endpoints["step"]
    assert str(spec.signature) == "(lock=..., *, note=...)"
    pickle.dumps(spec)


def test_classes_that_are_defined_anywhere_travel_by_value() -> None:
    class Local(Base):
        pass

    again = pickle.loads(cloudpickle.dumps(Local))
    assert interface_of(again) == interface_of(Local)


# -- arguments -----------------------------------------------------------------------------------------------------

KINDS = [
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
]


@st.composite
def signatures(draw: st.DrawFn) -> inspect.Signature:
    kinds = sorted(draw(st.lists(st.sampled_from(KINDS), max_size=5)))
    parameters: list[inspect.Parameter] = []
    has_default = False
    for index, kind in enumerate(kinds):
        is_variadic = kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if is_variadic and any(p.kind is kind for p in parameters):
            continue
        is_positional = kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        optional = not is_variadic and (draw(st.booleans()) or (is_positional and has_default))
        has_default = has_default or (is_positional and optional)
        parameters.append(inspect.Parameter(f"p{index}", kind, default=0 if optional else inspect.Parameter.empty))
    return inspect.Signature(parameters)


@given(signatures(), st.integers(0, 6))
def test_the_quick_check_of_positional_arguments_agrees_with_the_full_one(signature: inspect.Signature, n: int) -> None:
    spec = EndpointSpec("step", Style.COROUTINE, signature)
    least, most = spec.positional
    try:
        spec.check("where", tuple(range(n)), {})
        is_good = True
    except ma.BadCall:
        is_good = False
    assert (least <= n <= most) == is_good


# -- without a task ------------------------------------------------------------------------------------------------


class Waits:
    """Some do, some do not."""

    async def returns(self) -> int:
        return 1

    async def computes(self) -> list[int]:
        return [x for x in range(3) if x] + sorted(range(2), key=lambda x: -x)

    async def starts_a_task(self) -> object:
        return asyncio.ensure_future(self.returns())

    async def defines_a_coroutine(self) -> object:
        async def inner() -> None:
            await asyncio.sleep(1)

        return inner

    async def raises(self) -> None:
        with open("/nope"):  # noqa: ASYNC230
            pass

    async def awaits(self) -> None:
        await asyncio.sleep(0)

    async def awaits_in_a_branch(self) -> None:
        if self is None:
            await asyncio.sleep(0)

    async def async_for(self) -> None:
        async for _ in self.generates():
            pass

    async def async_with(self) -> None:
        async with asyncio.Lock():
            pass

    async def async_comprehension(self) -> list[int]:
        return [x async for x in self.generates()]

    async def awaits_in_a_comprehension(self) -> list[int]:
        return [await self.returns() for _ in range(3)]

    async def asks_for_its_task(self) -> object:
        return asyncio.current_task()

    async def generates(self) -> AsyncIterator[int]:
        yield 1

    def plain(self) -> int:
        return 1

    @functools.wraps(returns)
    def wrapped(self) -> object:
        return self.awaits()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("returns", True),
        ("computes", True),
        ("starts_a_task", True),
        ("defines_a_coroutine", True),
        ("raises", True),
        ("awaits", False),
        ("awaits_in_a_branch", False),
        ("async_for", False),
        ("async_with", False),
        ("async_comprehension", False),
        ("awaits_in_a_comprehension", False),
        ("asks_for_its_task", False),
        ("wrapped", False),
        ("plain", False),
    ],
)
def test_which_endpoints_never_wait(name: str, expected: bool) -> None:
    assert never_waits(getattr(Waits, name)) is expected


def test_a_callable_object_is_not_judged() -> None:
    assert not never_waits(functools.partial(Waits.returns))
