"""A fixed pool of actors which work is handed to as they become free."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from monarch_async import ray
from monarch_async.ray.actor import ActorHandle
from monarch_async.ray.object_ref import ObjectRef

V = TypeVar("V")

Call = Callable[[ActorHandle, V], ObjectRef]


@dataclass(frozen=True, slots=True)
class _Running:
    """One call: what it gives, which actor it keeps busy, and its number in the order of submission."""

    ref: ObjectRef
    actor: ActorHandle
    number: int


class ActorPool(Generic[V]):
    """Actors which one call at a time is made to, each.

        pool = ActorPool([Worker.remote() for _ in range(4)])
        for result in pool.map(lambda actor, value: actor.double.remote(value), range(100)): ...

    What is submitted while all are busy waits here, without limit, until a result is taken: only then is its actor free
    again. Results come in the order of submission (`get_next`) or as they are ready (`get_next_unordered`); after the
    latter `get_next` goes on with what was submitted after the one that was taken.

    One thread may use it.
    """

    def __init__(self, actors: Iterable[ActorHandle]) -> None:
        """Make a pool of ``actors``, all of them idle."""
        self._idle = list(actors)
        self._running: dict[int, _Running] = {}  # by number
        self._waiting: deque[tuple[Call[V], V]] = deque()
        self._submitted = 0
        self._next = 0

    # -- submitting ------------------------------------------------------------------------------------------------

    def submit(self, fn: Call[V], value: V) -> None:
        """Call ``fn(actor, value)``, which returns a ref, with an idle actor; where there is none, once there is."""
        if not self._idle:
            self._waiting.append((fn, value))
            return
        actor = self._idle.pop()
        try:
            ref = fn(actor, value)
        except BaseException:
            self._idle.append(actor)
            raise
        self._running[self._submitted] = _Running(ref, actor, self._submitted)
        self._submitted += 1

    def map(self, fn: Call[V], values: Iterable[V]) -> Iterator[Any]:
        """Submit all ``values`` and iterate over the results, in their order. Earlier results that wait are dropped."""
        self._submit_all(fn, values)
        return self._results(self.get_next)

    def map_unordered(self, fn: Call[V], values: Iterable[V]) -> Iterator[Any]:
        """As `map`, with the results as they are ready."""
        self._submit_all(fn, values)
        return self._results(self.get_next_unordered)

    def _submit_all(self, fn: Call[V], values: Iterable[V]) -> None:
        while self._running:
            self._free(next(iter(self._running.values())))
        for value in values:
            self.submit(fn, value)

    def _results(self, get: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield get()

    # -- taking results --------------------------------------------------------------------------------------------

    def has_next(self) -> bool:
        """Whether a call was made whose result was not taken."""
        return bool(self._running)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return the next result in the order of submission, or raise what its call raised.

        Args:
            timeout: seconds to wait at most; None for any time.
            ignore_if_timedout: a result that does not come in time is given up, and its actor counts as idle.

        Raises StopIteration where nothing is pending, ValueError where `get_next_unordered` has taken a later one than
        all that are, and TimeoutError.
        """
        self._check_pending()
        running = self._running.get(self._next)
        if running is None:
            raise ValueError("all that is pending was submitted before what get_next_unordered took: use that again")
        return self._take(running, timeout, ignore_if_timedout)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """Return any result that is ready. Arguments and errors as of `get_next`; it is the oldest that is given up."""
        self._check_pending()
        by_ref = {running.ref: running for running in self._running.values()}
        ready, _ = ray.wait(list(by_ref), num_returns=1, timeout=timeout)
        running = by_ref[ready[0]] if ready else next(iter(self._running.values()))
        return self._take(running, 0, ignore_if_timedout)

    def _check_pending(self) -> None:
        if not self._running:
            raise StopIteration("nothing that was submitted is pending")

    def _take(self, running: _Running, timeout: float | None, gives_up: bool) -> Any:
        ready, _ = ray.wait([running.ref], num_returns=1, timeout=timeout)
        if ready or gives_up:
            self._free(running)
        if not ready:
            raise TimeoutError(f"call {running.number} of this pool has no result after {timeout} seconds")
        return ray.get(running.ref)

    # -- actors ----------------------------------------------------------------------------------------------------

    def _free(self, running: _Running) -> None:
        del self._running[running.number]
        self._next = max(self._next, running.number + 1)
        self._admit(running.actor)

    def _admit(self, actor: ActorHandle) -> None:
        self._idle.append(actor)
        if self._waiting:
            self.submit(*self._waiting.popleft())

    def has_free(self) -> bool:
        """Whether an actor is idle."""
        return bool(self._idle)

    def pop_idle(self) -> ActorHandle | None:
        """Take an idle actor out of the pool and return it; None where there is none."""
        return self._idle.pop() if self._idle else None

    def push(self, actor: ActorHandle) -> None:
        """Add an actor, which is idle. Raises ValueError where it is in the pool."""
        if actor in self._idle or any(running.actor == actor for running in self._running.values()):
            raise ValueError(f"{actor} is in this pool already")
        self._admit(actor)
