"""Where an agent's worker processes come from and where they end.

The nursery keeps one zygote per set of preload modules, passes orders to the zygote that has the worker, and
says through three callbacks what became of each. All of it runs on the agent's loop.

Invariants: every `Nursery.fork` is followed by exactly one of ``on_started`` and ``on_refused``, and every
``on_started`` by exactly one ``on_exited``, also when a zygote dies and when the nursery is closed; after
``on_exited`` nothing of that worker is left but what is still in its pipes; after `Nursery.aclose` nothing at
all.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from monarch_async import errors
from monarch_async.control.zygote_messages import Exited, Refused, Started
from monarch_async.control.zygote_process import ZygoteProcess

_Key = tuple[tuple[str, ...], tuple[str, ...]]


class Nursery:
    """Starts, watches and ends worker processes.

    Args:
        on_started: ``(id, pid)``: the worker is set up and its entry is about to run. The worker may be heard
            on its control connection before that.
        on_refused: ``(id, reason)``: there will be no such worker.
        on_exited: ``(id, pid, wait_status)``: it ended, with a status for `os.waitstatus_to_exitcode`. Its
            pipes may still hold what it printed.
        grace: seconds between SIGTERM and SIGKILL in `aclose`.
        host: name of this host, for errors.
    """

    def __init__(
        self,
        on_started: Callable[[int, int], None],
        on_refused: Callable[[int, str], None],
        on_exited: Callable[[int, int, int], None],
        grace: float = 5.0,
        host: str = "this host",
    ) -> None:
        self._on_started, self._on_refused, self._on_exited = on_started, on_refused, on_exited
        self._grace, self._host = grace, host
        self._zygotes: dict[_Key, ZygoteProcess] = {}
        self._zygote_of: dict[int, ZygoteProcess] = {}  # by worker id
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def start_zygote(self, preload: tuple[str, ...] = (), sys_path: Sequence[str] = ()) -> None:
        """Wait until the zygote that has imported ``preload`` is ready, starting it if there is none.

        ``sys_path`` says where the modules are found, beyond the agent's own ``sys.path``.

        Raises:
            SpawnFailed: a module cannot be imported, or leaves a process that cannot be forked. The next call
                tries again.
            Closed: the nursery is, or was closed meanwhile.
        """
        if self._closing is not None:
            raise errors.Closed("nursery")
        zygote = self._find_zygote(preload, sys_path)
        try:
            await asyncio.shield(zygote.ready)
        except RuntimeError as error:
            if self._closing is not None:
                raise errors.Closed("nursery") from None
            name = f"zygote({', '.join(preload)})"
            raise errors.SpawnFailed(name, self._host, str(error)) from None

    def fork(
        self,
        spec: Mapping[str, object],
        fds: Sequence[int],
        preload: tuple[str, ...] = (),
        sys_path: Sequence[str] = (),
    ) -> None:
        """Start a worker by the zygote of ``preload`` and ``sys_path``, which is started if there is none.

        ``spec`` is described in `bootstrap`; its ``id`` must be that of no other living worker. ``fds`` are
        the worker's ends of control connection, stdout and stderr: taken over, and closed here once they are
        on their way. Nothing is raised: what goes wrong comes as ``on_refused``, later.
        """
        id = spec["id"]
        assert isinstance(id, int)
        if self._closing is not None:
            for fd in fds:
                os.close(fd)
            asyncio.get_running_loop().call_soon(self._on_refused, id, "this host is shutting down")
            return
        assert id not in self._zygote_of, f"worker id {id} is taken"
        self._zygote_of[id] = zygote = self._find_zygote(preload, sys_path)
        zygote.fork(spec, fds)

    def signal(self, id: int, signo: int) -> None:
        """Send a signal to the worker's process group; nothing happens if it has ended."""
        zygote = self._zygote_of.get(id)
        if zygote is not None:
            zygote.signal(id, signo)

    def zygote_pids(self) -> list[int]:
        """Return the pids of the zygotes that are up."""
        return [zygote.pid for zygote in self._zygotes.values() if zygote.pid and not zygote.is_over]

    async def aclose(self) -> None:
        """End every worker (SIGTERM, after ``grace`` SIGKILL), then the zygotes; wait until all are gone."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> "Nursery":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _close(self) -> None:
        for id, zygote in self._zygote_of.items():
            zygote.signal(id, signal.SIGTERM)
        zygotes = list(self._zygotes.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                for zygote in zygotes:
                    if zygote.ready.done():  # orders to the others have not left yet, and never will
                        await zygote.is_empty.wait()
        await asyncio.gather(*(zygote.end() for zygote in zygotes))
        await asyncio.gather(*self._tasks)

    def _find_zygote(self, preload: tuple[str, ...], sys_path: Sequence[str]) -> ZygoteProcess:
        # without modules to find, or with nothing new to say where, the path makes no difference
        path = tuple(entry for entry in sys_path if entry not in sys.path) if preload else ()
        key = (preload, path)
        zygote = self._zygotes.get(key)
        if zygote is None or zygote.is_over:
            zygote = self._zygotes[key] = ZygoteProcess(preload, (*sys.path, *path), self._tell)
            task = asyncio.get_running_loop().create_task(self._run(key, zygote))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return zygote

    async def _run(self, key: _Key, zygote: ZygoteProcess) -> None:
        try:
            await zygote.run()
        finally:
            if self._zygotes.get(key) is zygote:
                del self._zygotes[key]

    def _tell(self, report: Started | Refused | Exited) -> None:
        match report:
            case Started(id, pid):
                self._on_started(id, pid)
            case Refused(id, reason):
                del self._zygote_of[id]
                self._on_refused(id, reason)
            case Exited(id, pid, wait_status):
                del self._zygote_of[id]
                self._on_exited(id, pid, wait_status)
            case _:
                assert_never(report)
