"""Says so, with the stack, when something blocks a worker's loop.

A thread looks at the loop from outside: it asks for a callback and, where that does not come within the limit, prints
what the main thread is doing. It sleeps for good while no endpoint has been started for a second, so idle workers do
not wake up. Nothing else depends on it: the agent watches the process, not the loop.
"""

import asyncio
import sys
import threading
import time
import traceback
from pathlib import Path

_IDLE_AFTER = 1.0

_OWN_CODE, _IMPORT_SYSTEM = str(Path(__file__).parents[1]), "<frozen importlib"

#: The innermost frames that a warning shows.
_SHOWN = 12

#: The functions of the loop that call everything else; uvloop's own are not seen.
_LOOP_FRAMES = frozenset({"run_until_complete", "run_forever", "_run_once", "_run", "select", "run"})


class Watchdog:
    """Watches one loop, whose thread makes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, name: str) -> None:
        """``limit``: seconds; ``name``: whose loop, for the warning."""
        self._loop, self._limit, self._name = loop, limit, name
        self._main = threading.get_ident()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_ending = False
        self.is_awake = False  #: whether calls need not wake it: read on every call
        self.label = ""  #: whose endpoint was started last

    def wake(self) -> None:
        """Watch for the next second."""
        self.is_awake = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        self._wanted.set()

    def close(self) -> None:
        """End the thread."""
        self._is_ending = True
        self._wanted.set()

    def _watch(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            until = time.monotonic() + _IDLE_AFTER
            while time.monotonic() < until and not self._is_ending:
                if not self._loop_answers():
                    until = time.monotonic() + _IDLE_AFTER
            if self._is_ending:
                return
            self.is_awake = False

    def _blocking_stack(self) -> str:
        """Return what the loop's thread runs, below the loop itself; nothing where it is in the loop.

        Of what is being imported only its own lines: the import system has five more for each of them.
        """
        frames = traceback.extract_stack(sys._current_frames().get(self._main))
        last = max((i for i, frame in enumerate(frames) if frame.name in _LOOP_FRAMES), default=-1)
        frames = frames[last + 1 :]
        theirs = [frame for frame in frames if not frame.filename.startswith((_OWN_CODE, _IMPORT_SYSTEM))][-_SHOWN:]
        return "".join(traceback.format_list(theirs or frames))

    def _loop_answers(self) -> bool:
        """Ask once; warn where no answer comes within the limit, and wait until one does."""
        beat = threading.Event()
        asked = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(beat.set)
        except RuntimeError:  # closed
            self._is_ending = True
            return True
        if beat.wait(self._limit):
            time.sleep(self._limit / 2)
            return True
        stack = self._blocking_stack()
        if beat.is_set() or not stack:  # the loop is only waiting for a processor
            return True
        advice = (
            "preload what it imports" if "in <module>" in stack else "make the endpoint a plain `def`, or await in it"
        )
        sys.stderr.write(
            f"warning: the event loop of {self._name} has been blocked for {self._limit * 1000:.0f} ms, "
            f"last started: {self.label}; {advice}\n{stack}"
        )
        while not beat.wait(0.5):
            if self._is_ending:
                return True
        took = time.monotonic() - asked
        sys.stderr.write(f"warning: the event loop of {self._name} was blocked for {took:.2f} s\n")
        return False
