"""What procs print reaches the client: every line, in order, with mesh and rank in front."""

import asyncio

import pytest
from printers import Printer

import monarch_async as ma

module_loop = pytest.mark.asyncio(loop_scope="module")


async def printers_on(hosts: ma.HostMesh, gpus: int = 1, name: str = "procs") -> tuple[ma.ProcMesh, Printer]:
    procs = await hosts.spawn_procs({"gpus": gpus}, name=name)
    return procs, await procs.spawn("printers", Printer)


@module_loop
async def test_every_way_of_printing_in_order(hosts: ma.HostMesh, capfd) -> None:
    procs, printer = await printers_on(hosts)
    await printer.in_every_way.call_one()
    await procs.stop()
    assert capfd.readouterr().out.splitlines() == [
        "[procs 0] from print",
        "[procs 0] from C",
        "[procs 0] from write",
        "[procs 0] from stdout",
        "[procs 0] no line end, now it ends",
        "[procs 0] from a child",
        "[procs 0] from a thread",
        "[procs 0] last words",
        "[procs 0] and no line end",
    ]


@module_loop
async def test_stdout_and_stderr_stay_apart_and_ranks_are_told(hosts: ma.HostMesh, capfd) -> None:
    procs, printers = await printers_on(hosts, 3, "trainers")
    await printers.say.call("out")
    await printers.say.call("err", to=2)
    await procs.stop()
    out, err = capfd.readouterr()
    out = [line for line in out.splitlines() if line.endswith("out")]
    assert sorted(out) == [f"[trainers {n}] out" for n in range(3)]
    assert sorted(err.splitlines()) == [f"[trainers {n}] err" for n in range(3)]


@module_loop
async def test_lines_are_there_while_the_proc_lives(hosts: ma.HostMesh, capfd) -> None:
    procs, printer = await printers_on(hosts)
    await printer.say.call_one("now")
    async with asyncio.timeout(5):
        seen = ""
        while "[procs 0] now\n" not in seen:
            await asyncio.sleep(0.005)
            seen += capfd.readouterr().out
    await procs.stop()


@module_loop
async def test_a_burst_is_complete_and_in_order(hosts: ma.HostMesh, capfd) -> None:
    procs, printer = await printers_on(hosts)
    await printer.count_to.call_one(100_000)
    await procs.stop()
    lines = capfd.readouterr().out.splitlines()[:100_000]
    assert lines == [f"[procs 0] line {index}" for index in range(100_000)]


@module_loop
async def test_binary_garbage_and_odd_line_ends(hosts: ma.HostMesh, capfd) -> None:
    procs, printer = await printers_on(hosts)
    await printer.write.call_one(b"\xff\x00\xfe\n\n" + "größe\n".encode() + b"10%\r20%\r\n" + b"\xc3\n")
    await printer.write.call_one(bytes(range(256)) * 1000 + b"\n")
    await printer.write.call_one(b"y" * 300_000 + b"\nend\n")
    await procs.stop()
    lines = capfd.readouterr().out.split("\n")
    assert lines[:6] == [
        "[procs 0] \\xff\x00\\xfe",
        "[procs 0] ",
        "[procs 0] größe",
        "[procs 0] 10%",
        "[procs 0] 20%",
        "[procs 0] \\xc3",
    ]
    assert "".join(line.removeprefix("[procs 0] ") for line in lines).count("y") == 300_000 + 1000
    assert "[procs 0] end" in lines
    assert all(line.startswith("[procs 0] ") for line in lines if line)


@module_loop
async def test_what_was_printed_before_a_death_is_not_lost(hosts: ma.HostMesh, capfd) -> None:
    procs, printer = await printers_on(hosts)
    with pytest.raises(ma.ProcDied) as caught:
        await printer.say_and_die.call_one("one", "two", "three")
    out, err = capfd.readouterr()
    assert out.splitlines() == ["[procs 0] one", "[procs 0] two", "[procs 0] three"]
    assert err.splitlines() == [f"[procs 0] error {word}" for word in ("one", "two", "three")]
    assert caught.value.stderr == ("error one", "error two", "error three")
    await procs.stop()


@module_loop
async def test_what_was_printed_before_a_crash_is_not_lost(hosts: ma.HostMesh, capfd) -> None:
    procs, printer = await printers_on(hosts)
    with pytest.raises(ma.ProcDied, match="SIGSEGV"):
        await printer.say_and_crash.call_one()
    assert capfd.readouterr().out.splitlines() == [f"[procs 0] line {index}" for index in range(3000)]
    await procs.stop()
