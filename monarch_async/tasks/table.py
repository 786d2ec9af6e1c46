"""What the tasks of this process are doing.

    print(ma.task_status())
"""

import io
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch_async.mesh.domain import active_domain
from monarch_async.mesh.duration import format_age
from monarch_async.tasks.line import Stage
from monarch_async.tasks.pool import TaskPool
from monarch_async.tasks.quarantine import Quarantined

if TYPE_CHECKING:
    from rich.table import Table

#: The running tasks of a function that a table shows; the oldest.
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class RunningTask:
    """One that runs: on which host, for how many seconds, and which try it is, from 1."""

    host: str
    age: float
    tries: int


@dataclass(frozen=True, slots=True)
class FunctionStatus:
    """The tasks of one function: how many wait, which run, the oldest first."""

    name: str
    queued: int
    running: tuple[RunningTask, ...]


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The tasks that this process has submitted, and its workers by what they are doing. ``str()`` is a table."""

    functions: tuple[FunctionStatus, ...]
    workers: dict[str, int]

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=100, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip()

    def __rich__(self) -> "Table":
        """Return the table that rich prints."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        workers = ", ".join(f"{count} {stage}" for stage, count in self.workers.items()) or "none"
        table = Table(box=SIMPLE_HEAD, title=f"workers: {workers}", title_justify="left", title_style="")
        table.add_column("task", overflow="fold")
        for name in ("queued", "running", "age", "try"):
            table.add_column(name, justify="right")
        table.add_column("host", overflow="fold")
        for function in self.functions:
            table.add_row(function.name, str(function.queued), str(len(function.running)))
            for running in function.running[:_SHOWN]:
                table.add_row("", "", "", format_age(running.age), str(running.tries), running.host)
        return table


def task_status() -> TaskStatus:
    """Return what the tasks that were submitted in this process are doing now.

    Raises Closed where it has no hosts. What is submitted by tasks and actors is in their own processes;
    `HostMesh.status` shows everything that runs.
    """
    domain = active_domain()
    pool = domain.annexes.get(TaskPool)
    if not isinstance(pool, TaskPool):
        return TaskStatus((), {})
    now = domain.router.loop.time()
    queued: dict[str, int] = defaultdict(int)
    running: dict[str, list[RunningTask]] = defaultdict(list)
    for task in pool.queue.tasks():
        name = pool.sent[task.id].name
        if task.worker is None:
            queued[name] += 1
        else:
            host = domain.name_of(task.worker.host << 32)
            running[name].append(RunningTask(host, now - task.since, task.tries))
    workers = {stage.value: 0 for stage in Stage}
    for worker in pool.queue.workers():
        workers[worker.stage.value] += 1
    functions = [
        FunctionStatus(name, queued[name], tuple(sorted(running[name], key=lambda run: -run.age)))
        for name in sorted({*queued, *running})
    ]
    return TaskStatus(tuple(functions), {stage: count for stage, count in workers.items() if count})


def quarantine() -> list[Quarantined]:
    """Return the tasks of this process that were set aside, since they ended every worker that tried them.

    The oldest first; the last 256 are kept. Raises Closed where it has no hosts.
    """
    pool = active_domain().annexes.get(TaskPool)
    return list(pool.quarantine) if isinstance(pool, TaskPool) else []
