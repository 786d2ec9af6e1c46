"""Progress bars of transfers that take longer than a second, for who asks.

    with ma.progress():
        weights = await handle.fetch()

A transfer tells of its bytes on the data plane's thread, which costs an addition; the bar is drawn from there by rich,
which is imported with the first one that is shown. What has ended leaves one line, which is all where the output is no
terminal.
"""

import asyncio
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from monarch_async.mesh.transports import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

#: Seconds after which a transfer gets a bar.
_PATIENCE = 1.0


class Watched:
    """A transfer that has begun, while somebody watches."""

    def __init__(self, bars: "Bars", name: str, size: int) -> None:
        """It is shown when it has taken a while."""
        self.name, self.size, self.done = name, size, 0
        self.began = time.monotonic()
        self.has_ended = False
        self.task: TaskID | None = None
        self._bars = bars
        self._timer = asyncio.get_running_loop().call_later(bars.patience, bars.show, self)

    def advance(self, nbytes: int) -> None:
        """So many more bytes have moved. On any one thread."""
        self.done += nbytes

    def end(self) -> None:
        """It has ended, well or not."""
        self.has_ended = True
        self._timer.cancel()
        self._bars.hide(self)


class Bars:
    """See the module. Made by `progress`; a plain ``with`` block."""

    def __init__(self, console: "Console | None", patience: float) -> None:
        """Draw on ``console``; by default on stderr."""
        self._console, self.patience = console, patience
        self._shown: set[Watched] = set()
        self._progress: Progress | None = None
        self._before: Bars | None = None

    def __enter__(self) -> Self:
        global _bars
        self._before, _bars = _bars, self
        return self

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        global _bars
        _bars = self._before
        for watched in list(self._shown):
            self.hide(watched)

    def show(self, watched: Watched) -> None:
        """Draw a bar from now on."""
        progress = self._progress or self._start()
        watched.task = progress.add_task(watched.name, total=watched.size, completed=watched.done)
        self._shown.add(watched)

    def hide(self, watched: Watched) -> None:
        """Draw it no more; leave a line of what it was."""
        progress = self._progress
        if watched not in self._shown or progress is None or watched.task is None:
            return
        self._shown.discard(watched)
        progress.remove_task(watched.task)
        if not self._shown:
            self._progress = None
            progress.stop()
        progress.console.print(_summary(watched, time.monotonic() - watched.began), highlight=False, markup=False)

    def _start(self) -> "Progress":
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        shown = self._shown

        class Drawn(Progress):
            """Looks at how far the transfers are when it draws."""

            def get_renderables(self):  # type: ignore[no-untyped-def]
                for watched in list(shown):
                    if watched.task is not None and watched.task in self.task_ids:
                        self.update(watched.task, completed=watched.done)
                return super().get_renderables()

        console = self._console or Console(stderr=True)
        self._progress = Drawn(
            TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._progress.start()
        return self._progress


def _summary(watched: Watched, seconds: float) -> str:
    if watched.done < watched.size:
        return f"{watched.name}: ended after {format_bytes(watched.done)} of {format_bytes(watched.size)}"
    return f"{watched.name}: {format_bytes(watched.size)} in {seconds:.1f} s, {watched.size / seconds / 1e9:.2f} GB/s"


_bars: Bars | None = None


def progress(console: "Console | None" = None, patience: float = _PATIENCE) -> Bars:
    """Return a ``with`` block in which transfers of this process that take longer show a bar, on stderr by default.

    Args:
        console: of rich; draw there.
        patience: seconds after which one is shown.
    """
    return Bars(console, patience)


def watch(name: str, size: int) -> Watched | None:
    """A transfer of ``size`` bytes begins: return what is to be told of it, where there is a `progress` block."""
    return None if _bars is None or not size else Watched(_bars, name, size)
