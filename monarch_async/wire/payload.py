"""Python values as bytes, and back: a pickle skeleton and the large buffers beside it.

- Small calls of plain builtins, the hot path, go straight to the C pickler.
- Everything else goes to cloudpickle's, so that functions and classes of ``__main__``, lambdas and closures
  travel by value; tensors go through `monarch_async.wire.tensor`.
- Buffers of numpy, torch and Arrow from 2 KiB on, and bytes and bytearrays from 64 KiB on, are not copied
  into the skeleton: `Encoded.buffers` are views of the sender's own memory. **Who sends later, or again,
  sends what is in there then**, and a bytearray cannot be resized while a view of it lives.
- What is rebuilt is writable if the original was. The skeleton therefore ends in one byte for each buffer,
  behind the pickle (which says itself where it ends): 1 if it has to be writable, so that `loads` copies only
  where it must.

Pickle has no hook for bytes, yet given a file the C pickler hands over bytes of 64 KiB and more as they are,
in a write of their own, right after the opcode and length that belong before them (PEP 3154's framing).
`_Skeleton.write` knows such a write by that header and replaces both by "bytes(next buffer)". Should a future
pickler write otherwise, large bytes are in the skeleton again: slower, not wrong.
"""

import pickle
from collections import ChainMap
from collections.abc import Iterable, Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import cloudpickle

from monarch_async.errors import PicklingError
from monarch_async.wire import tensor
from monarch_async.wire.culprit import Part, find_culprit
from monarch_async.wire.ticket import Ticket, collector

if TYPE_CHECKING:
    import torch

Buffer = bytes | bytearray | memoryview

_PROTOCOL = 5
_SMALL_BUFFER = 2 << 10  #: below this a buffer costs more as a part of its own than copied
_LARGE_BYTES = 64 << 10  #: what the C pickler takes for large
_LARGEST_EXCEPTION = 1 << 20  #: an error must always fit into a reply
_FEW = 32  #: `_is_plain` does not look through containers of more items

_SCALARS = frozenset({type(None), bool, int, float, complex, str})
_are_scalars = _SCALARS.issuperset  # of types

# opcodes: GLOBAL builtins.<type>, NEXT_BUFFER, TUPLE1, REDUCE
_BYTES_OF_NEXT_BUFFER = b"cbuiltins\nbytes\n\x97\x85R"
_BYTEARRAY_OF_NEXT_BUFFER = b"cbuiltins\nbytearray\n\x97\x85R"


class Encoded(NamedTuple):
    """A value as `loads` takes it. ``buffers`` are contiguous, of format 'B' and one dimension."""

    skeleton: bytes
    buffers: list[memoryview]


class Ticketed(Encoded):
    """A value in which something wants to know who receives it; see `monarch_async.wire.ticket`."""

    tickets: Sequence[Ticket] = ()

    def sent_to(self, receivers: Iterable[int], call: int, is_answer: bool = False) -> None:
        """Say that it has been sent to the processes at these addresses, in this call of ours, or to answer one."""
        for receiver in receivers:
            for ticket in self.tickets:
                ticket.sent(receiver, call, is_answer)


def dumps(value: object, what: str = "value", of: str = "") -> Encoded:
    """Return ``value`` as a skeleton and buffers.

    Args:
        value: anything cloudpickle takes.
        what: what to call it in an error: ``result`` makes the path ``result['lock']``.
        of: where it belongs, added to the path in an error: ``result['lock'] of trainers.step``.

    Raises:
        PicklingError: it cannot be pickled; names the path to the culprit. The original error is its cause.
    """
    try:
        return _encode(value)
    except Exception as error:
        raise _explain(error, [(what, value)], what, of) from error


def dumps_call(args: tuple[object, ...], kwargs: dict[str, object], what: str) -> Encoded:
    """Return ``(args, kwargs)`` as a skeleton and buffers; ``what`` names the endpoint in an error.

    Raises:
        PicklingError: as ``argument args[1]['lock'] of trainers.step``. The original error is its cause.
    """
    try:
        if _are_scalars(map(type, args)) and (not kwargs or _are_scalars(map(type, kwargs.values()))):
            return Encoded(pickle.dumps((args, kwargs), _PROTOCOL), [])  # the most frequent case, made fast
        return _encode((args, kwargs))
    except Exception as error:
        raise _explain(error, _arguments(args, kwargs), "arguments", what) from error


def dumps_recipe(cls: type, args: tuple[object, ...], kwargs: dict[str, object]) -> Encoded:
    """Return ``(cls, args, kwargs)`` as a skeleton and buffers: what an object is made of.

    Raises:
        PicklingError: as ``argument kwargs['lock'] of Trainer``. The original error is its cause.
    """
    try:
        return _encode((cls, args, kwargs))
    except Exception as error:
        parts = [*_arguments(args, kwargs), ("the class", cls)]
        raise _explain(error, parts, "class and arguments", cls.__name__) from error


