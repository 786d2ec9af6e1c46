"""Mistakes of the caller: each a clear error at the call, with nothing sent, started or left waiting."""

import asyncio
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

import monarch_async as ma
from monarch_async.mesh.actor_mesh import ActorMesh
from monarch_async.mesh.domain import active_domain
from monarch_async.runtime.actor import RESERVED, interface_of
from monarch_async.runtime.router import active_router

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Target(ma.Actor):
    """Counts what arrives."""

    def __init__(self, size: int = 1, *, name: str = "") -> None:
        self.calls = 0

    @ma.endpoint
    async def take(self, x: int, /, y: int = 0, *rest: int, flag: bool, **more: int) -> None:
        self.calls += 1

    @ma.endpoint
    def plain(self, x: int) -> None:
        self.calls += 1

    @ma.endpoint
    async def items(self, count: int) -> AsyncIterator[int]:
        self.calls += 1
        for item in range(count):
            yield item

    @ma.endpoint
    async def arrived(self) -> int:
        return self.calls

    def helper(self) -> None: ...

    attribute = 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def procs(hosts: ma.HostMesh) -> ma.ProcMesh:
    return await hosts.spawn_procs({"gpus": 2}, name="procs")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def targets(procs: ma.ProcMesh) -> Target:
    return await procs.spawn("targets", Target)


@pytest.fixture
def nothing_begun(procs: ma.ProcMesh) -> Iterator[None]:
    before = len(active_domain().groups), len(active_domain().allocations)
    yield
    assert not active_router().pending
    assert (len(active_domain().groups), len(active_domain().allocations)) == before


ADVERBS = ["call", "call_one", "choose", "stream", "broadcast"]


@pytest.mark.parametrize("adverb", ADVERBS)
@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((1,), {}, "missing a required argument: 'flag'"),
        ((), {"x": 1, "flag": True}, "'x'"),
    ],
    ids=str,
)
async def test_arguments_are_checked_against_the_signature(
    targets: Any, adverb: str, args: Any, kwargs: Any, says: str, nothing_begun: None
) -> None:
    target = targets.at(0) if adverb == "call_one" else targets
    with pytest.raises(ma.BadCall, match=says) as caught:
        getattr(target.take, adverb)(*args, **kwargs)
    assert isinstance(caught.value, TypeError)
    assert "targets.take" in str(caught.value)
    assert "its signature is take(x, /, y=..., *rest, flag, **more)" in str(caught.value)
    assert list(await targets.arrived.call()) == [0, 0]


@pytest.mark.parametrize(
    ("endpoint", "adverb", "args", "kwargs"),
    [
        ("plain", "call", (1, 2), {}),
        ("plain", "broadcast", (), {"y": 1}),
        ("plain", "choose", (1,), {"x": 1}),
        ("items", "stream", (), {}),
        ("items", "stream_one", (1, 2), {}),
        ("items", "choose", (), {"n": 1}),
        ("arrived", "call", (1,), {}),
    ],
)
async def test_too_many_too_few_unknown_or_double(
    targets: Any, endpoint: str, adverb: str, args: Any, kwargs: Any, nothing_begun: None
) -> None:
    target = targets.at(0) if adverb == "stream_one" else targets
    with pytest.raises(ma.BadCall, match=rf"targets\.{endpoint}: .*; its signature is {endpoint}\("):
        getattr(getattr(target, endpoint), adverb)(*args, **kwargs)
    assert list(await targets.arrived.call()) == [0, 0]


async def test_what_is_no_endpoint(targets: Any, nothing_begun: None) -> None:
    known = "its endpoints: arrived, items, plain, take"
    for name, says in [
        ("tkae", f"targets has no endpoint 'tkae'; {known}"),
        ("attribute", f"targets has no endpoint 'attribute'; {known}"),
        ("_private", f"targets has no endpoint '_private'; {known}"),
        ("helper", "targets.helper is a method but no endpoint: decorate it with @ma.endpoint"),
    ]:
        with pytest.raises(ma.NotAnEndpoint) as caught:
            getattr(targets, name)
        assert str(caught.value) == says
        assert not hasattr(targets, name)
    with pytest.raises(AttributeError):
        targets.__nope__  # noqa: B018


async def test_an_endpoint_wants_an_adverb(targets: Any, nothing_begun: None) -> None:
    with pytest.raises(ma.BadCall, match=r"targets\.plain: say how: \.call, \.call_one, \.choose"):
        targets.plain(1)
    with pytest.raises(ma.BadCall, match=r"async generator: say \.stream or \.stream_one"):
        targets.items(1)
    for adverb in ("call", "call_one", "broadcast"):
        with pytest.raises(ma.BadCall, match=r"async generator: say \.stream or \.stream_one"):
            getattr(targets.items, adverb)(1)
    with pytest.raises(AttributeError, match="stream_one"):
        targets.plain.stream_one(1)


