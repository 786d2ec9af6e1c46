"""Placements asked for by workers: what they say to the client, where the `Placer` is, and what it says to them.

    place [id, demand]       answered when it is granted, with its spots and ports, or refused; with None once withdrawn
    withdraw [id]            answered
    lend [id, is_lent]       not answered
    explain [demand]         answered with a text
    holdings []              answered

    placement_lost [id, bundles], placement_recalled [id, by], placement_ended [id, why]     to the worker
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from monarch_async.control.controller import Controller, Requests, read_answer
from monarch_async.control.holder import Granted, Holder
from monarch_async.control.host import Host
from monarch_async.control.placement_messages import pack_demand, pack_holdings, unpack_demand, unpack_holdings
from monarch_async.control.placer import Placer
from monarch_async.control.refusal import pack_refusal
from monarch_async.errors import Error
from monarch_async.runtime.call import Call
from monarch_async.scheduler.demand import Demand
from monarch_async.scheduler.holdings import Holdings


class RemotePlacer:
    """In a worker: see `holder.Places`. ``operations`` are the worker's to take."""

    def __init__(self, requests: Requests, root: int) -> None:
        """``root`` is the client."""
        self._requests, self._root = requests, root
        self._holders: dict[int, Holder] = {}
        self.operations: dict[str, Callable[..., None]] = {
            "placement_lost": self._lost, "placement_recalled": self._recalled, "placement_ended": self._ended
        }  # fmt: skip

    def ask(self, id: int, demand: Demand, holder: Holder) -> None:
        """See `holder.Places`."""
        self._holders[id] = holder
        call = self._requests.call(self._root, "place", id, pack_demand(demand))
        call.add_done_callback(partial(self._answered, id))

    def _answered(self, id: int, call: "Call[bytes]") -> None:
        failure = call.exception()
        holder = self._holders.get(id)
        if holder is None:  # withdrawn
            return
        try:
            if failure is not None:
                raise failure
            answer = read_answer(call.result())
        except Error as error:
            del self._holders[id]
            holder.take_refusal(error)
            return
        holder.take_grant(_unpack_grant(answer))

    def withdraw(self, id: int) -> None:
        """See `holder.Places`."""
        if self._holders.pop(id, None) is not None:
            self._requests.post(self._root, "withdraw", id)

    def lend(self, id: int) -> None:
        """See `holder.Places`."""
        self._requests.post(self._root, "lend", id, True)

    def reclaim(self, id: int) -> None:
        """See `holder.Places`."""
        self._requests.post(self._root, "lend", id, False)

    async def explain(self, demand: Demand) -> str:
        """See `holder.Places`."""
        return await self._requests.ask(self._root, "explain", pack_demand(demand))

    async def holdings(self) -> Holdings:
        """See `holder.Places`."""
        return unpack_holdings(await self._requests.ask(self._root, "holdings"))

    def _lost(self, src: int, call: int, id: int, bundles: list[int]) -> None:
        if id in self._holders:
            self._holders[id].take_loss(bundles)

    def _recalled(self, src: int, call: int, id: int, by: str) -> None:
        if id in self._holders:
            self._holders[id].take_recall(by)

    def _ended(self, src: int, call: int, id: int, why: str) -> None:
        if id in self._holders:
            self._holders.pop(id).take_end(why)


def _pack_grant(granted: Granted) -> dict[str, Any]:
    hosts = list({host.id: host.pack() for host, _ in granted.spots}.values())
    spots = [(host.id, gpus) for host, gpus in granted.spots]
    return {"hosts": hosts, "spots": spots, "addresses": granted.addresses, "ports": granted.ports}


def _unpack_grant(packed: dict[str, Any]) -> Granted:
    hosts = {host.id: host for host in map(Host.unpack, packed["hosts"])}
    spots = tuple((hosts[host], tuple(gpus)) for host, gpus in packed["spots"])
    return Granted(spots, packed["addresses"], packed["ports"])


class _RemoteHolder:
    """In the client: a worker that asks."""

    def __init__(self, controller: Controller, worker: int, call: int, id: int) -> None:
        """``call`` is what is to be answered."""
        self._controller, self.worker, self._call, self._id = controller, worker, call, id

    def answer(self, value: object) -> None:
        """Answer the call, unless that has been done."""
        call, self._call = self._call, 0
        self._controller.answer(self.worker, call, value)

    def take_grant(self, granted: Granted) -> None:
        """See `holder.Holder`."""
        self.answer(_pack_grant(granted))

    def take_refusal(self, error: Error) -> None:
        """See `holder.Holder`."""
        self.answer(pack_refusal(error))

    def take_loss(self, bundles: Sequence[int]) -> None:
        """See `holder.Holder`."""
        self._controller.requests.post(self.worker, "placement_lost", self._id, bundles)

    def take_recall(self, by: str) -> None:
        """See `holder.Holder`."""
        self._controller.requests.post(self.worker, "placement_recalled", self._id, by)

    def take_end(self, why: str) -> None:
        """See `holder.Holder`."""
        self._controller.requests.post(self.worker, "placement_ended", self._id, why)


class RemoteHolders:
    """In the client: takes the requests of workers."""

    def __init__(self, controller: Controller, placer: Placer) -> None:
        """Open ``placer`` to them."""
        self._controller, self._placer = controller, placer
        controller.operations |= {
            "place": self._place, "withdraw": self._withdraw, "lend": self._lend,
            "explain": self._explain, "holdings": self._holdings,
        }  # fmt: skip

    def _place(self, src: int, call: int, id: int, demand: dict[str, Any]) -> None:
        self._placer.ask(id, unpack_demand(demand), _RemoteHolder(self._controller, src, call, id), src)

    def _withdraw(self, src: int, call: int, id: int) -> None:
        holder = self._placer.holder_of(id)
        if isinstance(holder, _RemoteHolder) and holder.worker == src:
            self._placer.withdraw(id)
            holder.answer(None)  # it waits no longer
        self._controller.answer(src, call, None)

    def _lend(self, src: int, call: int, id: int, is_lent: bool) -> None:
        """Also of a placement that another process holds, and this worker runs on: it is the one that waits."""
        self._placer.lend(id) if is_lent else self._placer.reclaim(id)

    def _explain(self, src: int, call: int, demand: dict[str, Any]) -> None:
        now = self._controller.router.loop.time()
        self._controller.answer(src, call, self._placer.scheduler.explain(unpack_demand(demand), now))

    def _holdings(self, src: int, call: int) -> None:
        now = self._controller.router.loop.time()
        self._controller.answer(src, call, pack_holdings(self._placer.scheduler.holdings(now)))
