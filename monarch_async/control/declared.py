"""What a host is said to have, instead of what is found there: as options of a command, and as a program says it.

    --cpus 8 --gpus 0,1 --memory 64G --label zone=a --resource tokens=4

The variable ``MONARCH_ASYNC_RESOURCES`` holds the same, for agents that are started with it; options win. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monarch_async.scheduler.resources import Resources

RESOURCES_VARIABLE = "MONARCH_ASYNC_RESOURCES"

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


@dataclass(frozen=True, slots=True)
class Declared:
    """What is said of a host; None: what is found there. ``gpus`` is a number of devices, or their ids."""

    cpus: float | None = None
    gpus: int | tuple[str, ...] | None = None
    memory: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    custom: Mapping[str, float] = field(default_factory=dict)

    def over(self, other: "Declared") -> "Declared":
        """Return both together: this one where the two say different things."""
        return Declared(
            other.cpus if self.cpus is None else self.cpus,
            other.gpus if self.gpus is None else self.gpus,
            other.memory if self.memory is None else self.memory,
            {**other.labels, **self.labels},
            {**other.custom, **self.custom},
        )


def as_options(resources: Resources) -> list[str]:
    """Return options that declare exactly this."""
    options = ["--cpus", f"{resources.cpus!r}", "--memory", str(resources.memory)]
    options += ["--gpus", "".join(f"{id}," for id in resources.gpus) or "0"]
    for name, value in resources.labels.items():
        options += ["--label", f"{name}={value}"]
    for name, amount in resources.custom.items():
        options += ["--resource", f"{name}={amount!r}"]
    return options


def parse_amount(text: str) -> float:
    """Return an amount. Raises ValueError."""
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise ValueError(f"{text!r} is no amount of 0 or more")
    return amount


def parse_bytes(text: str) -> int:
    """Return a size in bytes: ``64G`` and ``64GiB`` are powers of 1024, ``64GB`` of 1000. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(B|iB)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text!r} is no size")
    number, power, unit = found.groups()
    base = 1000 if power and unit in ("B", "b") else 1024
    return int(float(number) * base ** _POWERS[power.upper()]) if power else int(float(number))


def parse_gpus(text: str) -> int | tuple[str, ...]:
    """Return a number of devices, or their ids. Raises ValueError."""
    if text.isdecimal():
        return int(text)
    ids = tuple(id.strip() for id in text.split(",") if id.strip())
    if not ids or len(set(ids)) < len(ids):
        raise ValueError(f"{text!r} are no device ids")
    return ids


def parse_label(text: str) -> tuple[str, str]:
    """Return name and value. Raises ValueError."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ValueError(f"{text!r} is no NAME=VALUE")
    return name, value


def parse_custom(text: str) -> tuple[str, float]:
    """Return name and amount. Raises ValueError."""
    name, amount = parse_label(text)
    if name in ("cpus", "gpus", "memory"):
        raise ValueError(f"{name} has an option of its own")
    return name, parse_amount(amount)


def one_each(resources: Resources | Sequence[Resources], count: int) -> list[Resources]:
    """Return the resources of each of ``count`` hosts: one for all, or one of each. Raises ValueError."""
    given = [resources] * count if isinstance(resources, Resources) else list(resources)
    if len(given) != count or not all(isinstance(each, Resources) for each in given):
        raise ValueError(f"resources={resources!r}: expected one ma.Resources, or one of each of {count} hosts")
    return given
