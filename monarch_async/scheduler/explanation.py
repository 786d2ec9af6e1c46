"""Why a demand waits, in words: what is short, what is before it, and a table of who holds what."""

from collections.abc import Sequence

from monarch_async.scheduler.accounts import Accounts
from monarch_async.scheduler.amounts import Need, number, size, together, total, words
from monarch_async.scheduler.dispatch import Dispatch
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.holdings import Holdings, HostHoldings
from monarch_async.scheduler.placement_record import PlacementRecord
from monarch_async.scheduler.shape import described

ROWS = 32  #: hosts a table shows at most
HOLDERS = 6  #: kinds of holders a row shows at most
BEFORE = 5  #: how many of those that are before one are named


def explanation(record: PlacementRecord, accounts: Accounts, dispatch: Dispatch, holdings: Holdings, now: float) -> str:
    """Return why a placement that is not granted waits, or would wait, fit or be rejected if it were asked for now."""
    lines = [described(record.demand)]
    is_waiting = record.id in accounts.placements
    if is_waiting:
        lines[0] += f" has waited for {now - record.since:.0f} s"
    if why := accounts.shortfall(record.shape):
        lines.append(f"can never be placed: {why}")
    elif not is_waiting and (places := dispatch.fit(record, None, now)) is not None:
        counts: dict[str, int] = {}
        for book, _ in places:
            counts[book.name] = counts.get(book.name, 0) + 1
        lines.append("fits now: " + ", ".join(f"{count} on {name}" for name, count in counts.items()))
    else:
        lines += _reasons(record, accounts, dispatch, holdings, now)
    return "\n".join([*lines, table(holdings)])


def _reasons(
    record: PlacementRecord, accounts: Accounts, dispatch: Dispatch, holdings: Holdings, now: float
) -> list[str]:
    lines = [_short(record, accounts, now)]
    before = [waiter for waiter in dispatch.waiting if waiter.order < record.order]
    if before:
        named = ", ".join(called(waiter.demand.name, waiter.id) for waiter in before[:BEFORE])
        lines.append(f"before it: {named}{_more(len(before) - BEFORE)}")
    behind = sum(1 for waiter in dispatch.waiting if waiter.order > record.order)
    if behind:
        lines.append(f"behind it: {behind}")
    kept = next((waiter.kept_on for waiter in holdings.waiting if waiter.id == record.id), ())
    if kept:
        lines.append(f"what frees is kept for it on {', '.join(kept[:8])}{_more(len(kept) - 8)}")
    if record.expected and accounts.recalled:
        asked = ", ".join(called(other.demand.name, other.id) for other in list(accounts.recalled.values())[:BEFORE])
        lines.append(f"asked back: {asked}{_more(len(accounts.recalled) - BEFORE)}")
    return lines


def _short(record: PlacementRecord, accounts: Accounts, now: float) -> str:
    """Return what is short now."""
    shape = record.shape
    for relation, id in (("near", shape.near), ("within", shape.within and shape.within[0])):
        if id is not None and id in accounts.placements and not accounts.placements[id].is_granted:
            return f"placement {id}, {relation} which it is to be, waits itself"
    among = accounts.among(record, None, now)
    books = accounts.books.opened() if among is None else among
    if not books:
        return "no host that it may go to is there and open now"
    need = shape.needs[0]
    if len(shape.needs) == 1:
        return f"none of {_hosts(len(books))} has {words(need)} free"
    if not shape.is_uniform:
        return f"its {len(shape.needs)} bundles do not fit together on {_hosts(len(books))} now"
    most = 1 if shape.strategy == "strict_spread" else len(shape.needs)
    rooms = [book.room_for(need, most) for book in books]
    if shape.strategy == "strict_pack":
        return f"no single host has room for its {len(shape.needs)} bundles now; the emptiest has room for {max(rooms)}"
    return f"there is room for {min(sum(rooms), len(shape.needs))} of its {len(shape.needs)} bundles now"


def table(holdings: Holdings) -> str:
    """Return a table: for each host what is free of what, and who holds the rest."""
    hosts = holdings.hosts
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
    if len(hosts) > ROWS:
        lines.append(f"and {len(hosts) - ROWS} more hosts")
    return "\n".join(lines)


def called(name: str, id: int) -> str:
    """Return what a placement is called: its name, and of its id, which no other process may use, the last digits."""
    return f"{name} #{id % 10_000}"


def _left(free: str, whole: str) -> str:
    return f"{free} of {whole} free" if whole.split()[0] != "0" else "none"


def _holders(host: HostHoldings) -> str:
    kinds: dict[tuple[str, str], list[tuple[int, Need]]] = {}
    for holding in host.holdings:
        state = "recalled" if holding.is_recalled else "lent" if holding.is_lent else "within" if holding.within else ""
        kinds.setdefault((holding.name, state), []).append((holding.id, total(holding.held)))
    parts = [_holder(name, state, entries) for (name, state), entries in kinds.items()]
    if host.elsewhere != Held():
        parts.append(f"others: {words(total(host.elsewhere))}")
    return "; ".join(parts[:HOLDERS]) + _more(len(parts) - HOLDERS) if parts else "nobody"


def _holder(name: str, state: str, entries: Sequence[tuple[int, Need]]) -> str:
    who = called(name, entries[0][0]) if len(entries) == 1 else f"{len(entries)} x {name}"
    return f"{who}{f' ({state})' if state else ''}: {words(together(need for _, need in entries))}"


def _hosts(count: int) -> str:
    return f"{count} hosts" if count > 1 else "1 host"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
