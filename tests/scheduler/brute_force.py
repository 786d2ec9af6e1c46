"""Whether a demand fits, by trying everything; and whether what was granted is what was asked for."""

from collections.abc import Mapping, Sequence
from itertools import product

from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import Grant

UNIT = 10_000


def fits(demand: Demand, free: Mapping[int, tuple[int, Sequence[int]]]) -> bool:
    """Return whether a demand of cpus and gpus fits. ``free``: of each host cpus and devices."""
    return fewest_hosts(demand, free) is not None


def fewest_hosts(demand: Demand, free: Mapping[int, tuple[int, Sequence[int]]]) -> int | None:
    """Return on how few hosts a demand fits, or None."""
    best: int | None = None
    for hosts in product(free, repeat=len(demand.bundles)):
        used = len(set(hosts))
        if demand.strategy == "strict_pack" and used > 1:
            continue
        if demand.strategy == "strict_spread" and used < len(hosts):
            continue
        if best is not None and used >= best:
            continue
        if all(
            _fit_host([b for b, h in zip(demand.bundles, hosts, strict=True) if h == host], *free[host])
            for host in free
        ):
            best = used
    return best


def _fit_host(bundles: Sequence[Bundle], cpus: int, devices: Sequence[int]) -> bool:
    needed = sum(round(bundle.cpus * UNIT) for bundle in bundles)
    if needed and needed > cpus:
        return False
    whole = sum(int(bundle.gpus) for bundle in bundles if bundle.gpus >= 1)
    shares = [round(bundle.gpus * UNIT) for bundle in bundles if 0 < bundle.gpus < 1]
    for choice in product(range(len(devices)), repeat=len(shares)):
        left = list(devices)
        for share, device in zip(shares, choice, strict=True):
            left[device] -= share
        is_over = any(left[device] < 0 for device in choice)
        if not is_over and sum(1 for amount in left if amount == UNIT) >= whole:
            return True
    return not shares and sum(1 for amount in devices if amount == UNIT) >= whole


def check_grant(demand: Demand, grant: Grant) -> None:
    """Check that what was granted is what was asked for (P1)."""
    assert len(grant.spots) == len(grant.held) == len(demand.bundles)
    hosts = [spot.host for spot in grant.spots]
    for bundle, spot, held in zip(demand.bundles, grant.spots, grant.held, strict=True):
        assert held.cpus == round(bundle.cpus * UNIT)
        assert spot.gpus == tuple(device for device, _ in held.gpus)
        assert len(set(spot.gpus)) == len(spot.gpus)
        if bundle.gpus >= 1:
            assert [amount for _, amount in held.gpus] == [UNIT] * int(bundle.gpus)
        else:
            assert sum(amount for _, amount in held.gpus) == round(bundle.gpus * UNIT)
    if demand.strategy == "strict_pack":
        assert len(set(hosts)) == 1
    if demand.strategy == "strict_spread":
        assert len(set(hosts)) == len(hosts)
    if all(bundle == demand.bundles[0] for bundle in demand.bundles):
        assert hosts == sorted(hosts), "ranks follow the order of hosts"
