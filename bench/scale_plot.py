"""Cost against size: is it linear?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from report import Sample


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a panel: the results ``name_size``."""

    name: str
    label: str
    is_rate: bool = False  #: the value is how many of ``size`` things were done in a second: the cost is their time
    is_fitted: bool = True  #: by a straight line


@dataclass(frozen=True, slots=True)
class Panel:
    """``size_factor``: what one of a result's size is on the axis; ``limit``: a cost to stay below, and of what."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    size_factor: int = 1
    limit: tuple[float, str] | None = None


PANELS = (
    Panel(
        "cast to all, all replies gathered",
        "actors (32 on each host)",
        "seconds",
        (
            Curve("cast", "client, agents and sinks on one core"),
            Curve("cast_cpu", "the same in processor time", is_fitted=False),
            Curve("cast_client_cpu", "client's share of that"),
        ),
        size_factor=32,
        limit=(1.5, "to reach: 1.5 s at 131,072"),
    ),
    Panel(
        "idle: heartbeats",
        "hosts",
        "percent of a core",
        (Curve("idle", "client, real TCP"), Curve("idle_all", "client and agents, in one loop")),
        limit=(3.0, "to reach: 3 % at 1,000"),
    ),
    Panel(
        "one-cpu tasks on 64 hosts × 8 cpus",
        "tasks",
        "seconds for all of them",
        (
            Curve("tasks", "workers warm", is_rate=True),
            Curve("tasks_cold", "workers leased meanwhile", is_rate=True, is_fitted=False),
        ),
        limit=(2.0, "to reach: 5,000 /s at 10,000"),
    ),
    Panel(
        "gangs of 4 to 8, placed and released",
        "hosts",
        "milliseconds a round",
        (Curve("gangs_median", "median"),),
        limit=(1.0, "to reach: 1,000 /s"),
    ),
    Panel(
        "a tenth of the hosts come and go",
        "hosts",
        "longest stall of the client's loop, ms",
        (Curve("join_gap", "join", is_fitted=False), Curve("lose_gap", "lost", is_fitted=False)),
        limit=(20.0, "to reach: 20 ms"),
    ),
    Panel(
        "start",
        "hosts",
        "seconds",
        (Curve("cast_attach", "agents started and attached"), Curve("cast_spawn", "32 procs and actors on each")),
    ),
)


def draw_sizes(samples: Sequence[Sample], about: Mapping[str, object], file: Path) -> None:
    """Draw a panel for every measure that has values at two sizes or more."""
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    panels = [panel for panel in PANELS if any(len(points_of(curve, samples)) > 1 for curve in panel.curves)]
    columns = min(3, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    for index, panel in enumerate(panels):
        draw_panel(figure.add_subplot(rows, columns, index + 1), panel, samples)
    figure.suptitle(
        f"{about.get('cores')} × {about.get('cpu')}, Python {about.get('python')}, {about.get('started')}", fontsize=9
    )
    figure.savefig(file, dpi=110)


def points_of(curve: Curve, samples: Sequence[Sample]) -> list[tuple[int, float]]:
    """(size, cost), by size."""
    points = []
    for sample in samples:
        name, _, size = sample.workload.rpartition("_")
        if name == curve.name:
            points.append((int(size), int(size) / sample.value if curve.is_rate else sample.value))
    return sorted(points)


def draw_panel(axes: Axes, panel: Panel, samples: Sequence[Sample]) -> None:
    for index, curve in enumerate(panel.curves):
        points = points_of(curve, samples)
        if not points:
            continue
        x = panel.size_factor * np.array([size for size, _ in points], dtype=float)
        y = np.array([cost for _, cost in points])
        colour = f"C{index}"
        label = curve.label
        if curve.is_fitted and len(points) > 2:
            slope, start = np.polyfit(x, y, 1)
            rest = y - (slope * x + start)
            spread = float(np.sum((y - y.mean()) ** 2))
            r2 = 1 - float(np.sum(rest**2)) / spread if spread else 1.0
            axes.plot(x, slope * x + start, "--", color=colour, linewidth=1, alpha=0.6)
            label = f"{label}\nlinear fit: {slope * 1000:.3g} per 1,000, R² {r2:.3f}"
        axes.plot(x, y, "o" if curve.is_fitted else "o-", color=colour, label=label)
    if panel.limit is not None:
        limit, text = panel.limit
        axes.axhline(limit, color="0.5", linewidth=1, linestyle=":")
        axes.annotate(text, (0.02, limit), xycoords=("axes fraction", "data"), fontsize=7, va="bottom")
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
