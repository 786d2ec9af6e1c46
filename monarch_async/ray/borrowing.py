"""What one process lends of its objects to others, and borrows of theirs: see `entry` for the rules.

ray_borrow [number]     answered with whether there is such an object; who asks is a borrower until it gives it back
ray_drop [number]       not answered
ray_value [number]      answered when the object is there, or failed
ray_cancel [number, by force, recursive], ray_free [number]     not answered
"""

import contextlib
import pickle
import threading
import weakref
from typing import TYPE_CHECKING, Any

from monarch_async.control.worker import Exit
from monarch_async.errors import Error, Lost
from monarch_async.ids import host_of
from monarch_async.ray.entry import Borrowed, Entry, refs_of
from monarch_async.ray.exceptions import ObjectFreedError, ObjectLostError, OwnerDiedError
from monarch_async.ray.payload import Packed, Payload, Stored
from monarch_async.wire.payload import Ticketed, dumps, loads

if TYPE_CHECKING:
    from monarch_async.ray.runtime import Runtime


#: Seconds after which what others refer to, and nobody has submitted or put, will not come any more.
_EXPECTED_FOR = 10.0


class Borrowing:
    """All of one process. On the loop, but where it is said otherwise."""

    def __init__(self, runtime: "Runtime") -> None:
        """Nothing is lent or borrowed."""
        self._runtime = runtime
        self._own: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()
        # plain references, whose callbacks come when nobody can have the object any more; `__del__` comes before that
        self._borrowed: dict[tuple[int, int], weakref.ref[Borrowed]] = {}
        self._lock = threading.RLock()  # of all of these; a collection while it is held may only post
        self._lent: dict[int, tuple[Entry, set[int]]] = {}
        self._expected: dict[int, Entry] = {}  # at the hub: others refer to them already
        operations = runtime.domain.operations
        operations["ray_borrow"], operations["ray_drop"] = self._take_borrow, self._take_drop
        operations["ray_value"], operations["ray_cancel"] = self._take_value, self._take_cancel
        operations["ray_free"] = self._take_free
        runtime.domain.on_gone.append(self._gone)

    # -- lent ------------------------------------------------------------------------------------------------------

    def publish(self, entry: Entry) -> None:
        """Others are going to ask for it. On any thread."""
        if not isinstance(entry, Borrowed):
            self._own.setdefault(entry.number, entry)

    def lend(self, entry: Entry, borrower: int) -> None:
        """Another process refers to it from now on."""
        self.publish(entry)
        self._lent.setdefault(entry.number, (entry, set()))[1].add(borrower)

    def find(self, number: int) -> Entry | None:
        """Return an object of this process that others know; where the hub does not know it, it may only not yet.

        Who submits a task gives its results' references away at once, and they may come here before that does.
        """
        entry = self._own.get(number)
        if entry is not None or not self._runtime.is_driver:
            return entry
        expected = Entry(self._runtime, number, "an object")
        with self._lock:  # it may be claimed just now
            entry = self._own.setdefault(number, expected)
            if entry is expected:
                self._expected[number] = entry
        if entry is expected:
            self._runtime.post(self._runtime.loop.call_later, _EXPECTED_FOR, self._give_up, number)
        return entry

    def claim(self, number: int, what: str, borrower: int) -> Entry:
        """Return the object of this number, which another process has submitted or put, and refers to."""
        claimed = Entry(self._runtime, number, what)
        with self._lock:
            entry = self._expected.pop(number, None) or self._own.setdefault(number, claimed)
        entry.what = what
        self.lend(entry, borrower)
        return entry

    def _give_up(self, number: int) -> None:
        entry = self._expected.pop(number, None)
        if entry is not None:
            entry.fail(_missing(number))

    def _take_borrow(self, src: int, call: int, number: int) -> None:
        entry = self.find(number)
        if entry is not None:
            self.lend(entry, src)
        self._runtime.domain.answer(src, call, entry is not None)

    def _take_drop(self, src: int, call: int, number: int) -> None:
        lent = self._lent.get(number)
        if lent is not None:
            lent[1].discard(src)
            if not lent[1]:
                del self._lent[number]

    def _take_value(self, src: int, call: int, number: int) -> None:
        entry = self.find(number)
        if entry is None:
            self._runtime.domain.answer(src, call, ["error", pickle.dumps(_missing(number))])
        elif not entry.when_done(lambda: self._answer(entry, src, call)):
            self._answer(entry, src, call)

    def _answer(self, entry: Entry, src: int, call: int) -> None:
        with contextlib.suppress(Error):  # who asked has gone
            self._runtime.domain.answer(src, call, said_of(entry, src, call))

    def _take_cancel(self, src: int, call: int, number: int, by_force: bool, is_recursive: bool) -> None:
        entry = self._own.get(number)
        if entry is not None and entry.cancel is not None:
            entry.cancel(by_force, is_recursive)

    def _take_free(self, src: int, call: int, number: int) -> None:
        entry = self._own.get(number)
        if entry is not None:
            self.free(entry)

    def free(self, entry: Entry) -> None:
        """Let go of a value. On any thread."""
        self._runtime.post(self.tell, entry, "ray_free")
        entry.free(ObjectFreedError(f"{entry.number:x}", why="it was freed by ray.internal.free"))

    def cancel(self, entry: Entry, by_force: bool, is_recursive: bool) -> None:
        """Cancel what an object is to be the result of."""
        self.tell(entry, "ray_cancel", by_force, is_recursive)
        if entry.cancel is not None:
            entry.cancel(by_force, is_recursive)

    def tell(self, entry: Entry, operation: str, *args: object) -> None:
        """Tell the owner of an object something about it, where that is another process."""
        if isinstance(entry, Borrowed):
            with contextlib.suppress(Error):
                self._runtime.domain.requests.post(entry.owner, operation, entry.number, *args)

    def _gone(self, exit: Exit) -> None:
        """A process, or a host, has ended."""
        for number, (_, borrowers) in list(self._lent.items()):
            if exit.is_host:
                borrowers -= {src for src in borrowers if host_of(src) == host_of(exit.address)}
            else:
                borrowers.discard(exit.address)
            if not borrowers:
                del self._lent[number]

    # -- borrowed --------------------------------------------------------------------------------------------------

    def borrow(self, owner: int, number: int, kept_by: object, is_known: bool = False) -> Entry:
        """Return an object of any process, as this one has it. On any thread.

        ``kept_by`` keeps it until the owner has been told; ``is_known``: it knows already.
        """
        if owner == self._runtime.address:
            own = self.find(number)
            if own is None:
                own = Entry(self._runtime, number, "an object")
                own.fail(_missing(number))
            return own
        key = owner, number
        known = self._borrowed.get(key)
        found = known() if known is not None else None
        if found is not None:
            return found
        entry = Borrowed(self._runtime, owner, number, kept_by)
        mine = weakref.ref(entry, lambda _: self._runtime.post(self.give_back, owner, number))
        with self._lock:  # other threads may unpickle the same
            known = self._borrowed.get(key)
            found = known() if known is not None else None
            if found is not None:
                return found
            self._borrowed[key] = mine
        if is_known:
            entry.settle()
        else:
            self._runtime.post(self._ask, entry)
        return entry

    def _ask(self, entry: Borrowed) -> None:
        async def ask() -> None:
            try:
                await self._runtime.domain.requests.ask(entry.owner, "ray_borrow", entry.number)
            except Error:
                pass  # who wants the value is told
            finally:
                entry.settle()

        self._runtime.start(ask())

    def give_back(self, owner: int, number: int) -> None:
        """The last reference here is gone; unless it has been borrowed anew since."""
        with self._lock:
            known = self._borrowed.get((owner, number))
            if known is None or known() is not None:
                return
            del self._borrowed[(owner, number)]
        if not self._runtime.domain.router.is_closed:
            with contextlib.suppress(Error):  # it has gone itself
                self._runtime.domain.requests.post(owner, "ray_drop", number)

    def fetch(self, entry: Borrowed) -> None:
        """Have the value come."""
        self._runtime.start(self._fetch(entry))

    async def _fetch(self, entry: Borrowed) -> None:
        try:
            said = await self._runtime.domain.requests.ask(entry.owner, "ray_value", entry.number)
            value = self.read(said, entry)
        except Lost as lost:
            entry.fail(OwnerDiedError(f"{entry.number:x}", why=f"the process that owns it is gone: {lost}"))
        except Exception as error:
            entry.fail(error)
        else:
            entry.complete(value)

    def read(self, said: Any, keeper: object) -> Packed:
        """Return what `said_of` says; raises the error that it is."""
        kind, data, *more = said
        if kind == "bytes":
            return data
        if kind == "error":
            raise pickle.loads(data)
        refs = [self._ref(owner, number, keeper) for owner, number in more[-1]]
        if kind == "payload":
            return Payload(data, more[0], refs)
        stored = loads(data)
        assert isinstance(stored, Stored)
        return Stored(stored.ref, refs)

    def _ref(self, owner: int, number: int, keeper: object) -> Any:
        from monarch_async.ray.object_ref import ObjectRef

        return ObjectRef(self.borrow(owner, number, keeper))


def _missing(number: int) -> ObjectLostError:
    return ObjectLostError(f"{number:x}", why="nobody referred to it any more")


def said_of(entry: Entry, receiver: int, call: int) -> list[Any]:
    """Return what is said of an object that is done, as msgpack packs it.

    References inside of it are named only: who asks borrows this object until their owners know of him.
    """
    if entry.error is not None:
        return ["error", pickle.dumps(entry.runtime.error_of(entry))]
    value = entry.value
    if isinstance(value, bytes):
        return ["bytes", value]
    inner = [(ref._entry.owner, ref._entry.number) for ref in refs_of(value)]
    for ref in refs_of(value):
        entry.runtime.borrowing.publish(ref._entry)
    if isinstance(value, Payload):
        return ["payload", value.skeleton, [bytes(buffer) for buffer in value.buffers], inner]
    assert isinstance(value, Stored)
    encoded = dumps(Stored(value.ref, ()))
    if isinstance(encoded, Ticketed):
        encoded.sent_to((receiver,), call, is_answer=True)
    return ["stored", encoded.skeleton, inner]
