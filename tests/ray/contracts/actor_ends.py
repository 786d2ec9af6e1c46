"""How actors end, and start anew: kill, exit_actor, __ray_terminate__, restarts, max_task_retries."""

import atexit
import os
import sys

import ray
from contract import Gate, Tally, answer, error_of, is_running, until


@ray.remote
class Worker:
    def __init__(self):
        self.n = 0

    def add(self):
        self.n += 1
        return self.n

    def pid(self):
        return os.getpid()

    def die(self):
        os._exit(1)

    def leave(self):
        ray.actor.exit_actor()

    def is_restarted(self):
        return ray.get_runtime_context().was_current_actor_reconstructed


def first_good(call, seconds=15):
    """The first answer of ``call`` that is not the news of a restart."""
    found = []

    def good():
        try:
            found.append(call())
        except ray.exceptions.RayActorError:
            return False
        return True

    until(good, seconds)
    return found


def contract_kill_ends_an_actor_at_once() -> object:
    worker = Worker.remote()
    pid = ray.get(worker.pid.remote())
    ray.kill(worker)
    return [until(lambda: not is_running(pid)), error_of(lambda: ray.get(worker.add.remote()))]


def contract_kill_fails_what_runs() -> object:
    @ray.remote
    class Held:
        def hold(self, gate, started):
            started.open()
            return gate.wait()

    held, gate, started = Held.remote(), Gate(), Gate()
    running, waiting = held.hold.remote(gate, started), held.hold.remote(gate, started)
    started.wait()
    ray.kill(held)
    return [error_of(lambda ref=ref: ray.get(ref)) for ref in (running, waiting)]


def contract_kill_twice_and_of_what_is_no_actor() -> object:
    worker = Worker.remote()
    ray.get(worker.add.remote())
    return [ray.kill(worker), ray.kill(worker), error_of(lambda: ray.kill(5)), error_of(lambda: ray.kill(ray.put(1)))]


def contract_kill_in_another_process() -> object:
    @ray.remote
    def killer(handle):
        ray.kill(handle)

    worker = Worker.remote()
    pid = ray.get(worker.pid.remote())
    ray.get(killer.remote(worker))
    return [until(lambda: not is_running(pid)), error_of(lambda: ray.get(worker.add.remote()))]


def contract_kill_beats_restarts() -> object:
    worker = Worker.options(max_restarts=-1).remote()
    ray.get(worker.add.remote())
    ray.kill(worker)
    return error_of(lambda: ray.get(worker.add.remote()))


def contract_kill_without_no_restart_restarts() -> object:
    worker = Worker.options(max_restarts=1).remote()
    before = ray.get([worker.add.remote(), worker.add.remote()])
    pid = ray.get(worker.pid.remote())
    ray.kill(worker, no_restart=False)
    until(lambda: not is_running(pid))
    return [before, first_good(lambda: ray.get(worker.add.remote()))]


def contract_exit_actor() -> object:
    tally = Tally()

    @ray.remote
    class Leaving:
        def leave(self):
            atexit.register(tally.add, "atexit")
            ray.actor.exit_actor()
            tally.add("not reached")

        def go(self):
            return 1

    leaving = Leaving.remote()
    errors = [error_of(lambda: ray.get(leaving.leave.remote())), error_of(lambda: ray.get(leaving.go.remote()))]
    return [errors, until(tally.lines), tally.lines()]


def contract_exit_actor_is_not_restarted() -> object:
    worker = Worker.options(max_restarts=-1).remote()
    ray.get(worker.add.remote())
    return [error_of(lambda: ray.get(worker.leave.remote())), error_of(lambda: ray.get(worker.add.remote()))]


def contract_exit_actor_of_an_async_actor() -> object:
    @ray.remote
    class Leaving:
        async def leave(self):
            ray.actor.exit_actor()

        async def go(self):
            return 1

    leaving = Leaving.remote()
    first = ray.get(leaving.go.remote())
    return [first, error_of(lambda: ray.get(leaving.leave.remote())), error_of(lambda: ray.get(leaving.go.remote()))]


