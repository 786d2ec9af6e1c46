"""Failures that no call carries to anybody go up the tree of who spawned whom, until somebody handles them."""

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from families import Child, Clumsy, Declining, Hasty, Parent, Restarting, Tolerant
from shapes import Picky

import monarch_async as ma
from monarch_async.mesh.domain import active_domain
from monarch_async.runtime import call as calls


async def idle() -> None:
    """What a program does that waits for nothing in particular."""
    async with asyncio.timeout(10):
        await asyncio.Event().wait()


async def spawn(hosts: ma.HostMesh, cls: type[Parent]) -> Parent:
    return await (await hosts.spawn_procs(name="top")).spawn("parents", cls)


# -- in the client -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_failure_that_was_handled_is_not_raised_again() -> None:
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs({"gpus": 2})
        children = await procs.spawn("children", Child)
        waiting = children.at(0).wait.call_one()
        await children.at(0).exit_soon.call_one()
        with pytest.raises(ma.ProcDied):
            await waiting
        await asyncio.sleep(0.05)
        assert await children.at(1).counted.call_one() == 1
        with pytest.raises(ma.ProcDied):
            await children.counted.call()


async def test_an_error_in_a_future_that_was_dropped() -> None:
    with pytest.raises(ValueError, match="the root cause"):
        async with ma.local_hosts() as hosts:
            children = await (await hosts.spawn_procs()).spawn("children", Child)
            children.fail.call_one()
            await idle()


@pytest.mark.slow
async def test_an_error_in_a_future_that_is_kept_and_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "UNSEEN", 0.05)
    with pytest.raises(ValueError, match="the root cause"):
        async with ma.local_hosts() as hosts:
            children = await (await hosts.spawn_procs()).spawn("children", Child)
            kept = children.fail.call_one()
            await idle()
    assert kept.done()


async def test_an_error_in_a_future_that_is_kept_until_the_end() -> None:
    """The block ends before anybody could count as not looking: it still says so."""
    with pytest.raises(ValueError, match="the root cause"):
        async with ma.local_hosts() as hosts:
            children = await (await hosts.spawn_procs()).spawn("children", Child)
            kept = children.fail.call_one()
            await children.pid.call_one()
            while not kept.done():
                await asyncio.sleep(0.001)


@pytest.mark.slow
async def test_an_error_that_was_looked_at_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "UNSEEN", 0.02)
    async with ma.local_hosts() as hosts:
        children = await (await hosts.spawn_procs({"gpus": 2})).spawn("children", Child)
        one, every = children.at(0).fail.call_one(), children.fail.call()
        results = await asyncio.gather(one, every, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["ValueError", "MeshError"]
        late = children.at(1).fail.call_one()
        done, _ = await asyncio.wait([late])
        assert isinstance(done.pop().exception(), ValueError)
        del one, every, late
        await asyncio.sleep(0.05)


async def test_a_policy_hears_of_what_nobody_looked_at() -> None:
    heard: asyncio.Queue[ma.Failure] = asyncio.Queue()

    async def policy(failure: ma.Failure) -> bool:
        heard.put_nowait(failure)
        return True

    async with ma.local_hosts() as hosts, ma.supervise(policy):
        children = await (await hosts.spawn_procs({"gpus": 2})).spawn("children", Child)
        children.at(1).fail.call_one()
        async with asyncio.timeout(10):
            failure = await heard.get()
            assert (failure.mesh.name, failure.rank) == ("children", 1)
            children.fail.call()
            failure = await heard.get()
        assert isinstance(failure.error, ma.MeshError)


async def test_a_failed_start_nobody_awaits_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "UNSEEN", 0.05)
    with pytest.raises(ValueError, match="no such model"):
        async with ma.local_hosts() as hosts:
            hosts.spawn_procs({"gpus": 2}).spawn("picky", Picky, "setup")
            await idle()


@pytest.mark.slow
async def test_a_failed_start_that_a_call_has_carried_is_not_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "UNSEEN", 0.05)
    async with ma.local_hosts() as hosts:
        procs = hosts.spawn_procs()
        mesh = procs.spawn("picky", Picky, "setup", (0,))
        with pytest.raises(ValueError, match="no such model"):
            await mesh.where_am_i.call_one()
        await asyncio.sleep(0.1)


async def test_the_innermost_block_is_asked_first_and_ended_first() -> None:
    asked: list[str] = []

    def policy(name: str) -> object:
        async def decline(failure: ma.Failure) -> bool:
            asked.append(name)
            return False

        return decline

    reached = False
    async with ma.local_hosts() as hosts, ma.supervise(policy("outer")):  # type: ignore[arg-type]
        outside = await (await hosts.spawn_procs()).spawn("outside", Child)
        with pytest.raises(ma.ProcDied, match="kids"):
            async with ma.supervise(policy("inner")):  # type: ignore[arg-type]
                children = await (await hosts.spawn_procs(name="kids")).spawn("children", Child)
                await children.exit_soon.call_one()
                await idle()
        reached = True
        assert asked == ["inner", "outer"]
        assert await outside.counted.call_one() == 1  # what the outer block owns lives on
    assert reached


