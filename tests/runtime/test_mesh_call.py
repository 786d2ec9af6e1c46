"""A call of many members, seen from the caller: whose answer belongs where, and how all of them are told to stop."""

import asyncio

import pytest

import monarch_async as ma
from monarch_async.ids import address, host_of
from monarch_async.runtime.call import MeshCall
from monarch_async.runtime.router import Router
from monarch_async.transport.connection import Connection
from monarch_async.wire.frame import CANCEL, CANCELLED, FAILED, HEADER
from monarch_async.wire.payload import dumps

CLIENT, HOST, ACTOR = address(7, 1), 8, 5
NEXT_TURN = 0


class Caller:
    """A router whose frames go into a list, and one call of ``count`` members, in their order or backwards."""

    def __init__(self, count: int, is_backwards: bool = False) -> None:
        self.router = Router(CLIENT, ma.Config(), "client")
        uplink = Connection(self.router, "agent", address(HOST, 0))
        self.sent: list[bytes] = []
        uplink.send = self.sent.append
        self.router.add_uplink(HOST, uplink)
        self.members = [address(HOST, proc) for proc in range(1, count + 1)]
        paths = [self.router.path(member, ACTOR) for member in self.members]
        self.call: MeshCall[list[int]] = MeshCall(
            self.router, "members.step", paths[::-1] if is_backwards else paths, list, False
        )
        self.call.id = self.router.register(self.call)
        for path in paths:
            path.inflight = 1

    def answer(self, rank: int, flags: int = 0, says: int | None = None) -> bool:
        """The member of this rank answers with its rank, and says that it has the rank ``says``."""
        payload = b"" if flags & CANCELLED else dumps(rank).skeleton
        return self.call.take_reply(self.members[rank], flags, rank if says is None else says, payload, ())

    def cancelled(self) -> list[int]:
        """The ranks of those that were told to stop."""
        frames = [HEADER.unpack_from(frame) for frame in self.sent]
        return [self.members.index(frame[4]) for frame in frames if frame[1] == CANCEL]


async def test_answers_are_put_where_their_members_are() -> None:
    caller = Caller(5)
    assert [caller.answer(rank) for rank in (4, 0, 2, 1, 3)] == [False, False, False, False, True]
    assert await caller.call == [0, 1, 2, 3, 4]
    assert all(path.inflight == 0 for path in caller.call._paths)


async def test_answers_are_put_where_their_members_are_in_another_order() -> None:
    caller = Caller(5, is_backwards=True)
    for rank in (4, 0, 2, 1, 3):
        caller.answer(rank)
    assert await caller.call == [4, 3, 2, 1, 0]


async def test_a_member_that_does_not_know_its_rank_is_known_by_its_address() -> None:
    caller = Caller(3)
    for rank, says in ((2, 0), (1, 0), (0, 1 << 63)):
        caller.answer(rank, says=says)
    assert await caller.call == [0, 1, 2]


async def test_only_the_first_answer_of_a_member_counts() -> None:
    caller = Caller(2)
    assert not caller.answer(1)
    assert not caller.answer(1, FAILED)
    assert not caller.call.take_reply(address(HOST + 1, 1), 0, 0, dumps("from elsewhere").skeleton, ())
    assert caller.answer(0)
    assert await caller.call == [0, 1]


async def test_of_many_members_some_are_told_in_each_turn_that_a_call_is_cancelled() -> None:
    """One turn for all of them would keep the loop from everything else."""
    caller = Caller(300)
    caller.call.cancel()
    assert len(caller.cancelled()) == 128
    for rank in range(300):
        if rank not in (told := set(caller.cancelled())):
            caller.answer(rank)  # it has answered before it was told
            break
    await asyncio.sleep(NEXT_TURN)
    assert len(caller.cancelled()) == 256
    await asyncio.sleep(NEXT_TURN)
    assert len(caller.cancelled()) == len(set(caller.cancelled())) == 299
    assert told < set(caller.cancelled())
    for rank in caller.cancelled():
        caller.answer(rank, CANCELLED)
    with pytest.raises(asyncio.CancelledError):
        await caller.call


async def test_members_of_a_host_that_is_lost_meanwhile_are_not_told() -> None:
    caller = Caller(300)
    caller.call.cancel()
    told = caller.cancelled()
    caller.router.lose(HOST, lambda dst: host_of(dst) == HOST, ma.HostLost("host", "cut"))
    await asyncio.sleep(NEXT_TURN)
    assert caller.cancelled() == told
    with pytest.raises(asyncio.CancelledError):
        await caller.call
