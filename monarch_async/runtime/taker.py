"""Takes large payloads from where they were offered (`outgoing`): reads memory, or maps a segment."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from monarch_async.bulk.arena import open_segment
from monarch_async.bulk.blocks import BlockPool
from monarch_async.bulk.memory import offsets_of
from monarch_async.bulk.plane import DataPlane
from monarch_async.bulk.region import RemoteRegion
from monarch_async.errors import BadFrame, Error
from monarch_async.runtime.outgoing import REGION, SEGMENT

log = logging.getLogger("monarch_async.bulk")

#: Called with the memory of each part, or None where it cannot be had that way.
Done = Callable[[list[memoryview] | None], None]


class Taker:
    """One per router."""

    def __init__(self, plane: DataPlane, pool: BlockPool) -> None:
        """What is read goes into memory of ``pool``."""
        self._plane, self._pool = plane, pool
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Has this host's agent fetch something once for several: (name, sizes of the parts, packed region, for how
        #: many), returns the token of a segment. ``release`` tells it that nobody here looks at that any longer. Set by
        #: who can ask.
        self.fetch_once: Callable[[bytes, Sequence[int], bytes, int], Awaitable[Sequence[object]]] | None = None
        self.release: Callable[[bytes], None] = lambda upload: None

    def take(self, offer: Sequence[object], sizes: Sequence[int], on_gone: Callable[[], None], done: Done) -> None:
        """Take a payload of these parts; ``done`` is called on the loop, at once or later.

        ``on_gone`` is called, on any thread, when nobody looks at a segment any more that was handed over here.
        """
        kind, *rest = offer
        if kind == SEGMENT:
            done(_open(rest[0], sizes, on_gone))  # type: ignore[arg-type]
        elif kind == REGION:
            data, upload, fellows = rest
            assert isinstance(data, bytes) and isinstance(upload, bytes) and isinstance(fellows, int)
            self._take_region(RemoteRegion.unpack(data), upload, fellows, sizes, done)
        else:
            raise BadFrame(f"an offer of {kind!r}")

    def _take_region(self, region: RemoteRegion, upload: bytes, fellows: int, sizes: Sequence[int], done: Done) -> None:
        runs = [(0, sum(sizes))]
        if not upload or self.fetch_once is None:
            into = [self._pool.take(size) if size else memoryview(b"") for size in sizes]
            try:
                was_read = self._plane.read_now(region, runs, into)
            except Exception as error:
                _log(region.endpoint.name, error)
                done(None)
                return
            if was_read:
                done(into)
            else:
                self._start(self._read(region, runs, into, done))
        else:
            self._start(self._share(region, upload, fellows, sizes, done))

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(
        self, region: RemoteRegion, runs: list[tuple[int, int]], into: list[memoryview], done: Done
    ) -> None:
        try:
            await self._plane.read(region, runs, into)
        except Exception as error:
            _log(region.endpoint.name, error)
            done(None)
        else:
            done(into)

    async def _share(self, region: RemoteRegion, upload: bytes, fellows: int, sizes: Sequence[int], done: Done) -> None:
        """Have the agent fetch it once for all of this host."""
        assert self.fetch_once is not None
        try:
            token = await self.fetch_once(upload, sizes, region.pack(), fellows)
        except Exception as error:
            _log(f"{region.endpoint.name} by way of the agent", error)
            done(None)
            return
        views = _open(token, sizes, lambda: self.release(upload))
        if views is None:
            self.release(upload)
        done(views)

    def close(self) -> None:
        """Take nothing more."""
        for task in self._tasks:
            task.cancel()


def _log(source: str, error: Exception) -> None:
    """It will come in chunks: nobody needs to know, unless it is our bug."""
    is_ours = not isinstance(error, Error | OSError)
    log.log(
        logging.ERROR if is_ours else logging.INFO,
        "cannot take a payload from %s, asking for chunks: %s", source, error, exc_info=error if is_ours else None,
    )  # fmt: skip


def _open(token: Sequence[object], sizes: Sequence[int], on_gone: Callable[[], None]) -> list[memoryview] | None:
    try:
        pid, fd, inode, size = token
        mapped = open_segment((pid, fd, inode, size), on_gone=on_gone)  # type: ignore[arg-type]
    except (Error, OSError) as error:
        _log("a segment", error)
        return None
    offsets, _ = offsets_of(sizes)
    return [mapped[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