async def test_what_was_spawned_in_a_block_ends_with_it() -> None:
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs()
        async with ma.supervise(ma.ignore):
            inner = await (await hosts.spawn_procs()).spawn("inner", Child)
            guests = await procs.spawn("guests", Child)
            assert await inner.counted.call_one() == await guests.counted.call_one() == 1
        with pytest.raises(ma.ProcDied):
            await inner.counted.call_one()
        with pytest.raises(ma.ActorDied, match="guests on host0 died: it was stopped"):
            await guests.counted.call_one()
        assert await (await procs.spawn("again", Child)).counted.call_one() == 1


@pytest.mark.slow
async def test_a_policy_that_raises_ends_the_block_with_that() -> None:
    async def policy(failure: ma.Failure) -> bool:
        raise LookupError("no spare")

    with pytest.raises(LookupError, match="no spare") as info:
        async with ma.local_hosts() as hosts, ma.supervise(policy):
            children = await (await hosts.spawn_procs(name="kids")).spawn("children", Child)
            await children.exit_soon.call_one()
            await idle()
    assert isinstance(info.value.__cause__, ma.ProcDied)
    assert info.value.__notes__[0].startswith("raised by a supervision policy while it handled: kids[0]: proc kids")


# -- in actors ---------------------------------------------------------------------------------------------------------


async def test_an_actor_that_handles_it_lives_on_and_nobody_else_hears() -> None:
    async with ma.local_hosts() as hosts:
        parents = await spawn(hosts, Tolerant)
        children = await parents.spawn.call_one(2)
        await parents.make_child_die.call_one()
        async with asyncio.timeout(10):
            assert await parents.wait_heard.call_one() == "kids[0] ProcDied"
        assert await children.at(1).counted.call_one() == 1


async def test_an_actor_restarts_what_it_spawned() -> None:
    async with ma.local_hosts() as hosts:
        parents = await spawn(hosts, Restarting)
        children = await parents.spawn.call_one(2)
        assert [await children.at(0).counted.call_one() for _ in range(2)] == [1, 2]
        await parents.make_child_die.call_one()
        async with asyncio.timeout(10):
            assert await parents.wait_heard.call_one() == "kids[0] ProcDied"
        assert await children.at(0).counted.call_one() == 1  # fresh; this reference is the client's own, and holds
        assert await children.at(1).counted.call_one() == 1
        await parents.make_child_fail.call_one()
        async with asyncio.timeout(10):
            assert await parents.wait_heard.call_one() == "children[0] ValueError"
        assert await children.at(0).counted.call_one() == 1


@pytest.mark.parametrize("cls", [Parent, Declining])
async def test_one_that_does_not_fails_and_its_owner_hears_with_the_root_cause(cls: type[Parent]) -> None:
    with pytest.raises(ma.ActorDied) as info:
        async with ma.local_hosts() as hosts:
            parents = await spawn(hosts, cls)
            await parents.spawn.call_one()
            await parents.make_child_die.call_one()
            await idle()
    died = info.value
    assert died.actor == "parents"
    assert str(died).startswith(
        "actor parents on host0 died: kids[0], which it spawned, failed, and it did not handle that: "
        "proc kids[0] on host0 (pid "
    )
    assert str(died).endswith("died: killed by SIGKILL")
    assert isinstance(died.__cause__, ma.ProcDied)


@pytest.mark.slow
async def test_one_whose_hook_raises_fails_with_that() -> None:
    with pytest.raises(ma.ActorDied) as info:
        async with ma.local_hosts() as hosts:
            parents = await spawn(hosts, Clumsy)
            await parents.spawn.call_one()
            await parents.make_child_die.call_one()
            await idle()
    assert "which it spawned, failed, and its __supervise__ raised KeyError: 'no plan for this'" in str(info.value)
    assert "in __supervise__" in info.value.traceback
    assert isinstance(info.value.__cause__, KeyError)
    assert isinstance(info.value.__cause__.__cause__, ma.ProcDied)


async def test_the_failure_of_a_childs_endpoint_goes_the_same_way() -> None:
    with pytest.raises(ma.ActorDied) as info:
        async with ma.local_hosts() as hosts:
            parents = await spawn(hosts, Parent)
            await parents.spawn.call_one()
            await parents.make_child_fail.call_one()
            await idle()
    text = "children[0], which it spawned, failed, and it did not handle that: children.fail on host0 raised ValueError"
    assert text in str(info.value)
    assert isinstance(info.value.__cause__, ValueError)


@pytest.mark.slow
async def test_a_call_an_actor_did_not_look_at() -> None:
    """Of its own children: its own ``__supervise__`` is asked. Of others: it fails."""
    async with ma.local_hosts() as hosts:
        parents = await spawn(hosts, Tolerant)
        await parents.spawn.call_one()
        await parents.drop_a_failed_call.call_one()
        async with asyncio.timeout(10):
            assert await parents.wait_heard.call_one() == "children[0] ValueError"
    with pytest.raises(ma.ActorDied, match=r"its call of others\.fail failed, and it did not look at that: others"):
        async with ma.local_hosts() as hosts:
            parents = await spawn(hosts, Tolerant)
            others = await (await hosts.spawn_procs()).spawn("others", Child)
            await parents.drop_a_failed_call.call_one(others)
            await idle()


