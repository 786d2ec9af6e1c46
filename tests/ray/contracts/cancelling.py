"""ray.cancel: what waits, what runs, what is done."""

import time

import ray
from contract import Gate, Tally, answer, differs, error_of, is_cancelled, until

ENDED = "a plain function cannot be interrupted everywhere: its worker is ended, and so is all that it does"


@ray.remote
def sleeper(started, tally):
    """Sleeps in short naps, so that an interrupt arrives."""
    started.open()
    try:
        for _ in range(2000):
            time.sleep(0.01)
    except KeyboardInterrupt:
        tally.add("interrupted")
        raise


@differs(ENDED, [True, False, []])
def contract_a_running_task_is_interrupted() -> object:
    started, tally = Gate(), Tally()
    ref = sleeper.remote(started, tally)
    started.wait()
    ray.cancel(ref)
    return [is_cancelled(lambda: ray.get(ref, timeout=20)), until(tally.lines, 1), tally.lines()]


def contract_a_waiting_task_never_runs() -> object:
    gate, tally = Gate(), Tally()

    @ray.remote
    def before():
        gate.wait()

    @ray.remote
    def after(_nothing):
        tally.add()

    ref = after.remote(before.remote())
    ray.cancel(ref)
    error = is_cancelled(lambda: ray.get(ref, timeout=20))
    gate.open()
    return [error, tally.lines()]


def contract_a_task_without_room_never_runs() -> object:
    tally = Tally()

    @ray.remote(resources={"nothing of it": 1})
    def never():
        tally.add()

    ref = never.remote()
    ray.cancel(ref)
    return [is_cancelled(lambda: ray.get(ref, timeout=20)), tally.lines()]


def contract_what_is_done_stays() -> object:
    @ray.remote
    def one():
        return 1

    ref = one.remote()
    ray.wait([ref])
    return [ray.cancel(ref), ray.get(ref)]


def contract_force_ends_the_process() -> object:
    started = Gate()

    @ray.remote(max_retries=3)
    def stubborn():
        started.open()
        while True:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                pass

    ref = stubborn.remote()
    started.wait()
    ray.cancel(ref, force=True)
    error = error_of(lambda: ray.get(ref, timeout=20))
    return bool({"TaskCancelledError", "WorkerCrashedError"} & set(error["types"]))


def contract_cancelled_is_not_retried() -> object:
    started, tally = Gate(), Tally()

    @ray.remote(max_retries=3, retry_exceptions=True)
    def counted():
        tally.add()
        started.open()
        for _ in range(2000):
            time.sleep(0.01)

    ref = counted.remote()
    started.wait()
    ray.cancel(ref)
    return [is_cancelled(lambda: ray.get(ref, timeout=20)), len(tally.lines())]


def contract_what_depends_on_it_fails_too() -> object:
    started, tally = Gate(), Tally()

    @ray.remote
    def after(_nothing):
        return 1

    ref = sleeper.remote(started, tally)
    last = after.remote(ref)
    started.wait()
    ray.cancel(ref)
    return is_cancelled(lambda: ray.get(last, timeout=20))


@differs(ENDED, [True, False, []])
def contract_children_are_cancelled_too() -> object:
    started, tally = Gate(), Tally()

    @ray.remote
    def parent():
        return ray.get(sleeper.remote(started, tally))

    ref = parent.remote()
    started.wait()
    ray.cancel(ref, recursive=True)
    return [is_cancelled(lambda: ray.get(ref, timeout=20)), until(tally.lines, 1), tally.lines()]


def contract_children_are_left_where_asked() -> object:
    started, gate, tally = Gate(), Gate(), Tally()

    @ray.remote
    def child():
        started.open()
        tally.add("opened" if gate.wait() else "not opened")

    @ray.remote
    def parent():
        return ray.get(child.remote())

    ref = parent.remote()
    started.wait()
    ray.cancel(ref, recursive=False)
    error = is_cancelled(lambda: ray.get(ref, timeout=20))
    gate.open()
    return [error, until(tally.lines, 10), tally.lines()]


def contract_a_call_that_waits_at_an_actor() -> object:
    started, gate = Gate(), Gate()

    @ray.remote
    class Held:
        def hold(self):
            started.open()
            return gate.wait()

        def note(self):
            return 2

        def go(self):
            return 1

    held = Held.remote()
    first, second, third = held.hold.remote(), held.note.remote(), held.go.remote()
    started.wait()
    ray.cancel(second)
    gate.open()
    return [ray.get(first), is_cancelled(lambda: ray.get(second, timeout=20)), ray.get(third)]


def contract_force_is_not_for_actors() -> object:
    @ray.remote
    class Quick:
        def go(self):
            return 1

    quick = Quick.remote()
    ref = quick.go.remote()
    return [error_of(lambda: ray.cancel(ref, force=True)), ray.get(quick.go.remote())]


def contract_cancel_takes_refs() -> object:
    return [error_of(lambda: ray.cancel(5)), error_of(lambda: ray.cancel([ray.put(1)]))]


def contract_a_generator_is_cancelled() -> object:
    gate = Gate()

    @ray.remote
    def endless():
        yield 1
        for _ in range(2000):
            time.sleep(0.01)
        yield gate.is_open()

    generator = endless.remote()
    first = ray.get(next(generator))
    ray.cancel(generator)

    def rest():
        for ref in generator:
            ray.get(ref, timeout=20)

    return [first, is_cancelled(rest)]


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
