"""The state of the program: `available_resources_per_node()`, and `state.placement_group_table(id)`."""

from collections.abc import Mapping
from typing import Any

from monarch_async.ray.nodes import available_resources, available_resources_per_node, cluster_resources, nodes
from monarch_async.ray.placement_group import PlacementGroup, PlacementGroupID, placement_group_table


class GlobalState:
    """What is known of everything, as methods."""

    def placement_group_table(self, placement_group_id: PlacementGroupID | None = None) -> dict[str, Any]:
        """Return what is known of the group of this id, or of all by their ids."""
        return placement_group_table(None if placement_group_id is None else PlacementGroup(placement_group_id))

    def node_table(self) -> list[dict[str, Any]]:
        """As `nodes`."""
        return nodes()

    def cluster_resources(self) -> dict[str, float]:
        """As the function of that name."""
        return cluster_resources()

    def available_resources(self) -> dict[str, float]:
        """As the function of that name."""
        return available_resources()

    def available_resources_per_node(self) -> Mapping[str, Mapping[str, float]]:
        """As the function of that name."""
        return available_resources_per_node()


state = GlobalState()

__all__ = [
    "GlobalState",
    "available_resources",
    "available_resources_per_node",
    "cluster_resources",
    "nodes",
    "state",
]