def loads(skeleton: Buffer, buffers: Sequence[Buffer] = ()) -> object:
    """Rebuild a value over ``buffers``, without copying those that are writable or need not be.

    Raises:
        Exception: whatever rebuilding raises; the caller knows what to call it.
    """
    if not buffers:
        return pickle.loads(skeleton)
    must_write = skeleton[-len(buffers) :]
    ready = [
        bytearray(buffer) if must and memoryview(buffer).readonly else buffer
        for buffer, must in zip(buffers, must_write, strict=True)
    ]
    return pickle.loads(skeleton, buffers=ready)


def loads_shared(skeleton: Buffer, buffers: Sequence[memoryview]) -> object:
    """Rebuild a value over ``buffers`` as they are, though they are shared with others; what is rebuilt is read-only.

    Except for tensors, which know no such thing: they get the memory writable, so it has to be private to whoever
    writes (mapped copy-on-write).

    Raises:
        Exception: whatever rebuilding raises; the caller knows what to call it.
    """
    views = [buffer.toreadonly() for buffer in buffers]
    token = tensor.writable_twins.set({id(view): buffer for view, buffer in zip(views, buffers, strict=True)})
    try:
        return pickle.loads(skeleton, buffers=views)
    finally:
        tensor.writable_twins.reset(token)


def dump_exception(exc: BaseException) -> bytes:
    """Return ``exc`` with its cause and context as bytes; ``b""`` if it cannot be rebuilt from them. Never
    raises.

    It is rebuilt here, as a trial: an exception whose constructor takes other arguments than ``args`` pickles
    well and fails, or says something else, only where it is loaded. Causes and contexts that cannot travel
    are left out.
    """
    cause = exc.__cause__
    context = None if exc.__context__ is cause else exc.__context__
    main, *others = [b"" if part is None else _exception_alone(part) for part in (exc, cause, context)]
    return pickle.dumps((main, *others, exc.__suppress_context__), _PROTOCOL) if main else b""


def load_exception(data: Buffer) -> BaseException | None:
    """Return the exception of `dump_exception`, or None where it cannot be rebuilt in this process. Never
    raises."""
    if not data:
        return None
    try:
        *parts, suppress_context = pickle.loads(data)
        exc, cause, context = [_rebuilt(part) for part in parts]
    except Exception:
        return None
    if exc is not None:
        exc.__cause__ = cause
        exc.__context__ = context or cause
        exc.__suppress_context__ = suppress_context
    return exc


class _Skeleton:
    """The file a pickler writes to, and the keeper of what stays outside of it."""

    __slots__ = ("buffers", "chunks", "must_write")

    def __init__(self) -> None:
        self.chunks: list[bytes | bytearray] = []
        self.buffers: list[memoryview] = []
        self.must_write = bytearray()

    def keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer, unless it is small: True leaves it to the pickle."""
        view = buffer.raw()
        if view.nbytes < _SMALL_BUFFER:
            return True
        self.buffers.append(view)
        self.must_write.append(not view.readonly)
        return False

    def write(self, chunk: bytes | bytearray) -> None:
        """Take a piece of the pickle, or large bytes to keep beside it."""
        if len(chunk) >= _LARGE_BYTES and self.chunks:
            header, opcodes = _bytes_header(chunk)
            before = self.chunks[-1]
            if before.endswith(header):
                self.chunks[-1] = before[: -len(header)] + opcodes
                self.buffers.append(memoryview(chunk))
                self.must_write.append(False)  # bytes() and bytearray() copy from it
                return
        self.chunks.append(chunk)

    def finish(self) -> Encoded:
        """Return what was written and kept."""
        if self.buffers:
            self.chunks.append(self.must_write)
        return Encoded(b"".join(self.chunks), self.buffers)


_DYNAMIC = "<dynamic-code>"
_reducers: Any = cloudpickle.Pickler.dispatch_table


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """Reduce a code object as cloudpickle does, but keep its file: a traceback has to name the user's lines."""
    function, args = _reducers[CodeType](code)
    return function, tuple(code.co_filename if arg == _DYNAMIC else arg for arg in args)


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar[ChainMap[Any, Any]] = ChainMap({CodeType: _reduce_code}, _reducers)

    def __init__(self, skeleton: _Skeleton) -> None:
        super().__init__(skeleton, _PROTOCOL, skeleton.keep)  # pyright: ignore[reportCallIssue]
        self.tensor_types = tensor.tensor_types()

    def reducer_override(self, obj: object) -> Any:
        # called for all but the exact builtins, which the C pickler knows
        types = self.tensor_types
        if types is not None and (type(obj) is types[0] or type(obj) is types[1]):
            return tensor.reduce(cast("torch.Tensor", obj)) or NotImplemented
        if obj is tensor.restore:  # by reference, which cloudpickle takes a microsecond to find out
            return NotImplemented
        return super().reducer_override(obj)

    def reduction(self, obj: object) -> tuple[object, ...]:
        """Return the reduction of ``obj``, ``()`` if it travels by reference, or raise why there is none."""
        reduction = self.reducer_override(obj)
        if reduction is NotImplemented:
            by_type = self.dispatch_table.get(type(obj))
            if by_type is not None:
                reduction = by_type(obj)
            elif not isinstance(obj, (type, FunctionType)):  # of those the pickler itself takes the name
                reduction = obj.__reduce_ex__(_PROTOCOL)
        if isinstance(reduction, tuple):
            return reduction
        self.dump(obj)  # checks that it is found where it says
        return ()


