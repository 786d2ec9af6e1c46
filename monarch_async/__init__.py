"""Asyncio-native meshes of hosts, processes and actors for PyTorch. The public names, nothing else.

A name's module is imported when the name is first used: agents, zygotes and commands need only some of them, and a
program that submits no task never pays for tasks.
"""

import importlib
from typing import TYPE_CHECKING

from monarch_async.version import __version__

if TYPE_CHECKING:
    from monarch_async.config import Config
    from monarch_async.control.host import Host
    from monarch_async.control.membership import HostEvent
    from monarch_async.control.supervision import Failure, escalate, ignore
    from monarch_async.errors import (
        ActorDied,
        AxisError,
        Backpressure,
        BadCall,
        BadDemand,
        BadEndpoint,
        BadFrame,
        BarrierBroken,
        BufferMismatch,
        Closed,
        Empty,
        Error,
        ExtentError,
        ForeignHandle,
        FrameTooLarge,
        HandshakeRefused,
        HostLost,
        LeaseHeld,
        LinkBroken,
        Lost,
        MeshError,
        NoSuchLease,
        NotAnEndpoint,
        NotEverywhere,
        NotHolder,
        NoTransport,
        ObjectLost,
        PicklingError,
        Poisoned,
        Preempted,
        ProcDied,
        RankError,
        SpawnFailed,
        StaleHandle,
        StoreFull,
        TransferBroken,
        TransferError,
        UnknownPart,
        Unschedulable,
        WireError,
        WouldDeadlock,
    )
    from monarch_async.mesh.actor_mesh import ActorMesh
    from monarch_async.mesh.attachment import attach, local_hosts, run
    from monarch_async.mesh.broadcast import broadcast
    from monarch_async.mesh.buffer import Handle, register
    from monarch_async.mesh.cluster import Cluster, cluster
    from monarch_async.mesh.host_mesh import HostMesh, this_host
    from monarch_async.mesh.host_source import HostSource
    from monarch_async.mesh.leases import DetachedLease, DetachedStatus
    from monarch_async.mesh.placement import Placement
    from monarch_async.mesh.port import Port, Receiver, channel
    from monarch_async.mesh.proc_mesh import ProcMesh
    from monarch_async.mesh.progress import progress
    from monarch_async.mesh.ref import Ref, put, wait
    from monarch_async.mesh.scope import restart, supervise
    from monarch_async.mesh.status import Status
    from monarch_async.mesh.stream import Stream
    from monarch_async.mesh.transfers import transfers
    from monarch_async.mesh.transports import transports
    from monarch_async.mesh.value_mesh import ValueMesh
    from monarch_async.pools.pool import ActorPool
    from monarch_async.pools.status import PoolStatus
    from monarch_async.ranks import Extent, Point
    from monarch_async.remote_error import RemoteError
    from monarch_async.rl.weights import WeightPublisher, WeightSubscriber
    from monarch_async.runtime.actor import Actor, endpoint
    from monarch_async.runtime.context import Context, context
    from monarch_async.scheduler.demand import Bundle, Demand
    from monarch_async.scheduler.resources import Resources
    from monarch_async.sync.barrier import Barrier
    from monarch_async.sync.event import Event
    from monarch_async.sync.lock import Lock
    from monarch_async.sync.queue import Queue
    from monarch_async.sync.semaphore import Semaphore
    from monarch_async.tasks.future import TaskFuture
    from monarch_async.tasks.mapping import TaskOutcome
    from monarch_async.tasks.options import TaskOptions
    from monarch_async.tasks.quarantine import Quarantined
    from monarch_async.tasks.table import TaskStatus, quarantine, task_status
    from monarch_async.tasks.task import Task, map_unordered, submit, task

