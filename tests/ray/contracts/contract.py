"""What the programs of this folder share.

Each program is a script that imports ``ray``, this file and the standard library. Its functions ``contract_<what>``
each try one thing that Ray documents and return what came of it as data. ``python tasks.py ANSWERS [names]`` writes a
line of JSON for each. The same file runs under Ray and under ``python -m monarch_async.ray``; both answer the same.
"""

import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import ray

#: Seconds that one contract may take; most take a tenth of one.
LIMIT = 40


def differs(reason: str, answer: object) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Marks a contract where the facade answers otherwise on purpose: why, and what it answers."""

    def mark(contract: Callable[[], object]) -> Callable[[], object]:
        contract.differs = {"reason": reason, "answer": answer}  # type: ignore[attr-defined]
        return contract

    return mark


def types_of(error: BaseException) -> list[str]:
    """The names of the public classes that ``error`` is an instance of, but for those that every exception is of."""
    found = []
    for kind in type(error).__mro__:
        ours = getattr(ray.exceptions, kind.__name__, None) is kind
        users = not kind.__module__.startswith(("ray", "monarch_async"))
        if (ours or users) and kind not in (object, BaseException, Exception):
            found.append(kind.__name__)
    return sorted(found)


def error_of(call: Callable[[], object], *says: str) -> dict[str, object]:
    """What ``call()`` raises: its types, and which of the words its text has."""
    try:
        value = call()
    except BaseException as error:
        if isinstance(error, OutOfTime):
            raise
        text = str(error)
        return {"types": types_of(error), "says": [word for word in says if word in text]}
    return {"no error": value if isinstance(value, bool | int | float | str | None) else type(value).__name__}


def is_cancelled(call: Callable[[], object]) -> bool:
    """Whether ``call()`` raises the error of what was cancelled."""
    types = error_of(call).get("types")
    return isinstance(types, list) and "TaskCancelledError" in types


def until(condition: Callable[[], object], seconds: float = 15) -> bool:
    """Whether ``condition()`` comes true within that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_running(pid: int) -> bool:
    """Whether a process of that id runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Tally:
    """Lines of a file that every process may add to: counts what really ran."""

    def __init__(self) -> None:
        handle, self.path = tempfile.mkstemp()
        os.close(handle)

    def add(self, line: object = "x") -> int:
        """Add a line; returns how many there are."""
        with open(self.path, "a") as file:
            file.write(f"{line}\n")
        return len(self.lines())

    def lines(self) -> list[str]:
        return Path(self.path).read_text().splitlines()


class Gate:
    """What is shut until somebody opens it, in whatever process."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp()

    def open(self) -> None:
        Path(self.path, "open").touch()

    def is_open(self) -> bool:
        return Path(self.path, "open").exists()

    def wait(self, seconds: float = 20) -> bool:
        return until(self.is_open, seconds)


class OutOfTime(BaseException):
    """A contract took longer than LIMIT."""


def _out_of_time(_signal: int, _frame: object) -> None:
    raise OutOfTime


def answer_one(contract: Callable[[], object]) -> dict[str, object]:
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    faulthandler.dump_traceback_later(LIMIT + 10, exit=True)  # where the signal does not help
    try:
        answer = contract()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        traceback.print_exc()
        answer = {"raised": type(error).__name__, "text": str(error)[-2000:]}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    told = {"name": contract.__name__, "answer": answer, "seconds": round(time.monotonic() - began, 3)}
    return told | {"differs": getattr(contract, "differs", None)}


def answer(program: Mapping[str, object], **init: object) -> None:
    """Run the contracts among a program's globals with one cluster, started with ``init`` (none if it is empty)."""
    wanted = sys.argv[2:]
    signal.signal(signal.SIGALRM, _out_of_time)
    if init:
        ray.init(include_dashboard=False, log_to_driver=False, **init)
    with open(sys.argv[1], "w") if len(sys.argv) > 1 else os.fdopen(os.dup(1), "w") as out:
        for name, contract in list(program.items()):
            if name.startswith("contract_") and callable(contract) and (not wanted or name in wanted):
                if not init:
                    ray.shutdown()  # one that failed may have left a session
                print(json.dumps(answer_one(contract)), file=out, flush=True)
    if init:
        ray.shutdown()
