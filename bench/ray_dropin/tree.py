"""A tree of tasks that make tasks: parents that wait for their children, and parents that hand on references."""

from collections.abc import Iterator

import ray
from rows import Step, check, main, row

DEPTH, FAN_OUT = 3, 3
NODES = sum(FAN_OUT**level for level in range(DEPTH + 1))


@ray.remote
def count_nodes(depth: int) -> int:
    """The nodes of the tree below and with this one; waits, which gives its cpu to the children."""
    if depth == 0:
        return 1
    return 1 + sum(ray.get([count_nodes.remote(depth - 1) for _ in range(FAN_OUT)]))


@ray.remote
def add_up(*counts: int) -> int:
    return 1 + sum(counts)


@ray.remote
def plant(depth: int) -> ray.ObjectRef | int:
    """A reference to the sum below, made of the children's references without waiting for any."""
    if depth == 0:
        return 1
    return add_up.remote(*[unwrap.remote(plant.remote(depth - 1)) for _ in range(FAN_OUT)])


@ray.remote
def unwrap(value: ray.ObjectRef | int) -> int:
    return ray.get(value) if isinstance(value, ray.ObjectRef) else value


@row("tree_waiting", "tasks/s")
def waiting() -> Iterator[Step]:
    def step() -> float:
        check(ray.get(count_nodes.remote(DEPTH)), NODES, "nodes of the tree")
        return NODES

    yield step


@row("tree_of_refs", "tasks/s")
def of_refs() -> Iterator[Step]:
    inner = NODES - FAN_OUT**DEPTH
    tasks = NODES + inner + NODES - 1  # every node is planted, those with children add, all but the root are unwrapped

    def step() -> float:
        check(ray.get(ray.get(plant.remote(DEPTH))), NODES, "nodes of the tree")
        return tasks

    yield step


if __name__ == "__main__":
    main()
