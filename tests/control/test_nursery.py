"""Starting, watching and ending, with real processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from monarch_async import errors
from monarch_async.control import kernel
from monarch_async.control.nursery import Nursery

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="checks processes in /proc")

#: a plain child, one in a session of its own, and a double fork that also left the session
GRANDCHILDREN = """
    pids = [subprocess.Popen(["sleep", "60"]).pid, subprocess.Popen(["setsid", "sleep", "60"]).pid]
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(writer, b"%d" % os.getpid())
            time.sleep(60)
        os._exit(0)
    pids.append(int(os.read(reader, 20)))
    control.sendall(" ".join(map(str, pids)).encode() + b"\\n")
    signal.pause()
"""


def private_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


async def test_many_workers_start_fast_and_small(nest) -> None:
    await nest.nursery.start_zygote()
    begin = time.perf_counter()
    nest.module("waits", "def main(control, spec):\n    control.recv(1)\n    return spec['id'] % 100")
    workers = [nest.fork(entry="waits:main") for _ in range(128)]
    for worker in workers:
        await worker.started
    took = time.perf_counter() - begin
    # 0.25 to 0.45 s on two quiet cores; the slack is for cores shared with other work
    assert took < 2.5
    private = private_kib(workers[64].pid)
    assert private < 8_000, f"{private} KiB are its own"
    for worker in workers:
        worker.control.send(b"x")
    for worker in workers:
        assert await worker.ended == worker.id % 100


async def test_death_is_noticed_at_once(nest) -> None:
    delays = []
    for _ in range(5):
        worker = nest.fork("signal.pause()")
        os.kill(await worker.started, signal.SIGKILL)
        begin = time.perf_counter()
        assert await worker.ended == -signal.SIGKILL
        delays.append(time.perf_counter() - begin)
    assert min(delays) < 0.1


@pytest.mark.parametrize("start", ["fork", "spawn"])
async def test_no_grandchild_survives_its_worker(nest, wait_gone, start) -> None:
    worker = nest.fork(GRANDCHILDREN, start=start)
    pids = [int(word) for word in (await worker.say())[0].split()]
    assert len(pids) == 3
    os.kill(worker.pid, signal.SIGKILL)
    await worker.ended
    for pid in pids:
        wait_gone(pid, 1.0)


async def test_no_grandchild_survives_the_close(nest, wait_gone) -> None:
    worker = nest.fork(GRANDCHILDREN)
    pids = [int(word) for word in (await worker.say())[0].split()]
    await nest.nursery.aclose()
    assert worker.ended.result() == -signal.SIGTERM
    for pid in pids:
        wait_gone(pid, 0.0)  # aclose has waited for that


async def test_a_helper_of_a_preload_module_lives_as_long_as_the_zygote(nest, wait_gone) -> None:
    nest.module("helped", "import subprocess\nHELPER = subprocess.Popen(['sleep', '60'])")
    worker = nest.fork("import helped; print(helped.HELPER.pid)", preload=("helped",))
    assert await worker.ended == 0
    helper = int(os.read(worker.stdout, 20))
    assert await nest.fork("return 0", preload=("helped",)).ended == 0
    os.kill(helper, 0)
    await nest.nursery.aclose()
    wait_gone(helper, 0.1)


async def test_signals_reach_the_whole_group(nest) -> None:
    worker = nest.fork(
        """
        signal.signal(signal.SIGTERM, lambda *_: print("parent"))
        script = "trap 'echo child; exit 0' TERM; echo up; while :; do sleep 0.01; done"
        child = subprocess.Popen(["sh", "-c", script])
        child.wait()
        """
    )
    assert await asyncio.to_thread(os.read, worker.stdout, 10) == b"up\n"
    nest.nursery.signal(worker.id, signal.SIGTERM)
    assert await worker.ended == 0
    assert sorted(worker.printed()[0].split()) == [b"child", b"parent"]
    nest.nursery.signal(worker.id, signal.SIGTERM)  # nothing to reach, nothing happens


async def test_a_signal_sent_right_after_the_fork_is_not_lost(nest) -> None:
    workers = [nest.fork("signal.pause()") for _ in range(20)]
    for worker in workers:
        nest.nursery.signal(worker.id, signal.SIGKILL)
    for worker in workers:
        assert await worker.ended in (
            -9,
            "the new process was killed by SIGKILL before it was ready; its stderr may say why",
        )


async def test_ctrl_c_does_not_reach_what_the_agent_started(nest) -> None:
    worker = nest.fork("control.recv(1); return 0")
    await worker.started
    zygote = nest.nursery.zygote_pids()[0]
    assert os.getsid(zygote) != os.getsid(0)
    assert os.getsid(worker.pid) == worker.pid
    os.kill(zygote, signal.SIGINT)
    assert await nest.fork("return 6").ended == 6
    worker.control.send(b"x")
    assert await worker.ended == 0


@pytest.mark.slow
async def test_close_gives_grace_then_kills(nest) -> None:
    polite = nest.fork(
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(9)); control.sendall(b'up\\n'); time.sleep(60)"
    )
    deaf = nest.fork(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); control.sendall(b'up\\n'); time.sleep(60)"
    )
    await polite.say()
    await deaf.say()
    begin = time.perf_counter()
    await asyncio.gather(nest.nursery.aclose(), nest.nursery.aclose())
    assert 1.0 <= time.perf_counter() - begin < 4.0
    assert polite.ended.result() == 9
    assert deaf.ended.result() == -signal.SIGKILL
    assert nest.nursery.zygote_pids() == []
    await nest.nursery.aclose()
    assert await nest.fork("return 0").ended == "this host is shutting down"
    with pytest.raises(errors.Closed):
        await nest.nursery.start_zygote()


async def test_close_while_the_zygote_still_imports(nest) -> None:
    nest.module("slow", "import time\ntime.sleep(60)")
    worker = nest.fork("return 0", preload=("slow",))
    starting = asyncio.ensure_future(nest.nursery.start_zygote(("slow",), [str(nest.directory)]))
    await asyncio.sleep(0)
    await nest.nursery.aclose()
    assert worker.ended.result() == "this host is shutting down"
    with pytest.raises(errors.Closed):
        await starting


async def test_concurrent_starts_share_one_zygote(nest) -> None:
    await asyncio.gather(*(nest.nursery.start_zygote(("json",)) for _ in range(5)))
    await nest.nursery.start_zygote(("json",))
    assert len(nest.nursery.zygote_pids()) == 1
    await nest.nursery.start_zygote()
    assert len(nest.nursery.zygote_pids()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "from threading import Thread\nfrom time import sleep\n"
            "Thread(target=sleep, args=(60,), daemon=True, name='busy-bee').start()",
            r"preload module bad started threads \(busy-bee\); forking would be unsafe: use start='spawn'",
        ),
        (
            "import no_such_thing",
            r"(?s)preload module bad failed to import:.*No module named 'no_such_thing'",
        ),
        ("import sys; sys.exit('bye')", r"(?s)preload module bad failed to import:.*SystemExit: bye"),
        ("import os; os._exit(3)", r"ended with status 3"),
        (
            "import sys, types\nsys.modules['torch'] = torch = types.ModuleType('torch')\n"
            "torch.cuda = types.SimpleNamespace(is_initialized=lambda: True)",
            "preload module bad initialised CUDA",
        ),
    ],
    ids=["threads", "import error", "exit", "crash", "cuda"],
)
async def test_a_preload_module_that_spoils_the_zygote(nest, code: str, reason: str) -> None:
    nest.module("bad", code)
    worker = nest.fork("return 0", preload=("bad",))
    with pytest.raises(errors.SpawnFailed, match=reason):
        await nest.nursery.start_zygote(("bad",), [str(nest.directory)])
    assert isinstance(await worker.ended, str)
    nest.module("bad", "")
    await nest.nursery.start_zygote(("bad",), [str(nest.directory)])  # mended: tried again
    assert await nest.fork("return 2", preload=("bad",)).ended == 2


async def test_native_threads_are_tolerated(nest) -> None:
    nest.module(
        "native",
        """
        import ctypes
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        assert libc.pthread_create(ctypes.byref(thread), None, libc.pause, None) == 0
        """,
    )
    assert await nest.fork("return 8", preload=("native",)).ended == 8


async def test_when_a_zygote_is_killed_its_workers_and_theirs_go_too(nest, wait_gone) -> None:
    worker = nest.fork(GRANDCHILDREN)
    pids = [int(word) for word in (await worker.say())[0].split()]
    await worker.started
    os.kill(nest.nursery.zygote_pids()[0], signal.SIGKILL)
    assert await worker.ended == -signal.SIGKILL
    for pid in (worker.pid, *pids):
        wait_gone(pid, 0.1)
    assert await nest.fork("return 1").ended == 1  # by a new zygote


async def test_a_stopped_zygote_does_not_lose_orders(nest) -> None:
    """More than its socket holds waits here, descriptors and all."""
    await nest.nursery.start_zygote()
    zygote = nest.nursery.zygote_pids()[0]
    os.kill(zygote, signal.SIGSTOP)
    workers = [nest.fork("return len(spec['ballast']) % 256", ballast="x" * 100_001) for _ in range(12)]
    await asyncio.sleep(0)
    os.kill(zygote, signal.SIGCONT)
    for worker in workers:
        assert await worker.ended == 100_001 % 256


def test_without_uvloop(no_process_left, tmp_path, wait_gone) -> None:
    """The other tests run on uvloop; asyncio's own loop starts and watches processes in another way."""
    code = "def main(control, spec):" + GRANDCHILDREN
    (tmp_path / "family.py").write_text("import os, signal, subprocess, sys, time\n" + code)

    async def live() -> list[int]:
        exited: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        async with Nursery(
            lambda *_: None, print, lambda id, _, status: exited.put_nowait((id, status))
        ) as nursery:
            ours, theirs = socket.socketpair()
            spec = {"id": 1, "entry": "family:main", "sys_path": [str(tmp_path)]}
            nursery.fork(spec, [theirs.detach(), os.dup(1), os.dup(2)])
            with ours:
                ours.setblocking(False)
                line = await asyncio.get_running_loop().sock_recv(ours, 100)
            nursery.signal(1, signal.SIGKILL)
            assert await exited.get() == (1, signal.SIGKILL)
            with pytest.raises(errors.SpawnFailed, match="no_such_module"):
                await nursery.start_zygote(("no_such_module",))
            os.kill(nursery.zygote_pids()[0], signal.SIGKILL)
        return [int(word) for word in line.split()]

    for pid in asyncio.run(live()):
        wait_gone(pid, 0.1)


