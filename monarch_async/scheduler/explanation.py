"""Why a demand waits, in words: what is short, what is before it, and a table of who holds what."""

from monarch_async.scheduler.accounts import Accounts
from monarch_async.scheduler.amounts import total, words
from monarch_async.scheduler.dispatch import Dispatch
from monarch_async.scheduler.holdings import Holdings, free
from monarch_async.scheduler.placement_record import PlacementRecord
from monarch_async.scheduler.shape import called, described
from monarch_async.scheduler.table import more

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
    return "\n".join([*lines, holdings.table()])


def _reasons(
    record: PlacementRecord, accounts: Accounts, dispatch: Dispatch, holdings: Holdings, now: float
) -> list[str]:
    lines = [_short(record, accounts, now)]
    before = [waiter for waiter in dispatch.waiting if waiter.order < record.order]
    if before:
        named = ", ".join(called(waiter.demand.name, waiter.id) for waiter in before[:BEFORE])
        lines.append(f"before it: {named}{more(len(before) - BEFORE)}")
    behind = sum(1 for waiter in dispatch.waiting if waiter.order > record.order)
    if behind:
        lines.append(f"behind it: {behind}")
    kept = next((waiter.kept_on for waiter in holdings.waiting if waiter.id == record.id), ())
    if kept:
        lines.append(f"what frees is kept for it on {', '.join(kept[:8])}{more(len(kept) - 8)}")
    if record.expected and accounts.recalled:
        asked = ", ".join(called(other.demand.name, other.id) for other in list(accounts.recalled.values())[:BEFORE])
        lines.append(f"asked back: {asked}{more(len(accounts.recalled) - BEFORE)}")
    return lines


def _short(record: PlacementRecord, accounts: Accounts, now: float) -> str:
    """Return what is short now."""
    shape = record.shape
    for relation, id in (("near", shape.near), ("within", shape.within and shape.within[0])):
        if id is not None and id in accounts.placements and not accounts.placements[id].is_granted:
            return f"{called('placement', id)}, {relation} which it is to be, waits itself"
    among = accounts.among(record, None, now)
    books = accounts.books.opened() if among is None else among
    if not books:
        return "no host that it may go to is there and open now"
    need = shape.needs[0]
    if shape.within is not None:
        id, bundle = shape.within
        name = called(accounts.placements[id].demand.name, id)
        left, whole = words(total(free(books[0]))), words(total(books[0].total))
        return f"bundle {bundle} of {name} has {left} left of its {whole}"
    if len(shape.needs) == 1:
        if len(books) == 1:
            return "the only host that it may go to has less than that free"
        return f"none of {len(books)} hosts has {words(need)} free"
    if not shape.is_uniform:
        return f"its {len(shape.needs)} bundles do not fit together on {_hosts(len(books))} now"
    most = 1 if shape.strategy == "strict_spread" else len(shape.needs)
    rooms = [book.room_for(need, most) for book in books]
    if shape.strategy == "strict_pack":
        return f"no single host has room for its {len(shape.needs)} bundles now; the emptiest has room for {max(rooms)}"
    return f"there is room for {min(sum(rooms), len(shape.needs))} of its {len(shape.needs)} bundles now"


def _hosts(count: int) -> str:
    return f"{count} hosts" if count > 1 else "1 host"
