"""How procs start: environment, preload, spawn, interpreter, folder, names; what cannot start; actors that spawn."""

import asyncio
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import monarch_async as ma
from monarch_async.mesh.domain import active_domain
from monarch_async.runtime.router import active_router

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Probe(ma.Actor):
    """Says what its process is like."""

    @ma.endpoint
    async def env(self, name: str) -> str | None:
        return os.environ.get(name)

    @ma.endpoint
    async def process(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "parent": os.getppid(),
            "executable": sys.executable,
            "cwd": os.getcwd(),
            "title": Path("/proc/self/comm").read_text().strip(),
        }

    @ma.endpoint
    async def seen_at_import(self, module: str) -> str | None:
        return __import__(module).SEEN

    @ma.endpoint
    async def is_loaded(self, module: str) -> tuple[bool, int]:
        found = sys.modules.get(module)
        return found is not None, getattr(found, "PID", 0)

    @ma.endpoint
    async def say(self, text: str) -> None:
        print(text, flush=True)

    @ma.endpoint
    async def random(self) -> float:
        import random

        return random.random()


class Parent(ma.Actor):
    """Spawns."""

    @ma.endpoint
    async def spawn_procs(self, count: int) -> list[tuple[int, int]]:
        self.procs = ma.this_host().spawn_procs({"children": count}, name="children")
        self.children = self.procs.spawn("children", Probe)
        found = await self.children.process.call()
        return [(process["pid"], process["parent"]) for process in found]

    @ma.endpoint
    async def spawn_beside(self, procs: ma.ProcMesh) -> Probe:
        return await procs.spawn("beside", Probe)

    @ma.endpoint
    async def grandchildren(self) -> list[int]:
        parents = await (await ma.this_host().spawn_procs({"p": 2}, name="parents")).spawn("parents", Parent)
        return [pid for pids in await parents.spawn_procs.call(1) for pid, _ in pids]

    @ma.endpoint
    async def where(self) -> tuple[str, str]:
        return ma.this_host().hosts[0].name, ma.context().host

    @ma.endpoint
    async def stop_children(self) -> None:
        await self.procs.stop()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's that reads the environment when it is imported."""
    name = f"reads_environment_{os.getpid()}"
    text = """
        import os

        SEEN = os.environ.get("COLOUR")
        PID = os.getpid()
    """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest_asyncio.fixture(loop_scope="module")
async def state(hosts: ma.HostMesh) -> Any:
    """Nothing that a test began is left half-started."""
    yield
    async with asyncio.timeout(5):
        while active_router().pending or (await hosts.status()).hosts[0].procs:
            await asyncio.sleep(0.02)
    assert not active_domain().allocations


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def wait_gone(pids: list[int]) -> None:
    async with asyncio.timeout(5):
        while any(alive(pid) for pid in pids):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("start", ["fork", "spawn"])
async def test_env_is_set_before_the_users_modules_are_imported(
    hosts: ma.HostMesh, module: str, start: str, state: None
) -> None:
    procs = await hosts.spawn_procs({"gpus": 2}, env=lambda point: {"COLOUR": f"of {point['gpus']}"}, start=start)
    probes = await procs.spawn("probes", Probe)
    assert list(await probes.env.call("COLOUR")) == ["of 0", "of 1"]
    assert list(await probes.seen_at_import.call(module)) == ["of 0", "of 1"]
    await procs.stop()


async def test_env_as_a_mapping_adds_to_the_clients(hosts: ma.HostMesh, state: None) -> None:
    procs = await hosts.spawn_procs(env={"COLOUR": "blue", "PATH": "/nowhere"})
    probe = await procs.spawn("probe", Probe)
    assert [await probe.env.call_one(name) for name in ("COLOUR", "PATH", "HOME")] == [
        "blue",
        "/nowhere",
        os.environ.get("HOME"),
    ]
    await procs.stop()


async def test_a_preload_is_imported_once_before_the_fork(hosts: ma.HostMesh, module: str, state: None) -> None:
    procs = await hosts.spawn_procs({"gpus": 2}, preload=[module])
    probes = await procs.spawn("probes", Probe)
    (first_loaded, first_pid), (second_loaded, second_pid) = await probes.is_loaded.call(module)
    assert (first_loaded, second_loaded) == (True, True)
    pids = [process["pid"] for process in await probes.process.call()]
    assert first_pid == second_pid
    assert first_pid not in pids
    await procs.stop()


@pytest.mark.parametrize("python", [None, sys.executable])
async def test_spawn_starts_a_fresh_interpreter(hosts: ma.HostMesh, python: str | None, state: None) -> None:
    procs = await hosts.spawn_procs(start="spawn" if python is None else "fork", python=python)
    probe = await procs.spawn("probe", Probe)
    assert (await probe.process.call_one())["executable"] == sys.executable
    assert (await probe.is_loaded.call_one("uvloop"))[0]
    await procs.stop()


