"""Which task runs on which worker, and how many workers there are to be. Pure: events in, commands out.

    task      waiting -> running -> ended; running -> waiting again where it is retried
    worker    asked -> starting -> idle <-> busy -> (condemned ->) gone

    event      waiting task      running task                      worker
    Submitted  run or wait; ask
    Granted                                                        asked -> starting, or given back where surplus
    Rejected   all of the shape fail                               asked -> gone
    Ready                                                          starting -> busy or idle
    Finished                     ended                             busy -> busy, idle or gone (recalled)
    Raised                       waiting (last), or failed         the same
    Stopped                      dropped                           the same
    Died                         waiting (first), failed, poison   any -> gone
    Recalled                                                       idle -> gone; others when they are free
    Cancelled  dropped           interrupted, or worker condemned  busy -> condemned (a task that cannot be interrupted)
    Overdue                      worker condemned; then dropped
    Tick                                                           idle for too long -> gone

Invariants
    Q1. A task is waiting, or on one worker, or has ended; it ends once. A worker has one task at most.
    Q2. It is sent at most once more than it has retries, and not again once something of it has been seen.
    Q3. Only deaths that it may have caused count for its poisoning: of workers it ran on, not by our own hand, not of
        their hosts. (Those use up a retry all the same: what it did until then may have had effects.)
    Q4. Tasks of a shape begin in the order of submission, except: one that lost its worker goes first, as does one that
        others wait for, one that raised last; and one whose arguments are on a host may pass up to `LOOKAHEAD` others
        when a worker there is free, and waits `PATIENCE` seconds for one while another is idle.
    Q5. What is asked for never exceeds the tasks that wait, nor, where it is not yet granted, the larger of `RAMP` and
        the workers there are. So a thousand tasks ask for a few workers, then for twice as many, until all is taken.
    Q6. A worker that is recalled takes tasks for `SLICE` seconds of its life at most, then goes; what its shape asks
        for stands back behind who waits. An idle one goes at once, and after ``idle`` seconds without a task any.
    Q7. With nothing waiting or running, nothing is asked for, and after ``idle`` seconds no worker is left.
    Q8. Where `HOPELESS` workers of a shape fail to start, each begun after the one before had failed, the tasks of that
        shape fail with that. Those that fail together may have had one cause, such as a host that goes.
"""

import itertools
from collections.abc import Iterator
from typing import assert_never

from monarch_async.errors import HostLost
from monarch_async.tasks.events import (
    Ask,
    Cancelled,
    Command,
    Died,
    Drop,
    End,
    Event,
    Fail,
    Finished,
    Granted,
    Interrupt,
    Overdue,
    Poison,
    Raised,
    Ready,
    Recalled,
    Rejected,
    Run,
    Seen,
    Start,
    Stopped,
    Submitted,
    Tick,
)
from monarch_async.tasks.line import Line, QueuedTask, QueueWorker, Stage
from monarch_async.tasks.shape import Shape

PATIENCE = 0.1
SLICE = 0.25  #: seconds; a worker takes some hundredths to start, so that taking turns costs a tenth
HOPELESS = 3


