"""Tensors that others read and write where they are, without their owner's doing anything.

    handle = await ma.register(model.state_dict())      # small; send it to whom you like
    weights = await handle.fetch()                      # anywhere: a copy
    await handle["head.bias"].fetch(out=bias)           # a part, into memory that is there already
    await handle["embed.weight"].fetch(slice=slice(0, 100))
    await handle["head.bias"].write(bias)               # there when this returns

A handle says where memory is; it keeps none alive, and knows nothing of what is done with it. Who reads while the owner
writes may see some of both: epochs and `aclose` are for saying so, calls and replies for knowing when.
"""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from monarch_async.bulk.pinned import from_device, to_device
from monarch_async.bulk.region import RemoteRegion
from monarch_async.errors import BadCall, NoTransport, StaleHandle, TransferBroken, TransferError
from monarch_async.mesh.deathwatch import Deathwatch, find_fate
from monarch_async.mesh.domain import Domain, active_domain, find_domain
from monarch_async.mesh.progress import watch
from monarch_async.mesh.registration import Registration, check_lease, find_registration
from monarch_async.wire.exchange import Exchange, Pair, reading, writing
from monarch_async.wire.layout import Layout, describe, new_pairs, pair_up
from monarch_async.wire.strided import Index, Run

T = TypeVar("T")

#: Copies of more bytes than this are made on a thread.
_LONG_COPY = 4 << 20


async def register(value: T, *, lease: float | None = None, name: str = "", readonly: bool = False) -> "Handle[T]":
    """Let others read and write the memory of ``value``; return a handle for them.

    Args:
        value: a tensor or numpy array, or dicts, lists and tuples of them in each other, such as a state dict. Nothing
            is copied: others see later changes, and change it themselves.
        lease: seconds after which nobody may any more; by default it lasts until `Handle.aclose`, or until the actor
            that made it ends (in the client: the block).
        name: what errors, progress bars and tables call it.
        readonly: others may not write.

    Memory of devices is moved by UCX where that has CUDA, and through pinned memory here otherwise: `ma.transports`
    says which. Then it is copied after what has been queued by that time on the stream that is current now, and without
    holding that up. With UCX, who reads or writes must know that no kernel uses it.

    Raises BadCall where ``value`` has something else in it, saying where, and NoTransport for a device without streams.
    """
    domain = active_domain()
    name = name or "registered memory"
    registered = describe(value, "register")
    is_writable = registered.is_writable and not readonly
    registration, region = await Registration.make(domain, registered, is_writable, name, lease)
    return Handle(region, registered.layout, registration.region.epoch, name)


