"""Failures as bytes: what goes wrong in a worker must reach the caller whatever it is made of.

An endpoint's own exception may hold a lock, want keyword-only arguments, or be of a class the caller does not have. So
the facts travel as msgpack beside the pickled original, which is optional. Errors of this package pickle by design.
"""

import pickle
import traceback
from collections.abc import Mapping
from types import TracebackType

import msgpack

from monarch_async.errors import Error, RemoteError, remote_error
from monarch_async.wire.payload import dump_exception, load_exception

_RAISED, _ERROR = 0, 1


def pack_raised(
    error: BaseException, rank: int, point: Mapping[str, int], actor: str, endpoint: str, host: str
) -> bytes:
    """Return the report of an exception that an endpoint raised. Never raises."""
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
    if isinstance(error, RemoteError):  # passed on: keep the first cause's name
        name = error.type_name
    try:
        text = str(error)
    except Exception as broken:
        text = f"<its __str__ raised {type(broken).__name__}>"
    facts = [_RAISED, rank, dict(point), actor, endpoint, host, name, text, format_traceback(error), dump_exception(error)]
    return msgpack.packb(facts, unicode_errors="backslashreplace")


def pack_error(error: Error) -> bytes:
    """Return the report of one of this package's own errors."""
    return msgpack.packb([_ERROR, pickle.dumps(error)])


def load_report(data: bytes | memoryview) -> Exception:
    """Return the exception a report stands for."""
    kind, *facts = msgpack.unpackb(data)
    if kind == _ERROR:
        return pickle.loads(facts[0])
    *known, original = facts
    return remote_error(*known, cause=load_exception(original))


def format_traceback(error: BaseException) -> str:
    """Return the traceback as text, without this package's own frames at its top."""
    tb: TracebackType | None = error.__traceback__
    while tb is not None and "/monarch_async/runtime/" in tb.tb_frame.f_code.co_filename:
        tb = tb.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, tb))
    except Exception as broken:  # an exception whose __str__ or __repr__ raises
        return f"<no traceback: formatting it raised {type(broken).__name__}>"
