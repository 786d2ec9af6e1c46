"""What agents know of procs that are gone."""

import pytest
import simulation
from simulation import cluster

from monarch_async.control import workers


def test_of_dead_procs_only_the_latest_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that runs for weeks ends many."""
    monkeypatch.setattr(workers, "_MOST_EXITS", 3)

    async def main() -> None:
        async with cluster(1) as world:
            ended = [await world.hosts.spawn_procs() for _ in range(5)]
            for procs in ended:
                await procs.stop()
            known = [exit.address for _, exit in world.agents[0].workers._exits.values()]
            assert known == [procs.addresses[0] for procs in ended[2:]]

    simulation.run(main(), 0, True)


