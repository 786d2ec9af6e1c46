"""What the numbers mean: lines become samples, samples medians, medians verdicts and a table.

Pure: reads no clock, starts nothing.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

OURS = "ours"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value that one system reached in one round."""

    system: str
    workload: str
    value: float
    unit: str
    n: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A workload that one system did not manage in one round, and the first line of why."""

    system: str
    workload: str
    reason: str


Result = Sample | Failure


@dataclass(frozen=True, slots=True)
class Share:
    """A limit that is another value of the same run, times a factor."""

    factor: float
    system: str
    workload: str

    def describe(self, own_workload: str) -> str:
        """Named as briefly as a row of `own_workload` allows: the system alone where its value stands there too."""
        if self.workload == own_workload:
            named = self.system
        else:
            named = self.workload if self.system == OURS else f"{self.system} {self.workload}"
        return f"{self.factor:.3g} × {named}"


@dataclass(frozen=True, slots=True)
class Target:
    """A workload's place in the table: its unit, whether more is better, and what we want to reach."""

    workload: str
    unit: str
    limit: float | Share | None = None
    times_best_peer: float | None = None
    more_is_better: bool = True

    def describe(self) -> str:
        if self.limit is None:
            return ""
        limit = self.limit.describe(self.workload) if isinstance(self.limit, Share) else show(self.limit)
        text = f"{'≥' if self.more_is_better else '≤'} {limit}"
        return f"{text}, {self.times_best_peer} × peers" if self.times_best_peer else text

    def limit_in(self, values: Mapping[tuple[str, str], float]) -> float | None:
        """The limit as a number, given the medians of the run; None where it is a share of what was not measured."""
        if not isinstance(self.limit, Share):
            return self.limit
        whole = values.get((self.limit.system, self.limit.workload))
        return None if whole is None else self.limit.factor * whole


@dataclass(frozen=True, slots=True)
class Board:
    """What one comparison shows: its rows, its columns besides ours, and which of these only say what is possible."""

    name: str
    targets: tuple[Target, ...]
    peers: tuple[str, ...]
    bounds: tuple[str, ...]

    @property
    def systems(self) -> tuple[str, ...]:
        return (OURS, *self.peers, *self.bounds)


CALL_TARGETS = (
    Target("call_one_1", "calls/s", 10_000, 1.7),
    Target("call_one_100", "calls/s", 60_000, 5.0),
    Target("actor_to_actor_100", "calls/s", 40_000),
    Target("call_8", "actor-calls/s", 25_000),
    Target("call_32", "actor-calls/s", 35_000),
    Target("spawn_8", "s", 0.25, more_is_better=False),
    Target("spawn_32", "s", 0.6, more_is_better=False),
    Target("spawn_128", "s", 2.5, more_is_better=False),
    Target("spawn_bare_8", "s", more_is_better=False),
    Target("spawn_bare_32", "s", more_is_better=False),
    Target("tensor_100mb", "GB/s", 2.0),
    Target("cold_start", "s", more_is_better=False),
    Target("import_ms", "ms", 150, more_is_better=False),
    Target("idle_worker_private_mb", "MB", 15, more_is_better=False),
    Target("idle_worker_threads", "threads", 3, more_is_better=False),
)
CALLS = Board("calls", CALL_TARGETS, ("monarch", "ray", "ray-sync", "xoscar"), ("floor",))
VERDICTS = {None: "", True: "[green]yes[/]", False: "[bold red]no[/]"}
OURS_ALONE = ("import_ms", "idle_worker_private_mb", "idle_worker_threads")


@dataclass(frozen=True, slots=True)
class Row:
    """One workload over all systems: medians of the rounds, and the verdict on ours."""

    target: Target
    medians: Mapping[str, float]
    best_peer: str | None
    ratio: float | None
    reached: bool | None


