"""Calls of methods that stream: they wait, and are sent, in the line of an actor's calls like all others (A1).

Where the methods of an actor run one by one, a stream has the turn of its own: a plain call is sent before it, which
takes its place among the others on the actor's thread and holds that until the stream is over.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from monarch_async.ray.calling import ActorCall
from monarch_async.ray.entry import Entry
from monarch_async.ray.generator import ObjectRefGenerator
from monarch_async.ray.payload import Packed


class ActorStream(ActorCall):
    """One call. It ends with its generator, which it fills."""

    __slots__ = ("_generator", "_takes_turn")

    def __init__(
        self,
        generator: ObjectRefGenerator,
        method: tuple[Any, ...],
        packed: Packed,
        refs: Sequence[Entry],
        life: object,
        *,
        takes_turn: bool,
    ) -> None:
        """See `ActorCall`. ``takes_turn``: the actor's methods run one by one."""
        super().__init__("stream", method, packed, refs, (), 0, life)
        self._generator, self._takes_turn = generator, takes_turn
        generator.withdraw = self._withdraw

    def open(self, mesh: Any, values: Sequence[Packed | None]) -> None:
        """See `ActorCall.open`."""
        assert self.client is not None
        runtime = self.client.runtime
        turn = runtime.take_number() if self._takes_turn else 0
        if turn:
            mesh.hold_turn.call_one(turn).add_done_callback(_looked_at)  # where the actor is lost the stream says so
        source = mesh.run_stream.stream_one(self.method, self.packed, values, turn)
        self.client.unanswered -= 1
        runtime.start(self._follow(source))

    async def _follow(self, source: Any) -> None:
        """Until it ends this call is there, and keeps its actor (A3)."""
        await self._generator.follow(source)

    def _withdraw(self) -> None:
        if self.client is not None:
            self.client.cancel(self)

    def fail(self, error: BaseException) -> None:
        """It has not begun, and will not."""
        super().fail(error)
        self._generator.end(error)


def _looked_at(future: "asyncio.Future[None]") -> None:
    if not future.cancelled():
        future.exception()
