"""Errors arrive: of the cause's class too, whatever the cause is, with a text that says what and where."""

import asyncio
import errno
import inspect
import pickle
import subprocess
import sys
import textwrap
import threading

import cloudpickle
import pytest

from monarch_async import errors
from monarch_async.ray import exceptions
from monarch_async.ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
    RuntimeEnvSetupError,
    TaskCancelledError,
    TaskUnschedulableError,
    WorkerCrashedError,
    as_birth_error,
    as_ray_error,
)
from monarch_async.remote_error import remote_error


class TwoArguments(Exception):
    """Its constructor does not take what `BaseException` keeps of it; one field cannot be pickled."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code, self.lock = code, threading.Lock()


class Slotted(ValueError):
    __slots__ = ("place",)


class Refuses(Exception):
    def __reduce__(self):
        raise TypeError("not me")


class Final(Exception):
    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def _raised(error: BaseException) -> RayTaskError:
    """As a worker sends what a task has raised."""
    try:
        raise error
    except BaseException as caught:
        return RayTaskError.of(caught, "module.task")


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize(
    "cause",
    [
        ValueError("text"),
        KeyError("key"),
        StopIteration(3),
        FileNotFoundError(errno.ENOENT, "no such file", "/there"),
        UnicodeDecodeError("utf8", b"x", 0, 1, "why"),
        ExceptionGroup("several", [ValueError(1), KeyError(2)]),
        asyncio.CancelledError(),
        TwoArguments(7, "seven"),
        Slotted("slots"),
        Refuses("refused"),
        Mute(),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_is_both_classes_and_survives_pickling_twice(cause, dumps):
    arrived = pickle.loads(dumps(_raised(cause)))
    joined = arrived.as_instanceof_cause()
    assert isinstance(joined, RayTaskError) and isinstance(joined, type(cause))
    again = pickle.loads(dumps(joined))
    assert type(again) is type(joined) and str(again) == str(joined)
    assert type(again.cause) is type(cause)
    assert "module.task raised" in str(again) and "raise error" in str(again) and __file__ in str(again)
    assert repr(again.args) == repr(cause.args)


def test_has_the_fields_of_the_cause():
    there = pickle.loads(pickle.dumps(_raised(TwoArguments(7, "seven")))).as_instanceof_cause()
    assert there.code == 7 and "lock" in there.lock
    lost = pickle.loads(pickle.dumps(_raised(FileNotFoundError(errno.ENOENT, "none", "/x")))).as_instanceof_cause()
    assert lost.errno == errno.ENOENT and lost.filename == "/x"


@pytest.mark.parametrize("cause", [Final("no"), SystemExit(3), KeyboardInterrupt()])
def test_what_cannot_be_joined_is_a_plain_error_that_names_it(cause):
    joined = pickle.loads(pickle.dumps(_raised(cause))).as_instanceof_cause()
    assert type(joined) is RayTaskError
    assert type(joined.cause) is type(cause) and type(cause).__name__ in str(joined)


def test_futures_get_no_error_that_means_something_to_them():
    assert type(_raised(StopIteration(1)).for_future()) is RayTaskError
    assert type(_raised(asyncio.CancelledError()).for_future()) is RayTaskError
    assert isinstance(_raised(ValueError(1)).for_future(), ValueError)


def test_each_get_has_an_error_of_its_own():
    sent = _raised(ValueError("x"))
    assert sent.as_instanceof_cause() is not sent.as_instanceof_cause()
    assert type(sent.as_instanceof_cause()) is type(sent.as_instanceof_cause())
    again = as_ray_error(sent, "task")
    assert again is not sent and isinstance(again, ValueError)
    died = ActorDiedError("because", "ab")
    assert as_ray_error(died, "x") is not died and str(as_ray_error(died, "x")) == str(died)


def test_error_that_goes_through_another_task_keeps_the_innermost_cause():
    inner = pickle.loads(pickle.dumps(_raised(KeyError("deep")))).as_instanceof_cause()

    def outer_task():
        raise inner

    try:
        outer_task()
    except Exception as caught:
        outer = RayTaskError.of(caught, "module.outer").as_instanceof_cause()
    assert isinstance(outer, KeyError) and isinstance(outer.cause, KeyError)
    assert not isinstance(outer.cause, RayTaskError)
    text = str(outer)
    assert text.index("module.outer raised") < text.index("module.task raised") < text.index("in outer_task")


def test_cause_raised_from_another_is_told_with_it():
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise ValueError("second") from first
    except ValueError as caught:
        text = str(RayTaskError.of(caught, "f"))
    assert text.index("KeyError: 'first'") < text.index("ValueError: second", text.index("direct cause"))


def test_class_of_main_arrives_in_a_process_that_has_it_not(tmp_path):
    program = """
    import pickle, sys
    from monarch_async.ray.exceptions import RayTaskError
    class Own(Exception):
        def __init__(self, a, b):
            super().__init__(a)
            self.b = b
    try:
        raise Own(1, [2])
    except Own as error:
        sys.stdout.buffer.write(pickle.dumps(RayTaskError.of(error, "f").as_instanceof_cause()))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=True)
    arrived = pickle.loads(done.stdout)
    assert type(arrived).__name__ == "RayTaskError(Own)" and type(arrived.cause).__name__ == "Own"
    assert arrived.b == [2] and arrived.args == (1,)