async def test_one_member_is_asked_of_a_mesh_of_several(targets: Any, nothing_begun: None) -> None:
    for call in (lambda: targets.plain.call_one(1), lambda: targets.items.stream_one(1)):
        with pytest.raises(ma.ExtentError, match=r"needs a mesh of one member, and targets has 2 \(hosts=1 gpus=2\)"):
            call()


async def test_a_rank_outside_the_mesh(targets: Any, procs: ma.ProcMesh, nothing_begun: None) -> None:
    for rank in (2, -3):
        with pytest.raises(ma.RankError, match="there are 2"):
            targets.at(rank)
    with pytest.raises(ma.RankError):
        await targets.restart(2)
    with pytest.raises(ma.RankError):
        await procs.restart(7)
    with pytest.raises(ma.ExtentError, match="not an integer"):
        targets.at("1")


async def test_shapes_that_do_not_fit(targets: Any, nothing_begun: None) -> None:
    for change, error in [
        (lambda: targets.split(gpus=("a", "b"), a=3), ma.ExtentError),
        (lambda: targets.split(gpus=("a", "b")), ma.ExtentError),
        (lambda: targets.split(nope=("a", "b"), a=1), ma.AxisError),
        (lambda: targets.rename(nope="x"), ma.AxisError),
        (lambda: targets.rename(gpus="hosts"), ma.ExtentError),
        (lambda: targets.rename(gpus="for"), ma.ExtentError),
        (lambda: targets.flatten(""), ma.ExtentError),
    ]:
        with pytest.raises(error):
            change()


# -- what can be spawned -------------------------------------------------------------------------------------------


class NoActor:
    @ma.endpoint
    async def step(self) -> None: ...


class NoEndpoint(ma.Actor):
    def step(self) -> None: ...


@pytest.mark.parametrize(
    ("cls", "args", "kwargs", "error", "says"),
    [
        (NoActor, (), {}, ma.BadEndpoint, "not a class deriving from monarch_async.Actor"),
        (Target(), (), {}, ma.BadEndpoint, "not a class deriving from monarch_async.Actor"),
        ("Target", (), {}, ma.BadEndpoint, "not a class deriving from monarch_async.Actor"),
        (functools.partial(Target, 1), (), {}, ma.BadEndpoint, "not a class deriving from monarch_async.Actor"),
        (NoEndpoint, (), {}, ma.BadEndpoint, "it has no endpoint: decorate a method with @ma.endpoint"),
        (Target, (1, 2), {}, ma.BadCall, r"too many positional arguments; its signature is Target\(size: int = 1"),
        (Target, (), {"sise": 1}, ma.BadCall, "unexpected keyword argument 'sise'"),
        (Target, (1,), {"size": 1}, ma.BadCall, "multiple values for argument 'size'"),
    ],
    ids=str,
)
async def test_a_spawn_that_cannot_work(
    procs: Any, cls: Any, args: Any, kwargs: Any, error: type[Exception], says: str, nothing_begun: None
) -> None:
    with pytest.raises(error, match=says):
        procs.spawn("bad", cls, *args, **kwargs)


@pytest.mark.parametrize("name", ["", " ", 3, None, "a\nb", "\x1b[31mred"])
async def test_a_name_that_would_spoil_a_log(procs: Any, name: Any, nothing_begun: None) -> None:
    with pytest.raises(ma.BadCall, match="expected a text of one line"):
        procs.spawn(name, Target)


async def test_a_keyword_named_name_belongs_to_the_actor(procs: ma.ProcMesh) -> None:
    mesh: Any = procs.spawn("named", Target, name="x")
    await mesh
    await mesh.stop()


async def test_a_stopped_mesh(hosts: ma.HostMesh) -> None:
    procs = await hosts.spawn_procs(name="short")
    target = await procs.spawn("target", Target)
    await target.stop()
    await target.stop()
    with pytest.raises(ma.ActorDied, match="it was stopped"):
        await target.arrived.call_one()
    with pytest.raises(ma.ActorDied):
        await target.plain.broadcast(1)
    with pytest.raises(ma.Closed, match="it was stopped"):
        await target.restart(0)
    await procs.stop()
    await procs.stop()
    with pytest.raises(ma.Closed, match="it was stopped"):
        procs.spawn("late", Target)
    with pytest.raises(ma.Closed, match="it was stopped"):
        await procs.restart(0)
    with pytest.raises(ma.ProcDied):
        await target.arrived.call_one()


