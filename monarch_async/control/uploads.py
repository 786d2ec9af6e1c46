"""Arguments that several procs of this host were sent from another one: fetched once, into memory they all map.

U1. The first to ask for an upload starts it; the others wait for the same one. An asker's error is the upload's.
U2. The memory is given back when as many as were meant to have it have asked, or ended, and nobody looks any more; and,
    where some never ask (their call was cancelled on the way), a while after the last one who did has let go.
"""

import asyncio
from collections.abc import Sequence

from monarch_async.bulk.arena import Segment
from monarch_async.bulk.memory import offsets_of
from monarch_async.bulk.plane import DataPlane
from monarch_async.bulk.region import RemoteRegion
from monarch_async.errors import BadFrame

#: How long an upload that nobody looks at is kept for those who have not asked for it yet.
_PATIENCE = 30.0



class _Upload:
    """One of them. ``expected``: how many have not asked yet."""

    __slots__ = ("askers", "expected", "fetching", "timer")

    def __init__(self, fetching: "asyncio.Task[Segment]", expected: int) -> None:
        self.fetching, self.expected = fetching, expected
        self.askers: dict[int, int] = {}  # how often each has it mapped
        self.timer: asyncio.TimerHandle | None = None


class Uploads:
    """The uploads of one host, by who sends them and the name they gave."""

    def __init__(self, plane: DataPlane) -> None:
        """Fetch through the agent's own ``plane``."""
        self._plane = plane
        self._uploads: dict[bytes, _Upload] = {}

    def __len__(self) -> int:
        return len(self._uploads)

    async def open(
        self, asker: int, name: bytes, sizes: Sequence[int], region: bytes, fellows: int
    ) -> Sequence[object]:
        """Return the token of a segment with the parts (``sizes``) of a region, end to end but aligned.

        Raises BadFrame, and what `DataPlane.read` does.
        """
        upload = self._uploads.get(name)
        if upload is None:
            source = RemoteRegion.unpack(region)
            if sum(sizes) != source.size or min(sizes) < 0:
                raise BadFrame(f"an upload of {sum(sizes)} bytes from a region of {source.size}")
            fetching = asyncio.get_running_loop().create_task(self._fetch(source, sizes))
            upload = self._uploads[name] = _Upload(fetching, fellows)
        upload.expected -= 1
        upload.askers[asker] = upload.askers.get(asker, 0) + 1
        try:
            return (await asyncio.shield(upload.fetching)).token
        except BaseException:
            self.release(asker, name)
            raise

    async def _fetch(self, source: RemoteRegion, sizes: Sequence[int]) -> Segment:
        offsets, size = offsets_of(sizes)
        segment = await asyncio.to_thread(self._plane.arena.take, size)
        try:
            parts = [segment.view[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
            await self._plane.read(source, [(0, source.size)], parts)
        except BaseException:
            self._plane.arena.give_back(segment)
            raise
        return segment

    def release(self, asker: int, name: bytes) -> None:
        """A proc looks at it no longer, once."""
        upload = self._uploads.get(name)
        if upload is not None and asker in upload.askers:
            upload.askers[asker] -= 1
            if not upload.askers[asker]:
                del upload.askers[asker]
            self._settle(name, upload)

    def forget(self, asker: int) -> None:
        """A proc has ended."""
        for name, upload in list(self._uploads.items()):
            if upload.askers.pop(asker, None) is not None:
                self._settle(name, upload)

    def _settle(self, name: bytes, upload: _Upload) -> None:
        if upload.askers:
            return
        if upload.timer is not None:
            upload.timer.cancel()
        if upload.expected <= 0 or not _has_succeeded(upload.fetching):
            self._drop(name, upload)
        else:
            upload.timer = asyncio.get_running_loop().call_later(_PATIENCE, self._expire, name, upload)

    def _expire(self, name: bytes, upload: _Upload) -> None:
        if not upload.askers:
            self._drop(name, upload)

    def _drop(self, name: bytes, upload: _Upload) -> None:
        if self._uploads.get(name) is not upload:
            return
        del self._uploads[name]
        if _has_succeeded(upload.fetching):
            self._plane.arena.give_back(upload.fetching.result())
        else:
            upload.fetching.cancel()

    def close(self) -> None:
        """Stop fetching, forget all."""
        for name, upload in list(self._uploads.items()):
            if upload.timer is not None:
                upload.timer.cancel()
            self._drop(name, upload)


def _has_succeeded(fetching: "asyncio.Task[Segment]") -> bool:
    return fetching.done() and not fetching.cancelled() and fetching.exception() is None
