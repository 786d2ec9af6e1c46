"""Every error this package raises, in one tree. All pickle; all say what, which and why.

    Error
    ├── RemoteError            an endpoint raised; also derives from the original class (in `remote_error`)
    ├── Lost                   a member is gone
    │   ├── ActorDied          its own failure: __init__, setup, or an unhandled one
    │   ├── ProcDied           its process exited, crashed or was killed
    │   └── HostLost           its host agent is gone, or was silent for longer than resume_window
    ├── SpawnFailed            a proc could not be started at all
    ├── WouldDeadlock          a strictly serial actor would wait for itself
    ├── Backpressure           a bounded queue is full and the caller chose not to wait
    ├── Closed                 used after it was stopped or left
    ├── PicklingError          (also pickle.PicklingError) something that cannot travel
    ├── BadCall                (also TypeError) arguments that do not fit the endpoint's signature
    ├── NotAnEndpoint          (also AttributeError)
    ├── BadEndpoint            (also TypeError) a class that cannot be an actor
    ├── AxisError              (also KeyError) unknown axis
    ├── RankError              (also IndexError) coordinate or rank out of range
    ├── ExtentError            (also ValueError) sizes that make no mesh
    ├── TransferError          bytes did not get to where they were asked for
    │   ├── StaleHandle        its memory is no longer registered, or only under a newer epoch
    │   ├── ForeignHandle      it belongs to another cluster
    │   ├── BufferMismatch     (also ValueError) dtype, shape or slice does not fit; memory is untouched
    │   ├── UnknownPart        (also KeyError, IndexError) a handle has no part of that name
    │   ├── NoTransport        no way to the other process works; says why for each
    │   ├── TransferBroken     a way that worked broke for good
    │   ├── ObjectLost         a shared object has no copy left
    │   ├── NotEverywhere      a broadcast did not reach some hosts; says why for each
    │   └── StoreFull          a shared object is larger than a host may ever keep
    └── WireError              what arrives is not what was agreed
        ├── FrameTooLarge
        ├── BadFrame
        ├── HandshakeRefused   wrong token, wrong version, garbage, or no answer
        └── LinkBroken
    MeshError                  (Error and ExceptionGroup) several members failed in one call

The positional arguments of a class are its facts; they are kept as ``args`` and as fields, and ``str()`` makes the
sentence. That is what lets every one of them pickle without further code.
"""

import pickle
from collections.abc import Mapping, Sequence
from signal import Signals
from typing import Any


class Error(Exception):
    """Base of everything this package raises on its own account."""


class Lost(Error):
    """A member of a mesh is gone: base of `ActorDied`, `ProcDied` and `HostLost`."""


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


class WouldDeadlock(Error):
    """A call would wait for itself. ``chain`` lists the calls, outermost first."""

    def __init__(self, actor: str, chain: Sequence[str], max_concurrency: int = 1) -> None:
        chain = tuple(chain)
        super().__init__(actor, chain, max_concurrency)
        self.actor, self.chain, self.max_concurrency = actor, chain, max_concurrency

    def __str__(self) -> str:
        path = " -> ".join(self.chain)
        count = "1 call" if self.max_concurrency == 1 else f"{self.max_concurrency} calls"
        return (
            f"{self.actor} would wait for itself: {path}; it runs {count} at a time: "
            "raise its max_concurrency, or do not await this there"
        )


class Backpressure(Error):
    """A bounded queue is full."""

    def __init__(self, what: str, limit: str, hint: str) -> None:
        super().__init__(what, limit, hint)
        self.what, self.limit, self.hint = what, limit, hint

    def __str__(self) -> str:
        return f"{self.what} is full ({self.limit}): {self.hint}"


class Closed(Error):
    """Something was used after it was stopped, closed or left."""

    def __init__(self, what: str, why: str = "") -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what} is closed" + (f": {self.why}" if self.why else "")


class PicklingError(Error, pickle.PicklingError):
    """A value cannot travel. ``where`` is the path to the culprit: ``args[1]['lock']``."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return f"cannot pickle {self.where}: {self.why}"


class BadCall(Error, TypeError):
    """Arguments do not fit the endpoint's signature; found at the caller, nothing was sent."""

    def __init__(self, endpoint: str, why: str) -> None:
        super().__init__(endpoint, why)
        self.endpoint, self.why = endpoint, why

    def __str__(self) -> str:
        return f"bad call of {self.endpoint}: {self.why}"


class NotAnEndpoint(Error, AttributeError):
    """The actor class has no endpoint of that name."""

    def __init__(self, mesh: str, name: str, endpoints: Sequence[str] = (), is_plain_method: bool = False) -> None:
        endpoints = tuple(endpoints)
        super().__init__(mesh, name, endpoints, is_plain_method)
        self.mesh, self.endpoints, self.is_plain_method = mesh, endpoints, is_plain_method
        self.name = name  # AttributeError has a field of that name; ours says the same

    def __str__(self) -> str:
        if self.is_plain_method:
            return f"{self.mesh}.{self.name} is a method but no endpoint: decorate it with @ma.endpoint"
        known = ", ".join(self.endpoints) or "none"
        return f"{self.mesh} has no endpoint {self.name!r}; its endpoints: {known}"


