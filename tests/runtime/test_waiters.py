"""Who waits for a host that is lost is found among thousands of calls, whatever has come and gone since."""

import asyncio
import gc
import random
import weakref

import pytest

import monarch_async as ma
from monarch_async.errors import HostLost, Lost
from monarch_async.ids import AGENT, address
from monarch_async.runtime import waiters
from monarch_async.runtime.call import Call, MeshCall
from monarch_async.runtime.router import Router
from monarch_async.transport.connection import Connection

ACTOR, HOSTS = 5, 6


class Other:
    """Something else that is pending, and may come to wait for others."""

    is_carrier = False

    def __init__(self) -> None:
        self.members: set[int] = set()

    def has_member(self, gone):
        return any(map(gone, self.members))


def make_router() -> Router:
    router = Router(address(7, 1), ma.Config(), "client")
    for host in range(HOSTS):
        router.add_uplink(host, Connection(router, f"host{host}", address(host, AGENT)))
    return router


@pytest.mark.parametrize("seed", range(20))
async def test_all_that_wait_for_a_host_are_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "_FEW", 2)
    dice, router, other = random.Random(seed), make_router(), Other()
    found = waiters.Waiters(router.pending)
    for _ in range(300):
        match dice.randrange(5):
            case 0:
                path = router.path(address(dice.randrange(HOSTS), dice.randrange(1, 4)), ACTOR)
                router.register(Call(router, "one", path))
            case 1:
                members = [router.path(address(dice.randrange(HOSTS), proc), ACTOR) for proc in range(1, 4)]
                router.register(MeshCall(router, "all", members, list, False))
            case 2 if router.pending:
                router.pending.pop(dice.choice(list(router.pending)))
            case 3:
                if other not in router.pending.values():
                    router.pending[router.take_id()] = other  # type: ignore[assignment]
                other.members.add(address(dice.randrange(HOSTS), 1))
            case _:
                host = dice.randrange(HOSTS)
                dead = {address(host, proc) for proc in range(4)}
                there = {id for id, waits in router.pending.items() if waits.has_member(dead.__contains__)}
                assert there <= {id for id, _ in found.on(host)} <= router.pending.keys()


async def test_of_many_calls_only_those_are_found_that_may_wait_there() -> None:
    router = make_router()
    calls = [router.register(Call(router, "", router.path(address(n % HOSTS, 1), ACTOR))) for n in range(600)]
    found = waiters.Waiters(router.pending)
    assert [id for id, _ in found.on(2)] == calls[2::HOSTS]
    for id in calls[2::HOSTS]:
        router.pending.pop(id)
    assert found.on(2) == []


class Thing:
    """What a caller has at hand while it waits."""


async def fail_with(call: Call[None]) -> tuple[object, ...]:
    thing = Thing()
    THINGS.append(weakref.ref(thing))
    try:
        await call
    except Lost as error:
        return error.args
    raise AssertionError("nothing was lost")


THINGS: list[weakref.ref[Thing]] = []


async def test_what_a_caller_has_at_hand_is_not_kept_with_the_error_of_a_lost_host() -> None:
    """The router keeps that error for whoever sends there later: what is raised has the frames it went through."""
    router = make_router()
    router.lose_host(2, HostLost("two", "silence"))
    late = Call[None](router, "late", router.path(address(2, 1), ACTOR))
    late.id = router.register(late)
    other = Call[None](router, "other", router.path(address(2, 1), ACTOR))
    other.id = router.register(other)
    late.path.connection.send(b"")
    assert await fail_with(late) == await fail_with(other) == ("two", "silence")
    del late, other
    await asyncio.sleep(0)
    gc.collect()
    assert [thing() for thing in THINGS] == [None, None]
