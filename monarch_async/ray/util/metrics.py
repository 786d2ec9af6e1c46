"""Counters, gauges and histograms of tasks and actors.

What a process records stays in it for a second at most and is then brought to the hub with all that was recorded in
that time; also before the process ends, unless it is killed. `snapshot` returns what all have recorded, `exposition`
the same as text for Prometheus. No port is opened: serve that text where it shall be scraped.
"""

import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import ClassVar

from monarch_async.ray import metric_table, runtime
from monarch_async.ray.metric_table import Changes, Definition, Kind, Series

#: Seconds between what one process sends.
INTERVAL = 1.0

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class Metric:
    """What the three have in common: a name, a description, and the tags that tell its series apart."""

    kind: ClassVar[Kind]

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] | None = None) -> None:
        """Define a metric.

        Args:
            name: of letters, digits, ``_`` and ``:``, no digit first; with another one nothing is recorded, which a
                warning says.
            description: what it measures.
            tag_keys: the tags that every value has: those given with it, or by `set_default_tags`.

        Raises TypeError and ValueError for a bad argument.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a metric is a str, not {name!r}")
        if not name:
            raise ValueError("a metric needs a name")
        if tag_keys is None:
            tag_keys = ()
        if not isinstance(tag_keys, tuple):
            raise TypeError(f"the tag_keys of {name} are a tuple of str, not {tag_keys!r}")
        for key in tag_keys:
            if not isinstance(key, str):
                raise TypeError(f"the tag_keys of {name} are str, not {key!r}")
        self._is_recorded = _NAME.fullmatch(name) is not None
        if not self._is_recorded:
            warnings.warn(
                f"{name!r} is no name of a metric (letters, digits, _ and :, no digit first): nothing is recorded",
                stacklevel=3,
            )
        self._definition = Definition(self.kind, name, description, tag_keys)
        self._default_tags: dict[str, str] = {}

    @property
    def info(self) -> dict[str, object]:
        """Name, description, tag keys and default tags."""
        definition = self._definition
        return {
            "name": definition.name,
            "description": definition.description,
            "tag_keys": definition.tag_keys,
            "default_tags": self._default_tags,
        }

    def set_default_tags(self, default_tags: Mapping[str, str]) -> "Metric":
        """Set the tags of values that are recorded without them, and return the metric.

        Raises ValueError for a tag that is none of the keys, TypeError for a value that is no string.
        """
        for key, value in default_tags.items():
            if key not in self._definition.tag_keys:
                raise ValueError(f"{self._definition.name} has no tag {key!r}, only {self._definition.tag_keys}")
            _check_tag(value)
        self._default_tags = dict(default_tags)
        return self

    def _record(self, value: float, tags: Mapping[str, str] | None) -> None:
        if not isinstance(value, int | float):
            raise TypeError(f"a metric takes numbers, not {value!r}")
        if tags:
            for tag in tags.values():
                _check_tag(tag)
            tags = {**self._default_tags, **tags}
        else:
            tags = self._default_tags
        keys = self._definition.tag_keys
        if missing := [key for key in keys if key not in tags]:
            raise ValueError(f"{self._definition.name} needs tags, of which these have no value: {', '.join(missing)}")
        if self._is_recorded:
            _recorder.record(self._definition, tuple([tags[key] for key in keys]), value)


class Counter(Metric):
    """A sum that only grows, over all processes."""

    kind = "counter"

    def inc(self, value: float = 1.0, tags: Mapping[str, str] | None = None) -> None:
        """Add ``value``, which is positive, to the series of ``tags``, which come before the default ones."""
        if isinstance(value, int | float) and value <= 0:
            raise ValueError(f"a counter only grows, and not by {value}")
        self._record(value, tags)


class Gauge(Metric):
    """What was set last. Every process has its own."""

    kind = "gauge"

    def set(self, value: float | None, tags: Mapping[str, str] | None = None) -> None:
        """Set the series of ``tags``, which come before the default ones. None changes nothing."""
        if value is not None:
            self._record(value, tags)


class Histogram(Metric):
    """How many values lie between boundaries, and their sum, over all processes."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: Sequence[float] | None = None,
        tag_keys: tuple[str, ...] | None = None,
    ) -> None:
        """As `Metric`; ``boundaries`` are the positive, growing upper ends of the buckets, to which they belong."""
        super().__init__(name, description, tag_keys)
        if not boundaries:
            raise ValueError(f'a histogram needs boundaries: Histogram("{name}", boundaries=[1.0, 2.0])')
        if not_positive := [boundary for boundary in boundaries if boundary <= 0]:
            raise ValueError(f"the boundaries of {name} are positive, unlike {not_positive[0]}")
        self._given = boundaries
        ends = tuple(sorted({float(boundary) for boundary in boundaries}))
        self._definition = Definition(self.kind, name, description, self._definition.tag_keys, ends)

    @property
    def info(self) -> dict[str, object]:
        """As of any metric, and the boundaries."""
        return {**super().info, "boundaries": self._given}

    def observe(self, value: float, tags: Mapping[str, str] | None = None) -> None:
        """Count ``value`` in the series of ``tags``, which come before the default ones."""
        self._record(value, tags)


def _check_tag(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"tags are str, not {value!r}")


# -- bringing them to the hub ------------------------------------------------------------------------------------------


class _Recorder:
    """What this process has recorded and not sent yet. Any thread may record."""

    def __init__(self) -> None:
        self._changes = Changes()
        self._lock = threading.Lock()
        self._sends_with: object = None  # the runtime whose loop is going to send

    def record(self, definition: Definition, tags: tuple[str, ...], value: float) -> None:
        """Record a value; it is sent within `INTERVAL`, where this process has a runtime."""
        mine = runtime.find()
        with self._lock:
            self._changes.add(definition, tags, value)
            if mine is None or mine is self._sends_with:
                return
            self._sends_with = mine
        mine.post(self._begin, mine)

    def _begin(self, mine: "runtime.Runtime") -> None:
        if self.flush not in mine.leaving:
            mine.leaving.append(self.flush)
            mine.domain.annexes[_Recorder] = _Farewell(self, mine)
        mine.loop.call_later(INTERVAL, self._send_soon, mine)

    def _send_soon(self, mine: "runtime.Runtime") -> None:
        mine.start(self.flush(mine))

    async def flush(self, mine: "runtime.Runtime") -> None:
        """Send everything now."""
        with self._lock:
            self._sends_with = None
            taken = self._changes.take()
        if not taken:
            return
        try:
            await mine.hub("metrics.record", taken)
        except BaseException:
            with self._lock:
                self._changes.give_back(taken)
            raise


class _Farewell:
    """What this process has recorded is sent when it ends, in order."""

    def __init__(self, recorder: _Recorder, mine: "runtime.Runtime") -> None:
        self._recorder, self._mine = recorder, mine

    async def aclose(self) -> None:
        await self._recorder.flush(self._mine)


_recorder = _Recorder()


def snapshot() -> list[Series]:
    """Return what all processes have recorded, by name: this one until now, the others until a second ago."""
    mine = runtime.current()
    return mine.run(_snapshot(mine))


def exposition() -> str:
    """Return what `snapshot` returns in Prometheus' text format."""
    return metric_table.exposition(snapshot())


async def _snapshot(mine: "runtime.Runtime") -> list[Series]:
    await _recorder.flush(mine)
    return await mine.hub("metrics.snapshot")