async def test_the_working_folder(hosts: ma.HostMesh, tmp_path: Path, state: None) -> None:
    here, there = hosts.spawn_procs(), hosts.spawn_procs(cwd=str(tmp_path))
    probes = [here.spawn("probe", Probe), there.spawn("probe", Probe)]
    assert [(await probe.process.call_one())["cwd"] for probe in probes] == [os.getcwd(), str(tmp_path)]
    await asyncio.gather(here.stop(), there.stop())


async def test_the_name_is_in_the_process_title_and_before_each_line(
    hosts: ma.HostMesh, capfd: pytest.CaptureFixture[str], state: None
) -> None:
    procs = await hosts.spawn_procs({"gpus": 2}, name="painters")
    probes = await procs.spawn("probes", Probe)
    assert [process["title"] for process in await probes.process.call()] == ["painters[0]", "painters[1]"]
    await probes.say.call("red\ngreen")
    await procs.stop()
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("[painters 0]")] == ["[painters 0] red", "[painters 0] green"]
    assert "[painters 1] green" in lines


async def test_forked_procs_do_not_share_their_random_numbers(hosts: ma.HostMesh, state: None) -> None:
    procs = await hosts.spawn_procs({"gpus": 3}, preload=["random"])
    assert len(set(await procs.spawn("probes", Probe).random.call())) == 3
    await procs.stop()


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"per_host": {"gpus": 0}}, ma.ExtentError, "axis gpus cannot have size 0"),
        ({"per_host": {"gpus": -1}}, ma.ExtentError, "axis gpus cannot have size -1"),
        ({"per_host": {"gpus": 1.5}}, ma.ExtentError, "axis gpus cannot have size 1.5"),
        ({"per_host": {"gpus": True}}, ma.ExtentError, "axis gpus cannot have size True"),
        ({"per_host": {"two words": 1}}, ma.ExtentError, "'two words' cannot name an axis"),
        ({"per_host": {"class": 1}}, ma.ExtentError, "'class' cannot name an axis"),
        ({"per_host": {3: 1}}, ma.ExtentError, "3 cannot name an axis"),
        ({"per_host": {"hosts": 2}}, ma.ExtentError, "hosts"),
        ({"per_host": 4}, ma.ExtentError, "maps axis names to sizes"),
        ({"start": "forkserver"}, ma.BadCall, "expected 'fork' or 'spawn'"),
        ({"preload": "torch"}, ma.BadCall, "expected a list of module names"),
        ({"preload": [1]}, ma.BadCall, "expected a list of module names"),
        ({"env": {"A": 1}}, ma.BadCall, "env must map str to str: A=1"),
        ({"env": {1: "a"}}, ma.BadCall, "env must map str to str: 1='a'"),
        ({"env": lambda point: {"RANK": point.rank}}, ma.BadCall, "env must map str to str: RANK=0"),
        ({"env": lambda point: None}, ma.BadCall, "env"),
        ({"env": 3}, ma.BadCall, "env"),
        ({"env": {"A=B": "c"}}, ma.BadCall, "A=B"),
        ({"env": {"A": "b\0c"}}, ma.BadCall, "env"),
        ({"env": lambda point: {}[point["nope"]]}, ma.AxisError, "nope"),
        ({"name": ""}, ma.BadCall, "name"),
        ({"name": 7}, ma.BadCall, "name"),
        ({"name": "two\nlines"}, ma.BadCall, "name"),
        ({"cwd": 3}, ma.BadCall, "cwd"),
        ({"python": 3}, ma.BadCall, "python"),
        ({"nope": 3}, TypeError, "nope"),
    ],
    ids=str,
)
async def test_bad_arguments_start_nothing(
    hosts: ma.HostMesh, arguments: Any, error: type[Exception], says: str, state: None
) -> None:
    with pytest.raises(error, match=says):
        hosts.spawn_procs(**arguments)
    assert not active_domain().allocations
    assert not active_router().pending


