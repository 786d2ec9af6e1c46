"""The members that a slice of a mesh selects, in the order of the slice's own extent.

A region answers two questions: whom a cast to the slice goes to (`Region.base_ranks`), and where in the slice
a reply from a member belongs (`Region.rank_of`). Operations agree with numpy's on
``np.arange(n).reshape(sizes)``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import prod
from typing import SupportsIndex

from monarch_async.errors import ExtentError
from monarch_async.ranks.extent import Extent, check_name, check_size, position
from monarch_async.ranks.layout import Layout, Strided

AxisIndex = SupportsIndex | slice
"""What an axis is sliced by: an int takes one member and drops the axis, a slice keeps it."""

AxisSplit = SupportsIndex | Sequence[str]
"""What `Region.split` takes: the names an axis is split into, or the size of one of those names."""

_SHOWN = 8


@dataclass(frozen=True, repr=False)
class Region:
    """A selection of the members of a mesh as spawned, in an order and with an extent of its own.

    Start from `Region.full`. Immutable, hashable, picklable; equal where extent, members and the
    size of the mesh they come from are equal.

    Fields: ``extent``, its own named sizes; ``layout``, where its members lie among the base ranks;
    ``base_size``, how many members the mesh as spawned has.
    """

    extent: Extent
    layout: Layout
    base_size: int

    @classmethod
    def full(cls, extent: Extent) -> "Region":
        """Return the region of all members of a mesh of this extent."""
        return cls(extent, Strided.of(0, extent.sizes, extent.strides), extent.size)

    def __len__(self) -> int:
        return self.extent.size

    @cached_property
    def base_ranks(self) -> Sequence[int]:
        """The base ranks of the members in rank order: a range where evenly spaced, else a tuple."""
        return self.layout.base_ranks(self.extent.sizes)

    @cached_property
    def is_full(self) -> bool:
        """Whether every member of the mesh as spawned is selected, in its order; the extent may differ."""
        return self == Region.full(self.extent)

    def base_rank(self, rank: SupportsIndex) -> int:
        """Return the base rank at ``rank`` (negative: from the end); raise `RankError` outside."""
        return self.layout.base_rank(position("rank", rank, self.extent.size), self.extent.sizes)

    def rank_of(self, base_rank: int) -> int | None:
        """Return where in this region the member with that base rank is; None where it is not selected."""
        ranks = self.base_ranks
        if isinstance(ranks, range):
            return ranks.index(base_rank) if base_rank in ranks else None
        return self._rank_of.get(base_rank)

    @cached_property
    def _rank_of(self) -> dict[int, int]:
        return {base_rank: rank for rank, base_rank in enumerate(self.base_ranks)}

    def slice(self, /, **axes: AxisIndex) -> "Region":
        """Select along axes by name, as numpy does: an int drops the axis, a slice of any step keeps it.

        Raises `AxisError` for an unknown axis, `RankError` for an int outside it, `ExtentError` where nothing
        would be selected or an index is neither.
        """
        for axis in axes:
            self.extent.index(axis)
        cuts = {a: _cut(a, n, axes[a]) if a in axes else range(n) for a, n in self.extent.items()}
        extent = Extent.of({axis: len(cut) for axis, cut in cuts.items() if isinstance(cut, range)})
        return Region(extent, self.layout.cut(tuple(cuts.values()), self.extent.sizes), self.base_size)

    def flatten(self, axis: str) -> "Region":
        """Return the same members, in rank order, along one axis; raise `ExtentError` for a bad name."""
        return Region(Extent.of({axis: len(self)}), self.layout.flat(self.extent.sizes), self.base_size)

    def split(self, /, **axes: AxisSplit) -> "Region":
        """Split axes into several, in place: ``split(gpus=("dp", "tp"), tp=2)``.

        A sequence of names splits the axis of that key; an int gives the size of a new axis. Of the new sizes
        of one axis one may be left out. Raises `AxisError` for an unknown axis, `ExtentError` where sizes do
        not fit.
        """
        parts = _parts(self.extent, axes)
        extent = Extent.of_pairs([pair for part in parts.values() for pair in part.items()])
        layout = self.layout.split([tuple(part.values()) for part in parts.values()])
        return Region(extent, layout, self.base_size)

    def rename(self, /, **axes: str) -> "Region":
        """Rename axes, ``rename(old="new")``; two may swap names.

        Raises `AxisError` for an unknown axis, `ExtentError` for a bad or repeated new name.
        """
        for axis in axes:
            self.extent.index(axis)
        extent = Extent.of_pairs([(axes.get(axis, axis), size) for axis, size in self.extent.items()])
        return replace(self, extent=extent)

    def __repr__(self) -> str:
        ranks = ", ".join(map(str, islice(self.base_ranks, _SHOWN))) + (", ..." if len(self) > _SHOWN else "")
        return f"Region({self.extent!r}, base ranks {ranks} of {self.base_size})"

    def __reduce__(self) -> tuple[object, ...]:
        return Region, (self.extent, self.layout, self.base_size)  # what is cached stays here


def _cut(axis: str, size: int, index: AxisIndex) -> int | range:
    """Return the coordinate an int means, or the coordinates a slice means."""
    if not isinstance(index, slice):
        return position(f"{axis} index", index, size)
    try:
        cut = range(size)[index]
    except (TypeError, ValueError) as error:
        raise ExtentError(f"axis {axis} cannot be sliced by {_colons(index)}: {error}") from None
    if not cut:
        raise ExtentError(f"{axis}={_colons(index)} selects nothing: axis {axis} has size {size}")
    return cut


def _colons(index: slice) -> str:
    start, stop, step = ("" if part is None else str(part) for part in (index.start, index.stop, index.step))
    return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"


def _parts(extent: Extent, axes: Mapping[str, AxisSplit]) -> dict[str, dict[str, int]]:
    """Return for every axis of ``extent`` the axes, with sizes, that take its place."""
    names: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for axis, value in axes.items():
        if isinstance(value, SupportsIndex):
            sizes[axis] = check_size(axis, value)
        elif isinstance(value, Sequence) and not isinstance(value, str) and value:
            extent.index(axis)
            names[axis] = [check_name(name) for name in value]
        else:
            raise ExtentError(f"axis {axis} cannot be split into {value!r}: give a sequence of names")
    created = [name for new in names.values() for name in new]
    for name in created:
        if created.count(name) > 1:
            raise ExtentError(f"axis {name} is given twice")
    for name in sizes:
        if name not in created:
            raise ExtentError(f"{name} is given a size, but no axis is split into it")
    return {
        axis: _fit(axis, size, names[axis], sizes) if axis in names else {axis: size}
        for axis, size in extent.items()
    }


def _fit(axis: str, size: int, names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of ``names`` that make up ``size``, inferring the one that may be missing."""
    split = f"axis {axis} of size {size} cannot be split into {' x '.join(names)}"
    missing = [name for name in names if name not in sizes]
    if len(missing) > 1:
        raise ExtentError(f"{split}: give the sizes of all but one of {', '.join(missing)}")
    given = prod(sizes[name] for name in names if name in sizes)
    known = " x ".join(f"{name}={sizes[name]}" for name in names if name in sizes)
    if missing and size % given:
        raise ExtentError(f"{split}: {known} does not divide it")
    if not missing and given != size:
        raise ExtentError(f"{split}: {known} makes {given}")
    return {name: sizes.get(name, size // given) for name in names}