class BadEndpoint(Error, TypeError):
    """A class or function that cannot be an actor or an endpoint."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class AxisError(Error, KeyError):
    """No such axis."""

    def __init__(self, axis: str, axes: Sequence[str]) -> None:
        axes = tuple(axes)
        super().__init__(axis, axes)
        self.axis, self.axes = axis, axes

    def __str__(self) -> str:
        return f"unknown axis {self.axis!r}; this mesh has: {', '.join(self.axes) or 'no axes'}"


class RankError(Error, IndexError):
    """A coordinate or rank outside the mesh."""

    def __init__(self, what: str, index: int, size: int) -> None:
        super().__init__(what, index, size)
        self.what, self.index, self.size = what, index, size

    def __str__(self) -> str:
        return f"{self.what} {self.index} is out of range: there are {self.size} (0 to {self.size - 1})"


class ExtentError(Error, ValueError):
    """Sizes or axes that make no mesh."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return self.why


class TransferError(Error):
    """Bytes did not get to where they were asked for. ``what`` names the object, ``why`` says what is wrong."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class StaleHandle(TransferError):
    """The memory of a handle is no longer registered (closed, lease run out), or only under a newer epoch."""


class ForeignHandle(TransferError):
    """A handle or reference of another cluster."""


class BufferMismatch(TransferError, ValueError):
    """A dtype, shape or slice that does not fit. Nothing was written anywhere."""


class UnknownPart(TransferError, KeyError, IndexError):
    """A handle of a dict or list has no part of that name."""


class NoTransport(TransferError):
    """No way to another process works. ``reasons`` says why, by transport."""

    def __init__(self, what: str, reasons: Mapping[str, str]) -> None:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "no transport is allowed"
        super().__init__(what, f"no transport works ({why})")
        self.args, self.reasons = (what, dict(reasons)), dict(reasons)


class TransferBroken(TransferError):
    """A transfer broke off and could not be resumed. ``what`` names the other process."""


class ObjectLost(TransferError):
    """No copy of a shared object is left."""


class NotEverywhere(TransferError):
    """A broadcast did not reach some hosts; all others have their copy. ``reasons`` says why, by the host's name."""

    def __init__(self, what: str, reasons: Mapping[str, str]) -> None:
        super().__init__(what, "; ".join(f"not on {host}: {reason}" for host, reason in reasons.items()))
        self.args, self.reasons = (what, dict(reasons)), dict(reasons)


class StoreFull(TransferError):
    """A shared object is larger than what its host may keep in all."""


class WireError(Error):
    """What arrives on a connection is not what was agreed."""


class FrameTooLarge(WireError):
    """A frame announces more bytes than allowed."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(length, limit)
        self.length, self.limit = length, limit

    def __str__(self) -> str:
        return f"frame of {self.length} bytes is over the limit of {self.limit}"


class BadFrame(WireError):
    """A frame that does not parse."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"bad frame: {self.why}"


class HandshakeRefused(WireError):
    """The two ends did not agree to talk. ``side`` is ``local`` where we refused, ``remote`` where the peer did."""

    def __init__(self, reason: str, side: str = "local") -> None:
        super().__init__(reason, side)
        self.reason, self.side = reason, side

    def __str__(self) -> str:
        who = "peer refused the handshake" if self.side == "remote" else "handshake refused"
        return f"{who}: {self.reason}"


class LinkBroken(WireError):
    """A connection ended, or cannot be resumed."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(peer, why)
        self.peer, self.why = peer, why

    def __str__(self) -> str:
        return f"link to {self.peer} broken: {self.why}"


class MeshError(Error, ExceptionGroup):
    """Several members (or one of several) failed in one call.

    ``by_rank`` maps the rank in the called mesh to its exception; ``results`` maps the other ranks to their results.
    It is an ExceptionGroup, so ``except*`` works.
    """

    by_rank: dict[int, Exception]
    results: dict[int, Any]

    def __new__(cls, message: str, by_rank: Mapping[int, Exception], results: Mapping[int, Any] | None = None) -> Any:
        """Take the failures by rank; the group's exceptions are those, in rank order."""
        ordered = dict(sorted(by_rank.items()))
        self = ExceptionGroup.__new__(cls, message, list(ordered.values()))
        self.by_rank = ordered
        self.results = dict(results or {})
        return self

    def __init__(
        self, message: str, by_rank: Mapping[int, Exception], results: Mapping[int, Any] | None = None
    ) -> None:
        super().__init__(message, list(self.by_rank.values()))

    def __str__(self) -> str:
        first = next(iter(self.by_rank.values()), None)
        head = str(first).split("\n", 1)[0] if first is not None else ""
        return f"{self.message}; first: {head}"

    def derive(self, excs: Sequence[Exception]) -> "MeshError":  # type: ignore[override]
        """Keep the ranks when ``except*`` splits the group."""
        keep = {id(e) for e in excs}
        return MeshError(self.message, {r: e for r, e in self.by_rank.items() if id(e) in keep}, self.results)

    def __reduce__(self) -> tuple[Any, ...]:
        return MeshError, (self.message, self.by_rank, self.results)
