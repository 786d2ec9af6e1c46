"""Actors and placement groups come and go: until ready, one at a time and many at once."""

import time
from collections.abc import Iterator

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from rows import Lap, Step, check, main, row

MANY = 8
GROUPS = 50
PATIENCE = 60


@ray.remote(num_cpus=0)
class Newcomer:
    """An actor whose constructor's argument shows that it ran."""

    def __init__(self, number: int) -> None:
        self.number = number

    def number_given(self) -> int:
        return self.number


def create(count: int) -> tuple[list, float]:
    """So many actors until all have answered, and the seconds that took."""
    begun = time.perf_counter()
    actors = [Newcomer.remote(number) for number in range(count)]
    numbers = ray.get([actor.number_given.remote() for actor in actors])
    seconds = time.perf_counter() - begun
    check(numbers, list(range(count)), "what new actors were given")
    return actors, seconds


@row("create_actor", "actors/s")
def create_one() -> Iterator[Step]:
    yield from create_again_and_again(1)


@row("create_8_actors", "actors/s")
def create_many() -> Iterator[Step]:
    yield from create_again_and_again(MANY)


def create_again_and_again(count: int) -> Iterator[Step]:
    def step() -> Lap:
        actors, seconds = create(count)
        for actor in actors:
            ray.kill(actor)
        return Lap(count, seconds)

    yield step


@row("group_create_remove", "groups/s")
def groups() -> Iterator[Step]:
    def step() -> float:
        made = [placement_group([{"slot": 1}]) for _ in range(GROUPS)]
        check([group.wait(PATIENCE) for group in made], [True] * GROUPS, "whether all groups are placed")
        for group in made:
            remove_placement_group(group)
        return GROUPS

    yield step


@row("group_one_by_one", "groups/s")
def groups_one_by_one() -> Iterator[Step]:
    def step() -> float:
        group = placement_group([{"slot": 1}] * 4, strategy="PACK")
        ray.get(group.ready(), timeout=PATIENCE)
        check(group.bundle_count, 4, "bundles of a group")
        remove_placement_group(group)
        return 1

    yield step


@row("group_actor", "actors/s")
def actors_in_groups() -> Iterator[Step]:
    def step() -> Lap:
        begun = time.perf_counter()
        group = placement_group([{"CPU": 1}])
        check(group.wait(PATIENCE), True, "whether the group is placed")
        strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
        actor = Newcomer.options(num_cpus=1, scheduling_strategy=strategy).remote(7)
        check(ray.get(actor.number_given.remote()), 7, "what an actor in a group was given")
        seconds = time.perf_counter() - begun
        ray.kill(actor)
        remove_placement_group(group)
        return Lap(1, seconds)

    yield step


if __name__ == "__main__":
    main()
