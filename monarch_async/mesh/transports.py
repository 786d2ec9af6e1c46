"""Which way bytes go to and from each other process, how fast that was, and why a better one was not taken.

    print(ma.transports())
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_async.bulk.routes import RouteFacts
from monarch_async.mesh.domain import active_domain

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Transports:
    """The ways this process has found so far, the latest last. ``str()`` is a table; iterating gives the rows."""

    rows: tuple[RouteFacts, ...]

    def __iter__(self) -> Iterator[RouteFacts]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return "this process has moved no bytes to or from another yet"
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=120, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip()

    def __rich__(self) -> "Table":
        """Return the table that rich prints."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        table.add_column("peer", overflow="fold")
        table.add_column("transport")
        for name in ("moved", "GB/s"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("why no better one", overflow="fold")
        for row in self.rows:
            why = "\n".join(f"{name}: {reason}" for name, reason in row.reasons.items())
            speed = f"{row.speed / 1e9:.2f}" if row.nbytes else ""
            cells = (row.peer, row.transport, format_bytes(row.nbytes), speed, why)
            table.add_row(*map(Text, cells))
        return table


def transports() -> Transports:
    """Return which way this process's bytes go, by peer. Raises Closed outside a cluster."""
    return Transports(tuple(active_domain().router.plane.routes()))


def format_bytes(size: float) -> str:
    """Return a size in at most eight characters: ``17 B``, ``4.2 kB``, ``268 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