class TaskQueue:
    """The tasks and workers of one process. See the module."""

    def __init__(self, idle: float) -> None:
        """``idle``: seconds after which a worker without a task is given back."""
        self._idle = idle
        self._lines: dict[Shape, Line] = {}
        self._tasks: dict[int, QueuedTask] = {}
        self._workers: dict[int, QueueWorker] = {}
        self._numbers = itertools.count(1)
        self._commands: list[Command] = []

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event; return what is to be done, in this order."""
        self._commands = commands = []
        match event:
            case Finished():
                self._release(self._pop(event.task), now)
            case Submitted():
                self._submit(event, now)
            case Raised():
                self._raised(event, now)
            case Stopped():
                self._stopped(event.task, now)
            case Cancelled():
                self._cancel(event.task)
            case Overdue():
                self._overdue(event.task)
            case Seen():
                self._tasks[event.task].retries = 0
            case Granted():
                self._granted(event, now)
            case Ready():
                self._ready(event.worker, now)
            case Rejected():
                self._rejected(event)
            case Died():
                self._died(event, now)
            case Recalled():
                self._recalled(event.worker, now)
            case Tick():
                self._expire(now)
            case _:
                assert_never(event)
        return commands

    def next_tick(self) -> float | None:
        """Return when a worker has been idle, or a task with a home patient, for too long; None: there is none."""
        due: list[float] = []
        for line in self._lines.values():
            if line.idle:
                due.append(next(iter(line.idle.values())).idle_since + self._idle)
                due.extend([task.since + PATIENCE for task in itertools.islice(line.waiting.values(), 1)])
        return min(due, default=None)

    def tasks(self) -> Iterator[QueuedTask]:
        """Those that have not ended."""
        return iter(self._tasks.values())

    def workers(self) -> Iterator[QueueWorker]:
        """Those that are asked for, or there."""
        return iter(self._workers.values())

    def count_workers(self, shape: Shape) -> int:
        """Return how many workers of a shape are there, or starting."""
        line = self._lines.get(shape)
        return 0 if line is None else line.workers

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _submit(self, said: Submitted, now: float) -> None:
        if (line := self._lines.get(said.shape)) is None:
            line = self._lines[said.shape] = Line(said.shape)
        task = self._tasks[said.task] = QueuedTask(said, line, now)
        self._place(task, now, said.goes_first)

    def _place(self, task: QueuedTask, now: float, is_first: bool = False) -> None:
        """Give a task to an idle worker, or let it wait for one."""
        line = task.line
        worker = line.take_idle(task.home)
        if worker is not None:
            self._run(task, worker, now)
        else:
            line.wait(task, is_first)
            self._ask(line, task.home)

    def _run(self, task: QueuedTask, worker: QueueWorker, now: float) -> None:
        task.worker, worker.task = worker, task
        task.tries += 1
        task.since = now
        worker.stage = Stage.BUSY
        self._commands.append(Run(task.id, worker.id))

    def _pop(self, id: int) -> QueueWorker | None:
        """A task has ended; return the worker that ran it."""
        task = self._tasks.pop(id)
        return self._detach(task)

    def _detach(self, task: QueuedTask) -> QueueWorker | None:
        worker, task.worker = task.worker, None
        if worker is not None:
            worker.task = None
        return worker

    def _raised(self, event: Raised, now: float) -> None:
        task = self._tasks[event.task]
        if event.may_retry and task.retries > 0:
            task.retries -= 1
            worker = self._detach(task)
            task.line.wait(task)
        else:
            worker = self._pop(task.id)
            self._commands.append(Fail(task.id, event.error))
        self._release(worker, now)

    def _stopped(self, id: int, now: float) -> None:
        worker = self._pop(id)
        self._commands.append(Drop(id))
        self._release(worker, now)

    def _cancel(self, id: int) -> None:
        task = self._tasks.get(id)
        if task is None or task.is_cancelled:
            return
        task.is_cancelled = True
        worker = task.worker
        if worker is None:
            task.line.leave(task)
            del self._tasks[id]
            self._commands.append(Drop(id))
            self._trim(task.line)
            self._forget(task.line)
        elif task.is_interruptible:
            self._commands.append(Interrupt(id, worker.id))
        else:
            self._condemn(worker)

    def _overdue(self, id: int) -> None:
        task = self._tasks.get(id)
        if task is None or task.worker is None or not task.is_cancelled:
            return
        if task.worker.stage is Stage.BUSY:
            self._condemn(task.worker)
        else:  # its end should have been told by now
            worker = self._pop(id)
            assert worker is not None
            del self._workers[worker.id]
            self._commands.append(Drop(id))

    def _bury(self, task: QueuedTask, event: Died, is_blamed: bool, now: float) -> None:
        """The worker of a task is gone (Q2, Q3)."""
        self._detach(task)
        error = event.error
        if is_blamed:
            task.deaths.append(error)
        if task.is_cancelled:
            ending: Command | None = Drop(task.id)
        elif len(task.deaths) >= task.poison:
            ending = Poison(task.id, tuple(task.deaths))
        elif event.has_begun and task.retries <= 0:
            ending = Fail(task.id, error)
        else:
            task.retries -= event.has_begun
            self._place(task, now, is_first=True)
            return
        del self._tasks[task.id]
        self._commands.append(ending)

    def _fail_all(self, line: Line, error: Exception) -> None:
        """What waits for a worker of this shape waits in vain."""
        for id in list(line.waiting):
            del self._tasks[id]
            self._commands.append(Fail(id, error))
        line.waiting.clear()
        line.homed = 0
        self._trim(line)
        self._forget(line)

    # -- workers ---------------------------------------------------------------------------------------------------

    def _ask(self, line: Line, home: int = 0) -> None:
        while line.may_ask:
            worker = QueueWorker(next(self._numbers), line)
            self._workers[worker.id] = line.asked[worker.id] = worker
            self._commands.append(Ask(worker.id, line.shape, home or self._home_of(line)))
            home = 0

    def _home_of(self, line: Line) -> int:
        return next(iter(line.waiting.values())).home if line.homed else 0

    def _trim(self, line: Line) -> None:
        """Take back questions for more workers than tasks wait (Q5), the last one first."""
        while line.asked and len(line.asked) + line.starting > len(line.waiting):
            id, _ = line.asked.popitem()
            del self._workers[id]
            self._commands.append(End(id))

    def _stand_back(self, line: Line) -> None:
        """Ask anew for what is not granted yet, behind whoever waits for the worker that is recalled (Q6)."""
        for id in line.asked:
            del self._workers[id]
            self._commands.append(End(id))
        line.asked.clear()
        self._ask(line)

    def _granted(self, event: Granted, now: float) -> None:
        worker = self._workers.get(event.worker)
        if worker is None or worker.stage is not Stage.ASKED:
            return
        line = worker.line
        del line.asked[worker.id]
        worker.host, worker.started = event.host, now
        worker.stage = Stage.STARTING
        line.starting += 1
        line.workers += 1
        self._commands.append(Start(worker.id))
        self._ask(line)

    def _ready(self, id: int, now: float) -> None:
        worker = self._workers.get(id)
        if worker is None or worker.stage is not Stage.STARTING:
            return
        worker.line.starting -= 1
        worker.line.failed_starts = 0
        worker.started = now
        worker.stage = Stage.BUSY
        self._release(worker, now)

    def _release(self, worker: QueueWorker | None, now: float) -> None:
        """A worker has nothing to do: give it something, or keep it warm, or let it go (Q6)."""
        if worker is None or worker.stage is not Stage.BUSY:
            if worker is not None and worker.stage is Stage.CONDEMNED:
                del self._workers[worker.id]  # what it was condemned for has ended
            return
        line = worker.line
        must_go = worker.is_recalled and (not line.waiting or now - worker.started >= SLICE)
        if must_go:
            self._end(worker)
            self._ask(line)
        elif line.waiting:
            self._run(line.next_for(worker.host), worker, now)
            self._trim(line)
        else:
            worker.stage = Stage.IDLE
            worker.idle_since = now
            line.idle[worker.id] = worker

    def _end(self, worker: QueueWorker, at_once: bool = False) -> None:
        worker.line.workers -= 1
        if not at_once:
            del self._workers[worker.id]
        self._commands.append(End(worker.id, at_once))
        self._forget(worker.line)

    def _condemn(self, worker: QueueWorker) -> None:
        """What runs there cannot be stopped otherwise."""
        worker.stage = Stage.CONDEMNED
        self._end(worker, at_once=True)
        self._ask(worker.line)

    def _rejected(self, event: Rejected) -> None:
        worker = self._workers.pop(event.worker, None)
        if worker is None or worker.stage is not Stage.ASKED:
            return
        del worker.line.asked[worker.id]
        self._fail_all(worker.line, event.error)

    def _died(self, event: Died, now: float) -> None:
        worker = self._workers.pop(event.worker, None)
        if worker is None:
            return
        line = worker.line
        match worker.stage:
            case Stage.ASKED:
                del line.asked[worker.id]
            case Stage.STARTING:
                line.starting -= 1
                line.workers -= 1
            case Stage.IDLE:
                del line.idle[worker.id]
                line.workers -= 1
            case Stage.BUSY:
                line.workers -= 1
            case Stage.CONDEMNED:
                pass
        if worker.task is not None:
            self._bury(worker.task, event, event.is_blamed and worker.stage is Stage.BUSY, now)
        elif (
            worker.stage is Stage.STARTING
            and not isinstance(event.error, HostLost)
            and worker.started >= line.failed_at
        ):
            line.failed_starts += 1
            line.failed_at = now
            if line.failed_starts >= HOPELESS:  # Q8
                line.failed_starts = 0
                self._fail_all(line, event.error)
        self._ask(line)
        self._forget(line)

    def _recalled(self, id: int, now: float) -> None:
        worker = self._workers.get(id)
        if worker is None or worker.stage in (Stage.ASKED, Stage.CONDEMNED):
            return
        worker.is_recalled = True
        self._stand_back(worker.line)
        if worker.stage is Stage.IDLE:
            del worker.line.idle[id]
            worker.stage = Stage.BUSY
            self._release(worker, now)

    def _expire(self, now: float) -> None:
        for line in list(self._lines.values()):
            patient = [task for task in line.waiting.values() if task.since + PATIENCE <= now] if line.idle else []
            for task in patient[: len(line.idle)]:
                line.leave(task)
                self._run(task, line.idle.popitem()[1], now)
            self._trim(line)
            for worker in [worker for worker in line.idle.values() if worker.idle_since + self._idle <= now]:
                del line.idle[worker.id]
                self._end(worker)

    def _forget(self, line: Line) -> None:
        """Keep nothing of a shape that nobody asks for any more (Q7)."""
        if not (line.waiting or line.asked or line.workers) and self._lines.get(line.shape) is line:
            del self._lines[line.shape]
