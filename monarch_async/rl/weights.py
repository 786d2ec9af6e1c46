"""Weights that a learner makes again and again, and others use: the newest version, whole, between two steps.

    publisher = ma.WeightPublisher("policy")                # in the learner, or in the client; pass it to generators
    version = await publisher.publish(model.state_dict())   # then train on: the model may change

    subscriber = ma.WeightSubscriber(publisher)             # in a generator
    version = await subscriber.update(model)                # between two steps: copies the newest, if it is newer
    version, weights = await subscriber.newest()            # or uses the memory it is in
    async for version, weights in subscriber: ...           # or waits for each

A version is an immutable shared object, with one copy per host that all its procs read. Publishing costs one copy into
it, an update one copy out of it. Nobody waits for anybody: a publisher does not know who reads, and a subscriber that
was slow goes on with the newest version. Memory of versions that are neither kept nor read is used for later ones.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from monarch_async.bulk.copying import copy_pieces
from monarch_async.bulk.memory import copy, pair
from monarch_async.errors import BadCall, Closed, ObjectLost
from monarch_async.ids import agent_of
from monarch_async.mesh.buffer import at_leisure
from monarch_async.mesh.domain import active_domain, find_domain
from monarch_async.mesh.ref import Ref
from monarch_async.rl.publication import Publication, Question
from monarch_async.runtime.call import Call
from monarch_async.wire.exchange import Exchange
from monarch_async.wire.frame import WANTS_REPLY
from monarch_async.wire.message import CallFields, pack_call_fields
from monarch_async.wire.packed import Packed
from monarch_async.wire.payload import dumps

_ASK = CallFields("__newer__")
_ASK_CONTROL = pack_call_fields(_ASK)

#: A copy of up to this size takes less time than handing it to another thread.
_AT_ONCE = 256 << 10
#: Bytes of a larger one that are copied before others have their turn on the data plane's thread.
_SLICE = 8 << 20


class HasState(Protocol):
    """A ``torch.nn.Module``, or anything else with a ``state_dict()`` of tensors that are its own."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the tensors by name."""
        ...


class WeightPublisher:
    """Makes versions, 1, 2, 3 and so on. Pickles as a reference to itself, which is what subscribers are made of.

    It belongs to the actor that makes it (in the client: to the block) and ends with that.
    """

    __slots__ = ("_address", "_id", "name")

    def __init__(self, name: str = "weights", *, keep: int = 1, spread: bool = True) -> None:
        """Begin with no version.

        Args:
            name: what errors call it.
            keep: how many of the newest versions are kept though nobody reads them. The host needs room for one more
                while it is being published, and for those that are being read.
            spread: send a new version at once, along a chain, to the other hosts where somebody has asked lately.
                Otherwise a host fetches it when somebody there asks.

        Raises BadCall for ``keep`` below 1, Closed where this program has no hosts.
        """
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise BadCall("WeightPublisher", f"keep={keep!r}: expected a positive number")
        domain = find_domain() or active_domain()
        publication = Publication(domain, name, keep, spread)
        self.name, self._address, self._id = name, domain.router.address, publication.id

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.name, self._address, self._id)

    def __repr__(self) -> str:
        return f"<WeightPublisher of {self.name}>"

    @property
    def version(self) -> int:
        """The newest version; 0: none yet. Raises BadCall in any process but its own."""
        return self._find("version").version

    async def publish(self, weights: HasState | Mapping[str, Any]) -> int:
        """Make the next version of what the weights are now, and return its number. All who ask get it from then on.

        ``weights`` is a module, or a dict (or dicts, lists and tuples in each other) of tensors and arrays. Do not
        change them before this returns. Tensors of a device are brought here.

        Raises BadCall where something in there is no tensor, saying where, and in any process but its own; StoreFull
        where the host can never keep it; Closed after `aclose`.
        """
        active_domain()
        return await self._find("publish").publish(_state_of(weights))

    async def aclose(self) -> None:
        """End: subscribers get Closed. What they have mapped, they keep. Twice is fine. Raises BadCall elsewhere."""
        if find_domain() is not None:
            self._find("aclose").close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def _find(self, what: str) -> Publication:
        domain = find_domain()
        found = None
        if domain is not None and domain.router.address == self._address:
            found = domain.router.targets.get(self._id)
        if not isinstance(found, Publication):
            raise BadCall(f"{self.name}.{what}", "only the process that made the publisher can do that")
        return found


