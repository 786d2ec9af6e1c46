"""What the scripts share: a row, how long it is measured for, the line it prints, the ways to call servers.

A script imports only `ray`, the standard library, numpy and this file, so that the same bytes run under Ray and under
the facade. Each row is a generator function: it sets up, yields one *step*, and takes down. A step does a piece of
work, checks what came of it and says how much it was; steps are repeated until the time is up, at least once, so that
a busy machine makes fewer of them and not a longer or a wrong run.

    python tasks.py                                 every row, a second each
    python tasks.py --rows tasks_sync --seconds 5
"""

import argparse
import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray authenticates by default; a token given here keeps it from writing one into the home folder.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

import ray  # reads the environment when imported

CPUS = 4
"""What the machine is said to have, however many there are: as many workers under both systems."""

BATCH = 1000
SERVERS = 4
CLIENTS = 4
EACH = 100


@dataclass(frozen=True, slots=True)
class Lap:
    """How much work a step did in how many seconds, where the step itself also does what is not to be timed."""

    work: float
    seconds: float


Step = Callable[[], float | Lap]
Body = Callable[[], Iterator[Step]]


@dataclass(frozen=True, slots=True)
class Row:
    """One measured thing; `kind` is "control" where calls are counted, "bulk" where bytes are."""

    name: str
    unit: str
    kind: str
    body: Body


ROWS: list[Row] = []


def row(name: str, unit: str, kind: str = "control") -> Callable[[Body], Body]:
    """Make a generator function a row of its script. Literals only: run.py reads them without running the script."""

    def register(body: Body) -> Body:
        ROWS.append(Row(name, unit, kind, body))
        return body

    return register


def check(found: object, expected: object, what: str) -> None:
    """Fail the row where a system answered something else."""
    if found != expected:
        raise AssertionError(f"{what}: {str(found)[:100]} instead of {str(expected)[:100]}")


def start(servers: list) -> list:
    """Wait until each of these has answered; return them."""
    check(ray.get([server.echo.remote(1) for server in servers]), [1] * len(servers), "first answers")
    return servers


def end(actors: list) -> None:
    for actor in actors:
        ray.kill(actor)


def one_by_one(server) -> Iterator[Step]:
    def step() -> float:
        for number in range(20):
            check(ray.get(server.echo.remote(number)), number, "answer")
        return 20

    yield step
    end([server])


def all_at_once(server) -> Iterator[Step]:
    def step() -> float:
        check(ray.get([server.echo.remote(number) for number in range(BATCH)]), list(range(BATCH)), "answers")
        return BATCH

    yield step
    end([server])


def by_clients(servers: list, clients: list, method: str = "call") -> Iterator[Step]:
    """Clients call all servers, each `EACH` times, and check what comes."""

    def step() -> float:
        right = ray.get([getattr(client, method).remote(EACH) for client in clients])
        check(right, [True] * len(clients), "whether all answers are right")
        return EACH * len(servers) * len(clients)

    yield step
    end(clients + servers)


def window(step: Step, seconds: float) -> tuple[float, float, int]:
    """Repeat a step until the time is up: the work done, the seconds it took, the number of steps."""
    work, busy, steps = 0.0, 0.0, 0
    deadline = time.perf_counter() + seconds
    while True:
        begun = time.perf_counter()
        done = step()
        ended = time.perf_counter()
        if isinstance(done, Lap):
            work, busy = work + done.work, busy + done.seconds
        else:
            work, busy = work + done, busy + ended - begun
        steps += 1
        if ended >= deadline:
            return work, busy, steps


def measure(row: Row, seconds: float) -> dict[str, object]:
    """The row's line: work per second, after a quarter of the time (at least one step) that is not counted."""
    with contextlib.contextmanager(row.body)() as step:
        window(step, seconds / 4)
        work, busy, steps = window(step, seconds)
    return {"name": row.name, "value": work / busy, "unit": row.unit, "kind": row.kind, "n": steps}


def main() -> None:
    """Run the rows that are asked for, print a line of each, and end with status 1 where one failed."""
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(description="rows of bench/ray_dropin; see bench/README.md")
    parser.add_argument("--rows", default=",".join(names), help="comma-separated; default: all")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each row is measured for; default 1")
    arguments = parser.parse_args()
    wanted = [name for name in arguments.rows.split(",") if name]
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"unknown rows {', '.join(unknown)}; known are {', '.join(names)}")
    failed = False
    ray.init(
        num_cpus=CPUS, resources={"slot": 100}, include_dashboard=False, log_to_driver=False, logging_level="error"
    )
    try:
        for row in [row for row in ROWS if row.name in wanted]:
            try:
                line = measure(row, arguments.seconds)
            except Exception as error:
                failed = True
                last = str(error).strip().splitlines()[-1:] or [""]
                line = {"name": row.name, "error": f"{type(error).__name__}: {last[0]}"[:300]}
            print(json.dumps(line), flush=True)
    finally:
        ray.shutdown()
    sys.exit(failed)
