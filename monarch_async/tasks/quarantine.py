"""Tasks that were set aside, since they have ended every worker that tried them."""

import hashlib
import reprlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from monarch_async.wire.payload import Encoded, loads

#: How many are remembered; the oldest go.
MOST = 256

#: So many arguments are shown.
_SHOWN = 16

Key = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One of them. ``arguments`` is their (shortened) repr, ``at`` when it was set aside, in seconds of Unix time.

    As long as it is here, the same function with the same arguments is refused at once, with `Poisoned`.
    """

    task: str
    arguments: str
    deaths: tuple[Exception, ...]
    at: float
    _release: Callable[[], None] = field(repr=False, compare=False)

    def release(self) -> None:
        """Let it be tried again."""
        self._release()


class Quarantine:
    """Those of one process."""

    def __init__(self) -> None:
        """Empty."""
        self._by_key: OrderedDict[Key, Quarantined] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __iter__(self) -> Iterator[Quarantined]:
        return iter(list(self._by_key.values()))

    def add(self, key: Key, task: str, arguments: str, deaths: Sequence[Exception], at: float) -> None:
        """Set a task aside."""
        self._by_key[key] = Quarantined(task, arguments, tuple(deaths), at, lambda: self._forget(key))
        self._by_key.move_to_end(key)
        if len(self._by_key) > MOST:
            self._by_key.popitem(last=False)

    def _forget(self, key: Key) -> None:
        self._by_key.pop(key, None)

    def find(self, function: bytes, encoded: Encoded) -> Quarantined | None:
        """Return the entry of a task that was set aside before."""
        if not any(known == function for known, _ in self._by_key):  # arguments may be long
            return None
        return self._by_key.get(key_of(function, encoded))


def shown(encoded: Encoded) -> str:
    """Return the arguments of a task as a text of bounded length."""
    try:
        (_, _, _, args, kwargs), _ = loads(*encoded)  # type: ignore[misc]
        parts = [reprlib.repr(value) for value in args]
        parts += [f"{name}={reprlib.repr(value)}" for name, value in kwargs.items()]
    except Exception as error:  # they are somebody's classes
        return f"(arguments that cannot be shown: {type(error).__name__})"
    return f"({', '.join(parts[:_SHOWN])}{', ...' if len(parts) > _SHOWN else ''})"


def key_of(function: bytes, encoded: Encoded) -> Key:
    """Return what tells a task from others: its function and arguments. With references in them no two are the same."""
    digest = hashlib.blake2b(encoded.skeleton, digest_size=16)
    for buffer in encoded.buffers:
        digest.update(buffer)
    return function, digest.digest()
