"""Tickets: how a value that is pickled learns who will receive it.

A reference to a shared object keeps the object alive until every receiver has a reference of its own. It cannot know
them: it is somewhere inside of what is pickled. So it issues a ticket while that happens. The pickler collects the
tickets (`payload.Ticketed`), and whoever sends the payload says to whom, and in which call. What is pickled by other
means than ours has nobody to collect its tickets: `collector` is None then.
"""

from contextvars import ContextVar
from typing import Protocol


class Ticket(Protocol):
    """What is told."""

    def sent(self, receiver: int, call: int, is_answer: bool) -> None:
        """The payload has been sent to the process at this address, in this call of ours, or to answer one of its."""
        ...


#: Tickets of what is being pickled here.
collector: ContextVar[list[Ticket] | None] = ContextVar("monarch_async_tickets", default=None)
