"""The metrics of all processes, as the hub keeps them, and how Prometheus reads them. Pure.

A process sends *changes*: what was added to a counter or a histogram since it last did, what a gauge is now. Counters
and histograms of one name and tags are summed over the processes; a gauge is of the process that has set it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Definition:
    """What a program says of a metric. ``boundaries``: the upper, included ends of a histogram's buckets, in order."""

    kind: Kind
    name: str
    description: str = field(default="", compare=False)
    tag_keys: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()


@dataclass(slots=True)
class Buckets:
    """Numbers of observed values between the boundaries, the last one of those above all, and their sum."""

    counts: list[int]
    total: float = 0.0

    @classmethod
    def of(cls, definition: Definition) -> "Buckets":
        """Nothing observed."""
        return cls([0] * (len(definition.boundaries) + 1))

    def observe(self, definition: Definition, value: float) -> None:
        """Count ``value``."""
        self.counts[bisect_left(definition.boundaries, value)] += 1
        self.total += value

    def add(self, other: "Buckets") -> None:
        """Count what ``other`` has counted, too."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


Amount = float | Buckets
Tags = tuple[str, ...]  # in the order of the definition's keys


@dataclass(frozen=True, slots=True)
class Series:
    """One line in a chart: a metric with one set of tags.

    ``value`` is a number, or the buckets of a histogram (counts between its boundaries, not cumulative).
    ``process`` is the address of the process that has set a gauge; None for what is summed over all.
    """

    definition: Definition
    tags: dict[str, str]
    value: Amount
    process: int | None = None


class Changes:
    """What one process has recorded since it was last taken."""

    __slots__ = ("_amounts",)

    def __init__(self) -> None:
        """None."""
        self._amounts: dict[tuple[Definition, Tags], Amount] = {}

    def __bool__(self) -> bool:
        return bool(self._amounts)

    def add(self, definition: Definition, tags: Tags, value: float) -> None:
        """Record ``value``: add it to a counter, observe it, set the gauge."""
        key = definition, tags
        match definition.kind:
            case "counter":
                self._amounts[key] = self._amounts.get(key, 0.0) + value  # type: ignore[operator]
            case "gauge":
                self._amounts[key] = value
            case "histogram":
                buckets = self._amounts.get(key)
                if not isinstance(buckets, Buckets):
                    buckets = self._amounts[key] = Buckets.of(definition)
                buckets.observe(definition, value)

    def take(self) -> list[tuple[Definition, Tags, Amount]]:
        """Return all and forget it."""
        taken = [(definition, tags, amount) for (definition, tags), amount in self._amounts.items()]
        self._amounts = {}
        return taken

    def give_back(self, taken: Iterable[tuple[Definition, Tags, Amount]]) -> None:
        """What was taken has not arrived: it counts as recorded before all that was recorded since."""
        since, self._amounts = self._amounts, {(definition, tags): amount for definition, tags, amount in taken}
        for (definition, tags), amount in since.items():
            _merge(self._amounts, (definition, tags), amount)


class MetricTable:
    """What all processes have recorded."""

    __slots__ = ("_gauges", "_summed")

    def __init__(self) -> None:
        """Nothing."""
        self._summed: dict[tuple[Definition, Tags], Amount] = {}
        self._gauges: dict[int, dict[tuple[Definition, Tags], Amount]] = {}  # by process

    def record(self, process: int, changes: Sequence[tuple[Definition, Tags, Amount]]) -> None:
        """Take what ``process`` has recorded."""
        for definition, tags, amount in changes:
            if definition.kind == "gauge":
                self._gauges.setdefault(process, {})[definition, tags] = amount
            else:
                _merge(self._summed, (definition, tags), amount)

    def forget(self, has_ended: Callable[[int], bool]) -> None:
        """Processes have ended: their gauges have no value any more. What they have counted stays."""
        for process in [process for process in self._gauges if has_ended(process)]:
            del self._gauges[process]

    @property
    def operations(self) -> dict[str, Callable[..., object]]:
        """What processes ask the hub for; the first argument is who asks."""
        return {"metrics.record": self.record, "metrics.snapshot": lambda process: self.series()}

    def series(self) -> list[Series]:
        """Return everything, by name."""
        found = [_series(key, amount, None) for key, amount in self._summed.items()]
        for process, gauges in self._gauges.items():
            found += [_series(key, amount, process) for key, amount in gauges.items()]
        return sorted(found, key=lambda series: (series.definition.name, series.definition.kind))


def _merge(amounts: dict[tuple[Definition, Tags], Amount], key: tuple[Definition, Tags], amount: Amount) -> None:
    """Count ``amount``, which came after what is in ``amounts``."""
    before = amounts.get(key)
    if before is None or key[0].kind == "gauge":
        amounts[key] = amount
    elif isinstance(before, Buckets):
        assert isinstance(amount, Buckets)
        before.add(amount)
    else:
        assert not isinstance(amount, Buckets)
        amounts[key] = before + amount


def _series(key: tuple[Definition, Tags], amount: Amount, process: int | None) -> Series:
    definition, tags = key
    return Series(definition, dict(zip(definition.tag_keys, tags, strict=True)), amount, process)


# -- text --------------------------------------------------------------------------------------------------------------


def exposition(series: Iterable[Series]) -> str:
    """Return ``series`` in Prometheus' text format 0.0.4.

    Names begin with ``ray_`` as those which Ray exports, so that dashboards find them; counters end in ``_total``.
    """
    lines: list[str] = []
    last = None
    for one in series:
        definition = one.definition
        name = f"ray_{definition.name}"
        if definition.kind == "counter" and not name.endswith("_total"):
            name += "_total"
        if (name, definition.kind) != last:
            lines += [f"# HELP {name} {_escaped(definition.description)}", f"# TYPE {name} {definition.kind}"]
            last = name, definition.kind
        lines += _samples(name, one)
    return "".join(f"{line}\n" for line in lines)


def _samples(name: str, series: Series) -> list[str]:
    tags = dict(series.tags)
    if series.process is not None:
        tags["WorkerId"] = f"{series.process:x}"
    if not isinstance(series.value, Buckets):
        return [f"{name}{_labels(tags)} {_number(series.value)}"]
    lines, count = [], 0
    ends = [*map(_number, series.definition.boundaries), "+Inf"]
    for end, added in zip(ends, series.value.counts, strict=True):
        count += added
        lines.append(f"{name}_bucket{_labels(tags | {'le': end})} {_number(count)}")
    return [*lines, f"{name}_count{_labels(tags)} {_number(count)}",
            f"{name}_sum{_labels(tags)} {_number(series.value.total)}"]  # fmt: skip


def _labels(tags: dict[str, str]) -> str:
    if not tags:
        return ""
    inside = ",".join(f'{key}="{_escaped(value, quotes=True)}"' for key, value in tags.items())
    return f"{{{inside}}}"


def _escaped(text: str, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text := repr(float(value)), text)