# -- classes that are wrong ----------------------------------------------------------------------------------------


async def test_every_name_a_mesh_has_itself_is_refused_as_an_endpoint(targets: Any) -> None:
    """An endpoint of such a name could not be reached; a new attribute of meshes must not go unnoticed."""
    own = {name for name in {*dir(ActorMesh), *vars(targets)} if not name.startswith("__")} - {*Target.__dict__}
    assert own <= RESERVED
    for name in ("stop", "call", "slice", "cast", "_group"):
        async def method(self: object) -> None: ...

        with pytest.raises(ma.BadEndpoint, match=f"every mesh has '{name}' itself"):
            type("Clash", (ma.Actor,), {name: ma.endpoint(method)})
    mixin = type("Mixin", (), {"restart": ma.endpoint(method)})
    with pytest.raises(ma.BadEndpoint, match="every mesh has 'restart' itself"):
        type("Clash", (mixin, ma.Actor), {})


async def test_what_cannot_be_an_endpoint() -> None:
    def generator(self: object) -> Iterator[int]:
        yield 1

    def no_self() -> None: ...

    for thing, says in [
        (3, "it must decorate a function"),
        (staticmethod(no_self), "it must decorate a function"),
        (property(no_self), "it must decorate a function"),
        (ma.Actor, "it must decorate a function"),
        (generator, "a plain generator cannot stream: make it `async def`"),
    ]:
        with pytest.raises(ma.BadEndpoint, match=says):
            ma.endpoint(thing)  # type: ignore[call-overload]
    with pytest.raises(ma.BadEndpoint, match="it takes no self"):
        interface_of(type("NoSelf", (ma.Actor,), {"step": ma.endpoint(no_self)}))  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, -1, 1.5, "many", None, True])
async def test_a_max_concurrency_that_makes_no_sense(limit: Any) -> None:
    with pytest.raises(ma.BadEndpoint, match="max_concurrency"):
        type("Odd", (ma.Actor,), {"max_concurrency": limit})


async def test_a_wrapped_coroutine_function_is_still_one(procs: ma.ProcMesh) -> None:
    wrapped: Any = await procs.slice(gpus=0).spawn("wrapped", Wrapped)
    assert await wrapped.step.call_one(3) == 6


def double(function: Any) -> Any:
    """A decorator of the usual kind: what it returns is no coroutine function, but returns a coroutine."""

    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        async def run() -> Any:
            return 2 * await function(*args)

        return run()

    return wrapper


class Wrapped(ma.Actor):
    @ma.endpoint
    @double
    async def step(self, x: int) -> int:
        return x


# -- outside a program ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True, None])
async def test_a_number_of_hosts_that_makes_no_sense(n: Any) -> None:
    with pytest.raises(ma.ExtentError, match="expected a positive number of hosts"):
        ma.local_hosts(n=n)


async def test_a_second_program_in_one_process(hosts: ma.HostMesh, nothing_begun: None) -> None:
    with pytest.raises(ma.Closed, match="use the hosts of the first"):
        async with ma.local_hosts():
            pass


async def test_every_error_says_what_went_wrong_in_one_line(targets: Any) -> None:
    for mistake in (
        lambda: targets.nope,
        lambda: targets.plain.call(),
        lambda: targets.slice(nope=1),
        lambda: targets.at(9),
        lambda: targets.plain(1),
    ):
        with pytest.raises(ma.Error) as caught:
            mistake()
        text = str(caught.value)
        assert text
        assert "\n" not in text
        assert not text[0].isupper()


async def test_signatures_shown_to_callers_keep_nothing_of_the_workers() -> None:
    """A default value may be anything; only that there is one travels."""
    signature = interface_of(Target).endpoints["take"].signature
    assert str(signature) == "(x, /, y=..., *rest, flag, **more)"
    assert all(p.annotation is inspect.Parameter.empty for p in signature.parameters.values())


async def test_outside_of_a_program() -> None:
    """In a process of its own: this one has hosts."""
    program = """
import asyncio
import monarch_async as ma

async def main():
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs()
    for what in (lambda: hosts.spawn_procs(), ma.channel, ma.this_host):
        try:
            what()
        except ma.Closed as error:
            print(error)

ma.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    expected = "this program is closed: it is not inside `async with ma.local_hosts()` or `ma.attach(...)`"
    assert out.decode().splitlines() == [expected] * 3