_NAMES = {
    "config": "Config",
    "control.host": "Host",
    "control.membership": "HostEvent",
    "control.supervision": "Failure escalate ignore",
    "errors": (
        "ActorDied AxisError Backpressure BadCall BadDemand BadEndpoint BadFrame BarrierBroken BufferMismatch "
        "Closed Empty Error ExtentError ForeignHandle FrameTooLarge HandshakeRefused HostLost LeaseHeld "
        "LinkBroken Lost MeshError NoSuchLease NoTransport NotAnEndpoint NotEverywhere NotHolder ObjectLost "
        "PicklingError Poisoned Preempted ProcDied RankError SpawnFailed StaleHandle StoreFull TransferBroken "
        "TransferError UnknownPart Unschedulable WireError WouldDeadlock"
    ),
    "mesh.actor_mesh": "ActorMesh",
    "mesh.attachment": "attach local_hosts run",
    "mesh.broadcast": "broadcast",
    "mesh.buffer": "Handle register",
    "mesh.cluster": "Cluster cluster",
    "mesh.host_mesh": "HostMesh this_host",
    "mesh.host_source": "HostSource",
    "mesh.leases": "DetachedLease DetachedStatus",
    "mesh.placement": "Placement",
    "mesh.port": "Port Receiver channel",
    "mesh.proc_mesh": "ProcMesh",
    "mesh.progress": "progress",
    "mesh.ref": "Ref put wait",
    "mesh.scope": "restart supervise",
    "mesh.status": "Status",
    "mesh.stream": "Stream",
    "mesh.transfers": "transfers",
    "mesh.transports": "transports",
    "mesh.value_mesh": "ValueMesh",
    "pools.pool": "ActorPool",
    "pools.status": "PoolStatus",
    "ranks": "Extent Point",
    "remote_error": "RemoteError",
    "rl.weights": "WeightPublisher WeightSubscriber",
    "runtime.actor": "Actor endpoint",
    "runtime.context": "Context context",
    "scheduler.demand": "Bundle Demand",
    "scheduler.resources": "Resources",
    "sync.barrier": "Barrier",
    "sync.event": "Event",
    "sync.lock": "Lock",
    "sync.queue": "Queue",
    "sync.semaphore": "Semaphore",
    "tasks.future": "TaskFuture",
    "tasks.mapping": "TaskOutcome",
    "tasks.options": "TaskOptions",
    "tasks.quarantine": "Quarantined",
    "tasks.table": "TaskStatus quarantine task_status",
    "tasks.task": "Task map_unordered submit task",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Actor",
    "ActorDied",
    "ActorMesh",
    "ActorPool",
    "AxisError",
    "Backpressure",
    "BadCall",
    "BadDemand",
    "BadEndpoint",
    "BadFrame",
    "Barrier",
    "BarrierBroken",
    "BufferMismatch",
    "Bundle",
    "Closed",
    "Cluster",
    "Config",
    "Context",
    "Demand",
    "DetachedLease",
    "DetachedStatus",
    "Empty",
    "Error",
    "Event",
    "Extent",
    "ExtentError",
    "Failure",
    "ForeignHandle",
    "FrameTooLarge",
    "Handle",
    "HandshakeRefused",
    "Host",
    "HostEvent",
    "HostLost",
    "HostMesh",
    "HostSource",
    "LeaseHeld",
    "LinkBroken",
    "Lock",
    "Lost",
    "MeshError",
    "NoSuchLease",
    "NoTransport",
    "NotAnEndpoint",
    "NotEverywhere",
    "NotHolder",
    "ObjectLost",
    "PicklingError",
    "Placement",
    "Point",
    "Poisoned",
    "PoolStatus",
    "Port",
    "Preempted",
    "ProcDied",
    "ProcMesh",
    "Quarantined",
    "Queue",
    "RankError",
    "Receiver",
    "Ref",
    "RemoteError",
    "Resources",
    "Semaphore",
    "SpawnFailed",
    "StaleHandle",
    "Status",
    "StoreFull",
    "Stream",
    "Task",
    "TaskFuture",
    "TaskOptions",
    "TaskOutcome",
    "TaskStatus",
    "TransferBroken",
    "TransferError",
    "UnknownPart",
    "Unschedulable",
    "ValueMesh",
    "WeightPublisher",
    "WeightSubscriber",
    "WireError",
    "WouldDeadlock",
    "__version__",
    "attach",
    "broadcast",
    "channel",
    "cluster",
    "context",
    "endpoint",
    "escalate",
    "ignore",
    "local_hosts",
    "map_unordered",
    "progress",
    "put",
    "quarantine",
    "register",
    "restart",
    "run",
    "submit",
    "supervise",
    "task",
    "task_status",
    "this_host",
    "transfers",
    "transports",
    "wait",
]


def __getattr__(name: str) -> object:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=globals())
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
