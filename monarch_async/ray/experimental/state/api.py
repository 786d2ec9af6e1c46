"""The state of actors and nodes: `get_actor`, `list_actors`, `list_nodes`, in rows whose items are fields too."""

from collections.abc import Sequence
from typing import Any

from monarch_async.ray.nodes import nodes
from monarch_async.ray.runtime import current

Filter = tuple[str, str, Any]


class StateRow(dict[str, Any]):
    """A row: ``row["state"]``, ``row.get("state")`` and ``row.state``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the row has no {name!r}, only {', '.join(self)}") from None


def get_actor(id: str, address: str | None = None, timeout: float = 30, **_hints: Any) -> StateRow | None:
    """Return an actor's row, by its id in hexadecimal digits; None where there is none.

    Its fields: ``actor_id``, ``class_name``, ``state`` (DEPENDENCIES_UNREADY, PENDING_CREATION, ALIVE, RESTARTING or
    DEAD), ``name``, ``ray_namespace``, ``node_id``, ``pid``, ``num_restarts``, ``death_cause``.
    """
    return next((row for row in _actors() if row["actor_id"] == id), None)


def list_actors(
    address: str | None = None, filters: Sequence[Filter] | None = None, limit: int = 100, **_hints: Any
) -> list[StateRow]:
    """Return the rows of all actors for which each filter, ``(field, "=" or "!=", value)``, holds."""
    return _filtered(_actors(), filters)[:limit]


def list_nodes(
    address: str | None = None, filters: Sequence[Filter] | None = None, limit: int = 100, **_hints: Any
) -> list[StateRow]:
    """Return the rows of all nodes, as `list_actors`: ``node_id``, ``node_ip``, ``node_name``, ``state``, ..."""
    rows = [
        StateRow(
            node_id=row["NodeID"],
            node_ip=row["NodeManagerAddress"],
            node_name=row["NodeName"],
            state="ALIVE" if row["Alive"] else "DEAD",
            resources_total=row["Resources"],
            labels=row["Labels"],
        )
        for row in nodes()
    ]
    return _filtered(rows, filters)[:limit]


def _actors() -> list[StateRow]:
    runtime = current()
    return [StateRow(row) for row in runtime.ask_hub("actors.list")]


def _filtered(rows: list[StateRow], filters: Sequence[Filter] | None) -> list[StateRow]:
    for name, relation, value in filters or ():
        if relation not in ("=", "!="):
            raise ValueError(f"({name!r}, {relation!r}, {value!r}) of filters: expected = or !=")
        rows = [row for row in rows if (str(row.get(name)).lower() == str(value).lower()) == (relation == "=")]
    return rows
