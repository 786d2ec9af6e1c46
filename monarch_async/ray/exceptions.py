"""What `get` and the rest of the facade raise, under the names of `ray.exceptions`.

    RayError
    ├── RayTaskError                  code of a task or method raised; also derives from the cause's class
    ├── RayActorError                 the actor did not answer
    │   ├── ActorDiedError            and never will
    │   └── ActorUnavailableError     it is being restarted, or its host is out of reach for now
    ├── WorkerCrashedError            the process of a task ended; NodeDiedError: with its host
    ├── OutOfMemoryError              and it was the kernel for lack of memory
    ├── TaskCancelledError            `cancel`; also what a task sees itself
    ├── GetTimeoutError               (also TimeoutError) a `get` took longer than it was given
    ├── ObjectLostError               no copy is left: ObjectFreedError, OwnerDiedError, ... say why
    ├── ObjectStoreFullError, OutOfDiskError
    ├── TaskUnschedulableError, ActorUnschedulableError   no host could ever fit it
    ├── TaskPlacementGroupRemoved, ActorPlacementGroupRemoved
    ├── RuntimeEnvSetupError          its process could not be started as its runtime_env says
    ├── PendingCallsLimitExceeded     more calls wait than max_pending_calls
    ├── ActorAlreadyExistsError, ActorHandleNotFoundError (also ValueError)
    ├── RaySystemError                what should not happen
    └── AsyncioActorExit, ObjectRefStreamEndOfStreamError, RayChannelError, ...

Texts say what, which and why; where there is something to do about it, they say that too. What comes from the native
side is translated by `as_ray_error`, which keeps its text: last lines of stderr, the signal, who holds what.
"""

import asyncio
import copy

from monarch_async import errors
from monarch_async.ray.task_error import RayError, RayTaskError
from monarch_async.remote_error import RemoteError


class RayActorError(RayError):
    """An actor did not answer. ``actor_id`` as hex; ``error_msg``; ``actor_init_failed``: its ``__init__`` raised."""

    base_error_msg = "the actor failed before it had answered"

    def __init__(
        self, actor_id: str | None = None, error_msg: str = "", actor_init_failed: bool = False, preempted: bool = False
    ) -> None:
        super().__init__(actor_id, error_msg, actor_init_failed, preempted)
        self.actor_id, self.error_msg = actor_id, error_msg or self.base_error_msg
        self.actor_init_failed, self._preempted = actor_init_failed, preempted

    @property
    def preempted(self) -> bool:
        """Whether what it was placed on was taken back for somebody of higher priority."""
        return self._preempted

    def __str__(self) -> str:
        return f"{self.error_msg}\n(actor id {self.actor_id})" if self.actor_id else self.error_msg


class ActorDiedError(RayActorError):
    """An actor is dead and will not be restarted. ``cause``: a text, or the error its ``__init__`` raised."""

    base_error_msg = "the actor is dead and will not be restarted"

    def __init__(
        self, cause: RayTaskError | str | None = None, actor_id: str | None = None, preempted: bool = False
    ) -> None:
        is_init = isinstance(cause, RayTaskError)
        message = f"the actor died because its __init__ raised: {cause}" if is_init else str(cause or "")
        super().__init__(actor_id or (cause.actor_id if isinstance(cause, RayTaskError) else None), message, is_init)
        self.args, self.cause, self._preempted = (cause, actor_id, preempted), cause, preempted


class ActorUnavailableError(RayActorError):
    """An actor is out of reach for now. The call may have been run or not."""

    def __init__(self, error_message: str, actor_id: str | bytes | None = None) -> None:
        known = actor_id.hex() if isinstance(actor_id, bytes) else actor_id
        super().__init__(known, f"the actor cannot be reached for now: {error_message}; the call may have been run")
        self.args = (error_message, actor_id)


class TaskCancelledError(RayError):
    """A task was cancelled."""

    def __init__(self, task_id: str | None = None, error_message: str | None = None) -> None:
        super().__init__(task_id, error_message)
        self.task_id, self.error_message = task_id, error_message

    def __str__(self) -> str:
        which = f"task {self.task_id}" if self.task_id else "this task or a task it depends on"
        return self.error_message or f"{which} was cancelled"


class GetTimeoutError(RayError, TimeoutError):
    """A `get` with a timeout was not done in time."""


class WorkerCrashedError(RayError):
    """The process that ran a task ended, more often than it may be retried."""

    standing = "the worker of this task died"


