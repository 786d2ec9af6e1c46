"""Where tasks and actors go, as `options(scheduling_strategy=...)` takes it, beside ``"DEFAULT"`` and ``"SPREAD"``."""

from collections.abc import Mapping
from operator import index
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from monarch_async.ray.placement_group import PlacementGroup


class PlacementGroupSchedulingStrategy:
    """In a placement group.

    Args:
        placement_group: the group; None: in none, also where who starts it is in one that captures what it starts.
        placement_group_bundle_index: in this bundle of it; -1: in any that has room.
        placement_group_capture_child_tasks: whether what it starts goes to the group as well, where it says nothing.
    """

    def __init__(
        self,
        placement_group: "PlacementGroup | None",
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        self.placement_group = placement_group
        self.placement_group_bundle_index = index(placement_group_bundle_index)  # numpy's integers too: verl has them
        self.placement_group_capture_child_tasks = placement_group_capture_child_tasks

    @property
    def captures_children(self) -> bool:
        """Whether what it starts inherits the group."""
        return bool(self.placement_group_capture_child_tasks)


#: The id of no node.
_NIL = "f" * 56


class NodeAffinitySchedulingStrategy:
    """On one node, of this id; where ``soft``, elsewhere if that is gone or could never give what is asked."""

    def __init__(
        self, node_id: str, soft: bool, _spill_on_unavailable: bool = False, _fail_on_unavailable: bool = False
    ) -> None:
        if len(node_id) != 56 or set(node_id) - set("0123456789abcdef") or node_id == _NIL:
            raise ValueError(f"node_id={node_id!r}: expected the id of a node, 56 hexadecimal digits: see nodes()")
        if _spill_on_unavailable or _fail_on_unavailable:
            raise NotImplementedError(
                "_spill_on_unavailable and _fail_on_unavailable: not offered; natively, Demand(prefers=[host]) prefers"
                " a host that has room now"
            )
        self.node_id, self.soft = node_id, soft


class In:
    """A label has one of these values."""

    def __init__(self, *values: str) -> None:
        self.values = _checked(values)

    def holds(self, value: str | None) -> bool:
        """Return whether a node with this value of the label will do; None: it has no such label."""
        return value in self.values


class NotIn:
    """A label has none of these values, or is not there."""

    def __init__(self, *values: str) -> None:
        self.values = _checked(values)

    def holds(self, value: str | None) -> bool:
        """As `In.holds`."""
        return value not in self.values


class Exists:
    """A label is there."""

    def holds(self, value: str | None) -> bool:
        """As `In.holds`."""
        return value is not None


class DoesNotExist:
    """A label is not there."""

    def holds(self, value: str | None) -> bool:
        """As `In.holds`."""
        return value is None


LabelOperator: TypeAlias = In | NotIn | Exists | DoesNotExist


def _checked(values: tuple[str, ...]) -> list[str]:
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"{value!r}: expected the value of a label, a text")
    return list(values)


class NodeLabelSchedulingStrategy:
    """On nodes whose labels are as ``hard`` says; on those of them that are as ``soft`` says, where there are any."""

    def __init__(self, hard: Mapping[str, LabelOperator], *, soft: Mapping[str, LabelOperator] | None = None) -> None:
        self.hard, self.soft = _operators("hard", hard), _operators("soft", soft or {})
        if not self.hard and not self.soft:
            raise ValueError("NodeLabelSchedulingStrategy: neither hard nor soft says anything")


def _operators(which: str, given: Mapping[str, LabelOperator]) -> dict[str, LabelOperator]:
    if not isinstance(given, Mapping):
        raise ValueError(f"{which}={given!r}: expected labels and what is asked of them")
    for key, operator in given.items():
        if not isinstance(key, str) or not isinstance(operator, In | NotIn | Exists | DoesNotExist):
            raise ValueError(f"{which}[{key!r}]={operator!r}: expected In, NotIn, Exists or DoesNotExist of a label")
    return dict(given)