def test_class_of_a_module_that_is_not_here_leaves_the_text(tmp_path):
    (tmp_path / "only_there.py").write_text("class Gone(Exception): pass\n")
    program = f"""
    import sys
    sys.path.insert(0, {str(tmp_path)!r})
    import pickle, only_there
    from monarch_async.ray.exceptions import RayTaskError
    error = RayTaskError.of(only_there.Gone("the facts"), "f")
    sys.stdout.buffer.write(pickle.dumps(error))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=True)
    arrived = pickle.loads(done.stdout)
    assert type(arrived.as_instanceof_cause()) is not ValueError and isinstance(arrived.cause, RayError)
    assert "only_there" in str(arrived.cause) and "the facts" in str(arrived)


_DEATH = errors.ProcDied("workers[3]", "host1", None, 9, False, ("last words",), pid=17)
_STARVED = errors.ProcDied("workers[3]", "host1", None, 9, True)


@pytest.mark.parametrize(
    ("native", "of_task", "of_actor"),
    [
        (_DEATH, WorkerCrashedError, ActorDiedError),
        (_STARVED, OutOfMemoryError, ActorDiedError),
        (errors.Poisoned("f", (_STARVED, _STARVED)), OutOfMemoryError, ActorDiedError),
        (errors.Poisoned("f", (_STARVED, _DEATH)), WorkerCrashedError, ActorDiedError),
        (errors.HostLost("host1", "silent"), NodeDiedError, ActorDiedError),
        (errors.ActorDied("a[0]", "host1", "unhandled"), WorkerCrashedError, ActorDiedError),
        (errors.SpawnFailed("p", "host1", "no such directory"), RuntimeEnvSetupError, ActorDiedError),
        (errors.Preempted("placement", "other"), WorkerCrashedError, ActorDiedError),
        (errors.Unschedulable("f", "9 cpus are 5 more"), TaskUnschedulableError, ActorUnschedulableError),
        (errors.ObjectLost("object 3", "its host is gone"), ObjectLostError, ObjectLostError),
        (errors.StoreFull("object 3", "8 GiB"), ObjectStoreFullError, ObjectStoreFullError),
        (errors.BadFrame("short"), RaySystemError, RaySystemError),
        (asyncio.CancelledError(), TaskCancelledError, TaskCancelledError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_native_errors_become_those_of_ray_and_keep_their_facts(native, of_task, of_actor):
    for actor_id, expected in (("", of_task), ("ab12", of_actor)):
        error = as_ray_error(native, "work", actor_id)
        assert type(error) is expected
        assert str(native) in str(error) or isinstance(native, errors.ObjectLost | asyncio.CancelledError)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is expected and str(again) == str(error)
        if isinstance(error, RayActorError):
            assert error.actor_id == "ab12" and "ab12" in str(error)


def test_remote_error_becomes_one_of_both_classes():
    native = remote_error(
        0, {}, "workers[0]", "run", "host1", "builtins.KeyError", "'k'", "the traceback", KeyError("k")
    )
    error = as_ray_error(native, "Counter.add", "ab12")
    assert isinstance(error, RayTaskError) and isinstance(error, KeyError)
    assert error.function_name == "Counter.add" and error.actor_id == "ab12" and "the traceback" in str(error)


def test_actor_whose_init_raised_says_so():
    native = remote_error(0, {}, "a[0]", "__init__", "host1", "builtins.ValueError", "v", "trace", ValueError("v"))
    for told in (native, RayTaskError("A.__init__", "trace", ValueError("v"), actor_id="ab12")):
        error = pickle.loads(pickle.dumps(as_birth_error(told, "A.__init__", "ab12")))
        assert isinstance(error, ActorDiedError) and error.actor_init_failed
        assert isinstance(error.cause, RayTaskError) and isinstance(error.cause.cause, ValueError)
        assert "ValueError: v" in str(error) and "trace" in str(error) and error.actor_id == "ab12"
    plain = as_birth_error(_DEATH, "A.__init__", "ab12")
    assert isinstance(plain, ActorDiedError) and not plain.actor_init_failed
    assert "SIGKILL" in str(plain) and "last words" in str(plain)


def _public():
    found = [value for value in vars(exceptions).values() if isinstance(value, type) and issubclass(value, RayError)]
    assert len(found) > 30
    return found


@pytest.mark.parametrize("cls", _public())
def test_every_class_pickles_and_has_a_text(cls):
    own = list(inspect.signature(cls.__init__).parameters.values())[1:]
    needed = [each for each in own if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    error = cls(*["fact"] * len(needed))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls and str(again) == str(error) and again.__dict__ == error.__dict__
    assert issubclass(cls, RayError)
    assert str(error) or cls in (RayError, exceptions.GetTimeoutError) or not cls.standing


def test_two_of_them_are_builtin_errors_as_well():
    assert issubclass(exceptions.GetTimeoutError, TimeoutError)
    assert issubclass(exceptions.ActorHandleNotFoundError, ValueError)
    assert issubclass(ActorDiedError, RayActorError)
