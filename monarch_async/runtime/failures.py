"""Failed calls at whose error nobody has looked yet."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from monarch_async.runtime.call import RemoteFuture, Start, Unseen, tells_of_a_start

if TYPE_CHECKING:
    from monarch_async.runtime.router import Router

log = logging.getLogger("monarch_async")


class Failures:
    """Those of one router."""

    def __init__(self, router: "Router") -> None:
        """None yet."""
        self._router = router
        self.on_unseen: Callable[[Unseen], None] = lambda unseen: log.error("%s: %s", unseen.what, unseen.error)
        #: Failed calls that somebody may still look at.
        self._calls: WeakSet[RemoteFuture[Any]] = WeakSet()
        #: Ids of the actors that did not come up, as calls to them have told their callers.
        self.starts: set[int] = set()

    def note(self, call: RemoteFuture[Any], error: BaseException) -> None:
        """A call has failed."""
        self._calls.add(call)
        if not isinstance(call, Start) and tells_of_a_start(error):
            self.starts.add(call.actor)

    def report(self, unseen: Unseen) -> None:
        """Nobody has looked at an exception. May be called on any thread."""
        self._router.call_soon(self._report, unseen)

    def _report(self, unseen: Unseen) -> None:
        if not self._router.is_closed:
            self.on_unseen(unseen)

    def report_all(self) -> None:
        """Nobody will look any more: report the failures nobody has looked at."""
        for call in list(self._calls):
            call.report_if_unseen()
