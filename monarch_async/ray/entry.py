"""Objects as one process has them: the result of a call, or what was put; its own, or borrowed from who owns it.

    E1. An object has one owner: the process that put it or made the call; the hub for what tasks submit. There it lives
        as long as there is a reference, here (`ObjectRef`), on its way (a ticket), or in a process that borrows it.
    E2. A process borrows an object once, whatever references it has, and tells the owner when the last one goes.
    E3. Who unpickles a reference has it from something that keeps the object: that is let go of when the owner has
        answered. So nothing depends on the order of messages to different owners.
"""

import asyncio
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_async.errors import Error, TransferError
from monarch_async.mesh.holding import Pin
from monarch_async.mesh.holdings import map_pinned
from monarch_async.ray.exceptions import (
    NodeDiedError,
    OutOfMemoryError,
    OwnerDiedError,
    RayTaskError,
    WorkerCrashedError,
    as_ray_error,
)
from monarch_async.ray.payload import Packed, Payload, Stored, held_by, unpack
from monarch_async.wire.payload import loads_shared

if TYPE_CHECKING:
    from monarch_async.ray.runtime import Runtime

log = logging.getLogger("monarch_async")

#: Ray's own: "1" where errors that nobody asks for are not to be told.
IGNORE_VARIABLE = "RAY_IGNORE_UNHANDLED_ERRORS"

#: Of which errors that is told: those of one's own code and process. What else there is has told itself, or was wanted.
_UNSEEN = (RayTaskError, WorkerCrashedError, OutOfMemoryError, NodeDiedError)

#: Seconds that the memory of a shared object stays where it is, at least, after somebody has got its value.
_PINNED_FOR = 1.0

#: Why nothing of a session comes any more.
OVER = "ray.shutdown() was called before it was there"

#: Of the callbacks of all entries: those who wait are on other threads than who completes.
_lock = threading.Lock()


class Unseen:
    """An error that nobody has asked for: told when its entry goes, as otherwise nobody would ever learn of it."""

    __slots__ = ("_actor", "_error", "_runtime", "_what", "is_seen")

    def __init__(self, entry: "Entry") -> None:
        """Not asked for until ``is_seen`` is set."""
        assert entry.error is not None
        self._runtime, self._what, self._error, self._actor = entry.runtime, entry.what, entry.error, entry.actor
        self.is_seen = False

    def __del__(self) -> None:
        if self.is_seen or self._runtime.is_over or os.environ.get(IGNORE_VARIABLE) == "1":
            return
        error = as_ray_error(self._error, self._what, self._actor)
        if isinstance(error, _UNSEEN):
            log.error("nobody has asked for the result of %s: %s", self._what, error)


class Entry:
    """An object of this process. Completed on the loop, once; waited for on any thread."""

    __slots__ = (
        "__weakref__", "_callbacks", "_unseen", "actor", "cancel", "error", "is_done", "is_seen", "number", "runtime",
        "value", "what",
    )  # fmt: skip
    is_held = True  #: see `mesh.ref_tickets`, for which an entry is what a ticket keeps
    _tells_unseen = True

    def __init__(self, runtime: "Runtime", number: int, what: str) -> None:
        """Not there yet. ``what`` names the call in errors."""
        self.runtime, self.number, self.what = runtime, number, what
        self.is_done = self.is_seen = False  #: seen: somebody has asked for it, who is told of its error
        self.value: Packed | None = None
        self.error: BaseException | None = None
        self.actor = ""  #: the id of the actor whose call it is the result of
        self.cancel: Callable[[bool, bool], None] | None = None  #: with whether by force, and recursively
        self._callbacks: list[Callable[[], object]] | None = []
        self._unseen: Unseen | None = None

    @property
    def owner(self) -> int:
        """The address of the process that owns it."""
        return self.runtime.address

    async def wait_held(self) -> None:
        """It is."""

    def want(self) -> None:
        """Have it come here; it does by itself. On any thread."""

    def complete(self, value: Packed) -> None:
        """It is there. On any thread."""
        self.value = value
        self._end()

    def arrive(self, value: Packed) -> None:
        """It has come. A shared object of this host is opened at once: who waits for it is about to get it."""
        if type(value) is Stored and value.ref.home == self.runtime.store:
            self.runtime.start(prefetch(value, self.runtime))
        self.complete(value)

    def free(self, error: BaseException) -> None:
        """Let go of the value: who asks for it from now on gets this error."""
        if self.is_done:
            self.error = error  # first: see `load`
            self.value = None

    def fail(self, error: BaseException) -> None:
        """It will never be there."""
        self.error = error
        if not self.is_seen and self._tells_unseen:
            self._unseen = Unseen(self)
        self._end()

    def see(self) -> None:
        """Somebody has asked for it."""
        self.is_seen = True
        unseen, self._unseen = self._unseen, None  # other threads may ask as well
        if unseen is not None:
            unseen.is_seen = True

    def _end(self) -> None:
        self.cancel = None
        with _lock:
            self.is_done = True
            callbacks, self._callbacks = self._callbacks, None
            if callbacks:
                self.runtime.awaited.discard(self)
        for callback in callbacks or ():
            try:
                callback()
            except Exception as error:  # the others are not to wait for ever
                self.runtime.report(f"{callback!r} failed", error)

    def when_done(self, callback: Callable[[], object]) -> bool:
        """Have this called on the loop when it is there; False: it is already, and nothing will be called.

        Of a session that is over nothing comes: what is not there yet has failed then.
        """
        is_over = False
        with _lock:
            if self._callbacks is None:
                return False
            if self.runtime.is_over:
                is_over = True
            else:
                self._callbacks.append(callback)
                self.runtime.awaited.add(self)
        if is_over:
            self.fail(OwnerDiedError(f"{self.number:x}", why=OVER))
            return False
        self.want()
        return True

    def forget(self, callback: Callable[[], object]) -> None:
        """Undo `when_done`."""
        with _lock:
            if self._callbacks is not None and callback in self._callbacks:
                self._callbacks.remove(callback)
                if not self._callbacks:
                    self.runtime.awaited.discard(self)


