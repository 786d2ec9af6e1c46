"""The command as its users run it: real processes, their output and exit statuses."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import monarch_async as ma
from monarch_async.cli.main import main
from monarch_async.mesh.duration import format_age
from monarch_async.mesh.local_source import LOCAL_FOLDERS

MONARCH = [sys.executable, "-m", "monarch_async.cli.main"]
Run = Callable[..., tuple[int, str, str]]
ENVIRON = {name: value for name, value in os.environ.items() if name != "MONARCH_ASYNC_TOKEN"}


class Sleeper(ma.Actor):
    @ma.endpoint
    async def sleep(self) -> None:
        await asyncio.sleep(60)

    @ma.endpoint
    async def block(self, release: str) -> None:
        while not os.path.exists(release):  # the point is to block
            pass


class Caller(ma.Actor):
    def __init__(self, sleeper: Sleeper) -> None:
        self.sleeper = sleeper

    @ma.endpoint
    async def forward(self) -> None:
        await self.sleeper.sleep.call_one()


SITTER = """
import asyncio, sys
import monarch_async as ma

async def main():
    async with ma.attach(sys.argv[1], token_file=sys.argv[2]) as hosts:
        await hosts.spawn_procs()
        print("here", flush=True)
        await asyncio.sleep(60)

ma.run(main())
"""


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("a secret\n")
    path.chmod(0o600)
    return path


@asynccontextmanager
async def agent(*arguments: str, environ: dict[str, str] = ENVIRON) -> AsyncIterator[tuple[str, Process]]:
    """An agent on a free port: its address and process. It has ended at the end."""
    process = await asyncio.create_subprocess_exec(
        *MONARCH, "agent", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    assert " listens on " in line, line
    try:
        yield line.split()[-1], process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def run(*arguments: str, environ: dict[str, str] = ENVIRON) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *MONARCH, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process, which is quicker."""
    monkeypatch.delenv("MONARCH_ASYNC_TOKEN", raising=False)
    monkeypatch.setattr(sys, "argv", ["monarch-async"])

    def run_here(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run_here


async def wait_line(stream: asyncio.StreamReader, text: str) -> str:
    """Return the first line that contains ``text``."""
    while line := (await stream.readline()).decode():
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


async def test_the_command_is_there_without_its_script() -> None:
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "monarch_async", "--help", stdout=subprocess.PIPE, env=ENVIRON
    )
    out, _ = await done.communicate()
    assert (done.returncode, out.decode().split()[:2]) == (0, ["usage:", "monarch-async"])


# -- agent -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM])
async def test_an_agent_ends_in_order_on_a_signal(token: Path, signo: signal.Signals) -> None:
    async with agent("--token-file", str(token), "--name", "alpha") as (url, process):
        assert url.startswith("tcp://127.0.0.1:")
        process.send_signal(signo)
        assert await process.wait() == 0
        assert process.stderr is not None
        assert "agent alpha ended" in (await process.stderr.read()).decode()


@pytest.mark.slow
async def test_a_program_that_was_killed_is_in_the_log_and_the_status_until_its_window_is_over(token: Path) -> None:
    environ = {**ENVIRON, "MONARCH_ASYNC_RESUME_WINDOW": "4"}
    async with agent("--token-file", str(token), "--name", "alpha", environ=environ) as (url, process):
        assert process.stderr is not None
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SITTER, url, str(token), stdout=subprocess.PIPE
        )
        assert program.stdout is not None
        await program.stdout.readline()
        program.kill()
        await program.wait()
        async with asyncio.timeout(10):
            said = await wait_line(process.stderr, f"client {program.pid}: its connection broke")
        assert "its procs here end unless it is back within 4 s" in said
        code, shown, _ = await run("status", url, "--token-file", str(token))
        assert code == 0
        away = re.search(r"client (\d+) \(not connected for [\d.]+ s, gone after 4 s\)", " ".join(shown.split()))
        assert away is not None and int(away[1]) == program.pid
        async with asyncio.timeout(10):
            assert "ending 1 procs" in await wait_line(process.stderr, "not heard for")


