"""Nodes, resources and where things run, on one node."""

import ray
from contract import Gate, Tally, answer, error_of, until
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote
def node():
    return ray.get_runtime_context().get_node_id()


@ray.remote
class Sitting:
    def node(self):
        return ray.get_runtime_context().get_node_id()

    def assigned(self):
        return ray.get_runtime_context().get_assigned_resources()


def here() -> str:
    return ray.get_runtime_context().get_node_id()


def contract_nodes_have_their_rows() -> object:
    rows = ray.nodes()
    row = rows[0]
    return [
        len(rows),
        [key in row for key in ("NodeID", "NodeManagerAddress", "Alive", "Resources")],
        row["NodeID"] == here(),
        row["Alive"],
        len(row["NodeID"]),
        row["Resources"]["CPU"],
        row["Resources"]["brick"],
        row["NodeManagerAddress"] == ray.util.get_node_ip_address(),
    ]


def contract_cluster_resources() -> object:
    found = ray.cluster_resources()
    return [found["CPU"], found["brick"], "memory" in found, "GPU" in found]


def contract_available_resources_say_what_is_free() -> object:
    gate, started = Gate(), Gate()

    @ray.remote(num_cpus=2, resources={"brick": 1})
    def hold():
        started.open()
        gate.wait()

    free = until(lambda: ray.available_resources().get("CPU") == 4)
    ref = hold.remote()
    started.wait()
    held = until(lambda: (ray.available_resources().get("CPU"), ray.available_resources().get("brick")) == (2, 2))
    gate.open()
    ray.get(ref)
    return [free, held, until(lambda: ray.available_resources().get("CPU") == 4)]


def contract_available_resources_per_node() -> object:
    found = ray._private.state.available_resources_per_node()
    return [list(found) == [here()], found[here()]["brick"]]


def contract_affinity_to_a_node() -> object:
    strategy = NodeAffinitySchedulingStrategy(node_id=here(), soft=False)
    sitting = Sitting.options(scheduling_strategy=strategy).remote()
    return [
        ray.get(node.options(scheduling_strategy=strategy).remote()) == here(),
        ray.get(sitting.node.remote()) == here(),
    ]


def contract_affinity_to_a_node_that_is_not_there() -> object:
    strategy = NodeAffinitySchedulingStrategy(node_id="e" * 56, soft=False)
    sitting = Sitting.options(scheduling_strategy=strategy).remote()
    return [
        error_of(lambda: ray.get(node.options(scheduling_strategy=strategy).remote(), timeout=20)),
        error_of(lambda: ray.get(sitting.node.remote(), timeout=20)),
    ]


def contract_soft_affinity() -> object:
    strategy = NodeAffinitySchedulingStrategy(node_id="e" * 56, soft=True)
    return ray.get(node.options(scheduling_strategy=strategy).remote()) == here()


def contract_named_strategies() -> object:
    return [ray.get(node.options(scheduling_strategy=name).remote()) == here() for name in ("SPREAD", "DEFAULT")]


def contract_a_resource_of_which_there_is_one() -> object:
    tally = Tally()

    @ray.remote(resources={"hammer": 1}, num_cpus=0)
    def alone(n):
        tally.add(f"in {n}")
        until(lambda: False, 0.05)
        tally.add(f"out {n}")

    ray.get([alone.remote(n) for n in range(3)])
    lines = tally.lines()
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return all(a.split()[0] == "in" and a.split()[1] == b.split()[1] for a, b in pairs)


def contract_fractions_of_a_resource() -> object:
    gates = [Gate(), Gate()]

    @ray.remote(resources={"hammer": 0.5}, num_cpus=0)
    def meet(mine):
        gates[mine].open()
        return gates[1 - mine].wait()

    return ray.get([meet.remote(0), meet.remote(1)])


def contract_actors_hold_what_they_ask_for() -> object:
    start = until(lambda: ray.available_resources().get("CPU") == 4)
    sitting = Sitting.options(num_cpus=3).remote()
    ray.get(sitting.node.remote())
    held = until(lambda: ray.available_resources().get("CPU") == 1)
    ray.kill(sitting)
    return [start, held, until(lambda: ray.available_resources().get("CPU") == 4)]


def contract_actors_hold_no_cpu_by_default() -> object:
    many = [Sitting.remote() for _ in range(6)]
    nodes = ray.get([each.node.remote() for each in many])
    return [len(nodes), until(lambda: ray.available_resources().get("CPU") == 4)]


def contract_assigned_resources() -> object:
    @ray.remote(num_cpus=2, resources={"brick": 1})
    def assigned():
        return ray.get_runtime_context().get_assigned_resources()

    sitting = Sitting.options(num_cpus=1).remote()
    return [ray.get(assigned.remote()), ray.get(sitting.assigned.remote())]


def contract_without_gpus() -> object:
    @ray.remote
    def gpus():
        return ray.get_gpu_ids(), ray.get_runtime_context().get_accelerator_ids().get("GPU")

    return ray.get(gpus.remote())


def contract_what_never_fits_waits() -> object:
    ref = node.options(num_cpus=100).remote()
    ready, _ = ray.wait([ref], timeout=0.3)
    ray.cancel(ref)
    actor = Sitting.options(num_gpus=1).remote()
    waiting, _ = ray.wait([actor.node.remote()], timeout=0.3)
    return [len(ready), len(waiting)]


def contract_a_node_resource_of_its_address() -> object:
    key = f"node:{ray.util.get_node_ip_address()}"
    return [key in ray.cluster_resources(), ray.get(node.options(resources={key: 0.001}).remote()) == here()]


def contract_addresses() -> object:
    address = ray.util.get_node_ip_address()
    return [address == ray._private.services.get_node_ip_address(), address.count(".")]


if __name__ == "__main__":
    answer(globals(), num_cpus=4, resources={"brick": 3, "hammer": 1})