class Borrowed(Entry):
    """An object of another process."""

    __slots__ = ("_is_wanted", "_owner", "held", "kept_by")
    _tells_unseen = False  # that is its owner's

    def __init__(self, runtime: "Runtime", owner: int, number: int, kept_by: object) -> None:
        """``kept_by`` keeps it until the owner knows (E3)."""
        super().__init__(runtime, number, "an object")
        self._owner, self.kept_by = owner, kept_by
        self._is_wanted = False
        self.held: asyncio.Event | None = asyncio.Event()  #: None: the owner knows

    @property
    def owner(self) -> int:
        return self._owner

    @property
    def is_held(self) -> bool:  # type: ignore[override]
        """Whether the owner knows, or has been asked in vain."""
        return self.held is None

    async def wait_held(self) -> None:
        if self.held is not None:
            await self.held.wait()

    def settle(self) -> None:
        """The owner knows."""
        self.kept_by = None
        if self.held is not None:
            held, self.held = self.held, None
            held.set()

    def want(self) -> None:
        if not self._is_wanted:
            self._is_wanted = True
            self.runtime.post(self.runtime.borrowing.fetch, self)


def refs_of(value: object) -> Any:
    """Return the references inside of a value."""
    return value.refs if isinstance(value, Payload | Stored) else ()


def load(entry: Entry) -> object:
    """Return the value of an entry that is done, on any thread but the loop's. Raises what it failed with, as Ray's."""
    value = entry.value  # first: see `Entry.free`
    if entry.error is not None:
        raise entry.runtime.error_of(entry)
    assert value is not None
    return value_of(value, entry.runtime, entry)


async def wait_there(entry: Entry) -> None:
    """Wait until it is there, on the loop. Raises what it failed with, as Ray's. Its value is nobody's here."""
    if not entry.is_done:
        done = asyncio.Event()
        if entry.when_done(done.set):
            try:
                await done.wait()
            finally:
                entry.forget(done.set)
    if entry.error is not None:
        raise entry.runtime.error_of(entry)


async def load_on_loop(entry: Entry) -> object:
    """The same, on the loop."""
    value = entry.value
    if entry.error is not None:
        raise entry.runtime.error_of(entry)
    assert value is not None
    return await value_of_on_loop(value, entry)


def value_of(packed: Packed, runtime: "Runtime", keeper: object = None) -> Any:
    """Return what was packed, on any thread but the loop's, which does the unpickling: that may import things.

    The memory of a shared object is mapped, not copied. ``keeper`` is as of `unpack`.
    """
    if not isinstance(packed, Stored):
        return unpack(packed, keeper)
    mapped = None
    with contextlib.suppress(TransferError):  # it is gone, which is said below
        mapped = map_pinned(packed.pin or runtime.run(_pin(packed, runtime)))
    if mapped is None:
        return runtime.run(value_of_on_loop(packed, keeper))
    with held_by((keeper, packed)):
        return loads_shared(*mapped)


async def value_of_on_loop(packed: Packed, keeper: object = None) -> Any:
    """The same, on the loop."""
    if not isinstance(packed, Stored):
        return unpack(packed, keeper)
    with held_by((keeper, packed)):
        return await packed.ref


async def _pin(stored: Stored, runtime: "Runtime") -> Pin:
    """Keep the memory where it is for a moment: who gets a value often gets it again."""
    pin = stored.pin = await runtime.domain.holdings.take_pin(stored.ref.keep(runtime.domain))
    runtime.loop.call_later(_PINNED_FOR, _unpin, weakref.ref(stored))
    return pin


async def prefetch(stored: Stored, runtime: "Runtime") -> None:
    """Open an object. Where that cannot be, who gets it is told why."""
    with contextlib.suppress(Error):
        await _pin(stored, runtime)


def _unpin(stored: "weakref.ref[Stored]") -> None:
    if (known := stored()) is not None:
        known.pin = None