@pytest.mark.slow
async def test_an_agent_is_let_go_where_another_cannot_be_reached(token: Path) -> None:
    """Who joins none after all does not stay in the first for as long as it might come back."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert process.stderr is not None
        await wait_line(process.stderr, "joined (client)")
        writer.close()

    async with agent("--token-file", str(token), "--name", "alpha") as (url, process):
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            dead = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises((ma.LinkBroken, ma.HandshakeRefused)):
                await ma.attach(url, dead, token_file=str(token)).__aenter__()
        assert process.stderr is not None
        async with asyncio.timeout(10):
            assert "said goodbye" in await wait_line(process.stderr, "client")
        with pytest.raises(ValueError, match=f"{url} is given twice"):
            ma.attach(url, url, token_file=str(token))


async def test_an_agent_serves_a_program_that_attaches_and_logs_who_it_refuses(token: Path) -> None:
    async with agent("--token-file", str(token), "--name", "alpha") as (url, process):
        assert process.stderr is not None
        async with ma.attach(url, token_file=str(token)) as hosts:
            procs = await hosts.spawn_procs({"gpus": 2}, name="trainers")
            assert (await hosts.status()).hosts[0].name == "alpha"
            assert "(client)" in await wait_line(process.stderr, "joined")
            await procs.stop()
        assert "said goodbye" in await wait_line(process.stderr, "left")
        with pytest.raises(ma.HandshakeRefused, match="wrong token"):
            await ma.attach(url, token="another").__aenter__()
        assert "refused a connection from 127.0.0.1" in await wait_line(process.stderr, "wrong token")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        writer.close()
        assert "refused a connection from 127.0.0.1" in await wait_line(process.stderr, "not a monarch_async peer")


@pytest.mark.slow
async def test_the_token_may_come_from_the_environment_and_goes_no_further() -> None:
    environ = ENVIRON | {"MONARCH_ASYNC_TOKEN": "a secret"}
    async with agent(environ=environ) as (url, _), ma.attach(url, token="a secret") as hosts:
        procs = await hosts.spawn_procs()
        envs = await procs.spawn("envs", Environment)
        assert await envs.get.call_one("PATH")
        assert await envs.get.call_one("MONARCH_ASYNC_TOKEN") is None
        await procs.stop()


class Environment(ma.Actor):
    @ma.endpoint
    async def get(self, name: str) -> str | None:
        return os.environ.get(name)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no cluster token"),
        (["--listen", "tcp://0.0.0.0:0"], "can be reached from other machines"),
        (["--listen", "nonsense"], "bad address 'nonsense'"),
        (["--listen", "tcp://localhost:port"], "bad address 'tcp://localhost:port'"),
        (["--token-file", "/nowhere/token"], "cannot read the token file /nowhere/token"),
    ],
)
def test_an_agent_says_in_a_line_why_it_does_not_start(run_here: Run, arguments: list[str], complaint: str) -> None:
    code, out, err = run_here("agent", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("monarch-async agent: ")
    assert complaint in err
    assert len(err.splitlines()) == 1


def test_a_token_file_that_others_can_read_is_refused(run_here: Run, token: Path) -> None:
    token.chmod(0o644)
    code, _, err = run_here("agent", "--token-file", str(token))
    assert code == 1
    assert "can be read by others (mode 0644)" in err


async def test_an_agent_says_that_its_port_is_taken(token: Path) -> None:
    async with agent("--token-file", str(token)) as (url, _):
        code, _, err = await run("agent", "--listen", url, "--token-file", str(token))
        assert code == 1
        assert f"cannot listen on {url}" in err
        assert "Traceback" not in err


async def test_an_agent_does_not_start_without_what_it_shall_preload(token: Path) -> None:
    code, _, err = await run("agent", "--token-file", str(token), "--preload", "no_such_module")
    assert code == 1
    assert "No module named 'no_such_module'" in err


# -- status ------------------------------------------------------------------------------------------------------------


async def test_status_shows_procs_actors_and_calls_with_age_and_caller(tmp_path: Path) -> None:
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs({"gpus": 2}, name="trainers")
        sleepers = await procs.spawn("sleepers", Sleeper)
        callers = await procs.spawn("callers", Caller, sleepers.slice(gpus=0))
        waiting = callers.slice(gpus=1).forward.call_one()
        await seen(hosts, "sleep")
        url = hosts.hosts[0].url
        folder = Path(url.removeprefix("unix://")).parent
        code, out, err = await run("status", url, "--token-file", str(folder / "token"))
        assert (code, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 80
        words = [line.split() for line in out.splitlines()]
        assert ["host0", url, "pid"] == words[0][:3]
        assert f"clients: client {os.getpid()}" in out
        pid = str((await hosts.status()).hosts[0].procs[0].pid)
        assert ["trainers[0]", "up", pid] in [line[:3] for line in words]
        assert ["sleepers[0]", "running", "0"] in words
        ages = {line[0]: (line[1:3], line[3:]) for line in words if line and line[0] in ("sleep", "forward")}
        assert ages["sleep"][1] == ["callers[1].forward"]
        assert ages["forward"][1] == ["client", str(os.getpid())]
        assert 0 < float(ages["sleep"][0][0]) <= float(ages["forward"][0][0]) + 0.01 < 60
        assert ages["sleep"][0][1] == "s"
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def seen(hosts: ma.HostMesh, endpoint: str) -> None:
    """Wait until a call of ``endpoint`` is shown as running."""
    while True:
        status = await hosts.status()
        calls = [call for host in status.hosts for p in host.procs for actor in p.actors for call in actor.calls]
        if any(call.endpoint == endpoint for call in calls):
            return


@pytest.mark.slow
async def test_status_without_an_address_finds_this_users_programs_and_disturbs_nobody() -> None:
    async with ma.local_hosts(2) as hosts:
        procs = await hosts.spawn_procs(name="some")
        code, out, _ = await run("status")
        assert code == 0
        for host in hosts.hosts:
            assert host.url in out
        assert "some[1]" in out
        status = await hosts.status()
        assert [len(host.procs) for host in status.hosts] == [1, 1]
        await procs.stop()


@pytest.mark.slow
async def test_status_passes_over_what_is_just_ending_or_has_ended() -> None:
    with tempfile.TemporaryDirectory(prefix=LOCAL_FOLDERS) as folder:
        Path(folder, "token").write_text("a secret")
        Path(folder, "0.sock").touch()
        async with ma.local_hosts() as hosts:
            code, out, err = await run("status")
            assert (code, err) == (0, "")
            assert hosts.hosts[0].url in out
            assert folder not in out


@pytest.mark.parametrize("whose", ["another user's", "for all to write", "elsewhere"])
def test_status_believes_no_folder_that_others_could_have_made(
    run_here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whose: str
) -> None:
    folder = tmp_path / f"{LOCAL_FOLDERS}x"
    real = tmp_path / "real" if whose == "elsewhere" else folder
    real.mkdir(mode=0o700)
    (real / "token").write_text("a secret")
    (real / "0.sock").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if whose == "elsewhere":
        folder.symlink_to(real)
    elif whose == "for all to write":
        folder.chmod(0o777)
    else:
        me = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
    code, _, err = run_here("status")
    assert code == 1
    assert err.startswith("monarch-async status: no program of yours")


@pytest.mark.slow
async def test_a_blocked_proc_is_shown_as_blocked(tmp_path: Path) -> None:
    release = tmp_path / "release"
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs({"gpus": 2}, name="procs")
        sleepers = await procs.spawn("sleepers", Sleeper)
        blocked = sleepers.slice(gpus=1).block.call_one(str(release))
        code, out, _ = await run("status")
        assert code == 0
        (host,) = (await hosts.status()).hosts
        pids = {str(proc.pid) for proc in host.procs}
        rows = [line.split() for line in out.splitlines()]
        states = {row[0]: row[1] for row in rows if pids & set(row)}  # other programs may be shown, too
        assert states == {"procs[0]": "up", "procs[1]": "blocked"}
        assert host.procs[1].rss > 1_000_000
        assert host.procs[1].pid > 0
        release.touch()
        await blocked


@pytest.mark.slow
async def test_watch_goes_on_until_interrupted(token: Path) -> None:
    async with agent("--token-file", str(token), "--name", "alpha") as (url, process):
        assert process.stderr is not None
        watch = await asyncio.create_subprocess_exec(
            *MONARCH, "status", url, "--token-file", str(token), "--watch", stdout=subprocess.PIPE, env=ENVIRON
        )
        await wait_line(process.stderr, "status joined")
        watch.send_signal(signal.SIGINT)
        out, _ = await watch.communicate()
        assert watch.returncode == 0
        assert out.count(b"Traceback") == 0


@pytest.mark.parametrize("url", ["tcp://127.0.0.1:1", "unix:///nowhere/0.sock"])
def test_status_says_in_a_line_that_nobody_listens(run_here: Run, token: Path, url: str) -> None:
    code, out, err = run_here("status", url, "--token-file", str(token))
    assert (code, out) == (1, "")
    assert err.startswith(f"monarch-async status: {url}: cannot connect: ")
    assert len(err.splitlines()) == 1


@pytest.mark.slow
async def test_status_says_in_a_line_that_its_token_is_wrong(token: Path) -> None:
    async with agent("--token-file", str(token)) as (url, _):
        code, _, err = await run("status", url, environ=ENVIRON | {"MONARCH_ASYNC_TOKEN": "another"})
        assert code == 1
        assert err == f"monarch-async status: {url}: peer refused the handshake: wrong token\n"


def test_status_says_that_there_is_nothing_to_see(
    run_here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, err = run_here("status")
    assert code == 1
    assert err.startswith("monarch-async status: no program of yours")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.00 s"),
        (3.14159, "3.14 s"),
        (9.996, "10 s"),
        (31.4, "31 s"),
        (99.9, "1m 39s"),
        (3599, "59m 59s"),
        (7620, "2h 07m"),
        (277_200, "3d 05h"),
    ],
)
def test_an_age_is_short(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


# -- demo, and the command itself --------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_demo_is_the_example() -> None:
    code, out, _ = await run("demo", "--help")
    assert code == 0
    assert out.startswith("usage: monarch-async demo ")


def test_the_demo_says_what_it_lacks() -> None:
    program = "import sys; sys.modules['gymnasium'] = None; from monarch_async.cli.main import *; exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "monarch-async demo needs gymnasium: pip install 'monarch-async[demo]'\n"


def test_help_names_the_commands(run_here: Run) -> None:
    code, out, _ = run_here("--help")
    assert code == 0
    for command in ("agent", "status", "demo"):
        assert command in out
        assert run_here(command, "--help")[0] == 0
    assert run_here("--version") == (0, f"monarch-async {ma.__version__}\n", "")


@pytest.mark.parametrize(("arguments", "complaint"), [(["agents"], "invalid choice: 'agents'"), ([], "COMMAND")])
def test_wrong_arguments_end_with_2(run_here: Run, arguments: list[str], complaint: str) -> None:
    code, _, err = run_here(*arguments)
    assert code == 2
    assert complaint in err
