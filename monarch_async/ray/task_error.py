"""`RayTaskError`: what `get` raises where the code of a task or of an actor's method has raised.

It is of two classes at once, `RayTaskError` and that of the cause, so that ``except ValueError`` catches a task's
ValueError; and it must arrive in every process, whatever its cause is. Exceptions are bad travellers: their class may
be of ``__main__``, their constructor may want other arguments than `BaseException` remembers, a field may be a lock.
So a cause is packed apart from the error that carries it: as it is where that comes back whole, else its class, its
arguments and its fields without the constructor, each where it can travel, else (`RayError`) its text alone.
The text needs nothing of all that and is always there.
"""

import asyncio
import os
import pickle
import socket
import traceback
from typing import Any, Self

import cloudpickle

from monarch_async.remote_error import copy_state


class RayError(Exception):
    """Base of all errors of `monarch_async.ray`. ``standing``: what one says that was given no text."""

    standing = ""

    def __str__(self) -> str:
        return super().__str__() or self.standing


class RayTaskError(RayError):
    """The code of a task, or of an actor's method, raised.

    ``function_name``; ``traceback_str``, the traceback over there as text; ``cause``, the original exception (the
    innermost one where a task's error went through the `get` of another task); ``pid`` and ``ip`` of the process;
    ``actor_repr`` and ``actor_id`` of the actor, if it was one.
    """

    def __init__(
        self,
        function_name: str,
        traceback_str: str,
        cause: BaseException | None,
        proctitle: str | None = None,
        pid: int | None = None,
        ip: str | None = None,
        actor_repr: str | None = None,
        actor_id: str | None = None,
    ) -> None:
        super().__init__(function_name, traceback_str, cause, proctitle, pid, ip, actor_repr, actor_id)
        self.function_name, self.traceback_str, self.cause = function_name, traceback_str, cause
        self.proctitle, self.pid, self.ip = proctitle, pid, ip
        self.actor_repr, self.actor_id = actor_repr, actor_id

    @classmethod
    def of(
        cls, error: BaseException, function_name: str, actor_repr: str | None = None, actor_id: str | None = None
    ) -> Self:
        """Return the one to send for what user code has raised in this process."""
        cause = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
        where = socket.gethostname()
        return cls(function_name, traceback_text(error), cause, None, os.getpid(), where, actor_repr, actor_id)

    @classmethod
    def to_raise(
        cls, error: BaseException, function_name: str, actor_repr: str | None = None, actor_id: str | None = None
    ) -> "RayTaskError":
        """Return the same of both classes, for workers to raise: what matches an exception's class finds it."""
        return cls.of(error, function_name, actor_repr, actor_id).for_future()

    def as_instanceof_cause(self) -> "RayTaskError":
        """Return an error of both classes, this and the cause's; a plain `RayTaskError` where they cannot be joined.

        A new one each time: the frames that an error goes through are kept in it.
        """
        return _joined(self._facts(), self.cause)

    def for_future(self) -> "RayTaskError":
        """Return the same for a coroutine or an asyncio future; a plain `RayTaskError` for what means something there.

        Those are StopIteration, which neither may raise, and CancelledError, which would look like one's own.
        """
        if isinstance(self.cause, StopIteration | asyncio.CancelledError):
            return _plain(self._facts(), self.cause)
        return self.as_instanceof_cause()

    def _facts(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _FACTS)

    def __str__(self) -> str:
        where = ", ".join(
            part
            for part in (
                f"actor {self.actor_repr}" if self.actor_repr else "",
                f"pid={self.pid}" if self.pid else "",
                f"on {self.ip}" if self.ip else "",
            )
            if part
        )
        text = f"{self.function_name} raised {_headline(self.cause)}{f' ({where})' if where else ''}"
        return f"{text}\n\n{self.traceback_str.rstrip()}" if self.traceback_str else text

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.function_name}: {_headline(self.cause)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        is_joined = type(self) is not RayTaskError
        return _rebuild, (self._facts(), _pack(self.cause), is_joined)


_FACTS = ("function_name", "traceback_str", "proctitle", "pid", "ip", "actor_repr", "actor_id")


def traceback_text(error: BaseException) -> str:
    """Return the traceback of ``error`` from the first frame of user code on.

    Where it is itself an error of another task, that one's text comes first, as Python prints causes.
    """
    own = _frames_of_users(error)
    if not isinstance(error, RayTaskError):
        told = traceback.TracebackException(type(error), error, own)
        return "".join(told.format())
    text = f"{str(error).rstrip()}\n"
    if own is not None:
        text += f"\nIts `get` was here:\n{''.join(traceback.format_tb(own)).rstrip()}\n"
    return text


_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def _frames_of_users(error: BaseException) -> Any:
    """Leave out the frames that lead to user code and are ours; keep all where there is no user code."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_OURS):
        frame = frame.tb_next
    return frame or error.__traceback__


def _headline(cause: BaseException | None) -> str:
    """Return ``ValueError: its text``, in one line."""
    if cause is None:
        return "an exception"
    try:
        text = str(cause)
    except Exception:  # a class with a bad __str__
        text = ""
    first, _, more = text.partition("\n")
    name = type(cause).__qualname__
    return f"{name}: {first}{' ...' if more else ''}" if first else name


#: Bound into the class of both: what a cause says of itself must not hide what happened, and where.
_OWN = ("__str__", "__repr__", "__reduce__", "as_instanceof_cause", "for_future", "_facts")

_joined_classes: dict[type, type[RayTaskError]] = {}


def _class_of_both(original: type[BaseException]) -> type[RayTaskError]:
    if issubclass(original, RayTaskError) or not issubclass(original, Exception | asyncio.CancelledError):
        return RayTaskError  # SystemExit and KeyboardInterrupt would end more than the `get`
    found = _joined_classes.get(original)
    if found is None:
        namespace = {name: vars(RayTaskError)[name] for name in _OWN}
        namespace["__module__"] = RayTaskError.__module__
        namespace["__doc__"] = f"A task raised {original.__qualname__}."
        try:
            found = type(f"RayTaskError({original.__name__})", (RayTaskError, original), namespace)
        except Exception:  # a layout conflict, a class that may not be subclassed, a metaclass of its own
            found = RayTaskError
        _joined_classes[original] = found
    return found


def _joined(facts: tuple[Any, ...], cause: BaseException | None) -> RayTaskError:
    cls = RayTaskError if cause is None else _class_of_both(type(cause))
    if cls is not RayTaskError:
        assert cause is not None
        try:
            return _fill(cls, facts, cause)
        except Exception:  # a __new__ of its own, a field that cannot be set
            pass
    return _plain(facts, cause)


def _plain(facts: tuple[Any, ...], cause: BaseException | None) -> RayTaskError:
    function_name, traceback_str, *rest = facts
    return RayTaskError(function_name, traceback_str, cause, *rest)


def _fill(cls: type[RayTaskError], facts: tuple[Any, ...], cause: BaseException) -> RayTaskError:
    """Make an error of both classes without calling the cause's constructor."""
    if isinstance(cause, ExceptionGroup):
        error: Any = cls.__new__(cls, cause.message, cause.exceptions)  # type: ignore[call-arg]
    else:
        error = cls.__new__(cls)
    error.args = cause.args
    copy_state(cause, error)
    for name, value in zip(_FACTS, facts, strict=True):
        object.__setattr__(error, name, value)
    object.__setattr__(error, "cause", cause)
    return error


def _bare(cls: type[BaseException], args: tuple[Any, ...], fields: dict[str, Any]) -> BaseException:
    """Rebuild an exception from what it is, where its own constructor does not take its arguments."""
    error = cls.__new__(cls, *args)
    error.args = args
    for name, value in fields.items():
        object.__setattr__(error, name, value)
    return error


def _travels(value: Any) -> Any:
    """Return ``value`` where it can be pickled, else what it looks like."""
    try:
        pickle.loads(cloudpickle.dumps(value))
    except Exception:
        return repr(value)
    return value


_SCALARS = (str, int, float, bool, bytes, type(None))


def _is_plain(cause: object) -> bool:
    if not isinstance(cause, Exception) or type(cause).__module__ != "builtins" or vars(cause):
        return False
    return all(type(arg) in _SCALARS for arg in cause.args)


def _pack(cause: BaseException | None) -> bytes:
    """Return ``cause`` pickled so that `_unpack` cannot fail but for a class that is not there."""
    if cause is None:
        return b""
    if _is_plain(cause):
        return pickle.dumps(cause)  # the most frequent ones: nothing can go wrong
    try:
        data = cloudpickle.dumps(cause)
        if type(pickle.loads(data)) is type(cause):
            return data
    except Exception:
        pass
    try:
        fields = {name: _travels(value) for name, value in vars(cause).items()}
        args = tuple(_travels(value) for value in cause.args)
        _bare(type(cause), args, fields)
        return cloudpickle.dumps((type(cause), args, fields))
    except Exception:
        return cloudpickle.dumps(RayError(f"{_headline(cause)} (it cannot be pickled: only its text came here)"))


def _unpack(data: bytes) -> BaseException | None:
    if not data:
        return None
    try:
        found = pickle.loads(data)
        return _bare(*found) if isinstance(found, tuple) else found
    except Exception as error:
        return RayError(f"its class is not to be had in this process ({type(error).__name__}: {error})")


def _rebuild(facts: tuple[Any, ...], packed: bytes, is_joined: bool) -> RayTaskError:
    cause = _unpack(packed)
    return _joined(facts, cause) if is_joined else _plain(facts, cause)


for _class in (RayError, RayTaskError):  # where people import them from is what tracebacks say
    _class.__module__ = "monarch_async.ray.exceptions"
