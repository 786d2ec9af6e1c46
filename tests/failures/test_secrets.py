"""Who can read what: sockets, tokens, and an agent that has no way to unpickle."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from agents import TOKEN, descendants, local_agent_pid, running_agent
from victims import Victim
from workload import Ledger, keep_busy

import monarch_async as ma
from monarch_async.transport.url import Url


@pytest.mark.slow
async def test_local_sockets_are_for_their_owner_only() -> None:
    async with ma.local_hosts(2) as hosts:
        for host in hosts.hosts:
            path = Path(Url.parse(host.url).path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def _environment_and_arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
async def test_no_worker_and_no_zygote_holds_the_token(start: str) -> None:
    async with ma.local_hosts() as hosts:
        token = (Path(Url.parse(hosts.hosts[0].url).path).parent / "token").read_text()
        procs = await hosts.spawn_procs(start=start, preload=["json"])
        victim = await procs.spawn("victim", Victim)
        for what, text in (await victim.secrets.call_one()).items():
            assert token not in text, what
            assert "MONARCH_ASYNC_TOKEN" not in text, what
        agent = local_agent_pid("host0")
        assert token.encode() not in Path(f"/proc/{agent}/cmdline").read_bytes()
        for pid in descendants(agent):
            assert token.encode() not in _environment_and_arguments(pid)


@pytest.mark.slow
async def test_no_worker_of_an_attached_agent_holds_the_token(monkeypatch) -> None:
    monkeypatch.setenv("MONARCH_ASYNC_TOKEN", TOKEN)
    async with running_agent() as agent:
        for _ in range(2):  # a program may attach twice by the same variable
            async with ma.attach(agent.url) as hosts:
                victim = await (await hosts.spawn_procs()).spawn("victim", Victim)
                for what, text in (await victim.secrets.call_one()).items():
                    assert TOKEN not in text, what
                for pid in descendants(agent.pid):
                    assert TOKEN.encode() not in _environment_and_arguments(pid)


def _run_agent(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "MONARCH_ASYNC_TOKEN"} | environ
    command = [sys.executable, "-m", "monarch_async.cli.main", "agent", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=20)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_token_file_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(mode)
    with pytest.raises(ValueError, match=rf"can be read by others \(mode {mode:04o}\): chmod 600"):
        ma.attach("tcp://127.0.0.1:1", token_file=str(file))
    ended = _run_agent("--listen", "tcp://127.0.0.1:0", "--token-file", str(file))
    assert ended.returncode != 0
    assert "can be read by others" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_empty_or_missing_token_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("MONARCH_ASYNC_TOKEN", raising=False)
    file = tmp_path / "token"
    file.touch(mode=0o600)
    for arguments in ({"token_file": str(file)}, {"token_file": str(tmp_path / "none")}, {}):
        with pytest.raises(ValueError, match="token"):
            ma.attach("tcp://127.0.0.1:1", **arguments)


@pytest.mark.parametrize("listen", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://127.0.0.1:0"])
def test_an_agent_without_a_token_does_not_listen(listen: str) -> None:
    ended = _run_agent("--listen", listen)
    assert ended.returncode != 0
    assert "token" in ended.stderr
    assert "listens on" not in ended.stdout
    assert "Traceback" not in ended.stderr


# -- an agent never unpickles ----------------------------------------------------------------------------------------

_NEVER_UNPICKLES = """
import os, pickle, runpy, sys

def never(*_, **__):
    sys.stderr.write("the agent unpickles\\n")
    os.abort()

class Never:
    __new__ = never

pickle.load = pickle.loads = pickle._loads = never
pickle.Unpickler = pickle._Unpickler = Never
import _pickle
_pickle.load = _pickle.loads = never
_pickle.Unpickler = Never
sys.argv = ["monarch-async", "agent", "--listen", "tcp://127.0.0.1:0", "--name", "h"]
runpy.run_module("monarch_async.cli.main", run_name="__main__")
"""


@pytest.mark.slow
async def test_an_agent_never_unpickles(wait_gone) -> None:
    """It runs a whole program (calls, errors, streams, large payloads, a death) and has no way to unpickle."""
    command = [sys.executable, "-c", _NEVER_UNPICKLES]
    async with running_agent(command=command) as agent, ma.attach(agent.url, token=TOKEN) as hosts:
        procs = await hosts.spawn_procs({"gpus": 2})
        ledgers = await procs.spawn("ledgers", Ledger)
        await keep_busy(ledgers, rounds=10, size=1_000_000)
        victims = await procs.spawn("victims", Victim)
        with pytest.raises(ma.RemoteError, match="no such"):
            await victims.at(0).fail.call_one("no such")
        with pytest.raises(ma.ProcDied):
            await victims.exit.call(1)
        assert agent.process.returncode is None
