"""An endpoint raises: the caller gets that exception, whatever it is made of, and the actor lives on."""

import asyncio
import copy
import pickle
import traceback

import pytest
import pytest_asyncio
import raisers
from raisers import Raiser

import monarch_async as ma

pytestmark = pytest.mark.asyncio(loop_scope="module")

STYLES = ["at_once", "after_a_wait", "on_the_thread", "items"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(hosts: ma.HostMesh) -> Raiser:
    procs = await hosts.spawn_procs({"gpus": 3})
    return await procs.spawn("raisers", Raiser)


async def caught(mesh: Raiser, style: str, kind: str) -> Exception:
    """Call one endpoint of the second member, and return what it raises; the actor has to live on."""
    member = mesh.at(1)
    with pytest.raises(Exception) as info:  # noqa: PT011
        async with asyncio.timeout(10):
            if style == "items":
                items = []
                async for item in member.items.stream_one(kind):
                    items.append(item)
            else:
                await getattr(member, style).call_one(kind)
    if style == "items":
        assert items == [1]
    assert await member.alive.call_one()
    assert await member.thread_alive.call_one()
    return info.value


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("kind", "original", "name", "text"),
    [
        ("value", ValueError, "ValueError", "('bad batch', 3)"),
        ("os", FileNotFoundError, "FileNotFoundError", "[Errno 2] no such file: '/nowhere'"),
        ("quota", raisers.Quota, "raisers.Quota", "alice is over 3"),
        ("keyword_only", raisers.KeywordOnly, "raisers.KeywordOnly", "code 4"),
        ("lock", raisers.HoldsLock, "raisers.HoldsLock", "held"),
        ("no_text", raisers.NoText, "raisers.NoText", "<its __str__ raised RuntimeError>"),
        ("frozen", raisers.Frozen, "raisers.Frozen", "5"),
        ("group", ExceptionGroup, "ExceptionGroup", "both shards (2 sub-exceptions)"),
        ("timeout", TimeoutError, "TimeoutError", "too slow"),
        # The following cannot be what is raised here: they would end the caller's program, task or loop in silence.
        ("read_only_rank", ma.RemoteError, "raisers.ReadOnlyRank", "hm"),
        ("base_group", ma.RemoteError, "BaseExceptionGroup", "with an exit (2 sub-exceptions)"),
        ("exit", ma.RemoteError, "SystemExit", "3"),
        ("interrupt", ma.RemoteError, "KeyboardInterrupt", ""),
        ("generator_exit", ma.RemoteError, "GeneratorExit", ""),
        ("cancelled", ma.RemoteError, "asyncio.exceptions.CancelledError", ""),
    ],
)
async def test_every_exception_arrives(
    mesh: Raiser, style: str, kind: str, original: type[Exception], name: str, text: str
) -> None:
    error = await caught(mesh, style, kind)
    assert isinstance(error, ma.RemoteError)
    assert isinstance(error, original)
    assert (error.type_name, error.text) == (name, text)
    assert (error.rank, error.point) == (1, {"hosts": 0, "gpus": 1})
    assert (error.actor, error.endpoint, error.host) == ("raisers[1]", style, "host0")
    assert "raisers.py" in error.traceback
    assert "build(kind)" in error.traceback
    assert "monarch_async" not in error.traceback
    head = str(error).split("\n", 1)[0]
    assert head == f"raisers[1].{style} on host0 raised {name}" + (f": {text}" if text else "")
    assert repr(error)
    assert "".join(traceback.format_exception(error))


@pytest.mark.parametrize("style", STYLES)
async def test_one_with_a_text_of_megabytes_arrives_cut_in_its_middle(mesh: Raiser, style: str) -> None:
    error = await caught(mesh, style, "huge")
    assert isinstance(error, ma.RemoteError)
    assert isinstance(error, ValueError)
    for text in (error.text, error.traceback):
        assert 200_000 < len(text) < 300_000
        assert "characters left out" in text
    assert error.text.startswith("beginx")
    assert error.text.endswith("xend")
    assert "build(kind)" in error.traceback


@pytest.mark.parametrize("kind", ["stop_iteration", "stop_async_iteration"])
async def test_the_end_of_an_iteration_ends_no_iteration_here(mesh: Raiser, kind: str) -> None:
    """Raised into a future or an ``async for`` it would be taken for something else."""
    for style in STYLES:
        error = await caught(mesh, style, kind)
        assert isinstance(error, ma.RemoteError)
        assert not isinstance(error, (StopIteration, StopAsyncIteration))


