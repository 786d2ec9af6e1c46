"""`inspect_serializability`: what of a value, a function or a class keeps it from being sent."""

import sys
from dataclasses import dataclass
from typing import Any, TextIO

from monarch_async.ray.payload import pack


@dataclass(frozen=True, eq=False)
class FailureTuple:
    """What does not pickle. ``name`` is the path to it, such as ``config['lock']``, and why."""

    obj: object
    name: str
    parent: object


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: TextIO | None = None
) -> tuple[bool, set[FailureTuple]]:
    """Return whether something can be sent, and if not, the path to what keeps it from that; print the same.

    ``depth`` is not asked: the path goes all the way.
    """
    called = name or getattr(base_obj, "__qualname__", None) or type(base_obj).__name__
    try:
        pack(base_obj, called)
    except TypeError as error:
        print(error, file=print_file or sys.stdout)
        return False, {FailureTuple(base_obj, str(error), None)}
    print(f"{called} can be pickled", file=print_file or sys.stdout)
    return True, set()
