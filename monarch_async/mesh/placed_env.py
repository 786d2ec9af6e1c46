"""The environment of procs on a placement: their ranks, where they meet, and which devices they see."""

from collections import Counter
from collections.abc import Sequence

from monarch_async.control.host import Host
from monarch_async.errors import BadDemand


def shares_of(gpus: Sequence[str], is_share: bool, count: int, what: str) -> list[tuple[str, ...]]:
    """Return the device ids of each of ``count`` procs of one bundle, which has these.

    A fraction of a device is had by all of them. Raises BadDemand where whole devices do not divide; ``what`` names
    the bundle.
    """
    if is_share or not gpus:
        return [tuple(gpus)] * count
    each, rest = divmod(len(gpus), count)
    if rest:
        raise BadDemand(f"{what} has {len(gpus)} gpus: they do not divide among {count} procs")
    return [tuple(gpus[place * each : (place + 1) * each]) for place in range(count)]


def placed_env(hosts: Sequence[Host], gpus: Sequence[tuple[str, ...]], address: str, port: int) -> list[dict[str, str]]:
    """Return the variables of each proc, in rank order, that torch.distributed reads, and CUDA_VISIBLE_DEVICES.

    ``hosts`` and ``gpus`` are by rank. Who has no device sees none, and what is not to be seen on a host without any is
    not mentioned. Rank 0 is met at ``address`` and ``port``.
    """
    sizes = Counter(host.id for host in hosts)
    seen: Counter[int] = Counter()
    found = []
    for rank, (host, devices) in enumerate(zip(hosts, gpus, strict=True)):
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(hosts)),
            "LOCAL_RANK": str(seen[host.id]),
            "LOCAL_WORLD_SIZE": str(sizes[host.id]),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
        }
        if devices or host.resources.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        seen[host.id] += 1
        found.append(env)
    return found