class Handle(Generic[T]):
    """Registered memory, or a part of it. Pickles; works from any proc."""

    __slots__ = ("_epoch", "_layout", "_name", "_region")

    def __init__(self, region: RemoteRegion, layout: Layout, epoch: int, name: str) -> None:
        """Made by `register`."""
        self._region, self._layout, self._epoch, self._name = region, layout, epoch, name

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._region.pack(), self._layout, self._epoch, self._name)

    def __repr__(self) -> str:
        leaf = self._layout.single
        what = f"{leaf.dtype} {list(leaf.place.shape)}" if leaf else f"{len(self._layout.leaves)} arrays"
        return f"<handle of {self._name}: {what}, {self.nbytes} bytes, of {self.owner}>"

    # -- what it is of ---------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """What its arrays are, and where in the region."""
        return self._layout

    @property
    def name(self) -> str:
        """What errors call it."""
        return self._name

    @property
    def owner(self) -> str:
        """The process whose memory it is."""
        return self._region.endpoint.name

    @property
    def nbytes(self) -> int:
        """Bytes that `fetch` brings."""
        return self._layout.nbytes

    @property
    def epoch(self) -> int:
        """How often `advance` was called before it was made, and one."""
        return self._epoch

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array. Raises BadCall where it is several."""
        return self._one("shape").place.shape

    @property
    def dtype(self) -> object:
        """The dtype of the array, as torch or numpy has it. Raises BadCall where it is several."""
        return self._one("dtype").real_dtype()

    def keys(self) -> tuple[Hashable, ...]:
        """Return the keys of the dict, or the indices of the list; none where it is one array."""
        return self._layout.keys

    def __getitem__(self, key: Hashable) -> "Handle[Any]":
        """Return a handle of a part: ``handle["layer.weight"]``. Raises UnknownPart."""
        return Handle(self._region, self._layout.part(key, self._name), self._epoch, f"{self._name}[{key!r}]")

    __iter__ = None  # type: ignore[assignment]  # else Python would count up through __getitem__

    def _one(self, what: str) -> Any:
        leaf = self._layout.single
        if leaf is None:
            raise BadCall(f"{self._name}.{what}", f"it is {len(self._layout.leaves)} arrays: choose one, handle[key]")
        return leaf

    # -- moving bytes ----------------------------------------------------------------------------------------------

    async def fetch(self, out: T | None = None, slice: Index | None = None, device: str | None = None) -> T:
        """Copy the memory here; return it in the same structure, with the same dtypes and shapes.

        Args:
            out: where to; same structure, dtypes and shapes, of torch or numpy. By default new memory.
            slice: some of one array: what goes between the brackets, ``slice(0, 10)``, ``(..., 3)``. ``out`` is as
                large as that.
            device: put the result there, ``"cuda:0"``. It gets there in pieces, through pinned memory of this process.

        Raises BufferMismatch where ``out`` or ``slice`` does not fit, and nothing is changed then; StaleHandle where it
        is registered no longer; ProcDied or HostLost where its owner is gone; ForeignHandle, NoTransport,
        TransferBroken. ``out`` may have been changed by all these.
        """
        domain = active_domain()
        layout = self._layout if slice is None else self._layout.sliced(slice, self._name)
        take = domain.router.pool.take
        if out is None:
            pairs, finish = new_pairs(layout, take, None if device is None else str(device), self._name)
        elif device is not None:
            raise BadCall(f"{self._name}.fetch", "out= says already where it goes: leave out device=")
        else:
            pairs, finish = pair_up(layout, out, self._name, "out"), None
        exchange = await self.read(domain, pairs)
        if finish is None:
            for memory in exchange.into:
                memory.note_change()
            return cast(T, out)
        return cast(T, finish())

    async def read(self, domain: Domain, pairs: Sequence[Pair]) -> Exchange:
        """Copy arrays of the region to memory here; see `fetch`. Return what was done."""
        exchange = reading(pairs, domain.router.pool.take, self._name, reaches_devices=True)
        await self._move(domain, "fetch", exchange)
        if exchange.copies:
            await at_leisure(exchange.copied_bytes, exchange.copy)
        return exchange

    async def write(self, source: T, slice: Index | None = None) -> None:
        """Copy ``source`` (same structure, dtypes, shapes; see `fetch`) into the memory; it is there when this returns.

        Leave ``source`` alone meanwhile. Raises as `fetch`, and TransferError where it was registered as read-only.
        """
        domain = active_domain()
        if not self._region.is_writable:
            raise TransferError(self._name, "it was registered as read-only")
        layout = self._layout if slice is None else self._layout.sliced(slice, self._name)
        pairs = pair_up(layout, source, self._name, "source")
        exchange = writing(pairs, domain.router.pool.take, self._name, reaches_devices=True)
        if exchange.copies:
            await at_leisure(exchange.copied_bytes, exchange.copy)
        await self._move(domain, "write", exchange)

    async def _move(self, domain: Domain, what: str, exchange: Exchange) -> None:
        plane = domain.router.plane
        watched = watch(f"{what} {self._name}", exchange.nbytes)
        owner = self._region.endpoint.address

        async def move(runs: Sequence[Run], views: Sequence[memoryview]) -> None:
            one_way = plane.read if what == "fetch" else plane.write
            await one_way(self._region, runs, views, watched and watched.advance)

        try:
            with Deathwatch(domain, owner):
                if exchange.beyond is None or exchange.runs:
                    await move(exchange.runs, exchange.views)
                if exchange.beyond is not None:
                    through = to_device if what == "fetch" else from_device
                    await through(move, exchange.runs_beyond, exchange.beyond)
        except StaleHandle as error:
            raise error if self._name in error.what else StaleHandle(self._name, error.why) from None
        except (TransferBroken, NoTransport) as error:
            fate = await find_fate(domain, owner)
            if fate is None:
                raise
            raise fate from error
        finally:
            if watched is not None:
                watched.end()

    # -- at the owner ----------------------------------------------------------------------------------------------

    async def advance(self) -> "Handle[T]":
        """Begin a new epoch: return the handle for it; all older ones are stale.

        Raises BadCall in any process but the owner, StaleHandle where it is registered no longer.
        """
        registration = self._registration("advance", active_domain())
        region = await registration.advance()
        return Handle(region, self._layout, registration.region.epoch, self._name)

    async def renew(self, lease: float | None) -> None:
        """Let it last so many seconds from now; None: until `aclose`. Raises as `advance`."""
        check_lease(f"{self._name}.renew", lease if lease is not None else 1)
        self._registration("renew", active_domain()).renew(lease)

    async def aclose(self) -> None:
        """Revoke it, also where this is the handle of a part or of an older epoch; return when nobody uses it any more.

        Twice is fine. Raises BadCall in any process but the owner.
        """
        domain = find_domain()
        if domain is None:  # it has ended with everything
            return
        registration = find_registration(domain, self._region, f"{self._name}.aclose")
        if registration is not None:
            await registration.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def _registration(self, what: str, domain: Domain) -> Registration:
        found = find_registration(domain, self._region, f"{self._name}.{what}")
        if found is None:
            raise StaleHandle(self._name, "it is no longer registered: closed, or its lease has run out")
        return found


def _restore(region: bytes, layout: Layout, epoch: int, name: str) -> Handle[Any]:
    return Handle(RemoteRegion.unpack(region), layout, epoch, name)


async def at_leisure(nbytes: int, copy: Callable[[], T]) -> T:
    """Call what copies so many bytes: here, or where that takes long on a thread."""
    return copy() if nbytes < _LONG_COPY else await asyncio.to_thread(copy)
