"""What this machine has to place on: cpus, memory, devices; as far as this process may use it, and unless declared.

Cpus are the fewest of those that exist, that it may run on, and that its control groups leave it; memory likewise.
Devices come from the driver, by its library (NVML) or by ``nvidia-smi``, where either is there. The driver may take
seconds, or hang, so it is asked in a thread or a process, and given up after `PATIENCE`.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from monarch_async.control.declared import Declared
from monarch_async.control.resource_options import declared_in
from monarch_async.scheduler.resources import Resources

log = logging.getLogger("monarch_async.agent")

#: How long the driver may take to say which devices there are.
PATIENCE = 10.0

_NVML = "libnvidia-ml.so.1"

#: Control groups of version 1 say so where they set no limit: the largest number of pages.
_UNLIMITED = 1 << 60

Gpu = tuple[str, str]  #: index and UUID


async def find_resources(
    declared: Declared, share: tuple[int, int] = (0, 1), environ: Mapping[str, str] | None = None
) -> Resources:
    """Return what there is, where ``declared`` and the environment do not say so.

    ``share`` (i, n): of the devices that are found, only the i-th of n parts; the others are other agents'. Raises
    ValueError where the environment declares nonsense.
    """
    environ = os.environ if environ is None else environ
    said = declared.over(declared_in(environ))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if isinstance(said.gpus, tuple):
        gpus = said.gpus
    elif said.gpus is not None:
        gpus = numbered(said.gpus, visible)
    else:
        gpus = () if visible is not None and not visible.strip() else visible_ids(await find_gpus(), visible)
        part, parts = share
        gpus = gpus[part * len(gpus) // parts : (part + 1) * len(gpus) // parts]
    return Resources(
        find_cpus() if said.cpus is None else said.cpus,
        gpus,
        find_memory() if said.memory is None else said.memory,
        said.labels,
        said.custom,
    )


# -- cpus and memory ---------------------------------------------------------------------------------------------------


def find_cpus(root: Path = Path("/")) -> float:
    """Return how many cpus this process may use. ``root``: of the file system."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        count = os.cpu_count() or 1
    quotas = [_cpu_quota(folder) for folder in _cgroups(root, "cpu")]
    return min([float(count), *[quota for quota in quotas if quota]])


def find_memory(root: Path = Path("/")) -> int:
    """Return how many bytes of memory this process may use."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [_memory_limit(folder) for folder in _cgroups(root, "memory")]
    return min([physical, *[limit for limit in limits if limit]])


def _cgroups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's control groups that may limit it: its own, and those around it.

    In a container its path may be one of the host's, which is not there: what is, is above.
    """
    mount = root / "sys/fs/cgroup"
    found: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            tops = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            tops = [mount / controllers, mount / controller]
        else:
            continue
        inner = Path(path.lstrip("/"))
        found += [top / folder for top in tops for folder in (inner, *inner.parents)]
    return [folder for folder in dict.fromkeys(found) if folder.is_dir()]


def _cpu_quota(folder: Path) -> float | None:
    """Return how many cpus a control group leaves; None: no limit."""
    quota, _, period = _read(folder / "cpu.max").partition(" ")  # version 2: "200000 100000", "max 100000"
    if not quota:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    with contextlib.suppress(ValueError):
        if int(quota) > 0 and int(period) > 0:
            return int(quota) / int(period)
    return None


def _memory_limit(folder: Path) -> int | None:
    """Return the bytes a control group leaves; None: no limit."""
    limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
    with contextlib.suppress(ValueError):
        if 0 < int(limit) < _UNLIMITED:
            return int(limit)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


# -- devices -----------------------------------------------------------------------------------------------------------


async def find_gpus() -> list[Gpu]:
    """Return the devices that the driver shows; none where there is no driver, or it does not answer in time."""
    try:
        library = ctypes.CDLL(_NVML)
    except OSError:
        command = shutil.which("nvidia-smi")
        return await ask_command(command) if command is not None else []
    return await _ask_library(library)


async def _ask_library(library: ctypes.CDLL) -> list[Gpu]:
    """Ask NVML in a thread that nobody waits for at the end, should it hang."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Gpu]] = loop.create_future()

    def tell(found: list[Gpu]) -> None:
        if not answer.done():
            answer.set_result(found)

    def ask() -> None:
        found = ask_nvml(library)
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(tell, found)

    threading.Thread(target=ask, name="nvml", daemon=True).start()
    try:
        async with asyncio.timeout(PATIENCE):
            return await answer
    except TimeoutError:
        log.warning("no devices are offered: the driver did not answer within %g s", PATIENCE)
        return []


def ask_nvml(library: ctypes.CDLL) -> list[Gpu]:
    """Return the devices that NVML shows. https://docs.nvidia.com/deploy/nvml-api"""
    if library.nvmlInit_v2():
        return []
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        found = []
        for index in range(count.value):
            device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)):
                continue  # one that this process may not use
            if library.nvmlDeviceGetUUID(device, uuid, ctypes.c_uint(len(uuid))):
                continue
            found.append((str(index), uuid.value.decode()))
        return found
    finally:
        library.nvmlShutdown()


async def ask_command(command: str) -> list[Gpu]:
    """Return the devices that ``nvidia-smi`` shows."""
    process = await asyncio.create_subprocess_exec(
        command, "--query-gpu=index,uuid", "--format=csv,noheader",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE):
            said, _ = await process.communicate()
    except TimeoutError:
        log.warning("no devices are offered: nvidia-smi did not answer within %g s", PATIENCE)
        return []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return parse_csv(said.decode(errors="replace")) if process.returncode == 0 else []


def parse_csv(text: str) -> list[Gpu]:
    """Return the devices of an answer of ``nvidia-smi``: lines of ``0, GPU-<uuid>``; other lines are none."""
    found = []
    for line in text.splitlines():
        index, _, uuid = line.partition(",")
        if index.strip().isdecimal() and uuid.strip().startswith("GPU-"):
            found.append((index.strip(), uuid.strip()))
    return found


def visible_ids(gpus: Sequence[Gpu], visible: str | None) -> tuple[str, ...]:
    """Return the ids of the devices that ``CUDA_VISIBLE_DEVICES`` leaves, as they stand there; without it, indices.

    As CUDA reads it: indices, or beginnings of UUIDs that fit one device; what comes after the first that is none, or
    stands there twice, does not count. Ids of MIG instances are believed where there is any device.
    """
    if visible is None:
        return tuple(index for index, _ in gpus)
    found: list[str] = []
    for id in (entry.strip() for entry in visible.split(",")):
        is_known = id in {index for index, _ in gpus} or (id.startswith("MIG-") and bool(gpus))
        is_known = is_known or (id.startswith("GPU-") and sum(uuid.startswith(id) for _, uuid in gpus) == 1)
        if not is_known or id in found:
            break
        found.append(id)
    return tuple(found)


def numbered(count: int, visible: str | None) -> tuple[str, ...]:
    """Return ids for so many devices: the first that ``CUDA_VISIBLE_DEVICES`` names, if it names enough."""
    named = [id.strip() for id in (visible or "").split(",") if id.strip()]
    return tuple(named[:count] if len(named) >= count else map(str, range(count)))