class LocalRayletDiedError(RayError):
    """The host agent of this process is gone."""

    standing = "the host agent of this process is gone: all its workers have ended with it"


class NodeDiedError(RayError):
    """The host of a task is gone."""

    standing = "the host of this task is gone"


class OutOfMemoryError(RayError):
    """The kernel ended the process of a task for lack of memory."""

    standing = "the worker of this task was killed for lack of memory"


class ObjectStoreFullError(RayError):
    """An object is larger than a host may keep in shared memory."""

    standing = "the shared memory of this host is full"


class OutOfDiskError(RayError):
    """There is no space left on a disk that is needed."""

    standing = "no space is left on the disk"


class RaySystemError(RayError):
    """What should not happen."""

    def __init__(self, client_exc: BaseException | str, traceback_str: str | None = None) -> None:
        super().__init__(client_exc, traceback_str)
        self.client_exc, self.traceback_str = client_exc, traceback_str

    def __str__(self) -> str:
        text = f"system error: {self.client_exc}"
        return f"{text}\n{self.traceback_str.rstrip()}" if self.traceback_str else text


class ObjectLostError(RayError):
    """No copy of an object is left. ``object_ref_hex`` names it; ``why`` says how that came, where it is known."""

    standing = "no copy of it is left: the processes or hosts that kept it are gone"

    def __init__(
        self, object_ref_hex: str = "", owner_address: bytes | None = None, call_site: str = "", why: str = ""
    ) -> None:
        super().__init__(object_ref_hex, owner_address, call_site, why)
        self.object_ref_hex, self.owner_address, self.call_site = object_ref_hex, owner_address, call_site
        self.why = why or self.standing

    def __str__(self) -> str:
        text = f"object {self.object_ref_hex or '(unknown)'} cannot be had: {self.why}"
        return f"{text}\nit was made at {self.call_site}" if self.call_site else text


class ObjectFetchTimedOutError(ObjectLostError):
    """It could not be fetched in time."""

    standing = "it did not arrive in time"


class ReferenceCountingAssertionError(ObjectLostError, AssertionError):
    """It was deleted though somebody held a reference."""

    standing = "it was deleted though a reference was left"


class ObjectFreedError(ObjectLostError):
    """`internal.free` has deleted it."""

    standing = "ray.internal.free has deleted it"


class OwnerDiedError(ObjectLostError):
    """The process that made the reference is gone, and the object with it."""

    standing = "the process that made the reference has ended, and what it owned with it"


class ObjectReconstructionFailedError(ObjectLostError):
    """It was lost and its task can or may not be run again."""

    standing = "it was lost, and its task may not be run again"


class RuntimeEnvSetupError(RayError):
    """A process could not be started as its runtime_env says."""

    def __init__(self, error_message: str | None = None) -> None:
        super().__init__(error_message)
        self.error_message = error_message

    def __str__(self) -> str:
        return f"the runtime_env could not be set up{f': {self.error_message}' if self.error_message else ''}"


class TaskPlacementGroupRemoved(RayError):
    """The placement group of a task was removed."""

    standing = "the placement group of this task was removed"


class ActorPlacementGroupRemoved(RayError):
    """The placement group of an actor was removed."""

    standing = "the placement group of this actor was removed"


class TaskUnschedulableError(RayError):
    """No host that there is could ever run a task."""

    standing = "no host that there is could ever run this task"


class ActorUnschedulableError(RayError):
    """No host that there is could ever run an actor."""

    standing = "no host that there is could ever run this actor"


class PendingCallsLimitExceeded(RayError):
    """More calls of an actor wait than its max_pending_calls."""

    standing = "more calls of this actor wait than its max_pending_calls"


class AsyncioActorExit(RayError):
    """What `exit_actor` raises in an async actor."""

    standing = "this actor exits, as it asked for"


class ObjectRefStreamEndOfStreamError(RayError):
    """A generator's references are at their end."""

    standing = "the generator is at its end"


class PlasmaObjectNotAvailable(RayError):
    """An object was not there at once."""

    standing = "the object is not in this host's shared memory"


class CrossLanguageError(RayError):
    """Something in another language failed; there is none here."""


class UserCodeException(RayError):
    """User code failed where nobody asks for a result."""


class UnserializableException(RayError):
    """An exception that could not be pickled; its text."""


