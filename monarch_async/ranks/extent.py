"""Named sizes, and the points inside them.

`Extent` says which axes a mesh has and how long each is; `Point` is one member's place in it. Both are
mappings by axis name, so that ``mesh.slice(**point)`` and ``dict(extent)`` work. Axis names must be able to
stand as keyword arguments, since that is how every caller writes them.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from math import prod
from typing import SupportsIndex, TypeVar, overload

from monarch_async.errors import AxisError, ExtentError, RankError

_D = TypeVar("_D")


class _ByAxis(Mapping[str, int]):
    """A mapping by axis name: what `Mapping` leaves to KeyError is an `AxisError` here."""

    __slots__ = ()

    def __contains__(self, axis: object) -> bool:
        return any(axis == known for known in self)

    @overload
    def get(self, axis: str, /) -> int | None: ...
    @overload
    def get(self, axis: str, default: int | _D, /) -> int | _D: ...
    def get(self, axis: str, default: object = None, /) -> object:
        """Return the number at ``axis``, or ``default`` where there is no such axis."""
        try:
            return self[axis]
        except AxisError:
            return default

    def __str__(self) -> str:
        return " ".join(f"{axis}={number}" for axis, number in self.items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{axis}={number}' for axis, number in self.items())})"


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Extent(_ByAxis):
    """Ordered axis names and their sizes, each at least 1; no axes at all is the extent of a single member.

    Equal to an extent of the same sizes in the same order, and (as `OrderedDict` is) to a dict in any order.

    Fields: ``axes`` and ``sizes`` in order; ``size``, the number of members; ``strides``, by how much the
    rank grows with one step along each axis.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    size: int
    strides: tuple[int, ...]

    def __init__(self, /, **sizes: int) -> None:
        """Raise `ExtentError` for a name that is no identifier or a size that is no integer from 1 up."""
        self._fill(sizes.items())

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> "Extent":
        """Make an extent from a mapping of axis names to sizes; raise as the constructor does."""
        if not isinstance(sizes, Mapping):
            raise ExtentError(f"an extent maps axis names to sizes, which {sizes!r} does not")
        return sizes if isinstance(sizes, Extent) else cls.of_pairs(sizes.items())

    @classmethod
    def of_pairs(cls, pairs: Iterable[tuple[str, int]]) -> "Extent":
        """Make an extent from (axis name, size) pairs; raise `ExtentError`, also where a name is repeated."""
        extent = cls.__new__(cls)
        extent._fill(pairs)
        return extent

    def _fill(self, pairs: Iterable[tuple[str, int]]) -> None:
        sizes: dict[str, int] = {}
        for axis, size in pairs:
            if check_name(axis) in sizes:
                raise ExtentError(f"axis {axis} is given twice")
            sizes[axis] = check_size(axis, size)
        object.__setattr__(self, "axes", tuple(sizes))
        object.__setattr__(self, "sizes", tuple(sizes.values()))
        object.__setattr__(self, "size", prod(self.sizes))
        object.__setattr__(self, "strides", row_major(self.sizes))

    def __getitem__(self, axis: str) -> int:
        return self.sizes[self.index(axis)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.axes)

    def __len__(self) -> int:
        return len(self.axes)

    def index(self, axis: str) -> int:
        """Return the place of ``axis`` among the axes; raise `AxisError` if there is none of that name."""
        try:
            return self.axes.index(axis)
        except ValueError:
            raise AxisError(axis, self.axes) from None

    def point(self, rank: SupportsIndex) -> "Point":
        """Return the point of a rank, which may count from the end; raise `RankError` outside the extent."""
        return Point(self, position("rank", rank, self.size))

    def rank(self, /, **coordinates: int) -> int:
        """Return the rank of the member at these coordinates, one for each axis.

        Negative ones count from the end. Raises `AxisError` for an unknown axis, `RankError` outside it,
        `ExtentError` where an axis is left out.
        """
        for axis in coordinates:
            self.index(axis)
        missing = [axis for axis in self.axes if axis not in coordinates]
        if missing:
            raise ExtentError(f"no coordinate for {', '.join(missing)}: a member is named by all of {self!r}")
        steps = zip(self.axes, self.sizes, self.strides, strict=True)
        return sum(position(f"{axis} index", coordinates[axis], size) * step for axis, size, step in steps)

    def points(self) -> Iterator["Point"]:
        """Yield every point in rank order."""
        return (Point(self, rank) for rank in range(self.size))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Extent):
            return self.axes == other.axes and self.sizes == other.sizes
        return dict(self) == other if isinstance(other, dict) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.axes, self.sizes))

    def __reduce__(self) -> tuple[object, ...]:
        return Extent.of_pairs, (tuple(self.items()),)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Point(_ByAxis):
    """One member's place: its ``rank`` in ``extent`` and, by axis name, its coordinates.

    Made by `Extent.point`, which checks. Equal to a point of the same rank in an equal extent, and to a plain
    dict of the same coordinates.
    """

    extent: Extent
    rank: int

    def __getitem__(self, axis: str) -> int:
        at = self.extent.index(axis)
        return self.rank // self.extent.strides[at] % self.extent.sizes[at]

    def __iter__(self) -> Iterator[str]:
        return iter(self.extent)

    def __len__(self) -> int:
        return len(self.extent)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Point):
            return self.rank == other.rank and self.extent == other.extent
        return dict(self) == other if isinstance(other, dict) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.extent, self.rank))


def position(what: str, index: SupportsIndex, size: int) -> int:
    """Return ``index`` counted from the start, where a negative one counts from the end of ``size``.

    ``what`` names it in the error: `RankError` outside ``-size .. size - 1``, `ExtentError` for what is no
    integer.
    """
    number = _integer(index)
    if number is None:
        raise ExtentError(f"{what} {index!r} is not an integer")
    if not -size <= number < size:
        raise RankError(what, number, size)
    return number + size if number < 0 else number


def check_name(axis: str) -> str:
    """Return ``axis`` if it can name one; raise `ExtentError` otherwise."""
    if isinstance(axis, str) and axis.isidentifier() and not iskeyword(axis) and not axis.startswith("_"):
        return axis
    raise ExtentError(
        f"{axis!r} cannot name an axis: a name is an identifier, is no keyword and starts with no underscore"
    )


def check_size(axis: str, size: SupportsIndex) -> int:
    """Return ``size`` as an int if an axis can be that long; raise `ExtentError` otherwise."""
    number = _integer(size)
    if number is None or number < 1:
        raise ExtentError(f"axis {axis} cannot have size {size!r}: a size is an integer of at least 1")
    return number


def row_major(sizes: Iterable[int]) -> tuple[int, ...]:
    """Return by how much a rank grows with one step along each axis, the last axis running fastest."""
    strides: list[int] = []
    step = 1
    for size in reversed(tuple(sizes)):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _integer(value: object) -> int | None:
    # True would pass for 1; where somebody writes it here they mean a mask or a flag, and neither exists.
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
