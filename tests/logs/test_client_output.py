"""Output at the client's end: its last lines, folding, and a stdout that is slow, gone, or knows ASCII only."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from printers import Printer

import monarch_async as ma


async def printers_on(hosts: ma.HostMesh, gpus: int = 1) -> Printer:
    procs = await hosts.spawn_procs({"gpus": gpus}, name="procs")
    return await procs.spawn("printers", Printer)


async def test_the_death_message_shows_the_last_lines_only(capfd) -> None:
    async with ma.local_hosts(config=ma.Config(stderr_lines=3)) as hosts, ma.supervise(ma.ignore):
        printer = await printers_on(hosts)
        with pytest.raises(ma.ProcDied) as caught:
            await printer.say_and_die.call_one(*map(str, range(100)))
        assert caught.value.stderr == ("error 97", "error 98", "error 99")
        assert len(capfd.readouterr().err.splitlines()) == 100


async def test_nothing_is_lost_when_the_client_leaves_at_once(capfd) -> None:
    async with ma.local_hosts() as hosts:
        printers = await printers_on(hosts, 2)
        await printers.count_to.call(5000)
    lines = capfd.readouterr().out.splitlines()
    for rank in range(2):
        mine = [line for line in lines if line.startswith(f"[procs {rank}] ")]
        assert mine == [f"[procs {rank}] line {index}" for index in range(5000)] + [
            f"[procs {rank}] last words",
            f"[procs {rank}] and no line end",
        ]


@pytest.mark.parametrize("is_folding", [False, True])
async def test_folding_is_opt_in(is_folding: bool, capfd) -> None:
    async with ma.local_hosts(config=ma.Config(fold_logs=is_folding)) as hosts:
        printers = await printers_on(hosts, 2)
        await printers.say.call(*["same"] * 5, "other", *["again"] * 4)
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("[procs 1]")]
    assert lines[-2:] == ["[procs 1] last words", "[procs 1] and no line end"]
    assert lines[:-2] == (
        [
            "[procs 1] same",
            "[procs 1] ... (repeated 4 times)",
            "[procs 1] other",
            "[procs 1] again",
            "[procs 1] ... (repeated 3 times)",
        ]
        if is_folding
        else ["[procs 1] same"] * 5 + ["[procs 1] other"] + ["[procs 1] again"] * 4
    )


_NOBODY_READS = """
import asyncio, sys
import monarch_async as ma
from printers import Printer

async def main():
    async with ma.local_hosts() as hosts:
        printer = await (await hosts.spawn_procs()).spawn("printer", Printer)
        await printer.count_and_say_how_far.call_one(100_000, sys.argv[1])

ma.run(main())
"""


def _start(script: str, *arguments: str) -> "subprocess.Popen[bytes]":
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=pipe, stderr=pipe, env=env)


@pytest.mark.slow
async def test_a_client_whose_output_nobody_reads_makes_the_proc_wait(tmp_path: Path) -> None:
    """A hundred megabytes are printed; no process on the way holds more than a few of them."""
    progress = tmp_path / "progress"
    program = _start(_NOBODY_READS, str(progress))
    try:
        async with asyncio.timeout(30):
            printed, still_for = -1, 0
            while still_for < 20:
                await asyncio.sleep(0.05)
                now = int(progress.read_text() or 0) if progress.exists() else -1
                still_for = still_for + 1 if now == printed and now > 0 else 0
                printed = now
        assert printed * 1018 < 8 << 20  # of 100 MB: pipes, sockets, one high-water mark each
        assert program.stdout is not None
        lines = []
        while len(lines) < 20_000:  # reading sets it going again
            lines.append(program.stdout.readline())
        assert [int(line.split()[3]) for line in lines] == list(range(20_000))
    finally:
        program.kill()
        program.communicate()


_BROKEN_PIPE = """
import asyncio
import monarch_async as ma
from printers import Printer

async def main():
    async with ma.local_hosts() as hosts:
        printer = await (await hosts.spawn_procs()).spawn("printer", Printer)
        await printer.count_to.call_one(100_000)
        await asyncio.sleep(30)

ma.run(main())
"""


def test_a_reader_that_has_gone_ends_the_program_like_any_other(tmp_path: Path) -> None:
    """``python program.py | head``"""
    program = _start(_BROKEN_PIPE)
    assert program.stdout is not None
    assert program.stderr is not None
    assert program.stdout.readline() == b"[procs 0] line 0\n"
    program.stdout.close()
    errors = program.stderr.read().decode()
    program.stderr.close()
    assert program.wait(20) != 0
    assert "BrokenPipeError" in errors
    assert "lost" not in errors
    assert errors.count("Traceback") == 1, errors


def test_a_terminal_that_knows_ascii_only_shows_everything(tmp_path: Path) -> None:
    script = _BROKEN_PIPE.replace("count_to.call_one(100_000)", "say.call_one('größe')").replace("30", "0")
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environ, timeout=20)
    assert ended.returncode == 0, ended.stderr
    assert b"[procs 0] gr\\xf6\\xdfe\n" in ended.stdout
