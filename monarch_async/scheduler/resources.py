"""What a host has to give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from monarch_async.errors import BadDemand


@dataclass(frozen=True, slots=True)
class Resources:
    """What one host advertises, whoever holds it.

    ``cpus`` and ``custom`` are amounts, to a ten-thousandth; ``gpus`` the ids of its devices, as CUDA_VISIBLE_DEVICES
    takes them; ``memory`` bytes; ``labels`` what a demand may ask for by name.
    """

    cpus: float = 0.0
    gpus: tuple[str, ...] = ()
    memory: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    custom: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check it all. Raises BadDemand."""
        check_amounts({"cpus": self.cpus, "memory": self.memory}, self.custom, "a host")
        check_labels(self.labels)
        if isinstance(self.gpus, str) or not isinstance(self.gpus, Sequence):
            raise BadDemand(f"gpus={self.gpus!r} of a host: expected the ids of its devices, such as ('0', '1')")
        object.__setattr__(self, "gpus", tuple([str(id) for id in self.gpus]))
        if len(set(self.gpus)) < len(self.gpus):
            raise BadDemand(f"gpus={self.gpus!r}: an id stands there twice")

    def pack(self) -> list[Any]:
        """Return it for msgpack."""
        return [self.cpus, list(self.gpus), self.memory, dict(self.labels), dict(self.custom)]

    @classmethod
    def unpack(cls, packed: list[Any]) -> "Resources":
        """Return what `pack` made."""
        cpus, gpus, memory, labels, custom = packed
        return cls(float(cpus), tuple(gpus), int(memory), labels, custom)


def check_amounts(amounts: Mapping[str, float], custom: Mapping[str, float], whose: str) -> None:
    """Raise BadDemand where something is no amount."""
    for name, amount in [*amounts.items(), *custom.items()]:
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < float("inf"):
            raise BadDemand(f"{name}={amount!r} of {whose}: expected an amount of 0 or more")
    for name in custom:
        if name in ("cpus", "gpus", "memory") or not isinstance(name, str):
            raise BadDemand(f"custom={dict(custom)!r} of {whose}: {name!r} is no name for a resource of one's own")


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise BadDemand where labels are no texts."""
    is_fine = isinstance(labels, Mapping) and all(isinstance(part, str) for label in labels.items() for part in label)
    if not is_fine:
        raise BadDemand(f"labels={labels!r}: expected texts by name, such as {{'zone': 'a'}}")
