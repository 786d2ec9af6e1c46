"""Exceptions of every awkward kind, and the actor that raises them. Workers need import no more than this."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass

import monarch_async as ma


class KeywordOnly(Exception):
    """Pickles well and fails where it is loaded."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class HoldsLock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this works")

    __repr__ = __str__


class ReadOnlyRank(Exception):
    """Has a field of the name of one of ours, which cannot be set."""

    @property
    def rank(self) -> int:
        return -7


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Quota(ValueError):
    """Well behaved, with fields of its own."""

    def __init__(self, who: str, limit: int) -> None:
        super().__init__(who, limit)
        self.who, self.limit = who, limit

    def __str__(self) -> str:
        return f"{self.who} is over {self.limit}"


def group() -> ExceptionGroup[Exception]:
    return ExceptionGroup("both shards", [ValueError("left"), ExceptionGroup("inner", [KeyError("right")])])


KINDS: dict[str, object] = {
    "value": lambda: ValueError("bad batch", 3),
    "os": lambda: FileNotFoundError(2, "no such file", "/nowhere"),
    "quota": lambda: Quota("alice", 3),
    "keyword_only": lambda: KeywordOnly(code=4),
    "lock": lambda: HoldsLock("held"),
    "no_text": NoText,
    "read_only_rank": lambda: ReadOnlyRank("hm"),
    "frozen": lambda: Frozen(5),
    "huge": lambda: ValueError("begin" + "x" * (32 << 20) + "end"),
    "group": group,
    "base_group": lambda: BaseExceptionGroup("with an exit", [SystemExit(1), ValueError("x")]),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator_exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "stop_iteration": lambda: StopIteration(1),
    "stop_async_iteration": lambda: StopAsyncIteration(1),
    "timeout": lambda: TimeoutError("too slow"),
}


def build(kind: str) -> BaseException:
    return KINDS[kind]()  # type: ignore[operator]


class Raiser(ma.Actor):
    """Raises in every style of endpoint."""

    @ma.endpoint
    async def at_once(self, kind: str) -> None:
        raise build(kind)

    @ma.endpoint
    async def after_a_wait(self, kind: str) -> None:
        await asyncio.sleep(0)
        raise build(kind)

    @ma.endpoint
    def on_the_thread(self, kind: str) -> None:
        raise build(kind)

    @ma.endpoint
    async def items(self, kind: str) -> AsyncIterator[int]:
        yield 1
        raise build(kind)

    @ma.endpoint
    async def alive(self) -> bool:
        return True

    @ma.endpoint
    def thread_alive(self) -> bool:
        return True

    @ma.endpoint
    async def chained(self) -> None:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise ValueError("the effect") from cause

    @ma.endpoint
    async def rank_raises(self, *ranks: int) -> int:
        rank = ma.context().rank
        if rank in ranks:
            raise ValueError(f"rank {rank} says no")
        return rank * 10

    @ma.endpoint
    async def cancels_itself(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)

    @ma.endpoint
    async def passes_on(self, other: "Raiser", kind: str) -> None:
        await other.at_once.call_one(kind)

    @ma.endpoint
    async def passes_mesh_error_on(self, others: "Raiser") -> None:
        await others.rank_raises.call(0, 1)

    @ma.endpoint
    async def exits(self) -> None:
        sys.exit("argument --lr: expected a number")
