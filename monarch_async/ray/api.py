"""`get`, `put`, `wait` and the other functions of the facade that are about objects and actors."""

import functools
import inspect
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

from monarch_async.ray.actor_class import NOTES, ActorClass, make_actor_class
from monarch_async.ray.actor_handle import ActorHandle
from monarch_async.ray.entry import Entry, load
from monarch_async.ray.exceptions import GetTimeoutError
from monarch_async.ray.generator import ObjectRefGenerator
from monarch_async.ray.object_ref import ObjectRef
from monarch_async.ray.options import check_method_options
from monarch_async.ray.payload import LARGE, Packed, nbytes_of, own, pack, store
from monarch_async.ray.remote_function import RemoteFunction
from monarch_async.ray.runtime import Runtime, current

# -- what is remote ----------------------------------------------------------------------------------------------------


def remote(*args: Any, **options: Any) -> Any:
    """Make a function a remote function, or a class an actor class: ``@remote``, or ``@remote(num_cpus=2)``.

    See `options` for what may be said. Raises TypeError, ValueError and NotImplementedError for what may not.
    """
    if len(args) == 1 and not options and callable(args[0]):
        return _make(args[0], {})
    if args or not options:
        raise TypeError("@remote takes options by name, such as @remote(num_cpus=2), or nothing")
    return functools.partial(_make, given=options)


def _make(target: Any, given: dict[str, Any]) -> Any:
    if isinstance(target, ActorClass | RemoteFunction):
        raise TypeError(f"@remote of {target!r}: it is remote already; say other options by .options(...)")
    if isinstance(target, type):
        return make_actor_class(target, given)
    if inspect.isroutine(target) or callable(target):
        return RemoteFunction(target, given)
    raise TypeError(f"@remote of {target!r}: expected a function or a class")


def method(*args: Any, **options: Any) -> Any:
    """Say options of an actor's method: ``@method(num_returns=2)``, ``@method(concurrency_group="io")``."""
    if args or not options:
        raise TypeError("@method takes options by name, such as @method(num_returns=2)")
    checked = check_method_options(options)

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, NOTES, checked)
        return function

    return note


# -- objects -----------------------------------------------------------------------------------------------------------


def put(value: Any) -> ObjectRef[Any]:
    """Keep a copy of a value; return its reference. One of 1 MiB or more is shared by all processes of its host."""
    if isinstance(value, ObjectRef):
        raise TypeError("put() of an ObjectRef: it is a reference already; put it into a list to refer to it")
    runtime = current()
    packed = pack(value, "value")
    if nbytes_of(packed) >= LARGE:
        if runtime.is_on_loop:
            entry = runtime.new_entry("ray.put")
            runtime.start(_store(runtime, own(packed), entry))
            return ObjectRef(entry)
        return _put(runtime, runtime.run(store(packed, runtime.domain)))
    return _put(runtime, own(packed))


def _put(runtime: Runtime, packed: Packed) -> ObjectRef[Any]:
    if runtime.context.lend is not None and not runtime.is_driver:  # a task's process may end soon: the hub owns it
        number = runtime.take_number()
        runtime.post(runtime.tell_hub, "objects.put", number, packed)
        return runtime.borrowed(number)
    entry = runtime.new_entry("ray.put")
    entry.complete(packed)
    return ObjectRef(entry)


async def _store(runtime: Runtime, packed: Any, entry: Entry) -> None:
    try:
        entry.complete(await store(packed, runtime.domain))
    except BaseException as error:
        entry.fail(error)


def get(object_refs: Any, *, timeout: float | None = None, **_hints: object) -> Any:
    """Wait for an object and return its value, or for several and return a list of them, in their order.

    Raises what the call raised, as `exceptions` says; GetTimeoutError after ``timeout`` seconds; RuntimeError on the
    thread of an event loop that the value would come by (``await ref`` there); ValueError or TypeError for anything but
    references.
    """
    runtime = current()
    if type(object_refs) is ObjectRef:
        entry = object_refs._entry
        if not entry.is_done:
            _wait(runtime, [entry], timeout)
        elif runtime.is_on_loop:
            runtime.check_may_wait("ray.get", "await ref")
        return load(entry)
    runtime.check_may_wait("ray.get", "await ref")
    if isinstance(object_refs, ObjectRefGenerator) or not isinstance(object_refs, list | tuple):
        raise ValueError(f"get() takes an ObjectRef or a list of them, not {type(object_refs).__name__}")
    entries = [_entry_of(ref) for ref in object_refs]
    for entry in entries:  # one error is raised, and stands for those of all
        entry.see()
    _wait(runtime, entries, timeout)
    for entry in entries:  # the first that has failed, whether or not those before it are there
        if entry.error is not None:
            raise runtime.error_of(entry)
    return [load(entry) for entry in entries]


def _entry_of(ref: object) -> Entry:
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"get() takes an ObjectRef or a list of them, and this has {type(ref).__name__}: {ref!r}")
    return ref._entry


