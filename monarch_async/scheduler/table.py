"""Who holds what on which host, as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_async.scheduler.amounts import Need, number, size, together, total, words
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.shape import called

if TYPE_CHECKING:
    from monarch_async.scheduler.holdings import HostHoldings

ROWS = 32  #: hosts a table shows at most
HOLDERS = 6  #: kinds of holders a row shows at most


def table(hosts: Sequence["HostHoldings"], others: int = 0) -> str:
    """Return a table: for each host what is free of what, and who holds the rest. ``others``: hosts left out."""
    others += max(len(hosts) - ROWS, 0)
    if not hosts:
        return "no host has joined"
    customs = sorted({name for host in hosts for name, _ in host.total.custom})
    has_gpus = any(host.total.gpus for host in hosts)
    has_memory = any(host.total.memory for host in hosts)
    heads = ["host", "cpus", *(["gpus"] if has_gpus else []), *(["memory"] if has_memory else []), *customs, "held by"]
    rows = [heads]
    for host in hosts[:ROWS]:
        whole, free = total(host.total), total(host.free)
        row = [host.name + ("" if host.is_open else " (closed)"), _left(number(free.cpus), number(whole.cpus))]
        if has_gpus:
            row.append(_left(number(free.gpus), number(whole.gpus)))
        if has_memory:
            row.append(_left(size(free.memory), size(whole.memory)))
        for name in customs:
            row.append(_left(number(dict(free.custom).get(name, 0)), number(dict(whole.custom).get(name, 0))))
        rows.append([*row, _holders(host)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads) - 1)] + [0]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if others:
        lines.append(f"and {others} more hosts")
    return "\n".join(lines)


def _left(free: str, whole: str) -> str:
    return f"{free} of {whole} free" if whole.split()[0] != "0" else "none"


def _holders(host: "HostHoldings") -> str:
    kinds: dict[tuple[str, str], list[tuple[int, Need]]] = {}
    for holding in host.holdings:
        state = "recalled" if holding.is_recalled else "lent" if holding.is_lent else "within" if holding.within else ""
        kinds.setdefault((holding.name, state), []).append((holding.id, total(holding.held)))
    parts = [_holder(name, state, entries) for (name, state), entries in kinds.items()]
    if host.elsewhere != Held():
        parts.append(f"others: {words(total(host.elsewhere))}")
    return "; ".join(parts[:HOLDERS]) + more(len(parts) - HOLDERS) if parts else "nobody"


def _holder(name: str, state: str, entries: Sequence[tuple[int, Need]]) -> str:
    who = called(name, entries[0][0]) if len(entries) == 1 else f"{len(entries)} x {name}"
    return f"{who}{f' ({state})' if state else ''}: {words(together(need for _, need in entries))}"


def more(count: int) -> str:
    """Return how many are left out of an enumeration, in words."""
    return f" and {count} more" if count > 0 else ""
