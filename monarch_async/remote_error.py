"""The error a caller sees when an endpoint has raised: `RemoteError`, rebuilt as closely as this process can.

What was raised over there may be of a class that nobody here can import, or that cannot be derived from, rebuilt or
pickled. None of that may become a second failure: whatever cannot be had is left out, and the facts remain.
"""

import builtins
import importlib
import pickle
from collections.abc import Mapping
from typing import Any

from monarch_async.errors import Error


class RemoteError(Error):
    """An endpoint raised.

    Fields: ``rank`` (flat rank in the actor mesh as spawned), ``point`` (its coordinates), ``actor`` (``name[rank]``),
    ``endpoint``, ``host``, ``type_name`` (qualified name of the original class), ``text`` (``str`` of the original),
    ``traceback`` (remote traceback as text). ``__cause__`` is the original exception where it could be rebuilt here.
    The class raised derives from `RemoteError` and from the original class where that can be imported, so that
    ``except ValueError`` catches a remote ValueError.
    """

    rank: int
    point: Mapping[str, int]
    actor: str
    endpoint: str
    host: str
    type_name: str
    text: str
    traceback: str

    def __str__(self) -> str:
        text = f"{self.actor}.{self.endpoint} on {self.host} raised {self.type_name}"
        text += f": {self.text}" if self.text else ""
        return f"{text}\n\n{self.traceback.rstrip()}" if self.traceback else text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.actor}.{self.endpoint}: {self.type_name}: {self.text}>"

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (
            self.rank,
            dict(self.point),
            self.actor,
            self.endpoint,
            self.host,
            self.type_name,
            self.text,
            self.traceback,
        )
        return remote_error, (*facts, _picklable_or_none(self.__cause__))


def remote_error(
    rank: int,
    point: Mapping[str, int],
    actor: str,
    endpoint: str,
    host: str,
    type_name: str,
    text: str,
    traceback: str,
    cause: BaseException | None = None,
) -> RemoteError:
    """Build the error a caller sees, from the facts and (where it could travel) the original exception.

    Never raises: an original class that cannot be derived from together with `RemoteError` is left out.
    """
    facts = {
        "rank": rank,
        "point": dict(point),
        "actor": actor,
        "endpoint": endpoint,
        "host": host,
        "type_name": type_name,
        "text": text,
        "traceback": traceback,
    }
    original = type(cause) if cause is not None else _find_class(type_name)
    cls = _derive(original) if original is not None else RemoteError
    try:
        return _fill(cls, cause, facts)
    except Exception:  # a constructor of its own, a field of the name of ours that cannot be set
        return _fill(RemoteError, cause, facts)


def _fill(cls: type[RemoteError], cause: BaseException | None, facts: dict[str, Any]) -> RemoteError:
    """Make an error of ``cls`` without calling its constructor."""
    if isinstance(cause, ExceptionGroup) and issubclass(cls, ExceptionGroup):
        error: Any = ExceptionGroup.__new__(cls, cause.message, cause.exceptions)
    else:
        error = cls.__new__(cls)
    error.args = cause.args if cause is not None else (facts["text"],)
    if cause is not None:
        copy_state(cause, error)
    for name, value in facts.items():
        object.__setattr__(error, name, value)  # the class may be frozen
    object.__setattr__(error, "__cause__", cause)
    return error


_derived: dict[type, type[RemoteError]] = {}

#: Raised into a future or an ``async for`` these would end an iteration here.
_NOT_HERE = (StopIteration, StopAsyncIteration)


def _derive(original: type) -> type[RemoteError]:
    """Return a class that is both a `RemoteError` and an ``original``; `RemoteError` itself where that cannot be."""
    if issubclass(original, RemoteError):
        return original
    if not issubclass(original, Exception) or issubclass(original, _NOT_HERE):
        return RemoteError
    cls = _derived.get(original)
    if cls is None:
        try:
            namespace = {name: getattr(RemoteError, name) for name in ("__str__", "__repr__")}
            namespace["__module__"] = original.__module__
            cls = type(original.__name__, (RemoteError, original), namespace)
        except TypeError:  # a layout conflict, or a class that may not be subclassed
            cls = RemoteError
        _derived[original] = cls
    return cls


def _find_class(type_name: str) -> type | None:
    """Return the exception class of that qualified name if it is a builtin or its module is already importable."""
    module, _, name = type_name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module) if module else builtins, name, None)
    except Exception:
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def copy_state(source: BaseException, target: BaseException) -> None:
    """Copy attributes, also the ones C classes keep outside ``__dict__`` (``OSError.errno``, ``ImportError.name``)."""
    target.__dict__.update(source.__dict__)
    for cls in type(source).__mro__:
        if cls.__module__ != "builtins" or cls in (Exception, BaseException, object):
            continue
        for name, slot in vars(cls).items():
            if type(slot).__name__ in ("member_descriptor", "getset_descriptor") and not name.startswith("__"):
                try:
                    setattr(target, name, getattr(source, name))
                except (AttributeError, TypeError, ValueError):
                    pass


def _picklable_or_none(error: BaseException | None) -> BaseException | None:
    if error is None:
        return None
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return error
