"""The state of actors and nodes, under its newer name: see `monarch_async.ray.experimental.state.api`."""

from monarch_async.ray.experimental.state.api import StateRow, get_actor, list_actors, list_nodes

__all__ = ["StateRow", "get_actor", "list_actors", "list_nodes"]
