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
    ├── BadDemand              (also ValueError) resources asked for in a way that makes no sense
    ├── Unschedulable          no joined or declared host could ever fit a demand
    ├── Preempted              a placement was taken back for another of higher priority
    ├── Poisoned               a task ended every process that tried it; has the evidence
    ├── NotHolder              a lock or permit is released or used by who does not hold it (any more)
    ├── LeaseHeld              a detached lease has an owner, or its name is taken
    ├── NoSuchLease            no host has a detached lease of that name
    ├── BarrierBroken          a party of a barrier died or left
    ├── Empty                  a queue has no item and the caller chose not to wait
    └── WireError              what arrives is not what was agreed
        ├── FrameTooLarge
        ├── BadFrame
        ├── HandshakeRefused   wrong token, wrong version, garbage, or no answer
        └── LinkBroken
    MeshError                  (Error and ExceptionGroup) several members failed in one call

The positional arguments of a class are its facts; they are kept as ``args`` and as fields, and ``str()`` makes the
sentence. That is what lets every one of them pickle without further code.

Files: ``error``, ``lost``, ``calls``, ``shapes``, ``transfers``, ``scheduling``, ``leases``, ``sync``, ``link``.
"""

from monarch_async.errors.calls import (
    Backpressure,
    BadCall,
    BadEndpoint,
    Closed,
    MeshError,
    NotAnEndpoint,
    PicklingError,
    WouldDeadlock,
)
from monarch_async.errors.error import Error
from monarch_async.errors.leases import LeaseHeld, NoSuchLease
from monarch_async.errors.link import (
    BadFrame,
    FrameTooLarge,
    HandshakeRefused,
    LinkBroken,
    WireError,
)
from monarch_async.errors.lost import (
    ActorDied,
    HostLost,
    Lost,
    ProcDied,
    SpawnFailed,
)
from monarch_async.errors.scheduling import (
    BadDemand,
    NotHolder,
    Poisoned,
    Preempted,
    Unschedulable,
)
from monarch_async.errors.shapes import (
    AxisError,
    ExtentError,
    RankError,
)
from monarch_async.errors.sync import BarrierBroken, Empty
from monarch_async.errors.transfers import (
    BufferMismatch,
    ForeignHandle,
    NotEverywhere,
    NoTransport,
    ObjectLost,
    StaleHandle,
    StoreFull,
    TransferBroken,
    TransferError,
    UnknownPart,
)

__all__ = [
    "ActorDied",
    "AxisError",
    "Backpressure",
    "BadCall",
    "BadDemand",
    "BadEndpoint",
    "BadFrame",
    "BarrierBroken",
    "BufferMismatch",
    "Closed",
    "Empty",
    "Error",
    "ExtentError",
    "ForeignHandle",
    "FrameTooLarge",
    "HandshakeRefused",
    "HostLost",
    "LeaseHeld",
    "LinkBroken",
    "Lost",
    "MeshError",
    "NoSuchLease",
    "NoTransport",
    "NotAnEndpoint",
    "NotEverywhere",
    "NotHolder",
    "ObjectLost",
    "PicklingError",
    "Poisoned",
    "Preempted",
    "ProcDied",
    "RankError",
    "SpawnFailed",
    "StaleHandle",
    "StoreFull",
    "TransferBroken",
    "TransferError",
    "UnknownPart",
    "Unschedulable",
    "WireError",
    "WouldDeadlock",
]

for _name in __all__:  # where they are imported from is what tracebacks and pickles say
    globals()[_name].__module__ = __name__