AGENT = """
import asyncio, os, signal, socket, sys
from monarch_async.control.nursery import Nursery

async def main(directory):
    up = asyncio.Event()
    nursery = Nursery(lambda *_: up.set(), lambda *a: sys.exit(str(a)), print)
    ours, theirs = socket.socketpair()
    out, err = os.dup(1), os.dup(2)
    nursery.fork({"id": 1, "entry": "family:main", "sys_path": [directory]}, [theirs.detach(), out, err])
    await up.wait()
    line = await asyncio.to_thread(ours.recv, 100)
    print(nursery.zygote_pids()[0], line.decode(), end="", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(sys.argv[1]))
"""


def test_nothing_survives_an_agent_that_was_killed(no_process_left, tmp_path, wait_gone) -> None:
    head = "import os, signal, subprocess, sys, time\ndef main(control, spec):"
    (tmp_path / "family.py").write_text(head + GRANDCHILDREN)
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)], stdout=subprocess.PIPE)
    with agent:
        assert agent.stdout is not None
        pids = [int(word) for word in agent.stdout.readline().split()]
        assert len(pids) == 4
        agent.kill()
    for pid in pids:
        wait_gone(pid, 2.0)


def test_a_zygote_that_still_imports_dies_with_its_agent(no_process_left, tmp_path) -> None:
    (tmp_path / "slow.py").write_text("import os, time\nos.write(2, b'importing\\n')\ntime.sleep(60)")
    code = textwrap.dedent(
        """
        import asyncio, sys
        from monarch_async.control.nursery import Nursery
        asyncio.run(Nursery(print, print, print).start_zygote(("slow",), [sys.argv[1]]))
        """
    )
    agent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE)
    with agent:
        assert agent.stderr is not None
        assert agent.stderr.readline() == b"importing\n"
        agent.kill()
    until = time.monotonic() + 2.0
    while kernel.marked(no_process_left) and time.monotonic() < until:
        time.sleep(0.005)
