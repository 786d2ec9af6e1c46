"""Real worker processes for the tests of this folder, and the check that none is left."""

import asyncio
import os
import socket
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from monarch_async.control import kernel
from monarch_async.control.nursery import Nursery

uvloop.new_event_loop().close()  # opens what libuv keeps for the life of the process


@pytest.fixture
def no_process_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Mark all that is started below this process; fail if any of it, or a descriptor, is left."""
    mark = os.urandom(8).hex()
    monkeypatch.setenv("TEST_MARK", mark)
    before = open_files()
    yield mark
    left = kernel.marked(mark)
    kernel.kill_marked(mark)
    assert not left, "processes left behind"
    assert not open_files() - before, "descriptors left open"
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


@dataclass
class Worker:
    """The test's end of one worker."""

    id: int
    control: socket.socket
    stdout: int
    stderr: int
    started: asyncio.Future[int]
    ended: asyncio.Future[int | str] = field(compare=False)
    pid: int = 0

    async def say(self, count: int = 1) -> list[bytes]:
        """Wait for that many lines on the control connection."""
        loop = asyncio.get_running_loop()
        self.control.setblocking(False)
        data = b""
        while data.count(b"\n") < count:
            data += await loop.sock_recv(self.control, 4096)
        return data.splitlines()

    def printed(self) -> tuple[bytes, bytes]:
        """Everything it wrote to stdout and stderr, after it has ended."""
        return _drain(self.stdout), _drain(self.stderr)


def _drain(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    return b"".join(parts)


class Nest:
    """A nursery and what it said."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.workers: dict[int, Worker] = {}
        self.events: list[tuple[Any, ...]] = []
        self.nursery = Nursery(self._on_started, self._on_refused, self._on_exited, grace=1.0, host="h")

    def module(self, name: str, code: str) -> str:
        (self.directory / f"{name}.py").write_text(textwrap.dedent(code))
        return name

    def fork(self, code: str | None = None, preload: tuple[str, ...] = (), **spec: Any) -> Worker:
        """Start a worker that runs ``code``, the body of ``main(control, spec)``."""
        loop = asyncio.get_running_loop()
        id = len(self.workers) + 1
        if code is not None:
            body = textwrap.indent(textwrap.dedent(code), "    ")
            self.module(
                f"entry_{id}", f"import os, signal, subprocess, sys, time\ndef main(control, spec):\n{body}"
            )
            spec["entry"] = f"entry_{id}:main"
        ours, theirs = socket.socketpair()
        stdout, stdout_end = os.pipe()
        stderr, stderr_end = os.pipe()
        self.workers[id] = worker = Worker(
            id, ours, stdout, stderr, loop.create_future(), loop.create_future()
        )
        spec = {"id": id, "sys_path": [str(self.directory)], **spec}
        self.nursery.fork(spec, [theirs.detach(), stdout_end, stderr_end], preload, [str(self.directory)])
        return worker

    def _on_started(self, id: int, pid: int) -> None:
        self.events.append(("started", id))
        self.workers[id].pid = pid
        self.workers[id].started.set_result(pid)

    def _on_refused(self, id: int, reason: str) -> None:
        self.events.append(("refused", id))
        self.workers[id].started.cancel()
        self.workers[id].ended.set_result(reason)

    def _on_exited(self, id: int, pid: int, wait_status: int) -> None:
        self.events.append(("exited", id))
        assert pid == self.workers[id].pid
        self.workers[id].ended.set_result(os.waitstatus_to_exitcode(wait_status))

    async def aclose(self) -> None:
        await self.nursery.aclose()
        for worker in self.workers.values():
            assert worker.ended.done(), f"worker {worker.id} was left out"
            worker.control.close()
            os.close(worker.stdout)
            os.close(worker.stderr)


@pytest.fixture
async def nest(tmp_path: Path, no_process_left: str) -> AsyncIterator[Nest]:
    nest = Nest(tmp_path)
    yield nest
    await nest.aclose()


@pytest.fixture
def wait_gone() -> Callable[[int, float], None]:
    """Wait until no live process has this pid; fail after so many seconds."""

    def wait(pid: int, patience: float) -> None:
        until = time.monotonic() + patience
        while is_alive(pid):
            assert time.monotonic() < until, f"process {pid} still lives after {patience} s"
            time.sleep(0.005)

    return wait


def open_files() -> set[tuple[str, str]]:
    names = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:  # the one that listed them
            pass
    return names


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False
