"""Calls in flight, seen from the caller: futures that were sent when they were made.

Both are `asyncio.Future`s, so they await, gather, time out and cancel like any other. Two things differ:

- `cancel` asks the other side to cancel and the future ends when that is acknowledged (or after ``cancel_grace``), so
  that a caller who was cancelled knows that its work has stopped.
- An exception that nobody looked at is not logged at exit but goes to supervision, like any other failure.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from monarch_async.errors import ActorDied, Lost, MeshError
from monarch_async.remote_error import RemoteError
from monarch_async.runtime.context import Context, current_context
from monarch_async.runtime.report import describe, load_report
from monarch_async.wire.frame import CANCELLED, FAILED, MSGPACK
from monarch_async.wire.payload import Buffer, loads

if TYPE_CHECKING:
    from monarch_async.runtime.path import Path
    from monarch_async.runtime.router import Router

T = TypeVar("T")

log = logging.getLogger("monarch_async")

#: An exception that nobody awaits, kept in a future, counts as unhandled after so many seconds.
UNSEEN = 5.0


class Pending(Protocol):
    """Whatever waits for replies to one call id. ``is_carrier``: it brings a failure to a caller who will see it."""

    is_carrier: bool

    def take_reply(self, src: int, flags: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        """Take one member's reply; return whether that was all."""
        ...

    def lose(self, gone: Callable[[int], bool], error: Exception) -> bool:
        """Fail what waits for members whose address ``gone`` knows; return whether nothing is left to wait for."""
        ...

    def has_member(self, gone: Callable[[int], bool]) -> bool:
        """Return whether it still waits for such a member."""
        ...


@dataclass(frozen=True, slots=True)
class Unseen:
    """A call failed and nobody looked: the error, the id of the actors that were called, and who called them."""

    error: BaseException
    what: str
    actor: int = 0
    caller: Context | None = None


class RemoteFuture(asyncio.Future[T]):
    """What call and mesh call share: cancelling remotely, and unseen failures."""

    __slots__ = ("caller", "id", "is_cancelling", "router", "what")
    is_carrier = True

    def __init__(self, router: "Router", what: str) -> None:
        """Belong to ``router``; ``what`` names the call: ``trainers[1].step``."""
        super().__init__(loop=router.loop)
        self.router, self.what = router, what
        self.caller = current_context()
        self.id = 0
        self.is_cancelling = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"{name}: {self.what} is on its way: await it, and ask its result")

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the remote coroutines; the future is cancelled once they acknowledged."""
        if self.done():
            return False
        if not self.is_cancelling:
            self.is_cancelling = True
            self.router.cancel(self)
        return True

    def give_up(self, msg: str | None = None) -> None:
        """End as cancelled, now."""
        if not self.done():
            super().cancel(msg)

    def give_up_with(self, errors: Sequence[BaseException], why: str = "") -> None:
        """End as cancelled; what went wrong meanwhile is in the CancelledError's text and in the log."""
        if errors and not self.done():
            why = f"{self.what} was cancelled; meanwhile {len(errors)} failed, first: {describe(errors[0])}"
            log.warning("%s", why)
        self.give_up(why or None)

    def fail(self, error: BaseException) -> None:
        """End with ``error``. One that nobody awaits and nobody looks at within `UNSEEN` seconds is reported."""
        self.set_exception(error)
        self.router.failures.note(self, error)
        if not self._callbacks:  # type: ignore[attr-defined]
            reference: weakref.ref[RemoteFuture[Any]] = weakref.ref(self)
            self.router.loop.call_later(UNSEEN, _check_seen, reference)

    def waits_for(self) -> "Iterable[Path]":
        """The members that have not answered yet; one that does before it is its turn is left out."""
        raise NotImplementedError

    @property
    def actor(self) -> int:
        """The id of the actors that are called."""
        raise NotImplementedError

    def report_if_unseen(self) -> None:
        """Hand an exception that nobody retrieved to supervision. The collector may do so on any thread."""
        if self._log_traceback:  # type: ignore[attr-defined]  # an exception that nobody retrieved
            self._log_traceback = False
            error = self.exception()
            if error is not None:
                self.router.failures.report(Unseen(error, self.what, self.actor, self.caller))

    __del__ = report_if_unseen


def _check_seen(reference: "weakref.ref[RemoteFuture[Any]]") -> None:
    future = reference()
    if future is not None:
        future.report_if_unseen()


