"""How an agent says no: errors as msgpack, and back. Agents never pickle. Pure."""

from typing import Any

from monarch_async.errors import (
    Error,
    Lost,
    ObjectLost,
    StaleHandle,
    StoreFull,
    TransferBroken,
    TransferError,
)

_KINDS = {kind.__name__: kind for kind in (TransferError, ObjectLost, StaleHandle, StoreFull, TransferBroken)}


def pack_refusal(error: Exception) -> dict[str, Any]:
    """Return an error as an answer. Only those of transfers keep their class and their facts."""
    answer: dict[str, Any] = {"error": str(error)}
    if isinstance(error, TransferError):
        kind = type(error).__name__
        answer |= {"kind": kind if kind in _KINDS else TransferError.__name__, "facts": [error.what, error.why]}
    return answer


def as_refusal(answer: object) -> Error | None:
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
