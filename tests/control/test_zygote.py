"""The zygote by itself, spoken to over its socket."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_async.control.zygote_messages import (
    Decoder,
    End,
    Exited,
    Failed,
    Fork,
    Order,
    Ready,
    Refused,
    Report,
    Signal,
    Started,
    encode,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="checks processes in /proc")


class Talk:
    """A zygote process and the agent's end of its socket."""

    def __init__(self, sys_path: Path, modules: tuple[str, ...] = ()) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(20)
        arguments = json.dumps({"modules": modules, "sys_path": [str(sys_path)]})
        command = [sys.executable, "-m", "monarch_async.control.zygote", str(theirs.fileno()), arguments]
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        self._decoder = Decoder()
        self._heard: list[Order | Report] = []

    def hear(self) -> Order | Report | None:
        """Wait for the next message; None at the end of the stream."""
        while not self._heard:
            data = self.socket.recv(4096)
            if not data:
                return None
            self._heard += self._decoder.feed(data)
        return self._heard.pop(0)

    def fork(self, id: int, entry: str, sys_path: Path, **spec: object) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            message = encode(Fork({"id": id, "entry": entry, "sys_path": [str(sys_path)], **spec}))
            socket.send_fds(self.socket, [message], [theirs.fileno(), 1, 2])

    def close(self) -> int:
        self.socket.close()
        return self.process.wait(20)


@pytest.fixture
def zygote(no_process_left: str, tmp_path: Path) -> Iterator[Talk]:
    code = "def sleep(control, spec):\n    time.sleep(60)\ndef seven(control, spec):\n    return 7\n"
    (tmp_path / "entries.py").write_text("import time\n" + code)
    talk = Talk(tmp_path)
    ready = talk.hear()
    assert isinstance(ready, Ready)
    assert ready.pid == talk.process.pid
    assert 0 < ready.seconds < 20
    yield talk
    talk.close()


def test_started_then_exited(zygote: Talk, tmp_path: Path) -> None:
    zygote.fork(5, "entries:seven", tmp_path)
    started = zygote.hear()
    assert isinstance(started, Started)
    assert started.id == 5
    assert zygote.hear() == Exited(5, started.pid, 7 << 8)


def test_every_fork_is_answered_once_when_all_is_said_at_once(zygote: Talk, tmp_path: Path) -> None:  # Z1
    for id in range(40):
        zygote.fork(id, "entries:seven" if id % 4 else "entries:missing", tmp_path)
    heard = [zygote.hear() for _ in range(30 * 2 + 10)]
    started = {message.id for message in heard if isinstance(message, Started)}
    refused = {message.id for message in heard if isinstance(message, Refused)}
    exited = [message.id for message in heard if isinstance(message, Exited)]
    assert started == {id for id in range(40) if id % 4}
    assert refused == {id for id in range(40) if id % 4 == 0}
    assert sorted(exited) == sorted(started)


def test_a_fork_whose_descriptors_are_missing_is_refused(zygote: Talk, tmp_path: Path) -> None:
    zygote.socket.sendall(encode(Fork({"id": 1})))
    refused = zygote.hear()
    assert isinstance(refused, Refused)
    assert "descriptors did not arrive" in refused.reason
    zygote.fork(2, "entries:seven", tmp_path)
    assert isinstance(zygote.hear(), Started)


def test_a_frame_in_pieces_keeps_its_descriptors(zygote: Talk, tmp_path: Path) -> None:
    frame = encode(Fork({"id": 1, "entry": "entries:seven", "sys_path": [str(tmp_path)]}))
    with open(os.devnull, "r+b") as null:
        socket.send_fds(zygote.socket, [frame[:3]], [null.fileno()] * 3)
    zygote.socket.sendall(frame[3:])
    assert isinstance(zygote.hear(), Refused)  # /dev/null is no socket, so it did get them


@pytest.mark.parametrize("how", ["end", "close", "term"])
def test_it_ends_with_all_that_is_below(zygote: Talk, tmp_path: Path, how: str, wait_gone) -> None:  # Z3
    zygote.fork(1, "entries:sleep", tmp_path)
    started = zygote.hear()
    assert isinstance(started, Started)
    if how == "end":
        zygote.socket.sendall(encode(End()))
    elif how == "term":
        zygote.process.terminate()
    else:
        assert zygote.close() == 0
        wait_gone(started.pid, 0.1)
        return
    assert zygote.hear() == Exited(1, started.pid, signal.SIGKILL)
    assert zygote.hear() is None
    assert zygote.process.wait(20) == 0


def test_a_killed_zygote_takes_its_workers_with_it(zygote: Talk, tmp_path: Path, wait_gone) -> None:  # Z3
    zygote.fork(1, "entries:sleep", tmp_path)
    started = zygote.hear()
    assert isinstance(started, Started)
    zygote.process.kill()
    wait_gone(started.pid, 1.0)


def test_a_signal_for_nobody_does_nothing(zygote: Talk, tmp_path: Path) -> None:
    zygote.socket.sendall(encode(Signal(99, signal.SIGKILL)))
    zygote.fork(1, "entries:seven", tmp_path)
    assert isinstance(zygote.hear(), Started)


def test_failed_names_the_module(no_process_left: str, tmp_path: Path) -> None:
    talk = Talk(tmp_path, ("no_such_module",))
    failed = talk.hear()
    assert isinstance(failed, Failed)
    assert failed.reason.startswith("preload module no_such_module failed to import:\nTraceback")
    assert talk.close() == 1


@pytest.mark.parametrize("modules", [(), ("no_such_module",)])
def test_one_whose_agent_has_gone_meanwhile_ends_without_a_word(
    no_process_left: str, tmp_path: Path, modules: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """It would be a traceback in the log of an agent that ends in order."""
    assert Talk(tmp_path, modules).close() == len(modules)
    assert capfd.readouterr().err == ""
