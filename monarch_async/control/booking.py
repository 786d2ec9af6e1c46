"""One try to reserve what was granted, at the agents of all its hosts.

B4. Of two gangs of two clients that need the same hosts one gets them: who was refused asks his agents one after the
    other, in the order of their ids. Who holds the last that both need is refused nothing more.

All agents are asked at once first, as that takes one round trip, and clients that meet are rare. Two that go on so may
each refuse the other a host for ever.
"""

from collections import defaultdict
from functools import partial
from typing import Any, Protocol

from monarch_async.control.controller import Requests, read_answer
from monarch_async.control.placement_messages import NOTHING, pack_held, unpack_held
from monarch_async.errors import Error
from monarch_async.ids import AGENT, address
from monarch_async.runtime.call import Call
from monarch_async.scheduler.amounts import summed
from monarch_async.scheduler.demand import Demand
from monarch_async.scheduler.events import Grant, Held

#: Free ports that come with a placement, on the host of its first bundle: each mesh of procs uses one, and asks for
#: another. On the others one: they are for meshes of some of its bundles.
PORTS = 2


class Booker(Protocol):
    """Who is told how it went."""

    def take_booked(self, booking: "Booking") -> None:
        """All agents have agreed."""
        ...

    def take_refused(self, booking: "Booking", host: int, why: Held | Error) -> None:
        """One has not: others than this client hold so much there; or it has not even said that."""
        ...


class Booking:
    """See the module. One that is dropped (`stop`) tells nothing more; what it has reserved is its owner's to free."""

    __slots__ = ("_booker", "_demand", "_missing", "_requests", "_unasked", "grant", "ports")

    def __init__(self, booker: Booker, requests: Requests, grant: Grant, demand: Demand, is_ordered: bool) -> None:
        """Ask the agents; one after the other where ``is_ordered``."""
        self._booker: Booker | None = booker
        self._requests, self.grant, self._demand = requests, grant, demand
        self.ports: dict[int, list[int]] = {}  #: free ones, by host that has agreed
        by_host: defaultdict[int, list[Held]] = defaultdict(list)
        for spot, held in zip(grant.spots, grant.held, strict=True):  # within another, it is reserved already
            by_host[spot.host].append(held if demand.within is None else NOTHING)
        self._missing = len(by_host)
        self._unasked = sorted(by_host.items(), reverse=True) if is_ordered else []
        if is_ordered:
            self._ask(*self._unasked.pop())
        else:
            for host, parts in by_host.items():
                self._ask(host, parts)

    @property
    def is_complete(self) -> bool:
        """Whether all have agreed."""
        return not self._missing

    def stop(self) -> None:
        """Nobody waits for it any more."""
        self._booker = None

    def _ask(self, host: int, parts: list[Held]) -> None:
        ports = PORTS if host == self.grant.spots[0].host else 1
        held, label = pack_held(summed(parts)), self._demand.name
        call = self._requests.call(address(host, AGENT), "reserve", self.grant.id, held, label, ports)
        call.add_done_callback(partial(self._answered, host))

    def _answered(self, host: int, call: "Call[bytes]") -> None:
        failure, booker = call.exception(), self._booker
        if booker is None:
            return
        try:
            if failure is not None:
                raise failure
            answer: Any = read_answer(call.result())
        except Error as error:
            booker.take_refused(self, host, error)
            return
        if isinstance(answer, dict):
            booker.take_refused(self, host, unpack_held(answer["taken"]))
            return
        self.ports[host] = answer
        self._missing -= 1
        if self._unasked:
            self._ask(*self._unasked.pop())
        elif not self._missing:
            booker.take_booked(self)
