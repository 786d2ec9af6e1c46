"""What the rows are and what their values mean: a script's rows, its printed lines, targets, the table.

Pure but for reading the scripts: starts nothing, imports neither Ray nor the facade.
"""

import ast
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from report import OURS, Board, Failure, Result, Row, Sample, Share, Target, first_failures, make_rows, show
from rich import box
from rich.table import Table
from rich.text import Text

HERE = Path(__file__).resolve().parent
RAY = "ray"
SCRIPTS = (
    "objects",
    "tasks",
    "actors",
    "async_actors",
    "creation",
    "queues",
    "streams",
    "parameter_server",
    "rl_loop",
    "tree",
    "fan_out",
)

THREEFOLD = ("actor_", "async_actor_", "create_", "group_", "queue_")
"""Prefixes of the rows where being ahead is not enough: actor calls, creation, placement groups, queues."""


@dataclass(frozen=True, slots=True)
class Head:
    """A row of a script, as its decorator says it."""

    script: str
    name: str
    unit: str
    kind: str

    @property
    def target(self) -> Target:
        """Ahead of Ray where calls are counted, three times in some rows; two thirds of it where bytes are."""
        factor = 1 / 1.5 if self.kind == "bulk" else 3.0 if self.name.startswith(THREEFOLD) else 1.0
        return Target(self.name, self.unit, Share(factor, RAY, self.name))


def read_heads(script: str, source: str) -> list[Head]:
    """The rows that a script's `@row(...)` decorators name, in their order, without running it."""
    heads = []
    for node in ast.parse(source).body:
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "row":
                name, unit = (ast.literal_eval(argument) for argument in decorator.args)
                options = {keyword.arg: ast.literal_eval(keyword.value) for keyword in decorator.keywords}
                heads.append(Head(script, name, unit, options.get("kind", "control")))
    return heads


def all_heads() -> list[Head]:
    return [head for script in SCRIPTS for head in read_heads(script, (HERE / f"{script}.py").read_text())]


def make_board(heads: Iterable[Head]) -> Board:
    return Board("ray_dropin", tuple(head.target for head in heads), (RAY,), ())


def read_line(line: str, system: str) -> Result | None:
    """One printed line of a script under a system; None for what a library printed there."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    if not isinstance(fields, dict) or "name" not in fields:
        return None
    if "error" in fields:
        return Failure(system, fields["name"], str(fields["error"]))
    return Sample(system, fields["name"], float(fields["value"]), fields["unit"], int(fields["n"]))


def is_ray_ahead(row: Row) -> bool:
    return row.ratio is not None and row.ratio < 1


def make_table(results: Sequence[Result], heads: Sequence[Head], markdown: bool = False) -> Table:
    """Medians of both, how many times faster the facade is, what was to be reached; marks where Ray wins."""
    kinds = {head.name: head.kind for head in heads}
    failures = first_failures(results)
    table = Table(box=box.MARKDOWN) if markdown else Table(title="medians over the rounds", title_style="bold")
    for heading in ("row", "kind", "unit"):
        table.add_column(heading, no_wrap=True)
    for heading in ("ray", "facade", "× ray", "to reach"):
        table.add_column(heading, justify="right")
    table.add_column("reached")
    table.add_column("")
    for row in make_rows(results, make_board(heads)):
        name = row.target.workload
        cells = [show_cell(row, system, (system, name) in failures) for system in (RAY, OURS)]
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        reached = {None: "", True: "yes", False: "no"}[row.reached]
        mark = Text("Ray wins" if is_ray_ahead(row) else "", style="bold red")
        table.add_row(
            name, kinds[name], row.target.unit, *cells, ratio, row.target.describe(), reached, mark,
            style="" if row.reached is not False else "yellow",
        )  # fmt: skip
    return table


def show_cell(row: Row, system: str, failed: bool) -> Text:
    value = row.medians.get(system)
    if failed:  # in some round, even where others have a value
        return Text("failed" if value is None else f"{show(value)} (failed)", style="red")
    return Text("-" if value is None else show(value))


def as_fields(results: Sequence[Result], heads: Sequence[Head]) -> list[dict[str, object]]:
    """The table for programs: a dictionary for each row."""
    kinds = {head.name: head.kind for head in heads}
    failures = first_failures(results)
    return [
        {
            "name": row.target.workload,
            "kind": kinds[row.target.workload],
            "unit": row.target.unit,
            "ray": row.medians.get(RAY),
            "facade": row.medians.get(OURS),
            "ratio": row.ratio,
            "to_reach": row.target.limit.factor if isinstance(row.target.limit, Share) else None,
            "reached": row.reached,
            "ray_wins": is_ray_ahead(row),
            "errors": {
                system: failures[system, row.target.workload]
                for system in (RAY, OURS)
                if (system, row.target.workload) in failures
            },
        }
        for row in make_rows(results, make_board(heads))
    ]
