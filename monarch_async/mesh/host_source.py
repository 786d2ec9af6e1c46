"""Where a program gets more hosts from: a job, a cloud, this machine."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from monarch_async.control.host import Host
from monarch_async.scheduler.resources import Resources


@runtime_checkable
class HostSource(Protocol):
    """Gives hosts on request and takes them back. ``local_hosts`` has one; `attach` takes one.

    What it has given is given back once: when the host was drained or has left, else at the end of the program's block.
    """

    def declared(self) -> Sequence[tuple[Resources, int]]:
        """Return what could be had by `request` now: kinds of hosts, and how many more of each at most.

        Asked again after every `request` and `give_back`; must not wait.
        """
        ...

    async def request(self, count: int, resources: Resources | None = None) -> Sequence[str]:
        """Get ``count`` more hosts, of that kind where one is named; return the URLs of their agents, all or none.

        Waits until they listen, with the token of the program. Raises what kept them from coming.
        """
        ...

    async def give_back(self, host: Host) -> None:
        """Take back one that `request` has given. Its agent has been left, or is lost. Waits until that is done."""
        ...