def tells_of_a_start(error: BaseException) -> bool:
    """Return whether an error says that an actor did not come up."""
    if isinstance(error, MeshError):
        return any(map(tells_of_a_start, error.by_rank.values()))
    return isinstance(error, ActorDied) or (isinstance(error, RemoteError) and error.endpoint in ("__init__", "setup"))


def load_outcome(flags: int, skeleton: Buffer, buffers: Sequence[Buffer], what: str) -> tuple[object, Exception | None]:
    """Return (value, None) or (None, error) from the payload of a reply."""
    if flags & FAILED:
        return None, load_report(skeleton)
    try:
        return loads(skeleton, buffers), None
    except Exception as error:
        error.add_note(f"raised while unpickling the result of {what}")
        return None, error


class Call(RemoteFuture[T]):
    """A call of one member."""

    __slots__ = ("nbytes", "path")

    def __init__(self, router: "Router", what: str, path: "Path") -> None:
        """Wait for the member at ``path``."""
        super().__init__(router, what)
        self.path = path
        self.nbytes = 0

    def take_reply(self, src: int, flags: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        self.path.answered(self.nbytes)
        if self.done():
            return True
        if self.is_cancelling:
            errors = [load_report(skeleton)] if flags & FAILED else []
            self.give_up_with(errors, bytes(skeleton).decode() if flags & CANCELLED else "")
        elif flags & MSGPACK:
            self.set_result(bytes(skeleton))  # type: ignore[arg-type]
        elif not flags & FAILED:
            try:
                self.set_result(loads(skeleton, buffers))  # type: ignore[arg-type]
            except Exception as error:
                error.add_note(f"raised while unpickling the result of {self.what}")
                self.fail(error)
        else:
            self.fail(load_report(skeleton))
        return True

    def has_member(self, gone: Callable[[int], bool]) -> bool:
        return gone(self.path.dst)

    def lose(self, gone: Callable[[int], bool], error: Exception) -> bool:
        self.path.answered(self.nbytes)
        if self.is_cancelling:
            self.give_up()
        elif not self.done():
            self.fail(error)
        return True

    def waits_for(self) -> "Iterable[Path]":
        return iter((self.path,))

    @property
    def actor(self) -> int:
        return self.path.actor


class MembersCall(RemoteFuture[T]):
    """What is common to calls of several members: who has not answered yet."""

    __slots__ = ("_paths", "_places", "_waiting", "nbytes")

    def __init__(self, router: "Router", what: str, paths: "Sequence[Path]") -> None:
        """Wait for the members at ``paths``."""
        super().__init__(router, what)
        self._paths = paths
        self._places: dict[int, int] | None = None  # in ``paths``, by address
        self._waiting: set[int] = set(range(len(paths)))
        self.nbytes = 0

    def has_member(self, gone: Callable[[int], bool]) -> bool:
        return any(gone(self._paths[index].dst) for index in self._waiting)

    def waits_for(self) -> "Iterable[Path]":
        return (self._paths[index] for index in list(self._waiting) if index in self._waiting)

    @property
    def actor(self) -> int:
        return self._paths[0].actor

    def _answered(self, src: int, rank: int) -> int | None:
        """The member at ``src``, by its own word of this rank, has answered: return its place, None if not waited for.

        Rank and place differ where this is a call of a slice. And a proc that has no such actor, any more or yet, does
        not know what rank it had.
        """
        paths = self._paths
        place: int | None = rank
        if rank >= len(paths) or paths[rank].dst != src:
            if self._places is None:
                self._places = {path.dst: place for place, path in enumerate(paths)}
            place = self._places.get(src)
        if place is None or place not in self._waiting:
            return None
        self._waiting.remove(place)
        paths[place].answered(self.nbytes)
        return place

    def _take_lost(self, gone: Callable[[int], bool]) -> list[int]:
        """Return the places of the members that ``gone`` knows, which are waited for no longer."""
        lost = [index for index in self._waiting if gone(self._paths[index].dst)]
        self._waiting.difference_update(lost)
        for index in lost:
            self._paths[index].answered(self.nbytes)
        return lost


class MeshCall(MembersCall[T]):
    """A call of every member of a region: all results, or `MeshError`, or the first error where that was asked for.

    A member that is lost ends the call at once, in both modes: the others may wait for it for ever. What is still
    running then is cancelled.
    """

    __slots__ = (
        "_build",
        "_errors",
        "_first_error",
        "_results",
        "_why_cancelled",
        "on_each",
    )

    def __init__(
        self,
        router: "Router",
        what: str,
        paths: "Sequence[Path]",
        build: Callable[[list[Any]], T],
        first_error: bool,
    ) -> None:
        """``build`` makes the result of all values."""
        super().__init__(router, what, paths)
        self._build, self._first_error = build, first_error
        self._results: list[Any] = [None] * len(paths)
        self._errors: dict[int, Exception] = {}
        self._why_cancelled = ""
        self.on_each: Callable[[int, Any, Exception | None], None] | None = None

    def take_reply(self, src: int, flags: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        index = self._answered(src, rank)
        if index is None:
            return not self._waiting
        if self.done():
            pass
        elif self.is_cancelling:
            if flags & FAILED:
                self._errors[index] = load_report(skeleton)
            elif flags & CANCELLED and skeleton:
                self._why_cancelled = bytes(skeleton).decode()
        else:
            value, error = load_outcome(flags, skeleton, buffers, self.what)
            self._results[index] = value
            if error is not None:
                self._errors[index] = error
                if self._first_error:
                    self._end_early(error)
            if self.on_each is not None:
                self.on_each(index, value, error)
        if not self._waiting:
            self._finish()
            return True
        return False

    def lose(self, gone: Callable[[int], bool], error: Exception) -> bool:
        lost = self._take_lost(gone)
        for index in lost:
            if isinstance(error, Lost) or not self.is_cancelling:  # a cancelled call that was never sent has not failed
                self._errors[index] = error
            if self.on_each is not None and not self.done():
                self.on_each(index, None, error)
        if lost and not self.done() and not self.is_cancelling:
            before = [known for index, known in self._errors.items() if index not in lost]
            if before:  # perhaps why the member died
                error.add_note(f"{self.what}: before that {len(before)} failed, first: {describe(before[0])}")
            self._end_early(error)
        if not self._waiting:
            self._finish()
            return True
        return False

    def _end_early(self, error: Exception) -> None:
        if self.on_each is None:
            self.fail(error)
            self.router.cancel(self)  # the others go on for nobody

    def _finish(self) -> None:
        if self.done():
            return
        if self.is_cancelling:
            self.give_up_with(list(self._errors.values()), self._why_cancelled)
        elif self.on_each is not None:  # everything has been handed over one by one
            self.set_result(None)  # type: ignore[arg-type]
        elif not self._errors:
            self.set_result(self._build(self._results))
        elif len(self._results) == 1 or (self._first_error and len(self._errors) == 1):
            self.fail(next(iter(self._errors.values())))
        else:
            lost = next((e for e in self._errors.values() if isinstance(e, Lost)), None)
            self.fail(lost if lost is not None else self._mesh_error())

    def _mesh_error(self) -> MeshError:
        good = {i: value for i, value in enumerate(self._results) if i not in self._errors}
        return MeshError(f"{self.what}: {len(self._errors)} of {len(self._results)} members failed", self._errors, good)


class Start(MeshCall[None]):
    """Actors are made. Where that fails, calls that were sent meanwhile bring it to their callers: then it is known."""

    __slots__ = ()

    def report_if_unseen(self) -> None:
        if self._log_traceback and self.actor in self.router.failures.starts:  # type: ignore[attr-defined]
            self._log_traceback = False
        super().report_if_unseen()

    __del__ = report_if_unseen


class Broadcast(MembersCall[None]):
    """Resolves when every member has started the call. Nobody needs to await it: supervision hears of lost members."""

    __slots__ = ()
    is_carrier = False

    def take_reply(self, src: int, flags: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        self._answered(src, rank)
        if flags & FAILED and not self.done():
            self.fail(load_report(skeleton))
        return self._finish_if_complete()

    def lose(self, gone: Callable[[int], bool], error: Exception) -> bool:
        if self._take_lost(gone) and not self.done():
            self.fail(error)
            self._log_traceback = False  # supervision is told of the death itself
        return self._finish_if_complete()

    def _finish_if_complete(self) -> bool:
        if self._waiting:
            return False
        if self.is_cancelling:
            self.give_up()
        elif not self.done():
            self.set_result(None)
        return True
