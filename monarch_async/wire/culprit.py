"""Which part of a value cannot be pickled: the search that turns "cannot pickle '_thread.lock' object" into a
path.

Runs only after pickling failed. Walks the value as the pickler would (the parts of an object are what its
reduction lists, so a ``__getstate__`` that leaves the lock out is honoured) but breadth first, so that the
path found is the shortest. The culprit is the first object whose own reduction raises. How objects are
reduced is given by the caller.
"""

import dataclasses
import functools
import itertools
import pickle
import reprlib
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator

Part = tuple[str, object]
#: Returns the reduction of an object as pickle defines it, ``()`` for one by reference, or raises.
Reduce = Callable[[object], tuple[object, ...]]

_LEAVES = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, pickle.PickleBuffer})
_MOST_VISITS = 100_000
_LONGEST_PATH = 1000  #: characters; nobody reads on, and what nests without end would make them ever longer
_key_text = reprlib.Repr()
_key_text.maxstring = _key_text.maxother = 60


def find_culprit(parts: Iterable[Part], reduce: Reduce) -> tuple[str, Exception] | None:
    """Return the path of the culprit below ``parts`` (path, object) and the error it raises; None if none is
    found.

    Looks at a bounded number of objects.
    """
    waiting = deque(parts)
    seen: dict[int, object] = {}  # holds what it has seen, or ids would be used again
    while waiting and len(seen) < _MOST_VISITS:
        path, value = waiting.popleft()
        if type(value) in _LEAVES or id(value) in seen or len(path) > _LONGEST_PATH:
            continue
        seen[id(value)] = value
        try:
            waiting.extend(itertools.islice(_parts(path, value, reduce), max(0, _MOST_VISITS - len(waiting))))
        except Exception as error:
            return path, error
    return None


def _parts(path: str, value: object, reduce: Reduce) -> Iterator[Part]:
    """Return the parts of ``value`` that may fail; raise what its own reduction raises."""
    kind = type(value)
    if kind is dict and isinstance(value, dict):
        return _items(path, value.items())
    if kind in (list, tuple) and isinstance(value, (list, tuple)):
        return _elements(path, value)
    if kind in (set, frozenset) and isinstance(value, (set, frozenset)):
        return _elements(f"{path}.", value, "<element ", ">")
    reduction = reduce(value)
    if not reduction:
        return iter(())
    if isinstance(value, types.FunctionType):
        return _of_function(path, value, reduction)
    if isinstance(value, types.MethodType):
        return iter([(f"{path}.__self__", value.__self__), (f"{path}.__func__", value.__func__)])
    if isinstance(value, functools.partial):
        return iter([(f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords")])
    names = getattr(value, "_fields", None)
    if isinstance(value, tuple) and isinstance(names, tuple):
        return ((f"{path}.{name}", part) for name, part in zip(names, value, strict=False))
    return _of_object(path, value, reduction)


def _of_object(path: str, value: object, reduction: tuple[object, ...]) -> Iterator[Part]:
    function, args, state, elements, items = (*reduction, None, None, None)[:5]
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    for part in (attributes, slots):
        if isinstance(part, list) and dataclasses.is_dataclass(value):  # a frozen one with slots
            part = dict(zip((field.name for field in dataclasses.fields(value)), part, strict=False))
        if isinstance(part, dict):
            yield from ((f"{path}.{name}", attribute) for name, attribute in part.items())
        else:
            yield f"{path}.__getstate__()", part
    if isinstance(elements, Iterable):
        yield from _elements(path, elements)
    if isinstance(items, Iterable):
        yield from _items(path, items)
    if args and isinstance(args, tuple):
        for i, part in enumerate(args):
            yield f"type({path})" if part is type(value) else f"{path}.__reduce__()[1][{i}]", part
    yield f"{path}.__reduce__()[0]", function


def _of_function(path: str, function: types.FunctionType, reduction: tuple[object, ...]) -> Iterator[Part]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"{path}.__closure__[{name!r}]", cell.cell_contents
        except ValueError:  # empty: the variable has no value yet
            continue
    yield from _elements(f"{path}.__defaults__", function.__defaults__ or ())
    yield from _items(f"{path}.__kwdefaults__", (function.__kwdefaults__ or {}).items())
    yield from ((f"{path}.{name}", part) for name, part in function.__dict__.items())
    # cloudpickle's state of a function by value: its __dict__, and a dict with the globals its code names
    match reduction:
        case (_, _, (_, {"__globals__": dict() as used}), *_):
            yield from _items(f"{path}.__globals__", used.items())


def _elements(path: str, values: Iterable[object], opening: str = "[", closing: str = "]") -> Iterator[Part]:
    for i, value in enumerate(values):
        if type(value) not in _LEAVES:
            yield f"{path}{opening}{i}{closing}", value


def _items(path: str, items: Iterable[tuple[object, object]]) -> Iterator[Part]:
    for key, value in items:
        if type(key) not in _LEAVES:
            yield f"{path}.<key {_key_text.repr(key)}>", key
        if type(value) not in _LEAVES:
            yield f"{path}[{_key_text.repr(key)}]", value
