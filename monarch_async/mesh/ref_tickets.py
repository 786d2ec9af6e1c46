"""References on their way: what keeps a shared object alive until every receiver holds it itself.

K1. A reference that is pickled issues a ticket, which keeps the object here. Whoever unpickles it first asks its own
    host to hold the object, then says to the issuer that it has *arrived*.
K2. A ticket whose receivers are known (`wire.ticket`) ends when all of them have arrived or died, or have said that it
    will not come any more: no call that waits there, unopened, is the issuer's; or, where it went with an answer, the
    call has been answered. They are asked about the former once the call that carried it has ended here.
K3. A ticket whose receivers nobody knows (pickled by hand) ends with its lease.

So nothing depends on the order of messages on different ways, and what a receiver never unpickles is not kept for ever.

On the wire a ticket is a call that the issuer has pending, to the target `ARRIVALS`: "arrived" is its REPLY; the
question is its CANCEL, or a CREDIT whose first number is the call that was answered.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from monarch_async.errors import Closed
from monarch_async.mesh.port import Intake
from monarch_async.runtime.answers import NOTHING
from monarch_async.runtime.incoming import CREDITS
from monarch_async.runtime.instance import Instance
from monarch_async.runtime.router import Router
from monarch_async.wire.frame import CANCEL, CREDIT, pack_frame
from monarch_async.wire.message import CallFields
from monarch_async.wire.payload import Buffer

if TYPE_CHECKING:
    from monarch_async.mesh.holding import Keeper

#: How long a ticket lasts whose receivers nobody knows.
LEASE = 60.0

#: The target of the questions, in every process; see `runtime.delivery`. Actors and ports have random ids of 63 bits.
ARRIVALS = 1

#: How often it is looked which calls have ended.
_SWEEP = 1.0


class RefTicket:
    """One reference, pickled once. A `runtime.call.Pending`, and a `wire.ticket.Ticket`."""

    __slots__ = ("_tickets", "asks_at", "keeper", "number", "patience", "waiting")
    is_carrier = False

    def __init__(self, tickets: "Tickets", keeper: "Keeper") -> None:
        """Keeps ``keeper``. Known to nobody before `sent`, or `Tickets.lease`."""
        self._tickets, self.keeper = tickets, keeper
        self.number = tickets.take_number()
        #: (call, whether it was answered), by the address of the receiver that has not arrived.
        self.waiting: dict[int, tuple[int, bool]] = {}
        self.asks_at = 0.0
        self.patience = _SWEEP

    def sent(self, receiver: int, call: int, is_answer: bool) -> None:
        """See `wire.ticket.Ticket`. On any thread."""
        is_known = bool(self.waiting)
        self.waiting[receiver] = call, is_answer
        if not is_known:
            self._tickets.add(self, _SWEEP if is_answer else 0.0)

    def take_reply(self, src: int, flags: int, rank: int, skeleton: Buffer, buffers: Sequence[Buffer]) -> bool:
        """One receiver has arrived, or never will."""
        return self._settle([src])

    def has_member(self, gone: Callable[[int], bool]) -> bool:
        """See `Pending`."""
        return any(map(gone, self.waiting))

    def lose(self, gone: Callable[[int], bool], error: Exception) -> bool:
        """Receivers are dead: so is what they would have held."""
        return self._settle([receiver for receiver in self.waiting if gone(receiver)])

    def _settle(self, receivers: Sequence[int]) -> bool:
        if not self.waiting:
            return False  # by hand: there may be others
        for receiver in receivers:
            self.waiting.pop(receiver, None)
        if not self.waiting:
            self._tickets.forget(self)
        return not self.waiting


class Tickets:
    """The tickets of one process: those it has issued, and those it is about to answer (`runtime.delivery.Target`)."""

    def __init__(self, router: Router, start: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """``start`` runs a coroutine in a task."""
        self._router, self._start = router, start
        self._thread = get_ident()
        self._live: set[RefTicket] = set()
        self._arriving: set[tuple[int, int]] = set()  # (issuer, ticket): unpickled, not answered yet
        self._sweep_handle: asyncio.TimerHandle | None = None
        router.targets[ARRIVALS] = self

    # -- issued here -----------------------------------------------------------------------------------------------

    def take_number(self) -> int:
        """Return what a ticket is called. On any thread."""
        return self._router.take_id()

    def add(self, ticket: RefTicket, lease: float) -> None:
        """Expect arrivals; for so long at least. On any thread, before the payload is sent by the loop."""
        if get_ident() == self._thread:
            self._add(ticket, lease)
        else:
            self._router.call_soon(self._add, ticket, lease)

    def _add(self, ticket: RefTicket, lease: float) -> None:
        if self._router.is_closed:
            return
        ticket.asks_at = self._router.loop.time() + lease
        self._live.add(ticket)
        self._router.pending[ticket.number] = ticket
        if self._sweep_handle is None:
            self._sweep_handle = self._router.loop.call_later(_SWEEP, self._sweep)

    def forget(self, ticket: RefTicket) -> None:
        """It has ended; so it keeps nothing."""
        self._live.discard(ticket)

    def _sweep(self) -> None:
        now = self._router.loop.time()
        for ticket in [ticket for ticket in self._live if now >= ticket.asks_at]:
            if ticket.waiting:
                self._ask(ticket, now)
            else:  # K3
                self._live.discard(ticket)
                self._router.pending.pop(ticket.number, None)
        is_needed = self._live and not self._router.is_closed
        self._sweep_handle = self._router.loop.call_later(_SWEEP, self._sweep) if is_needed else None

    def _ask(self, ticket: RefTicket, now: float) -> None:
        """K2. Who does not answer, as it may still come, is asked again, less and less often."""
        router = self._router
        has_asked = False
        for receiver, (call, is_answer) in ticket.waiting.items():
            if is_answer or call not in router.pending:
                has_asked = True
                kind, payload = (CREDIT, CREDITS.pack(call, 0)) if is_answer else (CANCEL, b"")
                question = pack_frame(kind, 0, receiver, router.address, ARRIVALS, ticket.number, b"", payload)
                with contextlib.suppress(Closed):
                    router.uplink(receiver).send(question)
        if has_asked:
            ticket.patience = min(2 * ticket.patience, LEASE)
            ticket.asks_at = now + ticket.patience

    def close(self) -> None:
        """Expect nothing more. Twice is fine."""
        if self._sweep_handle is not None:
            self._sweep_handle.cancel()
            self._sweep_handle = None
        self._live.clear()

    # -- arrived here ----------------------------------------------------------------------------------------------

    def arrived(self, keeper: "Keeper", issuer: int, number: int) -> None:
        """A reference with this ticket has been unpickled. On any thread."""
        self._arriving.add((issuer, number))
        if get_ident() == self._thread:
            self._answer(keeper, issuer, number)
        else:
            self._router.call_soon(self._answer, keeper, issuer, number)

    def _answer(self, keeper: "Keeper", issuer: int, number: int) -> None:
        if keeper.is_held:
            self._say(issuer, number)
        else:
            self._start(self._answer_later(keeper, issuer, number))

    async def _answer_later(self, keeper: "Keeper", issuer: int, number: int) -> None:
        await keeper.wait_held()
        self._say(issuer, number)

    def _say(self, issuer: int, number: int) -> None:
        self._arriving.discard((issuer, number))
        router = self._router
        if issuer == router.address:
            ticket = router.pending.get(number)
            if ticket is not None and ticket.take_reply(issuer, 0, 0, b"", ()):
                router.pending.pop(number, None)
        elif not router.is_closed:
            router.reply(issuer, number, 0, 0, NOTHING)

    # -- delivery.Target -------------------------------------------------------------------------------------------

    def cancel(self, src: int, call: int) -> None:
        """May a ticket still come with a call of this sender? If not, say so; if it has, that is said soon."""
        if (src, call) not in self._arriving and not self._may_come(src):
            self._say(src, call)

    def credit(self, src: int, call: int, items: int, nbytes: int) -> None:
        """May a ticket still come with an answer to this call (``items``) of ours?

        That is looked at a turn of the loop later: who awaits an answer may unpickle it only then.
        """
        self._router.loop.call_soon(self._look, src, call, items)

    def _look(self, src: int, call: int, answered: int) -> None:
        if (src, call) not in self._arriving and answered not in self._router.pending:
            self._say(src, call)

    def _may_come(self, src: int) -> bool:
        delivery = self._router.delivery
        if any(sender == src for sender, _ in delivery.held):
            return True
        for target in list(self._router.targets.values()):
            if isinstance(target, Instance):
                requests = [*target.mailbox.values(), *target.running.values()]
                if any(request.src == src and request.skeleton for request in requests):
                    return True
            elif isinstance(target, Intake) and target.has_waiting(src):
                return True
        return False

    def accept(
        self, src: int, call: int, flags: int, fields: CallFields, skeleton: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        """Nobody calls this."""
