"""What a pool is doing, as a table."""

import io
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from monarch_async.mesh.duration import format_age

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica: its number, stage, host, leases on it now and leases that have ended on it, seconds in its stage."""

    number: int
    stage: str
    host: str
    leases: int
    served: int
    age: float


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool: its replicas, how many wait for one, and of what the last replica failed. ``str()`` is a table."""

    name: str
    replicas: tuple[ReplicaStatus, ...]
    waiting: int
    failures: int
    cause: str

    def pack(self) -> dict[str, Any]:
        """Return it for msgpack."""
        return asdict(self)

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> "PoolStatus":
        """Return what `pack` made."""
        return cls(**{**packed, "replicas": tuple(ReplicaStatus(**replica) for replica in packed["replicas"])})

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=100, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip()

    def __rich__(self) -> "Table":
        """Return the table that rich prints."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        title = f"pool {self.name}: {self.waiting} waiting"
        if self.failures:
            title += f"; {self.failures} failed in a row, the last: {self.cause}"
        elif self.cause:
            title += f"; last: {self.cause}"
        table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="")
        table.add_column("replica", justify="right")
        table.add_column("stage")
        table.add_column("host", overflow="fold")
        for name in ("leases", "served", "for"):
            table.add_column(name, justify="right")
        for one in self.replicas:
            age = format_age(one.age)
            table.add_row(str(one.number), one.stage, one.host, str(one.leases), str(one.served), age)
        return table
