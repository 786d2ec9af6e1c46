"""The client's shell around the `Scheduler`: it feeds in what happens, and does what that answers.

What is granted is reserved at the agents of all its hosts at once; when the last has agreed, who waits is told. Where
one refuses (another client was first), the others free it, and the scheduler decides again, knowing better.

    asked ── Grant ──► reserving ── all agree ──► held ── withdraw, its holder is gone ──► (freed)
      ▲                    │
      └────── Refused ─────┘  one refuses, or is lost meanwhile

B1. Each ask is answered once, unless it is withdrawn first; after that its holder hears nothing.
B2. What agents of living hosts have reserved for this client is what the scheduler has granted and not released:
    requests to one agent arrive in the order in which the scheduler decided. (B4 is in `booking`.)
B3. Events are handled one at a time: what a holder does when it is told of one comes after it.
"""

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from monarch_async.control.booking import Booking
from monarch_async.control.controller import Controller
from monarch_async.control.holder import Granted, Holder
from monarch_async.control.host import Host
from monarch_async.control.membership import HostEvent
from monarch_async.control.placement_messages import unpack_held
from monarch_async.control.worker import Exit
from monarch_async.errors import Error, Unschedulable
from monarch_async.ids import AGENT, address, host_of, proc_of
from monarch_async.scheduler.demand import Demand
from monarch_async.scheduler.events import (
    Ask,
    Command,
    Declared,
    Event,
    Grant,
    Held,
    HolderGone,
    HostClosed,
    HostGone,
    HostOpened,
    HostUp,
    Lend,
    Lost,
    Recall,
    Reclaim,
    Refused,
    Reject,
    Release,
    TakenElsewhere,
    Tick,
    Warn,
    Withdraw,
)
from monarch_async.scheduler.holdings import Holdings
from monarch_async.scheduler.resources import Resources
from monarch_async.scheduler.scheduler import Scheduler
from monarch_async.scheduler.shape import described
from monarch_async.transport.url import Url

log = logging.getLogger("monarch_async")

LOOPBACK = "127.0.0.1"


class _Entry:
    """What one ask has come to."""

    __slots__ = ("address", "booking", "demand", "has_been_refused", "holder", "recalled_by")

    def __init__(self, demand: Demand, holder: Holder, address: int) -> None:
        """It waits."""
        self.demand, self.holder, self.address = demand, holder, address
        self.booking: Booking | None = None  #: once it was granted
        self.has_been_refused = False
        self.recalled_by = ""  #: for whom, where it was asked back before its holder had it

    @property
    def is_held(self) -> bool:
        """Whether its holder has been told that it has it."""
        return self.booking is not None and self.booking.is_complete


