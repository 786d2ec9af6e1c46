"""What hosts are doing right now: their procs, actors, and the calls in flight.

    print(await hosts.status())            # in the program
    $ monarch-async status URL             # from outside

Procs answer at once, also while their actors work: a plain ``def`` endpoint runs beside the loop that answers. One that
does not is ``blocked``: an endpoint holds its loop. What the agent knows without asking is shown then.
"""

import asyncio
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monarch_async.control.controller import Requests
from monarch_async.ids import address, format_address
from monarch_async.mesh.detached_status import DetachedStatus, merge_leases
from monarch_async.mesh.duration import format_age
from monarch_async.mesh.resource_status import ResourceStatus, parse_resources

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class CallStatus:
    """A call in flight: begun ``age`` seconds ago; ``caller`` is an endpoint, a proc or a client."""

    endpoint: str
    age: float
    caller: str


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """An actor; ``queued`` calls wait in its mailbox."""

    name: str
    state: str
    queued: int
    calls: tuple[CallStatus, ...]


@dataclass(frozen=True, slots=True)
class ProcStatus:
    """A proc: ``starting``, ``up`` or ``blocked``; ``rss`` in bytes, shared pages included."""

    name: str
    pid: int
    state: str
    rss: int
    actors: tuple[ActorStatus, ...]


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """A program that uses this host; one that is not connected for so many seconds (``away``) keeps its procs.

    Until it was not for ``window`` seconds: the agent's `Config.resume_window`.
    """

    name: str
    away: float
    window: float

    @property
    def is_connected(self) -> bool:
        """Whether it is connected now."""
        return not self.away

    def __str__(self) -> str:
        if self.is_connected:
            return self.name
        return f"{self.name} (not connected for {format_age(self.away)}, gone after {self.window:g} s)"


