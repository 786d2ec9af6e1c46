"""A path: one sender to one member, its order and its window."""

from collections import OrderedDict
from collections.abc import Callable

from monarch_async.errors import Backpressure
from monarch_async.ids import format_address
from monarch_async.transport.connection import Connection

#: Calls that may wait for a window, in windows.
_WAITING = 16

#: The queue of a path on which nothing has waited yet: a client of many actors has many of those.
_NONE: "OrderedDict[int, tuple[int, Callable[[], None]]]" = OrderedDict()


class Path:
    """One sender to one member."""

    __slots__ = ("actor", "connection", "dst", "inflight", "inflight_bytes", "queue", "turns", "window", "window_bytes")

    def __init__(self, dst: int, actor: int, connection: Connection, window: int, window_bytes: int) -> None:
        """Nothing in flight; ``window`` calls may be, or fewer that have ``window_bytes`` together."""
        self.dst, self.actor, self.connection = dst, actor, connection
        self.window, self.window_bytes = window, window_bytes
        self.inflight = 0
        self.inflight_bytes = 0
        self.turns = 0  #: how often a call found it idle (`direct`)
        #: What waits for the window: call id -> (bytes, how to send it), so that a cancelled call is found at once.
        self.queue = _NONE

    @property
    def has_room(self) -> bool:
        """Whether a call may be sent now: nothing waits, and fewer calls and bytes are in flight than may be."""
        return self.inflight < self.window and not self.queue and self.inflight_bytes < self.window_bytes

    def send(self, call: int, nbytes: int, send: Callable[[], None]) -> None:
        """Send now, or let the call wait for the window. Raises Backpressure."""
        if self.has_room:
            self.inflight += 1
            self.inflight_bytes += nbytes
            send()
        else:
            self.check_room()
            if self.queue is _NONE:
                self.queue = OrderedDict()
            self.queue[call] = (nbytes, send)

    def check_room(self) -> None:
        """Raise Backpressure where no further call may wait."""
        if len(self.queue) >= _WAITING * self.window:
            raise Backpressure(
                f"the queue of calls to {format_address(self.dst)}",
                f"{len(self.queue)} calls wait behind {self.inflight} unanswered ones",
                "await some of them before sending more",
            )

    def answered(self, nbytes: int) -> None:
        """A call of this size has been answered: the next ones that wait may go."""
        if self.inflight > 0:
            self.inflight -= 1
            self.inflight_bytes -= nbytes
        queue = self.queue
        while queue and self.inflight < self.window and self.inflight_bytes < self.window_bytes:
            size, send = queue.popitem(last=False)[1]
            self.inflight += 1
            self.inflight_bytes += size
            send()

    def withdraw(self, call: int) -> bool:
        """Take back a call that still waits for its window; return whether it did. It counts as sent until answered."""
        entry = self.queue.pop(call, None)
        if entry is None:
            return False
        self.inflight += 1
        self.inflight_bytes += entry[0]
        return True

    def forget(self, connection: Connection) -> None:
        """The proc is gone: what waits can never be sent. Another one may come, by way of ``connection``."""
        self.queue.clear()
        self.inflight = self.inflight_bytes = self.turns = 0
        self.connection = connection
