"""A link: one session between two ends that outlives the connections under it.

Frames carry no number. Both ends count them instead, so a frame's number is its place in the order sent,
and the sender keeps every frame until the peer has acknowledged it. When a connection drops, the next one's
handshake tells each end how far the other got; what lies past that is sent again. Acks are not frames of
the link: they are cumulative and idempotent, so a lost one needs no repair, and they are neither counted
nor replayed.

Pure: the owner brings ``now``, carries the counts, and moves the bytes. What it has to do:

- hand every frame to `push`, and to the connection if there is one; hold new ones back while `is_full`;
- call `down` *before* it tells `received_count` in a handshake, and drop what the old connection may still
  deliver: those frames are past the count told, so they come again;
- count the same bytes for a frame on both ends (`push` takes ``len(frame)``), or acks come later than
  memory allows.

    state            push     received  acked    down         resume(count)       is_lost(now, window)
    Up               record   count     forget   Down(now)    (owner's bug)       False
    Down(since)      record   (bug)     forget   no change    Up, frames to send  now - since > window: Lost
    Lost(since)      (bug)    (bug)     ignore   no change    LinkBroken          True

`give_up` leads from anywhere to Lost. A link starts Up: its first connection needs no resume. Lost is final, also when
the peer turns up after all: by then its calls have been failed, so it must not be heard again.

Invariants:

L1. The peer is handed the frames pushed here in the order pushed, each once, whatever connections drop
    between.
L2. ``acked_count <= frames the peer received <= sent_count``, and `acked_count` never falls.
L3. Exactly the frames numbered ``acked_count`` to ``sent_count - 1`` are kept; `unacked_bytes` is their
    total size.
L4. With an owner that heeds `is_full`, less than ``max_unacked_bytes`` and one frame (or run of frames) is kept;
    nothing once Lost.
L5. A full link drains: while Up and full, frames or an ack are on their way, or the peer has an ack due.
L6. A claim that L2 rules out (BadFrame from an ack, LinkBroken from a resume) changes nothing.
L7. The window runs from the moment the link went down: saying so again does not prolong it.
L8. Lost is final.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from monarch_async.errors import BadFrame, LinkBroken


@dataclass(frozen=True, slots=True)
class Up:
    """A connection is there."""


@dataclass(frozen=True, slots=True)
class Down:
    """No connection since that moment; one may come within the window."""

    since: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Without a connection for longer than the window."""

    since: float


UP = Up()


class Link:
    """One end of a session. ``push`` and ``received`` are on every message's path."""

    __slots__ = (
        "_ack_every_bytes",
        "_ack_every_frames",
        "_frames",
        "_told_count",
        "_untold_bytes",
        "acked_count",
        "max_unacked_bytes",
        "peer",
        "received_count",
        "sent_count",
        "state",
        "unacked_bytes",
    )

    def __init__(
        self,
        max_unacked_bytes: int = 64 << 20,
        ack_every_frames: int = 256,
        ack_every_bytes: int = 1 << 20,
        *,
        peer: str = "peer",
    ) -> None:
        """Take the limits, the same at both ends, and what to call the peer in errors.

        ``max_unacked_bytes`` bounds what is kept for replay; an ack is due after either of ``ack_every_*``.
        """
        assert 0 < ack_every_bytes <= max_unacked_bytes, "a full sender would wait for an ack that is not due"
        assert ack_every_frames > 0
        self.max_unacked_bytes = max_unacked_bytes
        self._ack_every_frames = ack_every_frames
        self._ack_every_bytes = ack_every_bytes
        self.peer = peer
        self.state: Up | Down | Lost = UP
        self._frames: deque[bytes] = deque()
        self.sent_count = 0  #: frames pushed in all
        self.acked_count = 0  #: of those, how many the peer is known to have received
        self.unacked_bytes = 0  #: size of the frames kept for replay
        self.received_count = 0  #: frames received in all; what a handshake tells the peer
        self._told_count = 0  # of those, how many the peer was told of
        self._untold_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the owner must hold further frames back until an ack or a resume makes room."""
        return self.unacked_bytes >= self.max_unacked_bytes

    def push(self, frame: bytes) -> None:
        """Record the next frame sent. While the link is down, `resume` returns it with the others."""
        assert type(self.state) is not Lost
        self._frames.append(frame)
        self.sent_count += 1
        self.unacked_bytes += len(frame)

    def push_run(self, frames: Sequence[bytes]) -> None:
        """Record several frames sent, as `push` does each."""
        assert type(self.state) is not Lost
        self._frames.extend(frames)
        self.sent_count += len(frames)
        self.unacked_bytes += sum(map(len, frames))

    def received(self, nframes: int, nbytes: int) -> bool:
        """Count a batch of whole frames and their bytes, once per read. Return whether an ack is due."""
        assert self.state is UP
        self.received_count = count = self.received_count + nframes
        self._untold_bytes = nbytes = self._untold_bytes + nbytes
        return nbytes >= self._ack_every_bytes or count - self._told_count >= self._ack_every_frames

    def take_ack(self) -> int:
        """Return the count to acknowledge now. Allowed at any time, due or not."""
        self._told_count = self.received_count
        self._untold_bytes = 0
        return self.received_count

    def acked(self, count: int) -> None:
        """Forget the frames that the peer acknowledged. Raises BadFrame on a count that cannot be (L6)."""
        if type(self.state) is Lost:
            return
        why = self._why_impossible(count)
        if why is not None:
            raise BadFrame(f"acknowledged {why}")
        self._forget(count)

    def down(self, now: float) -> None:
        """Note that the connection is gone. Saying it again changes nothing (L7)."""
        if self.state is UP:
            self.state = Down(now)

    def resume(self, peer_received: int, now: float) -> list[bytes]:
        """Take the count told by the peer over a new connection; return the frames to send first, in order.

        Presumes that the same handshake told the peer our `received_count`. Raises LinkBroken where the link
        is lost or the count cannot be; the link then stays as it was.
        """
        match self.state:
            case Lost(since):
                raise LinkBroken(
                    self.peer, f"it came back {now - since:.1f} s after it went, and had been given up"
                )
            case Up():
                raise AssertionError("resumed while up: call down() first")
            case Down():
                pass
        why = self._why_impossible(peer_received)
        if why is not None:
            raise LinkBroken(self.peer, f"cannot resume, it claims to have received {why}")
        self._forget(peer_received)
        self.take_ack()
        self.state = UP
        return list(self._frames)

    def is_lost(self, now: float, window: float) -> bool:
        """Return whether the link was down for longer than ``window`` seconds; once True, for ever (L8)."""
        state = self.state
        if type(state) is Down and now - state.since > window:
            self.give_up(now)
        return type(self.state) is Lost

    def give_up(self, now: float) -> None:
        """Be Lost at once: the owner wants the peer no longer, or knows that it is gone. Twice is fine."""
        if type(self.state) is not Lost:
            self.state = Lost(self.state.since if type(self.state) is Down else now)
            self._frames.clear()
            self.unacked_bytes = 0

    def _why_impossible(self, count: int) -> str | None:
        if count > self.sent_count:
            return f"{count} frames of {self.sent_count} sent"
        if count < self.acked_count:
            return f"{count} frames after {self.acked_count}"
        return None

    def _forget(self, count: int) -> None:
        pop, size = self._frames.popleft, 0
        for _ in range(count - self.acked_count):
            size += len(pop())
        self.unacked_bytes -= size
        self.acked_count = count