def parse_line(line: str) -> Result | None:
    """Read one line of a workload file's output; None for what a library printed there."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, dict) or not {"system", "workload"} <= fields.keys():
        return None
    if "error" in fields:
        return Failure(fields["system"], fields["workload"], str(fields["error"]))
    return Sample(
        fields["system"], fields["workload"], float(fields["value"]), fields["unit"], int(fields["n"])
    )


def missing_workloads(
    results: Iterable[Result], system: str, workloads: Iterable[str], reason: str
) -> list[Failure]:
    """What a process should have printed and did not, because it ended early."""
    seen = {result.workload for result in results if result.system == system}
    return [Failure(system, workload, reason) for workload in workloads if workload not in seen]


def medians(results: Iterable[Result]) -> dict[tuple[str, str], float]:
    """The median over the rounds for every (system, workload) that has a value."""
    values: dict[tuple[str, str], list[float]] = {}
    for result in results:
        if isinstance(result, Sample):
            values.setdefault((result.system, result.workload), []).append(result.value)
    return {key: statistics.median(found) for key, found in values.items()}


def judge(target: Target, board: Board, values: Mapping[tuple[str, str], float]) -> Row:
    """Compare our median with the best peer's and with the target, given all medians by (system, workload).

    The ratio says how many times better we are, whichever direction is better; below 1 a peer wins. Ratio and
    verdict are None where there is nothing to compare; without any peer, the limit alone is judged.
    """
    here = {system: value for (system, workload), value in values.items() if workload == target.workload}
    peers = {system: value for system, value in here.items() if system in board.peers}
    best = (max if target.more_is_better else min)(peers, key=peers.__getitem__) if peers else None
    ours = here.get(OURS)
    ratio = None
    if ours is not None and best is not None and ours > 0 and peers[best] > 0:
        ratio = ours / peers[best] if target.more_is_better else peers[best] / ours
    reached = None
    limit = target.limit_in(values)
    if ours is not None and limit is not None:
        reached = ours >= limit if target.more_is_better else ours <= limit
        if target.times_best_peer is not None and ratio is not None:
            reached = reached and ratio >= target.times_best_peer
    return Row(target, here, best, ratio, reached)


def make_rows(results: Sequence[Result], board: Board) -> list[Row]:
    """A row for every workload of the board that was measured or attempted, in its order."""
    seen = {result.workload for result in results}
    values = medians(results)
    return [judge(target, board, values) for target in board.targets if target.workload in seen]


def show(value: float) -> str:
    """Three significant digits, with k from ten thousand on: 0.0423, 2.5, 9870, 61.2k."""
    if value >= 10_000:
        return f"{value / 1000:.1f}k" if value < 100_000 else f"{value / 1000:.0f}k"
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}"


def show_cell(row: Row, system: str, failures: Mapping[tuple[str, str], str]) -> Text:
    value = row.medians.get(system)
    if value is not None:
        return Text(show(value), style="bold" if system in (OURS, row.best_peer) else "")
    failed = (system, row.target.workload) in failures
    return Text("failed", style="red") if failed else Text("-", style="dim")


def make_table(
    results: Sequence[Result], board: Board, not_installed: Iterable[str] = (), markdown: bool = False
) -> Table:
    """The table of all systems; columns of systems that are not installed say so."""
    missing = set(not_installed)
    failures = first_failures(results)
    table = Table(box=box.MARKDOWN) if markdown else Table(title="medians over the rounds", title_style="bold")
    table.add_column("workload")
    table.add_column("unit", style="dim")
    for system in board.systems:
        header = f"{system}\nnot installed\n(bench/peers.sh)" if system in missing else system
        table.add_column(header, justify="right")
    for heading in ("× best peer", "to reach", "reached"):
        table.add_column(heading, justify="right")
    for row in make_rows(results, board):
        cells = [show_cell(row, system, failures) for system in board.systems]
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        table.add_row(
            row.target.workload, row.target.unit, *cells, ratio, row.target.describe(), VERDICTS[row.reached]
        )
    return table


def first_failures(results: Iterable[Result]) -> dict[tuple[str, str], str]:
    """The first reason for every (system, workload) that failed in some round."""
    reasons: dict[tuple[str, str], str] = {}
    for result in results:
        if isinstance(result, Failure):
            reasons.setdefault((result.system, result.workload), result.reason)
    return reasons


def describe_failures(results: Iterable[Result]) -> list[str]:
    """A line per system and reason, so that twelve workloads that failed for one cause take one line."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for (system, workload), reason in first_failures(results).items():
        grouped.setdefault((system, reason), []).append(workload)
    return [f"{system}: {', '.join(workloads)}: {reason}" for (system, reason), workloads in grouped.items()]
