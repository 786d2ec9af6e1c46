"""What a host has to give."""

from collections.abc import Mapping
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
        """Check amounts. Raises BadDemand."""
        amounts = {"cpus": self.cpus, "memory": self.memory, **self.custom}
        for name, amount in amounts.items():
            if not amount >= 0 or amount == float("inf"):
                raise BadDemand(f"{name}={amount!r}: expected an amount of 0 or more")
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
