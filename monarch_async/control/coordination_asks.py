"""What is asked of locks, queues and the like, what is to be done about it, and who waits in which order. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from monarch_async.errors import Error

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: of which process, by what number of its own; what tables call who asked; when, on the home's clock."""

    address: int
    call: int
    who: str
    since: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell who asked."""

    ask: Ask
    value: Any


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell who asked that it will not be."""

    ask: Ask
    error: Error


@dataclass(frozen=True, slots=True)
class Discard:
    """Nobody here needs these shared objects any longer, each once for every item that brought it."""

    objects: Sequence[bytes]


Command = Answer | Refuse | Discard


@dataclass(frozen=True, slots=True)
class Row:
    """Who holds something, or waits for it, and since when."""

    who: str
    address: int
    since: float
    what: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a table shows of one lock, queue or the like."""

    state: str
    holders: Sequence[Row]
    waiting: Sequence[Row]


#: An error of this package, or the report of any, which nobody here looks at; None: there was none.
Failure = Error | bytes | None


class Primitive(Protocol):
    """One lock, semaphore, event, barrier or queue, as its home has it. Each event returns what is to be done."""

    #: What may be asked, by name: methods that take the ask and further arguments.
    operations: ClassVar[frozenset[str]]

    @property
    def params(self) -> tuple[int, ...]:
        """What it was made with."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether a new one would be the same."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether all that is left of it is that it has ended, with this or without a failure."""
        ...

    @property
    def failure(self) -> Failure:
        """What it has ended with."""
        ...

    def withdraw(self, address: int, call: int) -> list[Command]:
        """Who asked was cancelled: it waits no longer; what it was granted meanwhile, it has not got."""
        ...

    def gone(self, address: int, why: Error) -> list[Command]:
        """A process has ended."""
        ...

    def end(self) -> list[Command]:
        """Nobody is left who could use it."""
        ...

    def facts(self) -> Facts:
        """Return what tables show."""
        ...


class Stamps:
    """The home's time, as of the event that is being handled, and its fencing tokens."""

    __slots__ = ("now", "token")

    def __init__(self, first_token: int) -> None:
        """``first_token``: larger than all of an earlier home, as far as anybody can know."""
        self.now, self.token = 0.0, first_token - 1

    def next_token(self) -> int:
        """Return one larger than all before it."""
        self.token += 1
        return self.token


class Waiting(Generic[T]):
    """Who waits, first come first served, each for something; found by process as well."""

    __slots__ = ("_by_address", "_entries")

    def __init__(self) -> None:
        """Nobody."""
        self._entries: dict[tuple[int, int], tuple[Ask, T]] = {}
        self._by_address: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[Ask, T]]:
        return iter(self._entries.values())

    def add(self, ask: Ask, what: T) -> None:
        """Put it last. Raises ValueError for one that waits already."""
        key = ask.address, ask.call
        if key in self._entries:
            raise ValueError(f"call {ask.call} waits already")
        self._entries[key] = ask, what
        self._by_address.setdefault(ask.address, set()).add(ask.call)

    def has(self, address: int) -> bool:
        """Return whether a process is among them."""
        return address in self._by_address

    def first(self) -> tuple[Ask, T] | None:
        """Return who has waited longest."""
        return next(iter(self._entries.values()), None)

    def take(self, address: int, call: int) -> tuple[Ask, T] | None:
        """Return one, which waits no longer; None: it does not wait."""
        entry = self._entries.pop((address, call), None)
        if entry is not None:
            calls = self._by_address[address]
            calls.discard(call)
            if not calls:
                del self._by_address[address]
        return entry

    def take_first(self) -> tuple[Ask, T]:
        """Return who has waited longest, and waits no longer."""
        address, call = next(iter(self._entries))
        entry = self.take(address, call)
        assert entry is not None
        return entry

    def take_all(self, address: int | None = None) -> list[tuple[Ask, T]]:
        """Return all (of a process), who wait no longer, in order."""
        if address is None:
            taken = list(self._entries.values())
            self._entries.clear()
            self._by_address.clear()
            return taken
        calls = sorted(self._by_address.pop(address, ()))
        return [self._entries.pop((address, call)) for call in calls]

    def rows(self, describe: Callable[[T], str]) -> list[Row]:
        """Return them for a table."""
        return [Row(ask.who, ask.address, ask.since, describe(what)) for ask, what in self]
