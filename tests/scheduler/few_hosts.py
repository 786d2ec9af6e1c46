"""A scheduler with a few hosts, and how tests talk to it."""

from collections.abc import Sequence

from monarch_async.scheduler.demand import Bundle, Demand
from monarch_async.scheduler.events import Ask, Command, Event, Grant, HostUp, Recall, Reject, Release, Withdraw
from monarch_async.scheduler.resources import Resources
from monarch_async.scheduler.scheduler import Scheduler

ONE_CPU = Demand([Bundle()])


def host(cpus: float = 4, gpus: int = 0, memory: int = 0, **more: object) -> Resources:
    """Return what a host has; its devices are ``g0``, ``g1``, ..."""
    return Resources(cpus, tuple(f"g{device}" for device in range(gpus)), memory, **more)  # type: ignore[arg-type]


def scheduler(*hosts: Resources, **settings: float) -> Scheduler:
    """Return a scheduler with these hosts, ``host0``, ``host1``, ..."""
    made = Scheduler(**settings)  # type: ignore[arg-type]
    for number, resources in enumerate(hosts):
        assert made.handle(HostUp(number, f"host{number}", resources), 0.0) == []
    return made


def gang(count: int, cpus: float = 1, gpus: float = 0, strategy: str = "pack", **more: object) -> Demand:
    """Return a demand of bundles that are alike."""
    return Demand([Bundle(cpus, gpus)] * count, strategy, **more)  # type: ignore[arg-type]


def places(commands: Sequence[Command], id: int) -> list[int]:
    """Return the hosts of the bundles of a placement that is granted by these commands."""
    grants = [command for command in commands if isinstance(command, Grant) and command.id == id]
    assert len(grants) == 1, commands
    return [spot.host for spot in grants[0].spots]


def gpus(commands: Sequence[Command], id: int) -> list[tuple[str, ...]]:
    """Return the devices of the bundles of a placement that is granted by these commands."""
    return next(
        [spot.gpus for spot in command.spots] for command in commands if isinstance(command, Grant) and command.id == id
    )


def granted(commands: Sequence[Command]) -> list[int]:
    """Return who is granted by these commands."""
    return [command.id for command in commands if isinstance(command, Grant)]


def recalled(commands: Sequence[Command]) -> list[int]:
    """Return who is recalled by these commands."""
    return [command.id for command in commands if isinstance(command, Recall)]


def rejected(commands: Sequence[Command]) -> list[int]:
    """Return who is rejected by these commands."""
    return [command.id for command in commands if isinstance(command, Reject)]


def released(commands: Sequence[Command]) -> list[int]:
    """Return who is released by these commands."""
    return [command.id for command in commands if isinstance(command, Release)]


def ask(made: Scheduler, id: int, demand: Demand = ONE_CPU, now: float = 0.0, holder: int = 0) -> list[Command]:
    """Ask for a demand."""
    return made.handle(Ask(id, demand, holder), now)


def withdraw(made: Scheduler, id: int, now: float = 0.0) -> list[Command]:
    """Withdraw a placement."""
    return made.handle(Withdraw(id), now)


def handle(made: Scheduler, *events: Event, now: float = 0.0) -> list[Command]:
    """Handle several events at one time."""
    return [command for event in events for command in made.handle(event, now)]


def is_empty(made: Scheduler) -> bool:
    """Return whether nobody holds anything and nobody waits."""
    holdings = made.holdings(0.0)
    return not holdings.waiting and all(
        not entry.holdings and entry.free.cpus == entry.total.cpus and entry.free == entry.total
        for entry in holdings.hosts
    )
