"""What every test gets: uvloop, and a check that nothing is left behind."""

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

import monarch_async as ma
from monarch_async.bulk.plane_thread import PlaneThread


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session", autouse=True)
def nothing_preloaded() -> Iterator[None]:
    """Workers import torch only where a test asks for it: once one test module has, every program here looks like one
    that uses torch, and each of its zygotes would import it, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("program", "proc_recipe"):
            patch.setattr(f"monarch_async.mesh.{module}.default_preload", tuple)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosts() -> AsyncIterator[ma.HostMesh]:
    """One host for the tests of a module (mark them ``pytest.mark.asyncio(loop_scope="module")``).

    Only for tests that leave no unhandled failure: those start hosts of their own.
    """
    async with ma.local_hosts() as hosts:
        yield hosts


@pytest.fixture(scope="session", autouse=True)
def _libuv_started() -> None:
    """libuv makes a pipe for the whole process when the first child is started, and when a second thread has a loop;
    they are nobody's leak."""

    async def start_one() -> None:
        process = await asyncio.create_subprocess_exec("true")
        await process.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(start_one())
    PlaneThread().close()


def children() -> set[int]:
    """The pids of this process's living children."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


def descriptors(has_hosts: bool = False) -> dict[str, str]:
    """The open descriptors of this process and what they are. With hosts there may be memory that is kept warm."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass
    return {fd: what for fd, what in found.items() if not (has_hosts and "memfd:monarch_async" in what)}


#: Descriptors of a data plane with its loop and sockets. It starts with the first large message of hosts that stay.
_OF_A_PLANE = 10

#: And of the direct connections to a proc of such hosts: one dialled, one taken, one that listens.
_OF_DIRECT = 3


def data_planes() -> int:
    """How many data planes run here."""
    return sum(thread.name == "data plane" for thread in threading.enumerate())


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays: the collections that tests ask for need not look at it, a tenth of a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test no child, descriptor or shared memory of it is left."""
    lasting = {"hosts", "driver"} & set(request.fixturenames)  # driver: of a program on the Ray facade
    for name in lasting:
        request.getfixturevalue(name)
    has_hosts = bool(lasting)
    before = children(), set(os.listdir("/dev/shm")), descriptors(has_hosts), data_planes()
    yield
    left = what_is_left(*before, has_hosts)
    if left:  # a collection takes longer than most tests: only where something waits for one
        gc.collect()
        left = what_is_left(*before, has_hosts)
    assert not left, "; ".join(left)


def what_is_left(kids: set[int], shm: set[str], fds: dict[str, str], planes: int, has_hosts: bool) -> list[str]:
    """Say what is there that was not there before."""
    left = []
    if more := children() - kids:
        left.append(f"children left: {more}")
    if more := set(os.listdir("/dev/shm")) - shm:
        left.append(f"shared memory left: {more}")
    after = descriptors(has_hosts)
    allowed = _OF_A_PLANE * (data_planes() - planes) + (_OF_DIRECT if has_hosts else 1)
    if len(after) > len(fds) + allowed:
        left.append(f"descriptors left: { {fd: what for fd, what in after.items() if fds.get(fd) != what} }")
    return left
