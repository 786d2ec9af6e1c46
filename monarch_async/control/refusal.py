"""How an agent says no: errors as msgpack, and back. Agents never pickle. Pure."""

from typing import Any

from monarch_async.errors import (
    Backpressure,
    BadCall,
    BadDemand,
    BarrierBroken,
    Closed,
    Empty,
    Error,
    HandshakeRefused,
    HostLost,
    LeaseHeld,
    LinkBroken,
    Lost,
    NoSuchLease,
    NotHolder,
    ObjectLost,
    ProcDied,
    SpawnFailed,
    StaleHandle,
    StoreFull,
    TransferBroken,
    TransferError,
    Unschedulable,
)

_OF_TRANSFERS = (TransferError, ObjectLost, StaleHandle, StoreFull, TransferBroken)
_OF_SYNC = (Backpressure, BadCall, BarrierBroken, Empty, HostLost, NotHolder, ProcDied)
_OF_HOSTS = (HandshakeRefused, LinkBroken, SpawnFailed, ValueError)
_OTHERS = (BadDemand, Closed, LeaseHeld, NoSuchLease, Unschedulable)
_KINDS = {kind.__name__: kind for kind in (*_OF_TRANSFERS, *_OF_SYNC, *_OF_HOSTS, *_OTHERS)}


def pack_refusal(error: Exception) -> dict[str, Any]:
    """Return an error as an answer. The classes above keep their class and their facts."""
    answer: dict[str, Any] = {"error": str(error)}
    if _KINDS.get(type(error).__name__) is type(error):
        answer |= {"kind": type(error).__name__, "facts": list(error.args)}
    elif isinstance(error, TransferError):
        answer |= {"kind": TransferError.__name__, "facts": [error.what, error.why]}
    return answer


def as_refusal(answer: object) -> Error | ValueError | None:
    """Return the error that an answer is; None: it is none."""
    if not isinstance(answer, dict) or "error" not in answer:
        return None
    kind = _KINDS.get(answer.get("kind", ""))
    return Error(answer["error"]) if kind is None else kind(*answer["facts"])


def as_lost_object(what: str, error: Exception) -> TransferError:
    """Return what those who wait for an object see where asking another host for it ended so."""
    if isinstance(error, TransferError):
        return error
    return ObjectLost(what, f"its home is lost: {error}" if isinstance(error, Lost) else str(error))