def contract_exit_actor_elsewhere_is_an_error() -> object:
    @ray.remote
    def task():
        ray.actor.exit_actor()

    return [error_of(ray.actor.exit_actor), error_of(lambda: ray.get(task.remote()))]


def contract_sys_exit_in_a_method() -> object:
    @ray.remote
    class Leaving:
        def leave(self):
            sys.exit(0)

    leaving = Leaving.remote()
    return [error_of(lambda: ray.get(leaving.leave.remote())) for _ in range(2)]


def contract_terminate_ends_it_after_what_was_asked() -> object:
    worker = Worker.remote()
    pid = ray.get(worker.pid.remote())
    refs = [worker.add.remote() for _ in range(3)]
    worker.__ray_terminate__.remote()
    return [ray.get(refs), until(lambda: not is_running(pid)), error_of(lambda: ray.get(worker.add.remote()))]


def contract_a_crash_without_restarts() -> object:
    worker = Worker.remote()
    return [error_of(lambda: ray.get(worker.die.remote())), error_of(lambda: ray.get(worker.add.remote()))]


def contract_a_restart_begins_anew() -> object:
    worker = Worker.options(max_restarts=1).remote()
    before = ray.get([worker.add.remote(), worker.add.remote()])
    crash = error_of(lambda: ray.get(worker.die.remote()))
    is_actor_error = "RayActorError" in crash["types"]
    return [before, is_actor_error, first_good(lambda: ray.get(worker.add.remote()))]


def contract_restarts_are_counted() -> object:
    worker = Worker.options(max_restarts=1).remote()
    for _ in range(2):
        first_good(lambda: ray.get(worker.add.remote()))
        error_of(lambda: ray.get(worker.die.remote()))
    return error_of(lambda: first_good(lambda: ray.get(worker.add.remote()), 1) or ray.get(worker.add.remote()))


def contract_an_actor_knows_that_it_was_restarted() -> object:
    worker = Worker.options(max_restarts=1).remote()
    before = ray.get(worker.is_restarted.remote())
    error_of(lambda: ray.get(worker.die.remote()))
    return [before, first_good(lambda: ray.get(worker.is_restarted.remote()))]


def contract_max_task_retries_calls_again() -> object:
    @ray.remote(max_restarts=2, max_task_retries=2)
    class Crashing:
        def __init__(self):
            self.n = 0

        def crash_until(self, tally, times):
            self.n += 1
            if tally.add() <= times:
                os._exit(1)
            return self.n, len(tally.lines())

    return ray.get(Crashing.remote().crash_until.remote(Tally(), 1))


def contract_max_task_retries_of_one_call() -> object:
    @ray.remote(max_restarts=-1)
    class Crashing:
        def crash_until(self, tally, times):
            if tally.add() <= times:
                os._exit(1)
            return len(tally.lines())

    crashing = Crashing.remote()
    retried = ray.get(crashing.crash_until.options(max_task_retries=-1).remote(Tally(), 1))
    crash = error_of(lambda: ray.get(crashing.crash_until.remote(Tally(), 1)))
    return [retried, "RayActorError" in crash["types"]]


def contract_a_named_actor_keeps_its_name_over_a_restart() -> object:
    worker = Worker.options(name="phoenix", max_restarts=1).remote()
    ray.get(worker.add.remote())
    error_of(lambda: ray.get(worker.die.remote()))
    return first_good(lambda: ray.get(ray.get_actor("phoenix").add.remote()))


def contract_what_an_actor_made_ends_with_it() -> object:
    """An actor's own actors, which nobody else has, end with it."""

    @ray.remote
    class Parent:
        def __init__(self):
            self.child = Worker.remote()

        def child_pid(self):
            return ray.get(self.child.pid.remote())

    parent = Parent.remote()
    pid = ray.get(parent.child_pid.remote())
    ray.kill(parent)
    return until(lambda: not is_running(pid))


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