@dataclass(frozen=True, slots=True)
class StoreShare:
    """Who keeps objects in a store: a proc or client, or another host for its own; ``nbytes`` of memory."""

    name: str
    address: int
    objects: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A host's store of shared objects (`monarch_async.put`), in bytes and counts.

    ``used`` of ``budget`` bytes of memory are taken (very small objects count more, as their number is limited too);
    ``waiting_puts`` and ``waiting_reads`` (of copies that are to come here) wait until that is less; ``spilled``
    objects, of ``spilled_bytes``, are on disk; ``pulls`` copies are on their way from other hosts. ``holders``: who
    keeps what, the largest first; what several keep is in each.
    """

    used: int
    budget: int
    objects: int
    waiting_puts: int
    waiting_reads: int
    spilled: int
    spilled_bytes: int
    pulls: int
    holders: tuple[StoreShare, ...] = ()


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A host: ``load`` is the mean number of runnable threads in the last minute; ``placed`` what placements hold.

    ``detached``: leases that have procs here; their ranks on hosts that were not asked count as gone.
    """

    name: str
    url: str
    pid: int
    load: float
    cpus: int
    clients: tuple[ClientStatus, ...]
    procs: tuple[ProcStatus, ...]
    store: StoreStatus
    placed: ResourceStatus
    detached: tuple[DetachedStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """Hosts at one moment, in rank order. ``str()`` is a table."""

    hosts: tuple[HostStatus, ...]

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=100, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip()

    def __rich__(self) -> "Group":
        """Return the table that rich prints."""
        from rich.console import Group

        return Group(*[part for host in self.hosts for part in (_headline(host), _table(host), "")])


async def fetch_status(requests: Requests, hosts: Sequence[int]) -> Status:
    """Ask the agents of these host ids; they answer within about a second, whatever their procs do.

    Raises HostLost where one is gone.
    """
    asked = [requests.send(address(host, 0), "status") for host in hosts]
    return parse_status(await asyncio.gather(*asked))


def parse_status(answers: Sequence[Mapping[str, Any]]) -> Status:
    """Return the answers of agents; callers get the names they have on any of these hosts."""
    names: dict[int, str] = {}
    for answer in answers:
        names.update({address: name for name, _, _, address in answer["guests"]})
        names.update({proc["address"]: _proc_name(proc) for proc in answer["procs"]})
    rows: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for answer in answers:
        for row in answer["leases"]:
            rows[row["id"]].append(row)
    leases = {id: merge_leases(of_one) for id, of_one in rows.items()}
    return Status(tuple(_host(answer, names, leases) for answer in answers))


def _proc_name(proc: Mapping[str, Any]) -> str:
    return f"{proc['mesh']}[{proc['rank']}]"


def _host(
    answer: Mapping[str, Any], names: Mapping[int, str], leases: Mapping[int, DetachedStatus]
) -> HostStatus:
    clients = [
        ClientStatus(name, away, answer["window"]) for name, role, away, _ in answer["guests"] if role == "client"
    ]
    procs = sorted(answer["procs"], key=lambda proc: (proc["mesh"], proc["rank"]))
    facts = {key: answer[key] for key in ("name", "url", "pid", "load", "cpus")}
    store = StoreStatus(**answer["store"], holders=tuple(StoreShare(*share) for share in answer["holders"]))
    placed = parse_resources(answer)
    detached = tuple(leases[row["id"]] for row in answer["leases"])
    parts = tuple(_proc(proc, names) for proc in procs)
    return HostStatus(clients=tuple(clients), procs=parts, store=store, placed=placed, detached=detached, **facts)


def _proc(proc: Mapping[str, Any], names: Mapping[int, str]) -> ProcStatus:
    actors = []
    for actor in proc.get("actors", ()):
        calls = [
            CallStatus(endpoint, age, caller or names.get(src, format_address(src)))
            for endpoint, age, src, caller in actor["running"]
        ]
        calls.sort(key=lambda call: -call.age)
        actors.append(ActorStatus(actor["name"], actor["state"], actor["queued"], tuple(calls)))
    return ProcStatus(_proc_name(proc), proc["pid"], proc["state"], proc["rss"], tuple(actors))


# -- the table ---------------------------------------------------------------------------------------------------------

_STYLES = {"blocked": "bold red", "failed": "bold red", "starting": "yellow"}


def _headline(host: HostStatus) -> "Text":
    from rich.text import Text

    return Text.assemble(
        (host.name, "bold"),
        f"  {host.url}  pid {host.pid}\n",
        f"load {host.load:.1f} on {host.cpus} cpus  clients: {', '.join(map(str, host.clients)) or 'none'}",
        f"\n{host.placed}\n",
        *[f"detached {lease}\n" for lease in host.detached],
        _store_line(host.store),
    )


def _store_line(store: StoreStatus) -> "Text":
    """Return how full a store is, and what else there is to tell."""
    from rich.text import Text

    line = Text(f"store {store.used / 1e9:.1f} of {store.budget / 1e9:.1f} GB, objects: {store.objects}")
    if store.spilled:
        line.append(f", on disk: {store.spilled} ({store.spilled_bytes / 1e9:.1f} GB)")
    if store.pulls:
        line.append(f", arriving: {store.pulls}")
    if waiting := store.waiting_puts + store.waiting_reads:
        line.append(f", waiting for room: {waiting}", "bold red")
        shares = [f"{share.name} ({share.objects}, {share.nbytes / 1e9:.1f} GB)" for share in store.holders[:5]]
        line.append(f"; held by {', '.join(shares) or 'nobody'}")
    return line


def _table(host: HostStatus) -> "Table | str":
    """Procs, below each its actors, below each the calls it runs."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if not host.procs:
        return "no procs"
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in ("proc, actor, call", "state"):
        table.add_column(name, overflow="fold")
    for name in ("pid", "memory", "queued", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("called by", overflow="fold")

    def add(name: str, state: str = "", *cells: str) -> None:
        table.add_row(Text(name), Text(state, _STYLES.get(state, "")), *map(Text, cells))

    for proc in host.procs:
        add(proc.name, proc.state, str(proc.pid or ""), _megabytes(proc.rss))
        for actor in proc.actors:
            add(f"  {actor.name}", actor.state, "", "", str(actor.queued))
            for call in actor.calls:
                add(f"    {call.endpoint}", "", "", "", "", format_age(call.age), call.caller)
    return table


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB" if size else ""
