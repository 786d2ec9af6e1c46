"""What a machine has: of made-up control groups, of an `nvidia-smi` that answers as documented, and as declared."""

import argparse
import asyncio
import ctypes
import os
import stat
import textwrap
import time
from pathlib import Path

import pytest

from monarch_async.control import inventory
from monarch_async.control.declared import (
    Declared,
    as_options,
    one_each,
    parse_bytes,
    parse_gpus,
)
from monarch_async.control.inventory import (
    ask_nvml,
    find_cpus,
    find_gpus,
    find_memory,
    find_resources,
    parse_csv,
    visible_ids,
)
from monarch_async.control.resource_options import add_resource_options, declared_by, declared_in
from monarch_async.scheduler.resources import Resources

CPUS = len(os.sched_getaffinity(0))
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
TWO = [("0", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"), ("1", "GPU-1f2ab3c4-0000-4106-c12f-20bd9faed9f6")]


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n")


# -- cpus and memory ---------------------------------------------------------------------------------------------------


def test_without_control_groups_it_is_what_the_process_may_run_on(tmp_path: Path) -> None:
    assert find_cpus(tmp_path) == CPUS
    assert find_memory(tmp_path) == MEMORY


def test_the_affinity_counts(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(before)])
    try:
        assert find_cpus(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


def test_version_2_limits_hold_wherever_on_the_way_up_they_are_set(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/jobs/mine")
    write(tmp_path, "sys/fs/cgroup/jobs/cpu.max", "50000 100000")
    write(tmp_path, "sys/fs/cgroup/jobs/mine/cpu.max", "max 100000")
    write(tmp_path, "sys/fs/cgroup/jobs/mine/memory.max", "1073741824")
    write(tmp_path, "sys/fs/cgroup/jobs/memory.max", "max")
    assert find_cpus(tmp_path) == 0.5
    assert find_memory(tmp_path) == 1 << 30


def test_version_1_limits_in_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/docker/ab12\n3:cpu,cpuacct:/docker/ab12\n0::/")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "25000")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912")
    assert find_cpus(tmp_path) == 0.25
    assert find_memory(tmp_path) == 512 << 20


def test_version_1_says_no_limit_in_its_own_way(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/\n3:cpu:/")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    assert find_cpus(tmp_path) == CPUS
    assert find_memory(tmp_path) == MEMORY


def test_a_quota_above_what_there_is_and_nonsense_change_nothing(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "100000000 100000")
    write(tmp_path, "sys/fs/cgroup/memory.max", "lots")
    assert find_cpus(tmp_path) == CPUS
    assert find_memory(tmp_path) == MEMORY


# -- devices -----------------------------------------------------------------------------------------------------------

# what `nvidia-smi --query-gpu=index,uuid --format=csv,noheader` prints
SMI = """\
0, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6
1, GPU-1f2ab3c4-0000-4106-c12f-20bd9faed9f6
"""


def fake_smi(folder: Path, body: str) -> None:
    """An executable of that name, which refuses any other question than ours."""
    path = folder / "nvidia-smi"
    path.write_text(
        textwrap.dedent("""\
            #!/bin/sh
            [ "$*" = "--query-gpu=index,uuid --format=csv,noheader" ] || exit 2
        """)
        + body
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """NVML is not there; only what is in this folder is on PATH before the system's."""
    monkeypatch.setattr(inventory, "_NVML", "libno-such-thing.so.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


async def test_nvidia_smi_is_asked(no_library: Path) -> None:
    fake_smi(no_library, f"cat <<'X'\n{SMI}X\n")
    assert await find_gpus() == TWO
    assert (await find_resources(Declared(), environ={})).gpus == ("0", "1")


@pytest.mark.parametrize(
    "body", ["echo 'No devices were found'; exit 6", "exit 9", "echo '[N/A], [N/A]'", "kill -9 $$"]
)
async def test_an_nvidia_smi_that_fails_means_no_devices(no_library: Path, body: str) -> None:
    fake_smi(no_library, body)
    assert await find_gpus() == []


async def test_a_driver_that_hangs_is_given_up_and_does_not_block_the_loop(
    no_library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake_smi(no_library, "exec sleep 60")
    monkeypatch.setattr(inventory, "PATIENCE", 0.2)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    assert await find_gpus() == []
    ticking.cancel()
    assert ticks > 5
    assert "nvidia-smi did not answer within 0.2 s" in caplog.text


async def test_without_a_driver_it_costs_nothing(no_library: Path) -> None:
    began = time.perf_counter()
    assert await find_gpus() == []
    assert time.perf_counter() - began < 0.1


class FakeLibrary:
    """NVML as its reference says: each function returns 0, or what went wrong. A device may be forbidden (4)."""

    def __init__(self, uuids: list[str | None], init: int = 0) -> None:
        self.uuids, self.init, self.opened = uuids, init, 0

    def nvmlInit_v2(self) -> int:
        self.opened += self.init == 0
        return self.init

    def nvmlShutdown(self) -> int:
        self.opened -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: object) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_uint))[0] = len(self.uuids)  # type: ignore[arg-type]
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, device: object) -> int:
        ctypes.cast(device, ctypes.POINTER(ctypes.c_void_p))[0] = 1000 + index.value  # type: ignore[arg-type]
        return 0 if self.uuids[index.value] is not None else 4

    def nvmlDeviceGetUUID(self, device: ctypes.c_void_p, text: ctypes.Array[ctypes.c_char], size: ctypes.c_uint) -> int:
        assert device.value is not None and size.value >= 96
        text.value = (self.uuids[device.value - 1000] or "").encode()
        return 0


def test_nvml_is_asked() -> None:
    library = FakeLibrary([TWO[0][1], None, TWO[1][1]])
    assert ask_nvml(library) == [("0", TWO[0][1]), ("2", TWO[1][1])]  # type: ignore[arg-type]
    assert not library.opened
    assert ask_nvml(FakeLibrary([], init=9)) == []  # type: ignore[arg-type]


def test_a_csv_with_its_header_or_without_devices() -> None:
    assert parse_csv("index, uuid\n" + SMI) == TWO
    assert parse_csv("") == []


@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        (None, ("0", "1")), ("1", ("1",)), ("1,0", ("1", "0")), ("", ()), ("-1", ()), ("0,-1,1", ("0",)),
        ("0,7,1", ("0",)), ("GPU-8932", ("GPU-8932",)), ("GPU-1f2a,0", ("GPU-1f2a", "0")), ("GPU-", ()),
        ("0,0", ("0",)), (" 1 , 0 ", ("1", "0")), ("MIG-abc", ("MIG-abc",)), ("NoDevFiles", ()),
    ],
)  # fmt: skip
def test_only_what_cuda_would_see_is_offered(visible: str | None, ids: tuple[str, ...]) -> None:
    assert visible_ids(TWO, visible) == ids


