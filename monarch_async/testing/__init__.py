"""Instruments for tests: those of this package and those of programs built on it.

Three things make distributed code hard to test: time, order and faults. Here each is an input.

- `simloop`: an asyncio loop whose clock jumps instead of waiting, whose order of steps comes from a seed,
  and which says who waits for what instead of hanging. For everything that needs no socket: policies,
  timeouts, retries, actors joined in memory. ``simloop.run(main(), seed)`` in a loop over seeds finds what
  depends on luck.
- `proxy`: a `FaultProxy` between two real sockets that cuts, corrupts, doubles, delays or holds one exact
  frame. For everything that does: connections, resumes, loss of a host.

Both refuse luck. Nothing here sleeps for a time in the hope that something has happened: there is an event
or a count to wait for (`FaultProxy.wait_frames`, the event each fault returns). A fault is at frame five,
not "after half a second", and a test asserts that it was reached.

Public, for users' own tests: `SimLoop`, `Deadlock` and ``simloop.run``, `FaultProxy`. Private: `splitter`,
which cuts the proxy's streams. There are no fake actors and no fake meshes: real ones start fast enough,
and a fake agrees with its author.

Files, in reading order: ``simloop.py``, ``proxy.py``, ``splitter.py``.
"""

from monarch_async.testing import simloop
from monarch_async.testing.proxy import FaultProxy
from monarch_async.testing.simloop import Deadlock, SimLoop

__all__ = ["Deadlock", "FaultProxy", "SimLoop", "simloop"]
