"""The systems that are compared: the file that measures each, its interpreter, and what it does when."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from report import OURS_ALONE

BENCH = Path(__file__).resolve().parent

ONCE_IF_QUICK = ("spawn_8", "spawn_bare_8", "call_8", "spawn_bare_32", "call_32", "argument_100mb_8")
"""Measured on the peers in the first round only with --quick: starting their procs is what takes the time."""

NEVER_IF_QUICK = ("spawn_32", "spawn_128")
"""Not measured on the peers with --quick: each of their procs imports torch, over a second of a core."""

LARGE, LARGE_BYTES = "spawn_128", 48e9
"""What only fits on the peers with that much memory: 128 procs with a torch of their own each."""


@dataclass(frozen=True, slots=True)
class System:
    """A workload file, the interpreter that runs it and the names under which it prints results."""

    name: str
    script: str
    python: Path
    prints: tuple[str, ...]
    unable: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    is_peer: bool = True

    @property
    def is_installed(self) -> bool:
        return not self.is_peer or (self.python.parent.parent / ".complete").exists()

    def select(self, wanted: Sequence[str], quick: bool, turn: int, memory: float) -> tuple[str, ...]:
        """The workloads of `wanted` that this system does in this round, on so many bytes of memory."""
        skipped = {*self.unable}
        if self.is_peer and memory < LARGE_BYTES:
            skipped.add(LARGE)
        if self.is_peer and quick:
            skipped.update(NEVER_IF_QUICK, self.slow, ONCE_IF_QUICK if turn > 1 else ())
        return tuple(workload for workload in wanted if workload not in skipped)

    def expect(self, name: str, workloads: Sequence[str], quick: bool) -> list[str]:
        """Those of the workloads asked for that the file prints under `name`."""
        if name == self.name:
            return list(workloads)
        return [name for name in workloads if name in SECONDARY and not (quick and name == "call_32")]


SECONDARY = ("call_one_1", "call_one_100", "actor_to_actor_100", "call_8", "call_32")
"""The workloads of ray-sync, which ray_.py prints beside ray's own; call_32 not with --quick."""


def peer_python(name: str) -> Path:
    return BENCH / ".envs" / name / "bin" / "python"


def peer(name: str, *more_names: str, slow: tuple[str, ...] = ()) -> System:
    return System(name, f"{name}_.py", peer_python(name), (name, *more_names), OURS_ALONE, slow)


HERE = Path(sys.executable)
SYSTEMS = (
    System("ours", "ours.py", HERE, ("ours",), is_peer=False),
    peer("monarch"),
    peer("ray", "ray-sync"),
    peer("xoscar", slow=("spawn_bare_32", "call_32")),
    System("floor", "floor.py", HERE, ("floor",), (*OURS_ALONE, "tensor_100mb"), is_peer=False),
)