@pytest.mark.parametrize("kind", ["value", "os", "quota", "group"])
async def test_the_original_is_the_cause(mesh: Raiser, kind: str) -> None:
    error = await caught(mesh, "at_once", kind)
    original = raisers.build(kind)
    assert type(error.__cause__) is type(original)
    assert str(error.__cause__) == str(original)
    assert repr(error.args) == repr(original.args)
    if isinstance(error, FileNotFoundError):
        assert (error.errno, error.strerror, error.filename) == (2, "no such file", "/nowhere")
    if isinstance(error, raisers.Quota):
        assert (error.who, error.limit) == ("alice", 3)


async def test_the_cause_of_the_cause_arrives_too(mesh: Raiser) -> None:
    with pytest.raises(ValueError, match="the effect") as info:
        await mesh.at(0).chained.call_one()
    assert isinstance(info.value, ma.RemoteError)
    assert isinstance(info.value.__cause__, ValueError)
    assert isinstance(info.value.__cause__.__cause__, KeyError)
    assert "direct cause" in info.value.traceback


@pytest.mark.parametrize("kind", sorted(raisers.KINDS))
async def test_what_is_raised_pickles_and_copies(mesh: Raiser, kind: str) -> None:
    error = await caught(mesh, "at_once", kind)
    assert isinstance(error, ma.RemoteError)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert (twin.rank, twin.actor, twin.traceback) == (error.rank, error.actor, error.traceback)


async def test_a_group_can_be_split(mesh: Raiser) -> None:
    found = []
    try:
        await mesh.at(0).at_once.call_one("group")
    except* KeyError as group:
        found.append(group)
    except* ValueError as group:
        found.append(group)
    assert [str(group.exceptions) for group in found] == [
        "(ExceptionGroup('inner', [KeyError('right')]),)",
        "(ValueError('left'),)",
    ]


async def test_a_cancellation_nobody_asked_for_does_not_cancel_the_caller(mesh: Raiser) -> None:
    async with asyncio.TaskGroup() as group:  # in which a cancelled task would just vanish
        task = group.create_task(_outcome(mesh.at(2).cancels_itself.call_one()))
    assert isinstance(task.result(), ma.RemoteError)
    with pytest.raises(ma.MeshError) as info:
        await mesh.cancels_itself.call()
    assert {e.type_name for e in info.value.by_rank.values()} == {"asyncio.exceptions.CancelledError"}


async def test_sys_exit_in_an_endpoint_ends_neither_program_nor_actor(mesh: Raiser) -> None:
    with pytest.raises(ma.RemoteError, match="SystemExit: argument --lr: expected a number"):
        await mesh.at(1).exits.call_one()
    assert list(await mesh.alive.call()) == [True] * 3


async def test_an_error_passed_on_by_another_actor_keeps_its_class_and_first_cause(mesh: Raiser) -> None:
    with pytest.raises(ValueError, match="bad batch") as info:
        await mesh.at(0).passes_on.call_one(mesh.at(2), "value")
    error = info.value
    assert isinstance(error, ma.RemoteError)
    assert error.actor == "raisers[0]"
    assert error.type_name == "ValueError"
    assert isinstance(error.__cause__, ma.RemoteError)
    assert error.__cause__.actor == "raisers[2]"
    assert isinstance(error.__cause__.__cause__, ValueError)
    assert str(error).split("\n", 1)[0] == (
        "raisers[0].passes_on on host0 raised ValueError: "
        "raisers[2].at_once on host0 raised ValueError: ('bad batch', 3)"
    )
    assert str(error).count("in at_once") == 1  # each traceback is shown once
    assert str(error).count("in passes_on") == 1


async def test_a_mesh_error_passed_on_keeps_its_ranks(mesh: Raiser) -> None:
    with pytest.raises(ma.MeshError) as info:
        await mesh.at(0).passes_mesh_error_on.call_one(mesh)
    assert sorted(info.value.by_rank) == [0, 1]
    assert isinstance(info.value, ma.RemoteError)


async def _outcome(call: "asyncio.Future[object]") -> object:
    try:
        return await call
    except Exception as error:
        return error
