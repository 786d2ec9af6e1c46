"""What is gone, or never came up."""

from collections.abc import Sequence
from signal import Signals
from typing import Self

from monarch_async.errors.error import Error


class Lost(Error):
    """A member of a mesh is gone: base of `ActorDied`, `ProcDied` and `HostLost`."""

    def again(self) -> Self:
        """Return the same for one more who is told: notes, and the frames that an error goes through, are his own."""
        return type(self)(*self.args)


class ActorDied(Lost):
    """An actor ended by its own failure. ``reason`` is the text; ``__cause__`` the original, where it could travel."""

    def __init__(self, actor: str, host: str, reason: str, traceback: str = "") -> None:
        super().__init__(actor, host, reason, traceback)
        self.actor, self.host, self.reason, self.traceback = actor, host, reason, traceback

    def __str__(self) -> str:
        text = f"actor {self.actor} on {self.host} died: {self.reason}"
        return f"{text}\n{self.traceback.rstrip()}" if self.traceback else text


class ProcDied(Lost):
    """A worker process ended.

    ``exit_code`` is None where a signal ended it; ``stderr`` holds its last lines; ``killed_by`` says who ended
    it and why, where that was us.
    """

    def __init__(
        self,
        proc: str,
        host: str,
        exit_code: int | None = None,
        signal: int | None = None,
        out_of_memory: bool = False,
        stderr: Sequence[str] = (),
        killed_by: str = "",
        pid: int = 0,
    ) -> None:
        stderr = tuple(stderr)
        super().__init__(proc, host, exit_code, signal, out_of_memory, stderr, killed_by, pid)
        self.proc, self.host, self.exit_code, self.signal = proc, host, exit_code, signal
        self.out_of_memory, self.stderr, self.killed_by, self.pid = out_of_memory, stderr, killed_by, pid

    @property
    def reason(self) -> str:
        """How it ended, in words: ``killed by SIGKILL (out of memory)``, ``exited with status 3``."""
        if self.signal is not None:
            try:
                name = Signals(self.signal).name
            except ValueError:
                name = f"signal {self.signal}"
            notes = ["out of memory"] if self.out_of_memory else []
            notes += [self.killed_by] if self.killed_by else []
            return f"killed by {name}" + (f" ({', '.join(notes)})" if notes else "")
        if self.exit_code is None:
            return self.killed_by or "it was already gone"
        if self.exit_code == 0 and self.killed_by:
            return f"stopped ({self.killed_by})"
        return f"exited with status {self.exit_code}" + (f" ({self.killed_by})" if self.killed_by else "")

    def __str__(self) -> str:
        pid = f" (pid {self.pid})" if self.pid else ""
        text = f"proc {self.proc} on {self.host}{pid} died: {self.reason}"
        if self.stderr:
            text += "\nits last lines on stderr:\n" + "\n".join(f"  | {line}" for line in self.stderr)
        return text


class HostLost(Lost):
    """A host is gone: its agent's process is known dead, or was silent for longer than ``resume_window``."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(host, reason)
        self.host, self.reason = host, reason

    def __str__(self) -> str:
        return f"host {self.host} lost: {self.reason}"


class SpawnFailed(Error):
    """A proc could not be started. ``proc`` names it, ``reason`` says why."""

    def __init__(self, proc: str, host: str, reason: str) -> None:
        super().__init__(proc, host, reason)
        self.proc, self.host, self.reason = proc, host, reason

    def __str__(self) -> str:
        return f"proc {self.proc} on {self.host} could not be started: {self.reason}"
