"""Errors: their own type and Ray's at once, their causes, their text, their tree."""

import threading

import ray
from contract import answer, error_of, types_of


class Mine(Exception):
    """An error of the program's own."""

    def __init__(self, code, why):
        super().__init__(f"{why} ({code})")
        self.code = code


class Odd(ValueError):
    """One that does not pickle."""

    def __init__(self):
        super().__init__("odd one")
        self.lock = threading.Lock()


@ray.remote
def fail(error):
    raise error


def caught(call) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def contract_the_error_is_of_both_types() -> object:
    error = caught(lambda: ray.get(fail.remote(ValueError("boom"))))
    return [
        types_of(error),
        isinstance(error, ValueError),
        isinstance(error, ray.exceptions.RayTaskError),
        type(error).__name__,
    ]


def contract_the_cause_is_the_error_itself() -> object:
    error = caught(lambda: ray.get(fail.remote(KeyError("lost", 5))))
    return [type(error.cause).__name__, error.cause.args]


def contract_the_text_tells_of_both() -> object:
    @ray.remote
    def deep_down():
        raise ValueError("boom")

    text = str(caught(lambda: ray.get(deep_down.remote())))
    return [word in text for word in ("boom", "deep_down", "ValueError", "pid=", "raising.py")]


def contract_many_types() -> object:
    errors = [
        ZeroDivisionError("x"),
        OSError(2, "x"),
        RuntimeError(),
        IndexError(1),
        AssertionError("x"),
        Exception("x"),
    ]
    return [error_of(lambda error=error: ray.get(fail.remote(error))) for error in errors]


def contract_an_error_of_ones_own() -> object:
    """An error whose constructor wants more than its text: here the type is told, and its fields are the cause's."""

    @ray.remote
    def own():
        raise Mine(7, "own")

    error = caught(lambda: ray.get(own.remote()))
    return [isinstance(error, ray.exceptions.RayError), "own (7)" in str(error)]


def contract_fields_of_errors() -> object:
    class Coded(Exception):
        def __init__(self, code):
            super().__init__(code)
            self.code = code

    error = caught(lambda: ray.get(fail.remote(Coded(7))))
    return [types_of(error), error.code, error.cause.code]


def contract_an_error_that_does_not_pickle() -> object:
    @ray.remote
    def odd():
        raise Odd()

    error = caught(lambda: ray.get(odd.remote()))
    return [isinstance(error, ray.exceptions.RayTaskError), "odd one" in str(error)]


def contract_an_error_passes_through_tasks() -> object:
    @ray.remote
    def middle():
        return ray.get(fail.remote(ValueError("boom")))

    @ray.remote
    def outer():
        return ray.get(middle.remote())

    return error_of(lambda: ray.get(outer.remote()), "boom", "middle", "outer")


def contract_an_error_is_caught_in_a_task() -> object:
    @ray.remote
    def catcher():
        try:
            ray.get(fail.remote(ValueError("boom")))
        except ValueError as error:
            return types_of(error)

    return ray.get(catcher.remote())


def contract_an_error_of_an_actor_passes_through_a_task() -> object:
    @ray.remote
    class Failing:
        def fail(self):
            raise ValueError("boom")

    @ray.remote
    def ask(failing):
        return ray.get(failing.fail.remote())

    failing = Failing.remote()
    return error_of(lambda: ray.get(ask.remote(failing)), "boom")


def contract_raise_from() -> object:
    @ray.remote
    def chained():
        try:
            {}["key"]
        except KeyError as error:
            raise ValueError("outer") from error

    return error_of(lambda: ray.get(chained.remote()), "outer", "KeyError", "key")


def contract_an_error_returned_is_a_value() -> object:
    @ray.remote
    def give():
        return ValueError("a value")

    got = ray.get(give.remote())
    return [type(got).__name__, str(got)]


def contract_stop_iteration_and_timeouts() -> object:
    return [
        error_of(lambda error=error: ray.get(fail.remote(error)))
        for error in (StopIteration("x"), TimeoutError("x"), TimeoutError())
    ]


def contract_an_error_group() -> object:
    error = caught(lambda: ray.get(fail.remote(ExceptionGroup("group", [ValueError("one"), KeyError("two")]))))
    return [isinstance(error, ray.exceptions.RayTaskError), isinstance(error, ExceptionGroup), "one" in str(error)]


def contract_errors_pickle() -> object:
    error = caught(lambda: ray.get(fail.remote(ValueError("boom"))))
    again = ray.cloudpickle.loads(ray.cloudpickle.dumps(error))
    return [types_of(again), "boom" in str(again)]


def contract_as_instanceof_cause() -> object:
    error = caught(lambda: ray.get(fail.remote(ValueError("boom"))))
    both = ray.exceptions.RayTaskError("f", "trace", ValueError("x")).as_instanceof_cause()
    return [types_of(error.as_instanceof_cause()), types_of(both)]


def contract_the_tree_of_errors() -> object:
    names = (
        "RayError RayTaskError RayActorError ActorDiedError ActorUnavailableError GetTimeoutError TaskCancelledError "
    )
    names += "WorkerCrashedError ObjectLostError OwnerDiedError ObjectFreedError NodeDiedError OutOfMemoryError "
    names += "RuntimeEnvSetupError TaskUnschedulableError ActorUnschedulableError AsyncioActorExit RaySystemError "
    names += "PendingCallsLimitExceeded ObjectStoreFullError TaskPlacementGroupRemoved ActorPlacementGroupRemoved"
    tree = {}
    for name in names.split():
        kind = getattr(ray.exceptions, name)
        bases = [
            base.__name__ for base in kind.__mro__ if hasattr(ray.exceptions, base.__name__) or base is TimeoutError
        ]
        tree[name] = sorted(set(bases))
    return tree


def contract_an_actor_error_knows_its_actor() -> object:
    @ray.remote
    class Killed:
        def go(self):
            return 1

    killed = Killed.remote()
    ray.get(killed.go.remote())
    ray.kill(killed)
    error = caught(lambda: ray.get(killed.go.remote()))
    return [types_of(error), error.actor_id == killed._actor_id.hex()]


def contract_a_keyboard_interrupt_in_a_task() -> object:
    @ray.remote(max_retries=0)
    def interrupted():
        raise KeyboardInterrupt

    return isinstance(caught(lambda: ray.get(interrupted.remote())), ray.exceptions.RayError)


def contract_a_base_exception() -> object:
    class Base(BaseException):
        pass

    @ray.remote(max_retries=0)
    def based():
        raise Base("base")

    return isinstance(caught(lambda: ray.get(based.remote())), ray.exceptions.RayError)


def contract_system_exit_in_a_constructor() -> object:
    @ray.remote
    class Leaving:
        def __init__(self):
            raise SystemExit(1)

        def go(self):
            return 1

    return error_of(lambda: ray.get(Leaving.remote().go.remote()))


if __name__ == "__main__":
    answer(globals(), num_cpus=4)
