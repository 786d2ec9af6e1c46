"""``__init__`` or ``setup`` raises: who spawns is told, who called before is told, who calls later is told."""

import asyncio
from pathlib import Path

import pytest
from shapes import Picky, PickyOnThread, Slow

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("cls", [Picky, PickyOnThread])
@pytest.mark.parametrize("where", ["__init__", "setup"])
async def test_awaiting_the_spawn_raises_it_with_the_rank(hosts: ma.HostMesh, cls: type[Picky], where: str) -> None:
    procs = await hosts.spawn_procs({"gpus": 3})
    mesh = procs.spawn("picky", cls, where)
    with pytest.raises(ValueError, match="no such model") as info:
        await mesh
    error = info.value
    assert isinstance(error, ma.RemoteError)
    assert (error.rank, error.actor, error.endpoint) == (1, "picky[1]", where)
    assert error.point == {"hosts": 0, "gpus": 1}
    assert str(error).startswith(f"picky[1].{where} on host0 raised ValueError: no such model\n")
    assert "in fail" in error.traceback
    with pytest.raises(ValueError, match="no such model"):  # again, whoever awaits it
        await mesh

    with pytest.raises(ma.ActorDied) as died:
        await mesh.at(1).where_am_i.call_one()
    assert str(died.value).startswith(
        f"actor picky[1] on host0 died: its {where} raised ValueError: no such model\nTraceback"
    )
    assert isinstance(died.value.__cause__, ValueError)
    assert await mesh.at(2).where_am_i.call_one() == 2  # its siblings are well
    await procs.stop()


@pytest.mark.parametrize("cls", [Picky, PickyOnThread])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("exit", "SystemExit"),
        ("cancelled", "asyncio.exceptions.CancelledError"),
        ("stop_iteration", "StopIteration"),
        ("no_text", "shapes.NoText"),
    ],
)
async def test_whatever_it_raises(hosts: ma.HostMesh, cls: type[Picky], kind: str, name: str) -> None:
    procs = await hosts.spawn_procs()
    async with asyncio.timeout(10):
        with pytest.raises(ma.RemoteError) as info:
            await procs.spawn("picky", cls, "__init__", (0,), kind)
    assert info.value.type_name == name
    await procs.stop()


async def test_calls_sent_before_fail_with_it_and_later_ones_with_the_death(
    hosts: ma.HostMesh, tmp_path: Path
) -> None:
    procs = hosts.spawn_procs({"gpus": 2})
    mesh = procs.spawn("slow", Slow, str(tmp_path / "go"))
    one, whole = mesh.at(1).where_am_i.call_one(), mesh.where_am_i.call()
    first = mesh.where_am_i.options(first_error=True).call()
    stream = mesh.where_am_i.stream()
    await procs
    (tmp_path / "go").touch()
    with pytest.raises(OSError, match="is empty") as info:
        await one
    assert isinstance(info.value, ma.RemoteError)
    assert (info.value.actor, info.value.endpoint) == ("slow[1]", "setup")
    with pytest.raises(ma.MeshError) as group:
        await whole
    assert [type(e).__name__ for e in group.value.by_rank.values()] == ["OSError", "OSError"]
    with pytest.raises(OSError, match="is empty"):
        await first
    with pytest.raises(OSError, match="is empty"):
        async for _ in stream:
            pass
    with pytest.raises(ma.ActorDied, match="its setup raised OSError"):
        await mesh.at(0).where_am_i.call_one()
    with pytest.raises(ma.ActorDied, match="its setup raised OSError"):
        await mesh.at(0).where_am_i.broadcast()
    with pytest.raises(OSError, match="is empty"):
        await mesh
    await procs.stop()


async def test_a_class_that_cannot_be_rebuilt_there(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs()
    with pytest.raises(OSError, match="made in another process") as info:
        await procs.spawn("porter", _Taker, _only_here())
    assert "while unpickling the class and arguments of porter" in str(info.value)
    await procs.stop()


class _Taker(ma.Actor):
    def __init__(self, value: object) -> None: ...

    @ma.endpoint
    async def where_am_i(self) -> int:
        return 0


def _only_here() -> object:
    from shapes import OnlyHere

    return OnlyHere()