class RpcError(RayError):
    """A message to another process failed."""


class AuthenticationError(RayError):
    """A token is wrong."""


class RayChannelError(RaySystemError):
    """Of compiled graphs, as the two below: there are none here, but programs name them."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """Of compiled graphs."""


class RayCgraphCapacityExceeded(RaySystemError):
    """Of compiled graphs."""


class ActorAlreadyExistsError(RayError, ValueError):
    """The name of an actor is taken."""

    standing = "an actor of this name is there already"


class ActorHandleNotFoundError(RayError, ValueError):
    """There is no actor of that name, or a handle's actor is of another cluster."""

    standing = "there is no such actor"


def cancelled(what: str) -> TaskCancelledError:
    """Return the error of a task, or of a call of a method, that was cancelled."""
    return TaskCancelledError(None, f"{what} was cancelled")


def as_ray_error(error: BaseException, what: str, actor_id: str = "") -> Exception:
    """Return what the native side has raised as an error of `ray.exceptions`.

    Args:
        error: any exception. Of what is of this file already comes another of the same; what is neither that nor native
            nor a cancellation comes back as it is.
        what: names the task, or the method and its actor, in texts.
        actor_id: as hex, where ``what`` is an actor's.
    """
    match error:
        case RemoteError(__cause__=RayTaskError() as told):  # as our workers raise it; that may be a RayError as well
            told.actor_id = told.actor_id or actor_id or None
            return told.as_instanceof_cause()
        case RayTaskError():
            return error.as_instanceof_cause()
        case RayError():
            return copy.copy(error)  # each `get` has one of its own: the frames that it goes through are kept in it
        case RemoteError():
            told = RayTaskError(what, error.traceback, error.__cause__, None, None, error.host, None, actor_id or None)
            return told.as_instanceof_cause()
        case asyncio.CancelledError():
            return cancelled(what)
        case errors.Backpressure():
            return PendingCallsLimitExceeded(f"{what}: {error}")
        case errors.StoreFull():
            return ObjectStoreFullError(f"{what}: {error}")
        case errors.ObjectLost():
            return ObjectLostError(error.what, None, "", error.why)
        case errors.Unschedulable():
            return (ActorUnschedulableError if actor_id else TaskUnschedulableError)(f"{what}: {error}")
        case errors.Lost() | errors.SpawnFailed() | errors.Preempted() | errors.Poisoned() | errors.Closed():
            return _actor_lost(error, what, actor_id) if actor_id else _task_lost(error, what)
        case errors.Error():
            return RaySystemError(error)
        case Exception():
            return error
        case _:
            return RaySystemError(f"{what} ended with {type(error).__name__}: {error}")


def as_birth_error(error: BaseException, what: str, actor_id: str) -> Exception:
    """Return why an actor has never lived: what its ``__init__`` (``what``) raised, or how its process ended."""
    match error:
        case (
            RemoteError(__cause__=RayTaskError() as told)
            | errors.ActorDied(__cause__=RayTaskError() as told)
            | (RayTaskError() as told)
        ):
            told.actor_id = told.actor_id or actor_id
        case RemoteError() | errors.ActorDied() if error.__cause__ is not None or isinstance(error, RemoteError):
            told = RayTaskError(what, error.traceback, error.__cause__, None, None, error.host, None, actor_id)
        case RayError():
            return copy.copy(error)
        case errors.Unschedulable():
            return as_ray_error(error, what, actor_id)
        case _:
            return ActorDiedError(f"the actor never lived: {error}", actor_id)
    return ActorDiedError(told, actor_id)


def _actor_lost(error: Exception, what: str, actor_id: str) -> Exception:
    return ActorDiedError(f"{what} has no answer: {error}", actor_id, isinstance(error, errors.Preempted))


def _task_lost(error: Exception, what: str) -> Exception:
    deaths = error.deaths if isinstance(error, errors.Poisoned) else (error,)
    text = f"{what} has no result: {error}"
    if deaths and all(isinstance(death, errors.ProcDied) and death.out_of_memory for death in deaths):
        return OutOfMemoryError(f"{text}\nit needs more memory than its host has: ask for it with memory=<bytes>")
    match error:
        case errors.HostLost():
            return NodeDiedError(text)
        case errors.SpawnFailed():
            return RuntimeEnvSetupError(text)
        case errors.Closed():
            return RaySystemError(text)
        case _:
            return WorkerCrashedError(text)