def _encode(value: object) -> Encoded:
    if type(value) in _SCALARS or _is_plain(value, 3):
        return Encoded(pickle.dumps(value, _PROTOCOL), [])
    skeleton = _Skeleton()
    tickets: list[Ticket] = []
    token = collector.set(tickets)
    try:
        _Pickler(skeleton).dump(value)
    finally:
        collector.reset(token)
    encoded = skeleton.finish()
    if not tickets:
        return encoded
    ticketed = Ticketed(*encoded)
    ticketed.tickets = tickets
    return ticketed


def _is_plain(value: Any, depth: int) -> bool:
    """Whether ``value`` is builtins all through, without large bytes; no where that takes long to see."""
    kind = type(value)
    if kind is dict:
        if len(value) > _FEW or not _are_scalars(map(type, value)):
            return False
        items = value.values()
    elif kind is tuple or kind is list:
        items = value
    else:
        return kind is bytes and len(value) < _LARGE_BYTES
    if len(items) > _FEW:
        return False
    if _are_scalars(map(type, items)):
        return True
    if not depth:
        return False
    for item in items:  # noqa: SIM110  a generator costs more than all the rest
        if type(item) not in _SCALARS and not _is_plain(item, depth - 1):
            return False
    return True


def _bytes_header(chunk: bytes | bytearray) -> tuple[bytes, bytes]:
    """Return what the pickler writes before large bytes, and what to write instead."""
    size = len(chunk)
    if type(chunk) is bytearray:
        return b"\x96" + size.to_bytes(8, "little"), _BYTEARRAY_OF_NEXT_BUFFER
    if size < 1 << 32:
        return b"B" + size.to_bytes(4, "little"), _BYTES_OF_NEXT_BUFFER
    return b"\x8e" + size.to_bytes(8, "little"), _BYTES_OF_NEXT_BUFFER


def _explain(error: Exception, parts: list[Part], whole: str, of: str) -> PicklingError:
    token = collector.set([])  # nobody will be sent this
    try:
        found = find_culprit(parts, lambda value: _Pickler(_Skeleton()).reduction(value)) or _failing(parts)
    finally:
        collector.reset(token)
    where, why = found or (whole, error)
    return PicklingError(f"{where} of {of}" if of else where, f"{type(why).__name__}: {_text(why)}")


def _arguments(args: tuple[object, ...], kwargs: dict[str, object]) -> list[Part]:
    parts = [(f"args[{i}]", value) for i, value in enumerate(args)]
    parts += [(f"kwargs[{name!r}]", value) for name, value in kwargs.items()]
    return [(f"argument {path}", value) for path, value in parts]


def _failing(parts: list[Part]) -> tuple[str, Exception] | None:
    """Return the first of ``parts`` that fails as a whole, where none inside it does alone (nested too deep,
    say)."""
    for path, value in parts:
        try:
            _encode(value)
        except Exception as error:
            return path, error
    return None


def _exception_alone(exc: BaseException) -> bytes:
    try:
        data = cloudpickle.dumps(exc, _PROTOCOL)
        if len(data) > _LARGEST_EXCEPTION:
            return b""
        rebuilt = pickle.loads(data)
        same = type(rebuilt) is type(exc) and (str(rebuilt) == str(exc) or not _is_plain(exc.args, 3))
    except Exception:
        return b""
    return data if same else b""


def _rebuilt(data: bytes) -> BaseException | None:
    try:
        exc = pickle.loads(data) if data else None
    except Exception:
        return None
    return exc if isinstance(exc, BaseException) else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(it has no text: its __str__ fails)"
