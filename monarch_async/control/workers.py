"""The workers of one agent: from the request to start them until everything of them is gone and told.

W1. A request to start several is answered once, when each is up or has failed.
W2. A proc's death is told after everything it sent and everything it printed.
W3. An orderly stop runs teardown hooks, then TERM, then KILL; it is over when the processes are gone.
W4. What a proc spawned ends with it.
"""

import asyncio
import errno
import os
import resource
import signal
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgpack

from monarch_async.config import Config
from monarch_async.control.nursery import Nursery
from monarch_async.control.output import Output
from monarch_async.control.refusal import pack_refusal
from monarch_async.control.relay import Relay
from monarch_async.control.worker import Batch, Exit, Worker, oom_kills
from monarch_async.errors import HostLost
from monarch_async.ids import address, host_of, proc_of
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import CONTROL, EXITED, LEASE, LOG, pack_frame

#: Of how many dead procs it is known how they have ended.
_MOST_EXITS = 4096

#: How long a dead proc's socket may still have something to say.
_LAST_WORDS = 0.05

#: Of so many clients that were given up it is remembered how their procs have ended.
_MOST_AWAY = 64


class Workers:
    """Workers by proc id. They talk through ``relay``; the nursery starts and ends them."""

    def __init__(self, relay: Relay, name: str, cluster: bytes, config: Config, is_lifelined: bool) -> None:
        """``name`` is the host's; ``cluster`` as in `bulk.endpoint.cluster_id`."""
        self._relay, self._name, self._cluster, self._config = relay, name, cluster, config
        self._is_lifelined = is_lifelined
        self.bulk_host = ""  #: what other machines reach this one by
        self._loop = asyncio.get_running_loop()
        self.nursery = Nursery(self._started, self._refused, self._exited, config.stop_grace, name)
        self._living: dict[int, Worker] = {}
        self._exits: dict[int, tuple[int, Exit]] = {}  # with their client
        self._away: OrderedDict[int, None] = OrderedDict()  # clients that were given up, and may come back
        self._connecting: set[asyncio.Task[None]] = set()
        self._oom_kills = oom_kills()
        self._is_ending = False
        self.on_gone: Callable[[int], None] = lambda _: None  #: told the address of each that has ended
        #: Of detached procs: told what they print (stream, lines), and how they have ended.
        self.on_lines: Callable[[Worker, int, bytes], None] = lambda *_: None
        self.on_ended: Callable[[Worker, Exit], None] = lambda *_: None
        self.open_files: int | None = None  #: the soft limit that workers get; None: this process's own

    def living(self) -> list[Worker]:
        """Return every worker that has not ended."""
        return list(self._living.values())

    # -- start -----------------------------------------------------------------------------------------------------

    def spawn(
        self,
        owner: int,
        specs: list[dict[str, Any]],
        preload: tuple[str, ...],
        sys_path: list[str],
        answer: Callable[[object], None],
    ) -> None:
        """Start workers; ``answer`` gets {proc id: reason} of those that failed, once all are up or have (W1)."""
        if self._is_ending:
            answer(pack_refusal(HostLost(self._name, "its agent is ending: it starts nothing more")))
            return
        taken = [spec["id"] for spec in specs if spec["id"] in self._living]
        if taken:
            answer({"error": f"proc ids {taken} are taken on {self._name}"})
            return
        batch = Batch(len(specs), answer)
        for spec in specs:
            self._fork(owner, spec, preload, sys_path, batch)

    def _fork(
        self, owner: int, spec: dict[str, Any], preload: tuple[str, ...], sys_path: list[str], batch: Batch
    ) -> None:
        root = spec.get("root", owner)
        to_root = self._relay.routes.get(root)
        spec = {
            **spec,
            "root": root,
            "address": address(self._relay.host, spec["id"]),
            "host": self._name,
            "config": {name: getattr(self._config, name) for name in Config.__slots__},
            "is_lifelined": self._is_lifelined,
            "cluster": self._cluster,
            "bulk_host": self.bulk_host,
            "is_root_near": to_root is not None and to_root.link is None,  # by a unix socket
            "sys_path": sys_path,
            "nofile": self.open_files,
        }
        label = f"{spec['mesh']}[{spec['rank']}]"
        connection = Connection(self._relay, label, spec["address"], None, self._config.max_frame)
        worker = Worker(spec, connection, owner, root, batch)
        try:
            ours, theirs, out_read, out_write, err_read, err_write = _open_ends()
        except OSError as error:
            self._never_started(worker, f"its agent cannot open a connection to it: {_why(error)}")
            return
        worker.output = Output(
            out_read,
            err_read,
            lambda stream, lines: self._forward_lines(worker, stream, lines),
            lambda: self._may_log(worker.root),
            self._config.stderr_lines,
        )
        self._living[worker.id] = worker
        self._exits.pop(worker.id, None)
        self._relay.routes[worker.address] = connection
        connect = self._loop.create_task(self._connect(connection, ours))
        self._connecting.add(connect)
        connect.add_done_callback(self._connecting.discard)
        self.nursery.fork(spec, (theirs, out_write, err_write), preload, sys_path if preload else ())

    async def _connect(self, connection: Connection, ours: socket.socket) -> None:
        await self._loop.create_unix_connection(lambda: connection, sock=ours)

    def _started(self, id: int, pid: int) -> None:
        worker = self._living.get(id)
        if worker is not None:
            worker.pid = pid

    def up(self, id: int) -> None:
        """A worker says that it is up."""
        worker = self._living.get(id)
        if worker is not None:
            worker.is_up = True
            worker.settle(None)

    def _refused(self, id: int, reason: str) -> None:
        worker = self._living.pop(id, None)
        if worker is not None:
            assert worker.output is not None
            worker.output.drain()
            self._never_started(worker, reason)

    def _never_started(self, worker: Worker, reason: str) -> None:
        worker.connection.close()
        worker.gone.set_result(None)
        worker.settle(reason)
        self._tell(worker, Exit.refused(worker, self._name, reason))

    # -- end -------------------------------------------------------------------------------------------------------

    def connection_down(self, connection: Connection) -> bool:
        """A socket broke; return whether it was a worker's. Its exit follows, or has come already."""
        worker = self._living.get(proc_of(connection.address))
        if worker is None or worker.connection is not connection:
            return False
        worker.is_connected = False
        self._finish_if_gone(worker)
        return True

    def _exited(self, id: int, pid: int, status: int) -> None:
        worker = self._living.get(id)
        if worker is not None:
            worker.wait_status = status
            self._finish_if_gone(worker)
            if not worker.gone.done():
                self._loop.call_later(_LAST_WORDS, self._finish, worker)

    def _finish_if_gone(self, worker: Worker) -> None:
        if worker.wait_status is not None and not worker.is_connected:
            self._finish(worker)

    def _finish(self, worker: Worker) -> None:
        """W2: everything it sent was forwarded; take what it printed, then tell."""
        if self._living.get(worker.id) is not worker:
            return
        assert worker.output is not None
        worker.output.drain()
        del self._living[worker.id]
        worker.connection.close()
        kills, self._oom_kills = self._oom_kills, oom_kills()
        exit = Exit.of(worker, self._name, self._oom_kills > kills)
        worker.settle(exit.why + "".join(f"\n  | {line}" for line in exit.stderr))
        worker.gone.set_result(None)
        self._tell(worker, exit)

    def _tell(self, worker: Worker, exit: Exit) -> None:
        """Tell its owner, its client, and whoever sent to it."""
        if worker.lease or worker.root in self._away or self._relay.find(worker.root) is not None:
            self._exits[worker.id] = worker.root, exit
            if len(self._exits) > _MOST_EXITS:
                del self._exits[next(iter(self._exits))]
        if worker.lease:
            self.on_ended(worker, exit)
        listeners = self._relay.forget(worker.address)
        told = {connection.address for connection in listeners}
        for connection in listeners:
            self.send_exit(connection, exit, worker.owner_actor if connection.address == worker.owner else 0)
        for known in {worker.owner, worker.root} - told:
            route = self._relay.find(known)  # on another host it goes through its agent
            if route is not None:
                self.send_exit(route, exit, worker.owner_actor if known == worker.owner else 0, known)
        self.kill_owned_by(worker.address)
        self.on_gone(worker.address)

    def send_exit(self, connection: Connection, exit: Exit, owner_actor: int = 0, dst: int | None = None) -> None:
        """Tell who is at the other end, or ``dst`` behind it."""
        dst, src = connection.address if dst is None else dst, self._relay.address
        connection.send_run([pack_frame(EXITED, 0, dst, src, owner_actor, exit.address, b"", exit.pack())])

    def kill_owned_by(self, owner: int) -> None:
        """End what a dead proc, here or elsewhere, had spawned here (W4): nobody is left who could supervise it.

        Of a client, what it has detached lives on.
        """
        orphans = [w for w in self.living() if w.owner == owner and not (w.lease and w.root == owner)]
        self.kill(orphans, signal.SIGKILL, "the agent: the proc that spawned it has died")

    def kill_owned_from(self, host: int) -> None:
        """End what procs of a host that was given up had spawned here (W4)."""
        orphans = [worker for worker in self.living() if host_of(worker.owner) == host]
        self.kill(orphans, signal.SIGKILL, "the agent: the host of the proc that spawned it is lost")

    def forget_client(self, root: int, may_return: bool = False) -> None:
        """A client is gone: how its procs have ended is of interest to nobody, unless it ``may_return``."""
        if may_return:
            self._away[root] = None
            self._away.move_to_end(root)
            if len(self._away) <= _MOST_AWAY:
                return
            root, _ = self._away.popitem(last=False)
        self._away.pop(root, None)
        self._exits = {id: known for id, known in self._exits.items() if known[0] != root}

    def exit_of(self, dst: int) -> Exit:
        """Return how the proc at ``dst`` ended, or that there never was one."""
        known = self._exits.get(proc_of(dst))
        return known[1] if known is not None else Exit.unknown(dst, self._name)

    async def stop(self, ids: Sequence[int], reason: str, grace: float) -> None:
        """End workers in order (W3). Waits until they are gone."""
        workers = [self._living[id] for id in ids if id in self._living]
        for worker in workers:
            worker.killed_by = worker.killed_by or reason
            self.ask(worker, 0, "shutdown", reason)
        for signo in (signal.SIGTERM, signal.SIGKILL):
            await _wait_gone(workers, grace)
            self.kill([worker for worker in workers if not worker.gone.done()], signo, reason)
        await _wait_gone(workers, None)

    def kill(self, workers: Sequence[Worker], signo: int, by: str) -> None:
        """Send a signal to workers and what they started; ``by`` says who asked."""
        for worker in workers:
            worker.killed_by = worker.killed_by or by
            self.nursery.signal(worker.id, signo)

    def find(self, ids: Sequence[int]) -> list[Worker]:
        """Return the living ones of these ids."""
        return [self._living[id] for id in ids if id in self._living]

    async def aclose(self) -> None:
        """End every worker and the zygotes; none is started any more."""
        self._is_ending = True
        await self.nursery.aclose()
        for worker in self.living():
            self._finish(worker)
        for connect in list(self._connecting):
            connect.cancel()

    # -- words to and from them ------------------------------------------------------------------------------------

    def ask(self, worker: Worker, call: int, operation: str, *arguments: object) -> None:
        """Send a request to a worker's runtime."""
        request = msgpack.packb([operation, *arguments])
        worker.connection.send(pack_frame(CONTROL, 0, worker.address, self._relay.address, 0, call, b"", request))

    def renew_leases(self) -> None:
        """Tell every worker that its agent lives."""
        lease = pack_frame(LEASE, 0, 0, self._relay.address, 0, 0)
        for worker in self._living.values():
            worker.connection.send(lease)

    def _forward_lines(self, worker: Worker, stream: int, lines: list[bytes]) -> None:
        text = b"\n".join(lines)
        if worker.lease:
            self.on_lines(worker, stream, text)
        route = self._relay.find(worker.root)
        if route is not None:
            about = msgpack.packb([worker.spec["mesh"], worker.spec["rank"]])
            route.send(pack_frame(LOG, 0, worker.root, worker.address, stream, 0, about, text))

    def _may_log(self, root: int) -> bool:
        route = self._relay.find(root)
        return route is None or route.has_room


def _open_ends() -> tuple[socket.socket, int, int, int, int, int]:
    """Open both ends of a worker's connection, of its stdout and of its stderr. Raises OSError, with none left open."""
    with ExitStack() as undo:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        undo.callback(ours.close)
        undo.callback(theirs.close)
        out_read, out_write = os.pipe()
        undo.callback(os.close, out_read)
        undo.callback(os.close, out_write)
        err_read, err_write = os.pipe()
        undo.pop_all()
    return ours, theirs.detach(), out_read, out_write, err_read, err_write


def _why(error: OSError) -> str:
    if error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"too many open files (limit {limit}): raise `ulimit -n`"
    return error.strerror or str(error)


async def _wait_gone(workers: Sequence[Worker], timeout: float | None) -> None:
    alive = [worker.gone for worker in workers if not worker.gone.done()]
    if alive:
        await asyncio.wait(alive, timeout=timeout)
