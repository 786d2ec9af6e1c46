"""What an agent knows of one worker proc, alive or dead."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack

from monarch_async.control.output import Output
from monarch_async.errors import HostLost, Lost, ProcDied
from monarch_async.transport.connection import Connection


class Batch:
    """Several workers asked for in one request: answered once, when each is up or has failed."""

    __slots__ = ("_done", "_failures", "_left")

    def __init__(self, count: int, done: Callable[[dict[int, str]], None]) -> None:
        """``done`` gets proc id -> reason of those that failed."""
        self._left, self._done = count, done
        self._failures: dict[int, str] = {}

    def settle(self, id: int, reason: str | None) -> None:
        """One of them is up (None) or has failed."""
        self._left -= 1
        if reason is not None:
            self._failures[id] = reason
        if self._left == 0:
            self._done(self._failures)


class Worker:
    """A living worker: its spec, connection, pipes; who owns it (proc and actor) and the client at the root.

    Owner and root of what a detached lease keeps change with it; 0: there is none now.
    """

    def __init__(
        self, spec: dict[str, Any], connection: Connection, owner: int, root: int, batch: Batch
    ) -> None:
        """Asked for, not yet started."""
        self.spec, self.connection, self.owner, self.root = spec, connection, owner, root
        self.id: int = spec["id"]
        self.address: int = spec["address"]
        self.owner_actor: int = spec.get("owner_actor", 0)
        self.lease: int = spec.get("lease", 0)  #: the detached lease that it belongs to; 0: it ends with its client
        self.pid = 0
        self.is_up = False
        self.is_connected = True
        self.wait_status: int | None = None
        self.killed_by = ""
        self.output: Output | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._batch: Batch | None = batch

    def settle(self, reason: str | None) -> None:
        """It is up, or has failed with a reason: tell who asked, once."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.settle(self.id, reason)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a proc ended, or that its host is gone (``is_host``); travels as msgpack."""

    address: int
    name: str
    host: str
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    stderr: tuple[str, ...] = ()
    killed_by: str = ""
    pid: int = 0
    is_host: bool = False
    was_up: bool = True

    @classmethod
    def of(cls, worker: Worker, host: str, was_out_of_memory: bool) -> "Exit":
        """Return how ``worker`` ended, from its wait status and last lines."""
        assert worker.wait_status is not None and worker.output is not None
        code = os.waitstatus_to_exitcode(worker.wait_status)
        return cls(
            worker.address,
            _name(worker.spec),
            host,
            code if code >= 0 else None,
            -code if code < 0 else None,
            was_out_of_memory and code == -9 and not worker.killed_by,
            tuple(worker.output.last_lines),
            worker.killed_by,
            worker.pid,
            was_up=worker.is_up,
        )

    @classmethod
    def refused(cls, worker: Worker, host: str, reason: str) -> "Exit":
        """Return that ``worker`` never started."""
        return cls(worker.address, _name(worker.spec), host, killed_by=f"it never started: {reason}", was_up=False)

    @classmethod
    def unknown(cls, address: int, host: str) -> "Exit":
        """Return that nothing has this address."""
        return cls(address, f"{address & 0xFFFF_FFFF:08x}", host, killed_by="no such proc on this host")

    @classmethod
    def host_lost(cls, agent: int, host: str, reason: str) -> "Exit":
        """Return that a whole host is gone."""
        return cls(agent, host, host, killed_by=reason, is_host=True)

    @property
    def why(self) -> str:
        """In words."""
        return str(self.as_error()) if self.is_host else ProcDied(*self._facts()).reason

    def pack(self) -> bytes:
        """Return it as bytes."""
        return msgpack.packb({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def unpack(cls, data: bytes) -> "Exit":
        """Return it from bytes."""
        fields = msgpack.unpackb(data)
        return cls(**{**fields, "stderr": tuple(fields["stderr"])})

    def as_error(self) -> Lost:
        """Return it as the error that calls fail with."""
        if self.is_host:
            return HostLost(self.host, self.killed_by)
        return ProcDied(*self._facts())

    def _facts(self) -> tuple[Any, ...]:
        return (
            self.name,
            self.host,
            self.exit_code,
            self.signal,
            self.out_of_memory,
            self.stderr,
            self.killed_by,
            self.pid,
        )


def _name(spec: dict[str, Any]) -> str:
    return f"{spec['mesh']}[{spec['rank']}]"


def oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory since boot; 0 where it does not say."""
    try:
        with open("/proc/vmstat") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0
