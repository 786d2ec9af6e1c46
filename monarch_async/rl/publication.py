"""The versions of one publisher, in its process: a target of calls, like an actor.

P1. A version becomes the newest when all of it is in the store; from then on everybody who asks gets that one.
P2. At most ``keep`` versions are kept here. Older ones live as long as somebody reads them.
P3. Who asks from another host is answered once the host has been told, along the chain, to get its copy from the one
    before; or after a moment, if that takes longer.
P4. When it ends, all that ask, now or later, are told why.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from monarch_async.errors import Closed, Error
from monarch_async.ids import random_id64
from monarch_async.mesh.broadcast import spread
from monarch_async.mesh.buffer import at_leisure
from monarch_async.mesh.domain import Domain
from monarch_async.mesh.holding import ObjectFacts
from monarch_async.mesh.ref import Ref, put
from monarch_async.runtime.instance import Instance
from monarch_async.runtime.report import load_report, pack_error
from monarch_async.wire.frame import CANCELLED, FAILED
from monarch_async.wire.message import CallFields
from monarch_async.wire.packed import Packed, Packing
from monarch_async.wire.payload import Buffer, Encoded, Ticketed, dumps, loads

#: A host is sent new versions without asking as long as somebody there has asked for one of so many.
_RECENT = 2
#: Seconds that a chain has to tell all its hosts (P3).
_HEAD_START = 0.25


class Question(NamedTuple):
    """What a subscriber asks."""

    version: int  #: that it has
    waits: bool  #: for a newer one; else the answer may be None
    takes: bool  #: the version itself; else the answer is its number
    agent: int  #: of the host it is on


class Publication:
    """See the module."""

    def __init__(self, domain: Domain, name: str, keep: int, spreads: bool) -> None:
        """On any thread. Belongs to who makes it, and ends with that."""
        self._domain, self.name, self._keep, self._spreads = domain, name, keep, spreads
        self.id = random_id64()
        self.owner = domain.owner()
        self.version = 0
        self._kept: deque[tuple[int, Ref[Packed]]] = deque()
        self._questions: dict[tuple[int, int], Question] = {}  # that wait, by (sender, call)
        self._asked: dict[int, int] = {}  # the newest version when a host last asked, by its agent
        self._spreading: set[int] = set()  # agents of hosts that the newest one is on its way to (P3)
        self._turn = asyncio.Lock()
        self._report = b""
        domain.belongings.add(self)
        domain.router.targets[self.id] = self

    async def publish(self, arrays: object) -> int:
        """Make the next version of what these arrays are now; return its number."""
        async with self._turn:
            self._check_open()
            packing = Packing(arrays, f"publish of {self.name}", self._domain.router.pool.take)
            if packing.copies:
                await at_leisure(packing.copied_bytes, packing.copy)
            ref = await put(packing.finish())
            self._check_open()
            self.version += 1
            self._kept.append((self.version, ref))
            while len(self._kept) > self._keep:
                self._kept.popleft()
            self._spread(ref.keep(self._domain).holding.facts)
            self._answer_all()
            return self.version

    def _check_open(self) -> None:
        if self._report:
            raise load_report(self._report)

    # -- other hosts (P3) ------------------------------------------------------------------------------------------

    def _spread(self, facts: ObjectFacts) -> None:
        waiting = {question.agent for question in self._questions.values()}
        self._asked = {
            agent: version
            for agent, version in self._asked.items()
            if version >= self.version - _RECENT or agent in waiting
        }
        agents = set(self._asked) - {facts.home} if self._spreads else set[int]()
        self._spreading = agents
        if agents:
            self._domain.router.loop.call_later(_HEAD_START, self._spread_ended, agents)
            self._domain.start_task(self._spread_to(facts, agents))

    async def _spread_to(self, facts: ObjectFacts, agents: set[int]) -> None:
        with contextlib.suppress(Error):  # who needs it there fetches it, and is told why not
            await spread(self._domain, facts, sorted(agents))
        self._spread_ended(agents)

    def _spread_ended(self, agents: set[int]) -> None:
        if self._spreading is agents:
            self._spreading = set()
            self._answer_all()

    # -- questions (delivery.Target) -------------------------------------------------------------------------------

    def accept(
        self, src: int, call: int, flags: int, fields: CallFields, skeleton: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        """Take a question."""
        question = Question(*loads(skeleton, buffers))  # type: ignore[misc]
        if self._report:
            self._domain.router.reply(src, call, 0, FAILED, Encoded(self._report, []))
            return
        self._asked[question.agent] = self.version
        if not self._answer(src, call, question):
            self._questions[src, call] = question

    def cancel(self, src: int, call: int) -> None:
        """It need not be answered."""
        if self._questions.pop((src, call), None) is not None:
            self._domain.router.reply(src, call, 0, CANCELLED, Encoded(b"", []))

    def credit(self, src: int, call: int, items: int, nbytes: int) -> None:
        """This is no stream."""

    def _answer_all(self) -> None:
        for (src, call), question in list(self._questions.items()):
            if self._answer(src, call, question):
                del self._questions[src, call]

    def _answer(self, src: int, call: int, question: Question) -> bool:
        """Answer a question, unless it has to wait."""
        answer: tuple[int, Ref[Packed]] | int | None = None
        if self.version > question.version:
            if question.takes and question.agent in self._spreading:
                return False
            answer = self._kept[-1] if question.takes else self.version
        elif question.waits:
            return False
        encoded = dumps(answer, f"version of {self.name}")
        if type(encoded) is Ticketed:
            encoded.sent_to((src,), call, is_answer=True)
        self._domain.router.reply(src, call, 0, 0, encoded)
        return True

    # -- the end (P4) ----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Its owner has ended (`domain.Belonging`)."""
        self.close(self.owner.failure if isinstance(self.owner, Instance) else b"")

    def close(self, report: bytes = b"") -> None:
        """End; tell all who ask, by default that it is closed. Twice is fine."""
        if self._report:
            return
        self._report = report or pack_error(Closed(f"the publisher of {self.name}"))
        self._domain.belongings.discard(self)
        self._kept.clear()
        for src, call in self._questions:
            self._domain.router.reply(src, call, 0, FAILED, Encoded(self._report, []))
        self._questions.clear()
