"""What the members of a mesh answered: one value for each, with the mesh's shape.

A value mesh is local and complete: it holds values, not promises of them. It is sliced like every mesh, and
for the same reason it goes through `Region`: a slice of the results must mean the members that a slice of the
callees means.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from reprlib import Repr
from typing import Generic, SupportsIndex, TypeVar

from monarch_async.errors import ExtentError
from monarch_async.ranks import Extent, Point, Region
from monarch_async.ranks.extent import position
from monarch_async.ranks.region import AxisIndex, AxisSplit

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")

_SHOWN = 8
_short = Repr()
_short.maxother = _short.maxstring = 60


@dataclass(frozen=True, slots=True, init=False, repr=False)
class ValueMesh(Generic[T_co]):
    """One value for each member of a mesh of this ``extent``, in rank order.

    Two are equal where extents and values are, so not where comparing two values gives no bool (tensors).
    """

    extent: Extent
    _values: tuple[T_co, ...]

    def __init__(self, extent: Extent, values: Iterable[T_co]) -> None:
        """Take the values in rank order; raise `ExtentError` where there are not as many as members."""
        object.__setattr__(self, "extent", extent)
        object.__setattr__(self, "_values", tuple(values))
        if len(self._values) != extent.size:
            raise ExtentError(f"{extent!r} takes {extent.size} values, not {len(self._values)}")

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._values)

    def __getitem__(self, rank: SupportsIndex) -> T_co:
        """Return the value at ``rank`` (negative: from the end); raise `RankError` outside."""
        return self._values[position("rank", rank, len(self._values))]

    def at(self, /, **coordinates: int) -> T_co:
        """Return the value at these coordinates, one for each axis; raise as `Extent.rank` does."""
        return self._values[self.extent.rank(**coordinates)]

    def item(self) -> T_co:
        """Return the only value; raise `ExtentError` where there are several."""
        if len(self._values) != 1:
            raise ExtentError(f"item() needs exactly one value; {self.extent!r} has {len(self._values)}")
        return self._values[0]

    def values(self) -> tuple[T_co, ...]:
        """Return the values in rank order."""
        return self._values

    def items(self) -> Iterator[tuple[Point, T_co]]:
        """Yield (point, value) in rank order."""
        return zip(self.extent.points(), self._values, strict=True)

    def map(self, change: Callable[[T_co], U]) -> "ValueMesh[U]":
        """Return a value mesh of the same extent with ``change`` applied to every value."""
        return ValueMesh(self.extent, map(change, self._values))

    def slice(self, /, **axes: AxisIndex) -> "ValueMesh[T_co]":
        """Select along axes by name, as `Region.slice` does."""
        return self._pick(self._region.slice(**axes))

    def flatten(self, axis: str) -> "ValueMesh[T_co]":
        """Return the same values along one axis of that name."""
        return self._pick(self._region.flatten(axis))

    def split(self, /, **axes: AxisSplit) -> "ValueMesh[T_co]":
        """Split axes into several, ``split(gpus=("dp", "tp"), tp=2)``, as `Region.split` does."""
        return self._pick(self._region.split(**axes))

    def rename(self, /, **axes: str) -> "ValueMesh[T_co]":
        """Rename axes, ``rename(old="new")``, as `Region.rename` does."""
        return self._pick(self._region.rename(**axes))

    @property
    def _region(self) -> Region:
        return Region.full(self.extent)

    def _pick(self, region: Region) -> "ValueMesh[T_co]":
        values = self._values
        if not region.is_full:
            values = [values[rank] for rank in region.base_ranks]
        return ValueMesh(region.extent, values)

    def __repr__(self) -> str:
        texts = map(_short.repr, islice(self._values, _SHOWN))
        shown = [" ".join(line.strip() for line in text.splitlines()) for text in texts]
        if len(self._values) > _SHOWN:
            shown.append("...")
        return f"ValueMesh({self.extent!r}, [{', '.join(shown)}])"

    def __reduce__(self) -> tuple[object, ...]:
        return ValueMesh, (self.extent, self._values)
