"""An agent's reservations: its `ledger`, opened to clients, and the procs that hang on what is booked there.

    reserve [placement, held, label, ports]  book it; answered with that many free ports of this machine, or, where it
                                             does not fit, with {"taken": what others hold}
    free [placements]                        end them, and their procs; not answered
    lend [placement, is_lent]                its cpus are given back, or taken again; not answered
    port []                                  one more free port, answered with a list

Other clients are told of changes, once per turn of the loop: ``taken [held]``, what others than they hold in all.

R1. What ends takes its procs along (their spec names the placement), and nobody is told that he has anything here
    before they are gone.
R2. No proc starts in a placement that has ended.
"""

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

from monarch_async.control.ledger import Ledger
from monarch_async.control.placement_messages import NOTHING, pack_held, unpack_held
from monarch_async.control.workers import Workers
from monarch_async.scheduler.events import Held
from monarch_async.scheduler.resources import Resources

#: How many of the last ports given out are not given again.
_RECENT = 64


class Reservations:
    """See the module. ``ledger`` has the books; ``operations`` are the agent's to take."""

    def __init__(
        self,
        resources: Resources,
        workers: Workers,
        answer: Callable[[int, int, object], None],
        post: Callable[..., None],
    ) -> None:
        """``answer(dst, call, value)`` answers a request; ``post(dst, operation, *arguments)`` makes one."""
        self.ledger = Ledger(resources)
        self.operations: dict[str, Callable[..., None]] = {
            "reserve": self._reserve, "free": self._free, "lend": self._lend, "port": self._port
        }  # fmt: skip
        self._workers, self._answer, self._post = workers, answer, post
        #: The name of the detached lease that procs of a placement are of: it keeps that on. Empty: none.
        self.keeper: Callable[[int], str] = lambda placement: ""
        self._loop = asyncio.get_running_loop()
        self._told: dict[int, Held] = {}  # by client: what it was told that others hold
        self._is_telling = False
        self._ending: set[asyncio.Future[None]] = set()  # of procs whose placement has ended
        self._ports: list[int] = []

    # -- clients ---------------------------------------------------------------------------------------------------

    def joined(self, client: int) -> None:
        """A client has come: it is told what others hold, if they do."""
        self._told[client] = NOTHING
        self.changed()

    def left(self, client: int) -> None:
        """A client is gone for good, and what it holds ends; see `ledger` for what does not."""
        self._told.pop(client, None)
        for placement in self.ledger.placements_of(client):
            self._keep(client, placement)
        self.end(self.ledger.forget(client), "the agent: its client is gone")
        self.changed()

    def changed(self) -> None:
        """The books have changed: have everybody hear of it whom it concerns."""
        if not self._is_telling:
            self._is_telling = True
            self._loop.call_soon(self._tell)

    def _changed_by_client(self) -> None:
        if len(self._told) > 1:
            self.changed()

    def _tell(self) -> None:
        self._is_telling = False
        for client, told in list(self._told.items()):
            held = self.ledger.elsewhere(client)
            if held != told:
                self._told[client] = held
                self._post(client, "taken", pack_held(held))

    def facts(self, name_of: Callable[[int], str]) -> dict[str, Any]:
        """Return what the status shows: what there is, and who holds what."""
        rows = [
            [entry.label, entry.placement, entry.lease or name_of(entry.client), pack_held(entry.held), entry.is_lent]
            for entry in self.ledger.entries
        ]
        return {"resources": self.ledger.resources.pack(), "reservations": rows}

    # -- procs -----------------------------------------------------------------------------------------------------

    def end(self, placements: Sequence[int], why: str) -> None:
        """These placements are in the books no more: end their procs at once."""
        gone = set(placements)
        orphans = [worker for worker in self._workers.living() if worker.spec.get("placement") in gone]
        self._workers.kill(orphans, signal.SIGKILL, why)
        for worker in orphans:
            self._ending.add(worker.gone)
            worker.gone.add_done_callback(self._ending.discard)

    def find_ended(self, specs: Sequence[dict[str, Any]]) -> dict[int, str]:
        """Return {proc id: why} of those that cannot start: their placement has ended (R2)."""
        known = self.ledger.has
        ended = [spec for spec in specs if spec.get("placement") and not known(spec["placement"])]
        return {spec["id"]: "its placement has ended" for spec in ended}

    # -- requests --------------------------------------------------------------------------------------------------

    def _reserve(self, src: int, call: int, placement: int, held: list[Any], label: str, ports: int) -> None:
        if not self.ledger.reserve(src, placement, unpack_held(held), label):
            self._answer(src, call, {"taken": pack_held(self.ledger.elsewhere(src))})
            return
        self._changed_by_client()
        free = self._find_ports(ports)
        if self._ending:
            asyncio.gather(*self._ending).add_done_callback(lambda _: self._answer(src, call, free))
        else:
            self._answer(src, call, free)

    def _free(self, src: int, call: int, placements: list[int]) -> None:
        kept = [placement for placement in placements if self._keep(src, placement)]
        freed = [placement for placement in placements if self.ledger.free(src, placement)]
        if kept:
            self.changed()
        if freed:
            self.end(freed, "the agent: its placement has ended")
            self._changed_by_client()

    def _keep(self, client: int, placement: int) -> bool:
        """A client gives up a placement: where detached procs use it, their lease keeps it. Return whether it does."""
        lease = self.keeper(placement)
        return bool(lease) and self.ledger.keep(client, placement, lease)

    def _lend(self, src: int, call: int, placement: int, is_lent: bool) -> None:
        if self.ledger.lend(src, placement, is_lent):
            self._changed_by_client()

    def _port(self, src: int, call: int) -> None:
        self._answer(src, call, self._find_ports(1))

    def _find_ports(self, count: int) -> list[int]:
        """Return ports that nobody uses now, on any of this machine's addresses; fewer where there are no more."""
        found: list[int] = []
        for _ in range(8 * count):
            if len(found) == count:
                break
            port = _free_port()
            if port is not None and port not in self._ports:
                self._ports = [*self._ports[1 - _RECENT :], port]
                found.append(port)
        return found


def _free_port() -> int | None:
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # the first is both, where it is
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                sock.bind((anywhere, 0))
                return sock.getsockname()[1]
        except OSError:
            continue
    return None
