"""The task queue: events in, exact commands out; and any order of events."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_async.errors import Error, HostLost, ProcDied, SpawnFailed
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
from monarch_async.tasks.line import LOOKAHEAD, MOST_FREE, RAMP
from monarch_async.tasks.queue import HOPELESS, PATIENCE, SLICE, TaskQueue
from monarch_async.tasks.shape import Shape

IDLE = 5.0
SHAPE, OTHER, FREE = Shape(), Shape(gpus=1), Shape(cpus=0)
DIED = ProcDied("tasks[0]", "host0", signal=11)


def asks(commands: list[Command]) -> list[int]:
    return [command.worker for command in commands if isinstance(command, Ask)]


class Driver:
    """A queue with the numbers of its workers."""

    def __init__(self) -> None:
        self.queue, self.now, self.task = TaskQueue(IDLE), 0.0, 0

    def __call__(self, event: Event) -> list[Command]:
        return self.queue.handle(event, self.now)

    def submit(self, **said: object) -> list[Command]:
        self.task += 1
        return self(Submitted(self.task, **{"shape": SHAPE, **said}))  # type: ignore[arg-type]

    def with_worker(self, host: int = 1) -> int:
        """A worker that is idle."""
        (worker,) = asks(self.submit())
        self(Granted(worker, host))
        assert self(Ready(worker)) == [Run(self.task, worker)]
        assert self(Finished(self.task)) == []
        return worker


def test_first_task_asks_for_a_worker_and_runs_there() -> None:
    drive = Driver()
    assert drive.submit() == [Ask(1, SHAPE)]
    assert drive(Granted(1, 7)) == [Start(1)]
    assert drive(Ready(1)) == [Run(1, 1)]
    assert drive.submit() == [Ask(2, SHAPE)]
    assert drive(Finished(1)) == [Run(2, 1), End(2)]  # nothing waits any more: no second worker (Q5)
    assert drive(Finished(2)) == []
    assert drive.submit() == [Run(3, 1)]


def test_asks_double_until_all_is_taken() -> None:
    """Q5."""
    drive = Driver()
    asked = [worker for _ in range(1000) for worker in asks(drive.submit())]
    assert len(asked) == RAMP
    granted = 0
    while granted < 100:
        asked += asks(drive(Granted(asked[granted], 1)))
        granted += 1
        assert len(asked) - granted == max(RAMP, granted)


def test_what_takes_nothing_is_limited_too() -> None:
    drive = Driver()
    asked = [worker for _ in range(1000) for worker in asks(drive.submit(shape=FREE))]
    for worker in asked:
        asked += asks(drive(Granted(worker, 1)))
    assert len(asked) == MOST_FREE


def test_idle_workers_go_and_nothing_is_left() -> None:
    """Q7."""
    drive = Driver()
    worker = drive.with_worker()
    assert drive.queue.next_tick() == IDLE
    drive.now = IDLE - 0.001
    assert drive(Tick()) == []
    drive.now = IDLE
    assert drive(Tick()) == [End(worker)]
    assert drive.queue.next_tick() is None
    assert not list(drive.queue.workers()) and not drive.queue._lines


def test_a_death_is_tried_elsewhere_first_of_all() -> None:
    """Q2, Q4."""
    drive = Driver()
    worker = drive.with_worker()
    assert drive.submit(retries=1) == [Run(2, worker)]
    assert asks(drive.submit()) == [2]
    assert drive(Died(worker, DIED, is_blamed=True)) == [Ask(3, SHAPE)]
    drive(Granted(2, 1))
    assert drive(Ready(2)) == [Run(2, 2)]
    assert drive(Died(2, DIED, is_blamed=True)) == [Fail(2, DIED)]


def test_a_task_that_lost_its_worker_runs_on_one_that_is_idle() -> None:
    drive = Driver()
    first = drive.with_worker()
    assert drive.submit() == [Run(2, first)]
    (second,) = asks(drive.submit())
    drive(Granted(second, 1))
    assert drive(Ready(second)) == [Run(3, second)]
    assert drive(Finished(3)) == []
    assert drive(Died(first, DIED, is_blamed=True)) == [Run(2, second)]


def test_poison_is_set_aside_with_the_evidence() -> None:
    """Q3: three deaths that it may have caused; none of the others count."""
    drive = Driver()
    deaths = [ProcDied("tasks[0]", "host0", signal=11, pid=pid) for pid in range(3)]
    lost = HostLost("host0", "gone")
    told: list[Command] = []
    said = [(deaths[0], True), (lost, False), (deaths[1], True), (deaths[2], True)]
    workers = asks(drive.submit(retries=10))
    for error, is_blamed in said:
        worker = workers.pop()
        drive(Granted(worker, 1))
        assert drive(Ready(worker)) == [Run(1, worker)]
        told = drive(Died(worker, error, is_blamed))
        workers = asks(told)
    assert told == [Poison(1, tuple(deaths))]


def test_deaths_that_are_nobodys_fault_use_up_retries() -> None:
    """Q3."""
    drive = Driver()
    worker = drive.with_worker()
    drive.submit(retries=0)
    assert drive(Died(worker, DIED, is_blamed=False)) == [Fail(2, DIED)]


def test_a_death_before_the_task_was_sent_uses_up_none() -> None:
    """Its worker was asked for a sign of life first: the task was never on its way."""
    drive = Driver()
    worker = drive.with_worker()
    drive.submit(retries=0)
    told = drive(Died(worker, DIED, is_blamed=False, has_begun=False))
    (worker,) = asks(told)
    drive(Granted(worker, 1))
    assert drive(Ready(worker)) == [Run(2, worker)]
    assert drive(Died(worker, DIED, is_blamed=False)) == [Fail(2, DIED)]


def test_what_has_been_seen_is_not_tried_again() -> None:
    """Q2."""
    drive = Driver()
    worker = drive.with_worker()
    assert drive.submit(retries=9) == [Run(2, worker)]
    assert drive(Seen(2)) == []
    assert drive(Died(worker, DIED, is_blamed=True)) == [Fail(2, DIED)]


def test_what_is_raised_is_retried_only_where_that_was_said() -> None:
    drive = Driver()
    worker = drive.with_worker()
    error = ValueError()
    drive.submit(retries=1)
    drive.submit()
    assert drive(Raised(2, error, may_retry=True)) == [Run(3, worker)]  # it goes last (Q4)
    drive.submit()
    assert drive(Finished(3))[0] == Run(2, worker)
    assert drive(Raised(2, error, may_retry=True))[0] == Fail(2, error)
    drive(Finished(4))
    drive.submit(retries=1)
    assert drive(Raised(5, error)) == [Fail(5, error)]


def test_cancelling_what_waits_takes_back_the_question() -> None:
    drive = Driver()
    assert asks(drive.submit()) == [1]
    assert drive(Cancelled(1)) == [Drop(1), End(1)]
    assert drive(Cancelled(1)) == []
    assert drive(Granted(1, 1)) == []  # on its way already: the shell has ended it
    assert not drive.queue._lines


def test_cancelling_a_coroutine_interrupts_it_and_then_its_worker() -> None:
    drive = Driver()
    worker = drive.with_worker()
    drive.submit(is_interruptible=True)
    assert drive(Cancelled(2)) == [Interrupt(2, worker)]
    assert drive(Cancelled(2)) == []
    assert drive(Stopped(2)) == [Drop(2)]
    drive.submit(is_interruptible=True)
    assert drive(Cancelled(3)) == [Interrupt(3, worker)]
    assert drive(Overdue(3)) == [End(worker, at_once=True)]
    assert drive(Died(worker, DIED, is_blamed=True)) == [Drop(3)]
    assert not list(drive.queue.workers()) and not drive.queue._lines


def test_cancelling_a_plain_function_ends_its_worker() -> None:
    drive = Driver()
    worker = drive.with_worker()
    drive.submit()
    assert asks(drive.submit()) == [2]
    assert drive(Cancelled(2)) == [End(worker, at_once=True)]
    assert drive(Recalled(worker)) == []
    assert drive(Died(worker, DIED, is_blamed=True)) == [Drop(2)]
    assert drive(Overdue(2)) == []


def test_an_answer_that_overtakes_the_end_of_its_worker() -> None:
    drive = Driver()
    worker = drive.with_worker()
    drive.submit()
    drive(Cancelled(2))
    assert drive(Stopped(2)) == [Drop(2)]
    assert drive(Died(worker, DIED, is_blamed=True)) == []
    assert not list(drive.queue.workers())


def test_a_death_that_nobody_tells_keeps_no_caller_waiting() -> None:
    drive = Driver()
    drive.with_worker()
    drive.submit()
    drive(Cancelled(2))
    assert drive(Overdue(2)) == [Drop(2)]


def test_recalled_workers_go_when_free() -> None:
    """Q6."""
    drive = Driver()
    worker = drive.with_worker()
    assert drive(Recalled(worker)) == [End(worker)]
    worker = drive.with_worker()
    drive.submit()
    assert drive(Recalled(worker)) == []
    drive.submit()
    assert drive(Finished(3))[0] == Run(4, worker)  # it has just started
    (another,) = asks(drive.submit())
    drive.now = SLICE
    assert drive(Finished(4)) == [End(worker)]
    drive(Granted(another, 1))
    assert drive(Ready(another)) == [Run(5, another)]
    (waiting,) = asks(drive.submit())
    assert drive(Recalled(another)) == [End(waiting), Ask(waiting + 1, SHAPE)]  # behind who waits for it


def test_never_to_be_placed() -> None:
    drive = Driver()
    error = Error("never")
    drive.submit(shape=OTHER)
    drive.submit(shape=OTHER)
    assert drive(Rejected(1, error)) == [Fail(1, error), Fail(2, error), End(2)]
    assert not drive.queue._lines


def test_workers_that_never_start() -> None:
    """Q8."""
    drive = Driver()
    error = SpawnFailed("tasks", "host0", "no such directory")
    workers = asks(drive.submit())
    for _ in range(HOPELESS - 1):
        worker = workers.pop()
        drive(Granted(worker, 1))
        workers = asks(drive(Died(worker, error, is_blamed=True)))
    drive(Granted(workers[0], 1))
    assert drive(Died(workers[0], error, is_blamed=True)) == [Fail(1, error)]
    assert not drive.queue._lines


def test_workers_that_fail_together_have_failed_once() -> None:
    """Q8. Their host went: all tasks failed with that, though there were others."""
    drive = Driver()
    workers = [worker for _ in range(HOPELESS) for worker in asks(drive.submit())]
    for worker in workers:
        drive(Granted(worker, 1))
    drive.now = 1.0
    commands = [command for worker in workers for command in drive(Died(worker, DIED, is_blamed=False))]
    assert len(workers) == HOPELESS and not [command for command in commands if isinstance(command, Fail)]


def test_a_task_waits_a_little_for_a_worker_where_its_arguments_are() -> None:
    """Q4."""
    drive = Driver()
    away = drive.with_worker(host=1)
    assert drive.submit(home=2) == [Ask(2, SHAPE, home=2)]
    assert drive.queue.next_tick() == PATIENCE
    drive(Granted(2, 2))
    assert drive(Ready(2)) == [Run(2, 2)]
    assert asks(drive.submit(home=2)) == [3]
    drive.now = PATIENCE
    assert drive(Tick()) == [Run(3, away), End(3)]


def test_a_free_worker_takes_what_is_at_home_there() -> None:
    """Q4: but not from behind too many others."""
    drive = Driver()
    worker = drive.with_worker(host=2)
    drive.submit()
    for _ in range(LOOKAHEAD):
        drive.submit()
    drive.submit(home=2)
    drive.submit(home=2)
    assert drive(Finished(2))[0] == Run(3 + LOOKAHEAD, worker)
    assert drive(Finished(3 + LOOKAHEAD))[0] == Run(4 + LOOKAHEAD, worker)
    assert drive(Finished(4 + LOOKAHEAD))[0] == Run(3, worker)


# -- any order ---------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """What a shell knows, and what must hold of it."""

    queue: TaskQueue = field(default_factory=lambda: TaskQueue(IDLE))
    now: float = 0.0
    live: dict[int, tuple[int, int]] = field(default_factory=dict)  # task: (retries, poison)
    begun: dict[int, int] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)  # task: worker
    cancelled: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    starting: set[int] = field(default_factory=set)
    up: set[int] = field(default_factory=set)
    dying: set[int] = field(default_factory=set)
    count: int = 0

    def feed(self, event: Event) -> None:
        for command in self.queue.handle(event, self.now):
            self.perform(command)
        for line in self.queue._lines.values():
            assert len(line.asked) + line.starting <= max(len(line.waiting), line.starting)  # Q5
            assert line.homed == sum(task.home > 0 for task in line.waiting.values())
            if line.idle:
                assert all(task.home for task in line.waiting.values())
        assert {worker.id for worker in self.queue.workers()} >= self.asked | self.starting | self.up
        assert {task.id for task in self.queue.tasks()} == set(self.live)

    def perform(self, command: Command) -> None:
        match command:
            case Ask():
                self.asked.add(command.worker)
            case Start():
                self.asked.remove(command.worker)
                self.starting.add(command.worker)
            case End(worker, at_once):
                for stage in (self.asked, self.starting, self.up):
                    stage.discard(worker)
                assert at_once == (worker in self.running.values())
                if at_once:
                    self.dying.add(worker)
            case Run(task, worker):
                assert worker in self.up and worker not in self.running.values() and task not in self.running  # Q1
                assert task not in self.cancelled
                self.running[task] = worker
                self.begun[task] = self.begun.get(task, 0) + 1
                assert self.begun[task] <= 1 + self.live[task][0]  # Q2
            case Interrupt(task, worker):
                assert self.running[task] == worker and task in self.cancelled
            case Fail(task) | Poison(task):
                assert task not in self.cancelled
                self.end(task)
                if isinstance(command, Poison):
                    assert len(command.deaths) <= self.begun[task]
            case Drop(task):
                assert task in self.cancelled
                self.end(task)

    def end(self, task: int) -> None:
        del self.live[task]  # Q1: once
        self.running.pop(task, None)

    def step(self, draw: st.DataObject) -> None:
        what = draw.draw(st.sampled_from("submit submit grant ready finish raise die recall cancel late tick".split()))
        match what:
            case "submit":
                self.count += 1
                retries, poison = draw.draw(st.integers(0, 3)), draw.draw(st.integers(1, 3))
                self.live[self.count] = retries, poison
                shape, home = draw.draw(st.sampled_from([SHAPE, OTHER])), draw.draw(st.integers(0, 2))
                self.feed(Submitted(self.count, shape, retries, poison, home, draw.draw(st.booleans())))
            case "grant" if self.asked:
                worker = draw.draw(st.sampled_from(sorted(self.asked)))
                if draw.draw(st.integers(0, 9)):
                    self.feed(Granted(worker, draw.draw(st.integers(1, 2))))
                else:
                    self.asked.remove(worker)
                    self.feed(Rejected(worker, Error("never")))
            case "ready" if self.starting:
                worker = draw.draw(st.sampled_from(sorted(self.starting)))
                self.starting.remove(worker)
                self.up.add(worker)
                self.feed(Ready(worker))
            case "finish" | "raise" if self.running:
                task = draw.draw(st.sampled_from(sorted(self.running)))
                self.answer(task, what == "raise" and draw.draw(st.booleans()), what == "finish")
            case "die" if self.starting | self.up | self.dying:
                self.die(draw.draw(st.sampled_from(sorted(self.starting | self.up | self.dying))), draw)
            case "recall" if self.starting | self.up:
                self.feed(Recalled(draw.draw(st.sampled_from(sorted(self.starting | self.up)))))
            case "cancel" if self.live:
                task = draw.draw(st.sampled_from(sorted(self.live)))
                self.cancelled.add(task)
                self.feed(Cancelled(task))
            case "late" if self.cancelled & set(self.live):
                self.feed(Overdue(draw.draw(st.sampled_from(sorted(self.cancelled & set(self.live))))))
            case "tick":
                self.now += draw.draw(st.floats(0, 6))
                self.feed(Tick())

    def answer(self, task: int, may_retry: bool, is_good: bool) -> None:
        if task in self.cancelled:
            self.feed(Stopped(task))
        elif is_good:
            self.end(task)
            self.feed(Finished(task))
        else:
            worker = self.running.pop(task)
            self.feed(Raised(task, Error("raised"), may_retry))
            assert worker in self.up or worker in self.dying or worker not in self.running.values()

    def die(self, worker: int, draw: st.DataObject) -> None:
        for stage in (self.starting, self.up, self.dying):
            stage.discard(worker)
        for task in [task for task, where in self.running.items() if where == worker]:
            del self.running[task]
        error, is_blamed = draw.draw(st.sampled_from([(DIED, True), (DIED, False), (HostLost("h", "gone"), False)]))
        self.feed(Died(worker, error, is_blamed))


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_any_order_of_events(draw: st.DataObject) -> None:
    world = World()
    for _ in range(draw.draw(st.integers(1, 60))):
        world.step(draw)
    for _ in range(300):  # everything answers from now on
        if world.asked:
            world.feed(Granted(min(world.asked), 1))
        elif world.starting:
            worker = min(world.starting)
            world.starting.remove(worker)
            world.up.add(worker)
            world.feed(Ready(worker))
        elif world.running:
            world.answer(min(world.running), False, True)
        elif world.dying:
            world.die(min(world.dying), draw)
        else:
            world.now += IDLE
            world.feed(Tick())
            if not world.live and not world.up:
                break
    assert not world.live  # every task has ended
    assert not list(world.queue.workers()) and not world.queue._lines and world.queue.next_tick() is None  # Q7
