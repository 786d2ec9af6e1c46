"""What a worker finds when its entry runs, forked or spawned."""

import os
import signal
import sys
from pathlib import Path

import pytest

from monarch_async.control import kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="checks processes in /proc")

START = pytest.mark.parametrize("start", ["fork", "spawn"])


@START
async def test_environment_is_set_before_any_import_of_the_users(nest, start) -> None:
    nest.module("reads_env", "import os\nSEEN = os.environ['COLOUR']")
    worker = nest.fork("import reads_env; return int(reads_env.SEEN)", env={"COLOUR": "7"}, start=start)
    assert await worker.ended == 7
    assert "COLOUR" not in os.environ


@START
async def test_directory_path_title_session_and_descriptors(nest, tmp_path: Path, start) -> None:
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    worker = nest.fork(
        """
        assert os.getcwd() == spec["wanted"], os.getcwd()
        assert all(sys.path.count(path) == 1 for path in spec["sys_path"]), sys.path
        assert open("/proc/self/comm").read() == "worker of train\\n", open("/proc/self/comm").read()
        assert os.getpid() == os.getsid(0) == os.getpgid(0)
        assert os.read(0, 1) == b""
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert not control.get_inheritable()
        extra = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                 and int(fd) != control.fileno() and os.path.exists(f"/proc/self/fd/{fd}")}
        assert not [name for name in extra if name.startswith(("socket", "pipe"))], extra
        """,
        cwd=str(directory),
        wanted=str(directory),
        sys_path=[str(nest.directory), str(directory)],
        title="worker of trainers[3]",
        start=start,
    )
    assert await worker.ended == 0, worker.printed()


@pytest.mark.slow
@START
@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("return 3", 3, b""),
        ("return None", 0, b""),
        ("sys.exit(4)", 4, b""),
        ("sys.exit('no luck')", 1, b"no luck\n"),
        ("sys.exit()", 0, b""),
        ("raise KeyError('lost')", 70, b"KeyError: 'lost'\n"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, b""),
        ("os._exit(5)", 5, b""),
    ],
)
async def test_how_it_ends(nest, start, code: str, status: int, stderr: bytes) -> None:
    worker = nest.fork(code, start=start)
    assert await worker.ended == status
    assert worker.printed()[1].endswith(stderr)
    assert nest.events == [("started", 1), ("exited", 1)]


@START
async def test_output_of_python_and_c_is_complete_and_in_order(nest, start, monkeypatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it would hide what is left in buffers
    worker = nest.fork(
        """
        import ctypes
        libc = ctypes.CDLL(None)
        for i in range(300):
            print("python", i)
            libc.printf(b"c %d\\n", i)
            os.write(1, b"fd %d\\n" % i)
        print("caf\\u00e9 \\udcff")
        print("no newline", end="", flush=True)
        print("to stderr, no newline", end="", file=sys.stderr)
        libc.printf(b"; nor here")
        """,
        start=start,
        env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    )
    assert await worker.ended == 0
    stdout, stderr = worker.printed()
    *lines, café, last = stdout.split(b"\n")
    assert lines == [b"%s %d" % (who, i) for i in range(300) for who in (b"python", b"c", b"fd")]
    assert café == "café \\udcff".encode()
    assert last == b"no newline; nor here"
    assert stderr == b"to stderr, no newline"


@pytest.mark.slow
async def test_forks_share_no_random_state(nest) -> None:
    nest.module(
        "seeded",
        "import random, numpy.random, torch\nrandom.seed(1)\nnumpy.random.seed(1)\ntorch.manual_seed(1)",
    )
    code = """
        import random, numpy, torch
        print(random.random(), numpy.random.rand(), torch.rand(1, dtype=torch.float64).item())
        print(torch.get_num_threads())
    """
    workers = [nest.fork(code, preload=("seeded",), env={"OMP_NUM_THREADS": n}) for n in ("1", "3")]
    for worker in workers:
        assert await worker.ended == 0, worker.printed()
    drawn = [worker.printed()[0].split() for worker in workers]
    assert len({*drawn[0][:3], *drawn[1][:3]}) == 6
    assert [words[3] for words in drawn] == [b"1", b"3"]


@START
@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"cwd": "/no/such/place"}, "cannot change to directory '/no/such/place': No such file or directory"),
        ({"entry": "no_such_module:main"}, "ModuleNotFoundError: No module named 'no_such_module'"),
        ({"entry": "os:no_such_function"}, "has no attribute 'no_such_function'"),
    ],
)
async def test_what_cannot_start_is_refused_with_the_reason(nest, start, spec, reason: str) -> None:
    worker = nest.fork(start=start, **spec)
    assert reason in await worker.ended
    assert nest.events == [("refused", 1)]


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("/no/such/python", "cannot run interpreter '/no/such/python': No such file or directory"),
        ("no-such-python", "cannot run interpreter 'no-such-python': No such file or directory"),
        ("/etc", "cannot run interpreter '/etc': Permission denied"),
        ("false", "the new process exited with status 1 before it was ready; its stderr may say why"),
    ],
)
async def test_an_interpreter_that_does_not_run_is_refused(nest, python: str, reason: str) -> None:
    assert await nest.fork("", start="spawn", python=python).ended == reason


async def test_an_import_that_kills_the_process_is_refused(nest) -> None:
    nest.module(
        "deadly", "import os, signal\nprint('dying', flush=True)\nos.kill(os.getpid(), signal.SIGABRT)"
    )
    worker = nest.fork(entry="deadly:main")
    assert "was killed by SIGABRT before it was ready" in await worker.ended
    assert worker.printed()[0] == b"dying\n"


async def test_a_spawned_worker_runs_the_interpreter_it_was_given(nest) -> None:
    python = nest.directory / "other-python"
    python.write_text(f'#!/bin/sh\nexport WRAPPED=1\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    worker = nest.fork("return int(os.environ['WRAPPED'])", start="spawn", python=str(python))
    assert await worker.ended == 1, worker.printed()


async def test_a_large_spec_survives_the_exec(nest) -> None:
    worker = nest.fork("return len(spec['ballast']) == 300_000", start="spawn", ballast="x" * 300_000)
    assert await worker.ended == 1


async def test_a_worker_keeps_its_own_orphans_until_it_ends(nest) -> None:
    """Another worker's end must not take them for its leavings."""
    first = nest.fork(
        """
        subprocess.run(["sh", "-c", "setsid sleep 60 & echo $! >&2"])
        control.sendall(b"up\\n")
        control.recv(1)
        """
    )
    await first.say()
    orphan = int(os.read(first.stderr, 100))
    assert orphan in kernel.children(first.pid)
    assert await nest.fork("return 0").ended == 0
    assert await nest.fork("return 0").ended == 0  # by now the zygote has looked for strays
    os.kill(orphan, 0)
    first.control.send(b"x")
    assert await first.ended == 0
