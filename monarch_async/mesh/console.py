"""Where lines of procs appear: on this program's own stdout and stderr, each with its mesh and rank in front.

It writes as `print` does, and waits as `print` does: while the terminal or pipe takes nothing, this program reads
nothing from its agents, their buffers fill, and a proc that prints waits in its own `print`. Nothing is dropped.
"""

import sys
from collections.abc import Callable
from typing import TextIO

from monarch_async.control.log_lines import LineFold


class Console:
    """``on_broken`` is told once when nobody reads our output any more; what comes later is dropped."""

    def __init__(self, is_folding: bool, on_broken: Callable[[OSError | ValueError], None]) -> None:
        """``is_folding``: runs of identical lines of one stream become one line and a count."""
        self._is_folding, self._on_broken = is_folding, on_broken
        self._folds: dict[tuple[str, int, int], LineFold] = {}
        self._is_broken = False

    def show(self, mesh: str, rank: int, stream: int, lines: bytes) -> None:
        """Print lines that came together; ``stream`` is 1 for stdout, 2 for stderr."""
        split = lines.split(b"\n")
        if self._is_folding:
            split = self._folds.setdefault((mesh, rank, stream), LineFold()).feed(split)
        self._write(mesh, rank, stream, split)

    def close(self) -> None:
        """Print what folding still holds back."""
        for (mesh, rank, stream), fold in self._folds.items():
            self._write(mesh, rank, stream, fold.flush())
        self._folds.clear()

    def _write(self, mesh: str, rank: int, stream: int, lines: list[bytes]) -> None:
        if not lines or self._is_broken:
            return
        prefix = f"[{mesh} {rank}] "
        text = "".join(f"{prefix}{line.decode(errors='backslashreplace')}\n" for line in lines)
        out = sys.stdout if stream == 1 else sys.stderr
        try:
            _write(out, text)
        except (OSError, ValueError) as error:  # its reader has gone, or the program closed it
            self._is_broken = True
            self._on_broken(error)


def _write(out: TextIO, text: str) -> None:
    try:
        out.write(text)
    except UnicodeEncodeError:  # a terminal that knows ASCII only must not cost a line
        out.write(text.encode(out.encoding, "backslashreplace").decode(out.encoding))
    out.flush()
