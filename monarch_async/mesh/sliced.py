"""What host, proc and actor meshes have in common: an extent, and regions of it."""

from collections.abc import Hashable, Iterator
from typing import TypeVar

from monarch_async.errors import ExtentError
from monarch_async.ranks import Extent, Point, Region
from monarch_async.ranks.region import AxisIndex, AxisSplit

M = TypeVar("M", bound="Sliced")


class Sliced:
    """A mesh seen through a `Region`. Slicing is local: it sends nothing and takes microseconds.

    It agrees with numpy: an int drops its axis, a slice keeps it; negative indices and steps work.
    """

    region: Region
    name: str

    def seen_through(self: M, region: Region) -> M:
        """Return the same mesh through another region."""
        raise NotImplementedError

    @property
    def identity(self) -> Hashable:
        """Which mesh it is a slice of, as spawned."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        """Two references are equal where they mean the same members in the same shape."""
        if not isinstance(other, Sliced) or type(other) is not type(self):
            return NotImplemented
        return self.identity == other.identity and self.region == other.region

    def __hash__(self) -> int:
        return hash((self.identity, self.region))

    @property
    def extent(self) -> Extent:
        """Its named sizes: ``Extent(hosts=2, gpus=4)``."""
        return self.region.extent

    @property
    def size(self) -> int:
        """How many members it has."""
        return len(self.region)

    def __len__(self) -> int:
        return len(self.region)

    def points(self) -> Iterator[Point]:
        """Iterate over the coordinates, row-major."""
        return self.extent.points()

    def slice(self: M, **axes: AxisIndex) -> M:
        """Select along named axes: ``mesh.slice(hosts=0, gpus=slice(0, 4, 2))``.

        Raises AxisError, RankError, or ExtentError where nothing is selected.
        """
        return self.seen_through(self.region.slice(**axes))

    def flatten(self: M, name: str) -> M:
        """Make one axis of all, in row-major order."""
        return self.seen_through(self.region.flatten(name))

    def split(self: M, **axes: AxisSplit) -> M:
        """Split an axis: ``mesh.split(gpus=("dp", "tp"), tp=2)``; one of the sizes may be left out."""
        return self.seen_through(self.region.split(**axes))

    def rename(self: M, **axes: str) -> M:
        """Rename axes: ``mesh.rename(gpus="workers")``."""
        return self.seen_through(self.region.rename(**axes))

    def at(self: M, rank: int) -> M:
        """Return the mesh of the one member with this flat rank."""
        flat = self.region.flatten("rank")
        return self.seen_through(flat.slice(rank=rank))

    def require_one(self, what: str) -> None:
        """Raise `ExtentError` where there is more than one member."""
        if len(self.region) != 1:
            raise ExtentError(
                f"{what} needs a mesh of one member, and {self.name} has {len(self.region)} ({self.extent}): "
                f"slice it, or use call, choose or stream"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.extent}".rstrip() + ">"