def _wait(runtime: Runtime, entries: Sequence[Entry], timeout: float | None) -> None:
    if timeout is not None and timeout < 0:
        timeout = None
    if not runtime.wait_all(entries, timeout):
        missing = sum([not entry.is_done for entry in entries])
        what = next((entry.what for entry in entries if not entry.is_done), "")
        raise GetTimeoutError(f"get() waited {timeout:g} s; {missing} of {len(entries)} are not there, first {what}")


def wait(
    object_refs: Sequence[Any],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[Any], list[Any]]:
    """Wait until ``num_returns`` objects are there, or failed; return (those, the others), each in the order given.

    Not more than ``num_returns`` are in the first list. ``timeout`` in seconds; None waits. Raises TypeError and
    ValueError for what makes no sense.
    """
    if isinstance(object_refs, ObjectRef) or not isinstance(object_refs, list | tuple):
        raise TypeError(f"wait() takes a list of ObjectRefs, not {type(object_refs).__name__}")
    if timeout is not None and timeout < 0:
        raise ValueError(f"wait(timeout={timeout}): it cannot be negative")
    refs = list(object_refs)
    if not refs:
        return [], []
    runtime = current()
    waitables = _waitables_of(refs)
    if num_returns <= 0 or num_returns > len(refs):
        raise ValueError(f"wait(num_returns={num_returns}) of {len(refs)} ObjectRefs")
    runtime.check_may_wait("ray.wait", "asyncio.wait")
    runtime.wait_done(waitables, num_returns, timeout)
    done = [waitable.is_done for waitable in waitables]
    if num_returns == len(refs) and all(done):
        return refs, []
    ready = list(itertools.islice(itertools.compress(refs, done), num_returns))
    if len(ready) < num_returns:
        return ready, list(itertools.compress(refs, [not is_done for is_done in done]))
    rest: list[Any] = []
    left = num_returns
    for ref, is_done in zip(refs, done, strict=True):
        if is_done and left:
            left -= 1
        else:
            rest.append(ref)
    return ready, rest


def _waitables_of(refs: Sequence[Any]) -> list[Any]:
    """Return what is waited for. Raises TypeError for what is no reference, ValueError for one given twice."""
    if set(map(type, refs)) == {ObjectRef}:
        waitables: list[Any] = [ref._entry for ref in refs]
    else:
        for ref in refs:
            if not isinstance(ref, ObjectRef | ObjectRefGenerator):
                raise TypeError(f"wait() takes a list of ObjectRefs, and this has {type(ref).__name__}: {ref!r}")
        waitables = [ref._entry if isinstance(ref, ObjectRef) else ref for ref in refs]
    if len(set(map(id, waitables))) < len(waitables):
        raise ValueError("wait() was given the same ObjectRef twice")
    return waitables


def cancel(ref: Any, *, force: bool = False, recursive: bool = True) -> None:
    """Cancel the call that an object is to be the result of; getting it raises TaskCancelledError then.

    A task that waits is dropped; a running one is ended with its worker; a coroutine of an actor is cancelled, a plain
    method goes on. ``recursive``: what a cancelled task has started is cancelled with it.
    """
    runtime = current()
    if isinstance(ref, ObjectRefGenerator):
        runtime.post(ref.cancel, force)
        return
    if not isinstance(ref, ObjectRef):
        raise TypeError(f"cancel() takes an ObjectRef, not {type(ref).__name__}")
    if force and ref._entry.actor:
        raise ValueError("force=True is for tasks: ray.kill(actor) ends an actor")
    runtime.post(runtime.borrowing.cancel, ref._entry, force, recursive)


# -- actors ------------------------------------------------------------------------------------------------------------


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """Return a handle of the living actor of this name. Raises ValueError where there is none."""
    if not name:
        raise ValueError("get_actor() needs a name")
    runtime = current()
    space = namespace or runtime.context.namespace or runtime.namespace
    return ActorHandle(*runtime.ask_hub("actors.get", name, space))


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End an actor at once: its running calls fail. With ``no_restart=False`` it is made anew, if it may be."""
    if not isinstance(actor, ActorHandle):
        raise ValueError(f"kill() takes a handle of an actor, not {type(actor).__name__}; cancel() ends tasks")
    runtime = current()
    if runtime.is_on_loop:
        runtime.post(runtime.tell_hub, "actors.kill", actor._facts.actor, not no_restart)
    else:
        runtime.ask_hub("actors.kill", actor._facts.actor, not no_restart)


def timeline(filename: str | None = None) -> list[dict[str, Any]] | None:
    """Return what tasks ran, as events of Chrome's trace format; write them to a file where one is named."""
    runtime = current()
    events: list[dict[str, Any]] = runtime.ask_hub("tasks.events")
    if filename is None:
        return events
    with open(filename, "w") as file:
        json.dump(events, file)
    return None