async def test_an_axis_that_the_hosts_have_already(hosts: ma.HostMesh, state: None) -> None:
    with pytest.raises(ma.ExtentError, match="machines"):
        hosts.rename(hosts="machines").spawn_procs({"machines": 2})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"cwd": "/no/such/folder"}, "cannot change to directory '/no/such/folder'"),
        ({"python": "/no/such/python"}, "cannot run interpreter '/no/such/python'"),
        ({"preload": ["no_such_module_anywhere"]}, "No module named 'no_such_module_anywhere'"),
    ],
    ids=str,
)
async def test_procs_that_cannot_start_say_why(hosts: ma.HostMesh, arguments: Any, says: str, state: None) -> None:
    procs = hosts.spawn_procs({"gpus": 2}, name="lame", **arguments)
    probes = procs.spawn("probes", Probe)
    call = probes.env.call("HOME")
    with pytest.raises(ma.SpawnFailed, match=r"proc lame\[0\] on host0 could not be started") as caught:
        await procs
    assert says in str(caught.value)
    for waiting in (probes, call):
        with pytest.raises((ma.ProcDied, ma.SpawnFailed)) as died:
            await waiting
        assert says in str(died.value)
    await procs.stop()


async def test_one_that_cannot_start_among_others(hosts: ma.HostMesh, tmp_path: Path, state: None) -> None:
    """The others are not left running by a mesh that never came up."""
    (tmp_path / "sitecustomize.py").write_text("import os\nif os.environ['WHO'] == '1': os._exit(9)\n")
    procs = hosts.spawn_procs(
        {"gpus": 3}, start="spawn", env=lambda p: {"WHO": str(p["gpus"]), "PYTHONPATH": str(tmp_path)}, name="partly"
    )
    with pytest.raises(ma.SpawnFailed, match=r"partly\[1\].*exited with status 9"):
        await procs
    assert not [row for row in (await hosts.status()).hosts[0].procs if row.mesh == "partly"]
    with pytest.raises(ma.Closed, match="proc mesh partly is closed: it was stopped"):
        await procs.restart(1)
    await procs.stop()


# -- actors that spawn ---------------------------------------------------------------------------------------------


async def test_an_actor_spawns_procs_which_end_with_it(hosts: ma.HostMesh, state: None) -> None:
    procs = await hosts.spawn_procs(name="parent")
    parent = await procs.spawn("parent", Parent)
    found = await parent.spawn_procs.call_one(2)
    assert len({pid for pid, _ in found}) == 2
    assert await parent.where.call_one() == ("host0", "host0")
    await procs.stop()
    await wait_gone([pid for pid, _ in found])


async def test_an_actor_stops_what_it_spawned(hosts: ma.HostMesh, state: None) -> None:
    procs = await hosts.spawn_procs(name="parent")
    parent = await procs.spawn("parent", Parent)
    found = await parent.spawn_procs.call_one(2)
    await parent.stop_children.call_one()
    assert not any(alive(pid) for pid, _ in found)
    await procs.stop()


async def test_stopping_an_actor_ends_what_it_spawned(hosts: ma.HostMesh, state: None) -> None:
    procs = await hosts.spawn_procs(name="parent")
    parent = await procs.spawn("parent", Parent)
    found = await parent.spawn_procs.call_one(1)
    await parent.stop()
    await wait_gone([pid for pid, _ in found])
    await procs.stop()


async def test_a_tree_of_procs_ends_as_one(hosts: ma.HostMesh, state: None) -> None:
    async with ma.supervise(ma.ignore):
        procs = await hosts.spawn_procs(name="root")
        pids = await procs.spawn("root", Parent).grandchildren.call_one()
        assert len(set(pids)) == 2
        assert all(alive(pid) for pid in pids)
        await procs.kill()
        await wait_gone(pids)
        await procs.stop()


async def test_an_actor_spawns_actors_beside_itself_and_hands_them_on(hosts: ma.HostMesh, state: None) -> None:
    procs = await hosts.spawn_procs({"gpus": 2}, name="shared")
    parent = await procs.slice(gpus=0).spawn("parent", Parent)
    probes = await parent.spawn_beside.call_one(procs)
    parents = {process["pid"] for process in await probes.process.call()}
    assert len(parents) == 2
    await procs.stop()


async def test_this_host_in_the_client(hosts: ma.HostMesh, state: None) -> None:
    procs = await ma.this_host().spawn_procs(name="here")
    assert procs.extent == {"hosts": 1}
    await procs.stop()


class Importer(ma.Actor):
    @ma.endpoint
    async def modules(self, other: "Importer") -> list[str]:
        return ours()


def ours() -> list[str]:
    return [module for module in sys.modules if module.partition(".")[0] == "monarch_async"]


async def test_what_is_ours_is_imported_before_the_fork(hosts: ma.HostMesh) -> None:
    """Once, for all workers: else each of them takes time for it, and memory of its own."""
    importers = await (await hosts.spawn_procs()).spawn("importers", Importer)
    prepared = "import sys; from monarch_async.control import zygote; zygote.prepare([], []); print(*sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", prepared, stdout=asyncio.subprocess.PIPE)
    names, _ = await process.communicate()
    assert set(await importers.modules.call_one(importers)) <= set(names.decode().split())