@pytest.mark.slow
async def test_an_endpoint_that_carries_it_decides_for_an_actor_without_a_hook() -> None:
    """The call that waits for the child raises in the parent's endpoint, and from there at its caller: once."""
    async with ma.local_hosts() as hosts:
        parents = await spawn(hosts, Parent)
        await parents.spawn.call_one()
        waiting = parents.wait_for_child.call_one()
        await parents.make_child_die.call_one()
        with pytest.raises(ma.ProcDied, match="proc kids") as info:
            await waiting
        assert isinstance(info.value, ma.RemoteError)
        assert info.value.actor == "parents"
        await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_an_actor_whose_children_die_while_it_starts() -> None:
    async with ma.local_hosts() as hosts:
        async with asyncio.timeout(10):
            with pytest.raises(ma.ActorDied, match=r"kids\[0\], which it spawned, failed"):
                await spawn(hosts, Hasty)
        await asyncio.sleep(0.05)  # the spawn has carried it


async def test_two_floors_up_one_failure_is_shown_the_first() -> None:
    heard: list[ma.Failure] = []

    async def policy(failure: ma.Failure) -> bool:
        heard.append(failure)
        return False

    with pytest.raises(ma.ActorDied) as info:
        async with ma.local_hosts() as hosts, ma.supervise(policy):
            parents = await spawn(hosts, Parent)
            await parents.spawn_grandchild.call_one()
            await parents.make_grandchild_die.call_one()
            await idle()
    assert [str(failure.error) for failure in heard] == [str(info.value)]  # one failure, one report
    text = str(info.value)
    assert text.startswith("actor parents on host0 died: middles[0], which it spawned, failed")
    assert "actor middles on host0 died: kids[0], which it spawned, failed" in text
    assert text.endswith("died: killed by SIGKILL")
    cause = info.value.__cause__
    assert isinstance(cause, ma.ActorDied)
    assert cause.actor == "middles"


@pytest.mark.slow
async def test_callers_of_an_actor_that_fails_get_its_death_and_may_handle_it() -> None:
    async with ma.local_hosts() as hosts:
        parents = await spawn(hosts, Declining)
        await parents.spawn.call_one()
        waiting = parents.wait_heard.call_one(), parents.wait_heard.call_one()
        await parents.make_child_die.call_one()
        async with asyncio.timeout(10):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert sorted(str(result).split(":")[0] for result in results) == [
            "actor parents on host0 died",
            "kids[0] ProcDied",
        ]
        with pytest.raises(ma.ActorDied, match="which it spawned, failed"):
            await parents.child_pids.call_one()
        await asyncio.sleep(0.05)  # it was delivered: the block is not ended by it


async def test_what_an_actor_spawned_ends_with_it() -> None:
    async with ma.local_hosts() as hosts:
        parents = await spawn(hosts, Parent)
        children = await parents.spawn.call_one()
        pids = await parents.child_pids.call_one()
        await parents.stop()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        with pytest.raises(ma.ProcDied, match="parents, which spawned it, has ended"):
            await children.pid.call_one()


# -- a program ---------------------------------------------------------------------------------------------------------

PROGRAM = textwrap.dedent(
    """
    import asyncio, os
    import monarch_async as ma

    class Trainer(ma.Actor):
        @ma.endpoint
        async def train(self):
            await asyncio.sleep(0.01)
            {how}

    async def main():
        async with ma.local_hosts() as hosts:
            trainers = await (await hosts.spawn_procs({{"gpus": 2}}, name="train")).spawn("trainers", Trainer)
            trainers.train.broadcast()
            await asyncio.Event().wait()

    ma.run(main())
    """
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "last", "also"),
    [
        ("raise ValueError('loss is nan')", "ValueError: loss is nan", "raise ValueError('loss is nan')"),
        ("os._exit(7)", "died: exited with status 7", "monarch_async.errors.ProcDied: proc train["),
    ],
)
def test_a_program_that_idles_ends_with_the_cause(tmp_path: Path, how: str, last: str, also: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(how=how))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(last), done.stderr
    assert also in done.stderr
    assert "CancelledError" not in done.stderr  # how the body was ended is nobody's business
    assert "never retrieved" not in done.stderr
    assert done.stdout == ""


async def test_deaths_are_not_remembered_for_ever() -> None:
    async with ma.local_hosts() as hosts:
        procs = await hosts.spawn_procs()
        domain = active_domain()
        for pid in range(3000):
            death = ma.ProcDied("p[0]", "host0", 1, None, False, (), "", pid)
            domain.tell(domain.owner(), ma.Failure(death, procs, 0), True)
        assert len(domain._deaths) <= 1024