def _restore(name: str, address: int, id: int) -> WeightPublisher:
    publisher = WeightPublisher.__new__(WeightPublisher)
    publisher.name, publisher._address, publisher._id = name, address, id
    return publisher


class WeightSubscriber:
    """Moves from version to version of one publisher. Made where it is used; costs nothing while it is not.

    All that ask the publisher (every coroutine here) raise ProcDied, ActorDied or HostLost where that is gone, and
    Closed where it was closed; what was taken before stays. ObjectLost and StoreFull are as of `Ref`.
    """

    def __init__(self, publisher: WeightPublisher) -> None:
        """Has no version yet."""
        self._name, self._address, self._id = publisher.name, publisher._address, publisher._id
        self._version = self._copied = 0
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<WeightSubscriber of {self._name}, at version {self._version}>"

    @property
    def version(self) -> int:
        """The version taken last; 0: none."""
        return self._version

    async def update(self, into: HasState | Mapping[str, Any]) -> int:
        """Copy the newest version into a module or state dict, the same one every time, where that has an older one.

        Returns which is in there now; it does not wait for one, so that may be 0. Everything is compared first:
        structure, names, dtypes, shapes. The copy is made beside the loop: nothing should use ``into`` meanwhile. It is
        complete when this ends, also where it is cancelled.

        Raises BufferMismatch where ``into`` does not fit, BadCall where something in there is no tensor; nothing is
        changed then.
        """
        async with self._turn:
            found = await self._ask(self._copied, waits=False)
            if found is not None:
                version, ref = found
                packed = await self._load(ref, is_private=False)
                what, take = f"{self._name} version {version}", active_domain().router.pool.take
                exchange = packed.reading(_state_of(into), take, what, "into")
                await _to_its_end(self._move(version, packed, exchange))
            return self._copied

    async def newest(self) -> tuple[int, Any]:
        """Return the newest version and its weights: views of the one copy of this host; waits for the first version.

        They are as they were published, tensors on the CPU, and last as long as they are used. As with shared objects,
        arrays are read-only, and what is written to a tensor nobody else sees.
        """
        return await self._take(await self._ask(0, waits=True))

    async def wait_newer(self) -> int:
        """Wait for a version newer than `version`; return its number. Take it with `update` or `newest`."""
        return await self._ask(self._version, waits=True, takes=False)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Any]:
        """Wait for a version newer than `version`, and take it as `newest` does. Ends where the publisher is closed."""
        try:
            return await self._take(await self._ask(self._version, waits=True))
        except Closed:
            raise StopAsyncIteration from None

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _ask(self, version: int, waits: bool, takes: bool = True) -> Any:
        """Ask the publisher for a version that is newer."""
        domain = active_domain()
        router, publisher = domain.router, agent_of(self._address)
        question = Question(version, waits, takes, domain.store_agent(publisher))
        path = router.path(self._address, self._id)
        call: Call[Any] = Call(router, f"weights of {self._name}", path)
        call.id = router.register(call)
        call.nbytes = router.post(path, WANTS_REPLY, _ASK, _ASK_CONTROL, dumps(tuple(question)), call.id)
        return await call

    async def _load(self, ref: Ref[Packed], is_private: bool) -> Packed:
        domain = active_domain()
        try:
            packed = await domain.holdings.load(ref.keep(domain), is_private)
        except ObjectLost:
            await self._ask(0, waits=False, takes=False)  # where its host is lost, that is what is to be said
            raise
        assert isinstance(packed, Packed)
        return packed

    async def _take(self, found: tuple[int, Ref[Packed]]) -> tuple[int, Any]:
        version, ref = found
        weights = (await self._load(ref, is_private=True)).value()
        self._version = version
        return version, weights

    async def _move(self, version: int, packed: Packed, exchange: Exchange) -> None:
        pieces = pair(exchange.views, packed.cut(exchange.runs), _SLICE)
        if exchange.nbytes <= _AT_ONCE:
            for into, source in pieces:
                copy(into, source)
        else:
            await active_domain().router.plane.run(copy_pieces(pieces))
        if exchange.copies:
            await at_leisure(exchange.copied_bytes, exchange.copy)
        for memory in exchange.into:
            memory.note_change()
        self._version = self._copied = version


def _state_of(weights: object) -> Any:
    state_dict = getattr(weights, "state_dict", None)
    return state_dict() if callable(state_dict) else weights


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Do ``work``; where this is cancelled, not before that is done."""
    doing = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not doing.done():
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    doing.result()
