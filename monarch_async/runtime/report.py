"""Failures as bytes: what goes wrong in a worker must reach the caller whatever it is made of.

An endpoint's own exception may hold a lock, want keyword-only arguments, or be of a class the caller does not have. So
the facts travel as msgpack beside the pickled original, which is optional. Errors of this package pickle by design.
"""

import pickle
import traceback
from collections.abc import Mapping
from types import TracebackType

import msgpack

from monarch_async.errors import ActorDied, Error
from monarch_async.remote_error import RemoteError, remote_error
from monarch_async.wire.payload import dump_exception, load_exception

_RAISED, _ERROR = 0, 1

#: Characters of a text or a traceback that travel; what is longer is cut in its middle. With the original exception,
#: which `dump_exception` bounds, a report stays far below ``max_frame``: it must arrive in one frame.
_LONGEST = 256 << 10

#: Where frames are that stand between what calls an endpoint, or a task, and the user's code.
_OURS = ("/monarch_async/runtime/", "/monarch_async/tasks/runner")


def pack_raised(
    error: BaseException, rank: int, point: Mapping[str, int], actor: str, endpoint: str, host: str
) -> bytes:
    """Return the report of an exception that an endpoint raised. Never raises."""
    name, text, trace = _name(error), _text(error), format_traceback(error)
    facts = [_RAISED, rank, dict(point), actor, endpoint, host, name, text, trace, dump_exception(error)]
    return msgpack.packb(facts, unicode_errors="backslashreplace")


def pack_error(error: Error, cause: BaseException | None = None) -> bytes:
    """Return the report of one of this package's own errors; ``cause`` goes with it where it can travel."""
    return msgpack.packb([_ERROR, pickle.dumps(error), dump_exception(cause) if cause is not None else b""])


def describe(error: BaseException) -> str:
    """Return class and text of any exception; the text alone of this package's own, which says all. Never raises."""
    text = _text(error)
    if isinstance(error, Error):
        return text
    return f"{_name(error)}: {text}" if text else _name(error)


def _name(error: BaseException) -> str:
    if isinstance(error, RemoteError):  # passed on: the name of the first cause
        return error.type_name
    cls = type(error)
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:
        return f"<its __str__ raised {type(broken).__name__}>"
    if isinstance(error, (RemoteError, ActorDied)):  # the traceback in it is shown with it, once
        text = text.split("\n", 1)[0]
    return _cut(text)


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def load_report(data: bytes | bytearray | memoryview) -> Exception:
    """Return the exception a report stands for."""
    kind, *facts = msgpack.unpackb(data)
    if kind == _ERROR:
        error: Exception = pickle.loads(facts[0])
        error.__cause__ = load_exception(facts[1])
        return error
    *known, original = facts
    return remote_error(*known, cause=load_exception(original))


def format_traceback(error: BaseException) -> str:
    """Return the traceback as text, without this package's own frames at its top."""
    tb: TracebackType | None = error.__traceback__
    while tb is not None and any(folder in tb.tb_frame.f_code.co_filename for folder in _OURS):
        tb = tb.tb_next
    try:
        return _cut("".join(traceback.format_exception(type(error), error, tb)))
    except Exception as broken:  # an exception whose __str__ or __repr__ raises
        return f"<no traceback: formatting it raised {type(broken).__name__}>"