async def test_several_agents_of_one_machine_share_its_devices_out(no_library: Path) -> None:
    fake_smi(no_library, "for i in 0 1 2 3 4; do echo $i, GPU-$i; done")
    parts = [(await find_resources(Declared(), (part, 2), {})).gpus for part in range(2)]
    assert parts == [("0", "1"), ("2", "3", "4")]


# -- declared ----------------------------------------------------------------------------------------------------------


def parse(*options: str) -> Declared:
    parser = argparse.ArgumentParser()
    add_resource_options(parser)
    return declared_by(parser.parse_args(options))


async def test_what_is_declared_counts_options_before_the_environment(no_library: Path) -> None:
    fake_smi(no_library, "echo 0, GPU-1")
    environ = {"MONARCH_ASYNC_RESOURCES": "--cpus 3 --memory 1G --label zone=a --label rack='r 1' --resource tokens=2"}
    options = parse("--cpus", "2.5", "--gpus", "2", "--label", "zone=b")
    assert await find_resources(options, environ=environ) == Resources(
        2.5, ("0", "1"), 1 << 30, {"zone": "b", "rack": "r 1"}, {"tokens": 2.0}
    )
    assert (await find_resources(Declared(), environ=environ)).gpus == ("0",)


async def test_a_number_of_devices_means_the_first_that_are_visible(no_library: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "4,5,6"}
    assert (await find_resources(parse("--gpus", "2"), environ=environ)).gpus == ("4", "5")
    assert (await find_resources(parse("--gpus", "4"), environ=environ)).gpus == ("0", "1", "2", "3")
    assert (await find_resources(parse("--gpus", "GPU-a,7"), environ=environ)).gpus == ("GPU-a", "7")
    assert (await find_resources(parse("--gpus", "0"), environ=environ)).gpus == ()


def test_resources_survive_a_command_line() -> None:
    for resources in (
        Resources(),
        Resources(0.1, ("3",), 12345, {"a": "b c=d"}, {"tokens": 0.5}),
        Resources(2, ("GPU-a", "1")),
    ):
        said = parse(*as_options(resources))
        assert isinstance(said.gpus, tuple) or said.gpus == 0
        gpus = said.gpus if isinstance(said.gpus, tuple) else ()
        assert Resources(said.cpus or 0.0, gpus, said.memory or 0, said.labels, said.custom) == resources


@pytest.mark.parametrize(
    ("text", "size"), [("64G", 64 << 30), ("64GiB", 64 << 30), ("1.5k", 1536), ("2GB", 2 * 10**9), ("77", 77)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "options",
    [
        ["--cpus", "-1"], ["--cpus", "inf"], ["--memory", "much"], ["--gpus", "0,0"], ["--gpus", ","],
        ["--label", "zone"], ["--resource", "tokens"], ["--resource", "cpus=3"], ["--resource", "tokens=nan"],
        ["--what", "1"],
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_what_was_said(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*options)
    said = capsys.readouterr().err
    assert options[0] in said and "parse" not in said
    with pytest.raises(ValueError, match="MONARCH_ASYNC_RESOURCES=.*" + options[0]):
        declared_in({"MONARCH_ASYNC_RESOURCES": " ".join(options)})


def test_the_resources_of_hosts_are_those_of_all_or_one_of_each() -> None:
    a, b = Resources(cpus=1), Resources(cpus=2)
    assert one_each(a, 2) == [a, a]
    assert one_each([a, b], 2) == [a, b]
    for wrong in ([a], [a, b, a], [a, "b"], []):
        with pytest.raises(ValueError, match="one of each of 2 hosts"):
            one_each(wrong, 2)  # type: ignore[arg-type]


def test_device_ids_of_a_single_one_end_in_a_comma() -> None:
    assert parse_gpus("3") == 3
    assert parse_gpus("3,") == ("3",)