class Placer:
    """See the module. One per client."""

    def __init__(self, controller: Controller) -> None:
        """Take what the controller hears of hosts, procs and what others hold."""
        self._controller = controller
        self._loop = asyncio.get_running_loop()
        self.scheduler = Scheduler(controller.config.warn_after)
        self.hosts: dict[int, Host] = {}
        self._reach: dict[int, str] = {}  # by host: what it was dialled by; empty where only this machine can
        self._entries: dict[int, _Entry] = {}
        self._of_holder: defaultdict[int, set[int]] = defaultdict(set)
        self._taken: dict[int, Held] = {}  # by host, also of one that is not up yet
        self._events: deque[Event] = deque()
        self._is_handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed: Error | None = None
        controller.on_gone.append(self._gone)
        controller.operations["taken"] = self._take_taken

    # -- hosts -----------------------------------------------------------------------------------------------------

    def host_up(self, host: Host) -> None:
        """A host has joined, or re-joined empty."""
        if host.id in self.hosts:
            self.host_gone(host.id)
        self.hosts[host.id] = host
        url = Url.parse(host.url)
        self._reach[host.id] = "" if url.is_local_only else url.host
        self._handle(HostUp(host.id, host.name, host.resources))
        if host.id in self._taken:
            self._handle(TakenElsewhere(host.id, self._taken[host.id]))

    def host_gone(self, host: int) -> None:
        """A host is lost or has left, and with it what was placed there. Unknown ones do nothing."""
        self._taken.pop(host, None)
        self._reach.pop(host, None)
        if self.hosts.pop(host, None) is not None:
            self._handle(HostGone(host))

    def host_closed(self, host: int) -> None:
        """Nothing new goes there until `host_opened`."""
        self._handle(HostClosed(host))

    def host_opened(self, host: int) -> None:
        """New placements may go there again."""
        self._handle(HostOpened(host))

    def take_host_event(self, event: HostEvent) -> None:
        """What becomes of a host, as `membership` says."""
        host = event.host
        match event.kind:
            case "up" if host.id in self.hosts and event.was in ("suspect", "draining"):
                self.host_opened(host.id)
            case "up":
                self.host_up(host)
            case "suspect" | "draining":
                self.host_closed(host.id)
            case "lost" | "left":
                self.host_gone(host.id)
            case _:
                pass

    def declare(self, kinds: Sequence[tuple[Resources, int]]) -> None:
        """Say what hosts could be had on request, by kind, at most so many more of each. Replaces what was said."""
        self._handle(Declared(tuple(kinds)))

    def _take_taken(self, src: int, call: int, held: list[Any]) -> None:
        """An agent tells what others hold there."""
        host = host_of(src)
        self._taken[host] = unpack_held(held)
        if host in self.hosts:
            self._handle(TakenElsewhere(host, self._taken[host]))

    def _gone(self, exit: Exit) -> None:
        """A proc has ended, or a host with all its procs."""
        if exit.is_host:
            host = host_of(exit.address)
            if proc_of(exit.address) == AGENT:
                self.host_gone(host)
            for holder in [holder for holder in self._of_holder if host_of(holder) == host]:
                self._holder_gone(holder)
        elif exit.address in self._of_holder:
            self._holder_gone(exit.address)

    def _holder_gone(self, holder: int) -> None:
        for id in list(self._of_holder[holder]):
            self._forget(id)
        self._handle(HolderGone(holder))

    # -- who asks --------------------------------------------------------------------------------------------------

    def ask(self, id: int, demand: Demand, holder: Holder, owner: int = 0) -> None:
        """See `holder.Places`. ``owner``: the address of the process that asks; this client's own where not given."""
        if self._closed is not None:
            holder.take_refusal(self._closed)
            return
        owner = owner or self._controller.address
        self._entries[id] = _Entry(demand, holder, owner)
        self._of_holder[owner].add(id)
        self._handle(Ask(id, demand, owner))

    def withdraw(self, id: int) -> None:
        """See `holder.Places`."""
        if self._forget(id) is not None:
            self._handle(Withdraw(id))

    def lend(self, id: int) -> None:
        """See `holder.Places`."""
        self._lend(id, True)

    def reclaim(self, id: int) -> None:
        """See `holder.Places`."""
        self._lend(id, False)

    def _lend(self, id: int, is_lent: bool) -> None:
        """The agents hear of it before what is granted next."""
        entry = self._entries.get(id)
        if entry is None or entry.booking is None or not entry.is_held:
            return
        for host in {spot.host for spot in entry.booking.grant.spots} & self.hosts.keys():
            self._controller.requests.post(address(host, AGENT), "lend", id, is_lent)
        self._handle(Lend(id) if is_lent else Reclaim(id))

    async def explain(self, demand: Demand) -> str:
        """See `holder.Places`."""
        return self.scheduler.explain(demand, self._loop.time())

    async def holdings(self) -> Holdings:
        """See `holder.Places`."""
        return self.scheduler.holdings(self._loop.time())

    def holder_of(self, id: int) -> Holder | None:
        """Return who holds or waits for a placement."""
        entry = self._entries.get(id)
        return entry.holder if entry is not None else None

    def _forget(self, id: int) -> _Entry | None:
        entry = self._entries.pop(id, None)
        if entry is not None:
            if entry.booking is not None:
                entry.booking.stop()
            mine = self._of_holder[entry.address]
            mine.discard(id)
            if not mine:
                del self._of_holder[entry.address]
        return entry

    def close(self, error: Error) -> None:
        """The program leaves its hosts, which free what it holds. Who still waits fails with ``error``."""
        self._closed = error
        if self._timer is not None:
            self._timer.cancel()
        for id, entry in list(self._entries.items()):
            self._forget(id)
            if not entry.is_held:
                entry.holder.take_refusal(error)

    # -- the scheduler ---------------------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        """Have the scheduler decide, and do what it says (B3)."""
        self._events.append(event)
        if self._is_handling or self._closed is not None:
            return
        self._is_handling = True
        now = self._loop.time()
        try:
            while self._events:
                now = self._loop.time()
                for command in self.scheduler.handle(self._events.popleft(), now):
                    self._perform(command)
        finally:
            self._is_handling = False
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        """Wake when the scheduler wants to be told the time; a timer that rings early is set again then.

        ``now``: as it was told last. What has become due since would not be told any more.
        """
        when = self.scheduler.next_tick(now)
        if when is None or (self._timer is not None and self._timer.when() <= when):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        when = self.scheduler.next_tick(now)
        if when is not None and when <= now:
            self._handle(Tick())
        else:
            self._set_timer(now)

    def _perform(self, command: Command) -> None:
        match command:
            case Grant():
                self._reserve(command)
            case Release(id, hosts):
                self._free(id, hosts)
                self._released(id)
            case Reject(id, demand, why, table):
                if (entry := self._forget(id)) is not None:
                    entry.holder.take_refusal(Unschedulable(demand, why, table))
            case Lost(id, bundles):
                self._lose(id, bundles)
            case Recall(id, by):
                self._recall(self._entries.get(id), by)
            case Warn(_, text):
                log.warning("%s", text)

    # -- the agents (`booking.Booker`) ------------------------------------------------------------------------------

    def _reserve(self, grant: Grant) -> None:
        entry = self._entries.get(grant.id)
        if entry is not None:  # else withdrawn by who was told of something just before: its end is on the way
            requests, is_ordered = self._controller.requests, entry.has_been_refused
            entry.booking = Booking(self, requests, grant, entry.demand, is_ordered)

    def take_booked(self, booking: Booking) -> None:
        """All agents have agreed."""
        entry = self._entries[booking.grant.id]
        spots = tuple([(self.hosts[spot.host], spot.gpus) for spot in booking.grant.spots])
        entry.holder.take_grant(Granted(spots, self._addresses(booking.ports), booking.ports))
        if entry.recalled_by:
            self._recall(entry, entry.recalled_by)

    def _addresses(self, hosts: Iterable[int]) -> dict[int, str]:
        """Return how each of these hosts is reached from the others of them."""
        found = {host: self._reach[host] for host in hosts}
        if all(found.values()):
            return found
        is_one_machine = not any(found.values())
        own = LOOPBACK if is_one_machine else self._controller.own_address or LOOPBACK
        return {host: reach or own for host, reach in found.items()}

    def take_refused(self, booking: Booking, host: int, why: Held | Error) -> None:
        """One has not."""
        id = booking.grant.id
        entry = self._entries[id]
        if isinstance(why, Error):
            log.warning("%s was not reserved on %s: %s", entry.demand.name, self._name(host), why)
            self._free(id, [host])  # whatever has become of it there
        else:
            self._taken[host] = why
            self._handle(TakenElsewhere(host, why))
        self._refuse(id, entry, host)

    def _refuse(self, id: int, entry: _Entry, host: int) -> None:
        """It is not to be had so: it waits again."""
        if entry.booking is not None:
            entry.booking.stop()
        entry.booking, entry.recalled_by, entry.has_been_refused = None, "", True
        if id in self._entries:
            self._handle(Refused(id, host))

    def _recall(self, entry: _Entry | None, by: str) -> None:
        """Ask for a placement back: its holder, as soon as that has it."""
        if entry is None:
            return
        if entry.is_held:
            entry.holder.take_recall(by)
        else:
            entry.recalled_by = by

    def _name(self, host: int) -> str:
        return self.hosts[host].name if host in self.hosts else f"host {host:08x}"

    def _free(self, id: int, hosts: Sequence[int]) -> None:
        for host in hosts:
            if host in self.hosts:
                self._controller.requests.post(address(host, AGENT), "free", [id])

    def _released(self, id: int) -> None:
        """The scheduler has given a placement up: it waits again; or it has ended, with what it was within."""
        if self.scheduler.has(id) or (entry := self._forget(id)) is None:
            return
        if entry.is_held:
            entry.holder.take_end("what it was placed within has ended")
        else:
            why = "what it was to be placed within has ended"
            entry.holder.take_refusal(Unschedulable(described(entry.demand), why))

    def _lose(self, id: int, bundles: Sequence[int]) -> None:
        entry = self._entries.get(id)
        if entry is None or entry.booking is None:
            return
        if entry.is_held:
            entry.holder.take_loss(bundles)
        else:
            self._refuse(id, entry, entry.booking.grant.spots[bundles[0]].host)
