"""Bytes that did not get to where they were asked for."""

from collections.abc import Mapping

from monarch_async.errors.error import Error


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
