"""How a region writes down its base ranks: an offset and strides where those can say it, else a list.

There is one layout for each selection: an axis of size 1 has stride 0, and a list is used only where no
strides exist. So layouts can be compared and hashed without looking at the ranks they stand for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq

from monarch_async.ranks.extent import row_major


@dataclass(frozen=True, slots=True)
class Strided:
    """Base rank = ``offset`` + the sum of coordinate x stride over the axes."""

    offset: int
    strides: tuple[int, ...]

    @classmethod
    def of(cls, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> "Strided":
        """Make one with the strides of axes of size 1, which mean nothing, set to 0."""
        return cls(offset, tuple(step if size > 1 else 0 for size, step in zip(sizes, strides, strict=True)))

    def base_rank(self, rank: int, sizes: Sequence[int]) -> int:
        """Return the base rank of the member at ``rank`` of a region with these sizes."""
        base = self.offset
        for size, stride in zip(reversed(sizes), reversed(self.strides), strict=True):
            rank, coordinate = divmod(rank, size)
            base += coordinate * stride
        return base

    def base_ranks(self, sizes: Sequence[int]) -> Sequence[int]:
        """Return all base ranks in rank order: a range where they are evenly spaced, else a tuple."""
        runs = self.runs(sizes)
        if not runs:
            return range(self.offset, self.offset + 1)
        (count, stride), *inner = runs
        ranks: Sequence[int] = range(self.offset, self.offset + count * stride, stride)
        if not inner:
            return ranks
        for count, stride in inner:
            steps = range(0, count * stride, stride)
            ranks = [rank + step for rank in ranks for step in steps]
        return tuple(ranks)

    def runs(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Return the fewest (count, stride) pairs, outermost first, giving the same base ranks in order."""
        runs: list[tuple[int, int]] = []
        for size, stride in zip(sizes, self.strides, strict=True):
            if size == 1:
                continue
            if runs and runs[-1][1] == size * stride:
                runs[-1] = (runs[-1][0] * size, stride)
            else:
                runs.append((size, stride))
        return runs

    def cut(self, cuts: Sequence[int | range], sizes: Sequence[int]) -> "Strided":
        """Return what is left after taking, of each axis, one coordinate (which drops it) or a range."""
        offset = self.offset
        kept: list[int] = []
        strides: list[int] = []
        for cut, stride in zip(cuts, self.strides, strict=True):
            if isinstance(cut, int):
                offset += cut * stride
            else:
                offset += cut.start * stride
                kept.append(len(cut))
                strides.append(cut.step * stride)
        return Strided.of(offset, kept, strides)

    def split(self, parts: Sequence[Sequence[int]]) -> "Strided":
        """Return the layout after each axis is split into the sizes in its part."""
        strides: list[int] = []
        for part, stride in zip(parts, self.strides, strict=True):
            strides += [stride * step for step in row_major(part)]
        return Strided.of(self.offset, [size for part in parts for size in part], strides)

    def flat(self, sizes: Sequence[int]) -> "Layout":
        """Return the layout of the same members along one axis."""
        runs = self.runs(sizes)
        if len(runs) > 1:
            return Listed(tuple(self.base_ranks(sizes)))
        return Strided(self.offset, (runs[0][1] if runs else 0,))


@dataclass(frozen=True, slots=True)
class Listed:
    """Base ranks one by one, in rank order; only where no strides say the same."""

    ranks: tuple[int, ...]

    def base_rank(self, rank: int, sizes: Sequence[int]) -> int:
        """Return the base rank of the member at ``rank``."""
        return self.ranks[rank]

    def base_ranks(self, sizes: Sequence[int]) -> Sequence[int]:
        """Return all base ranks in rank order."""
        return self.ranks

    def cut(self, cuts: Sequence[int | range], sizes: Sequence[int]) -> "Layout":
        """Return what is left after taking, of each axis, one coordinate (which drops it) or a range."""
        # The positions in the list are a region too, and a strided one.
        positions = Strided.of(0, sizes, row_major(sizes)).cut(cuts, sizes)
        kept = [len(cut) for cut in cuts if isinstance(cut, range)]
        return fewest(tuple([self.ranks[at] for at in positions.base_ranks(kept)]), kept)

    def split(self, parts: Sequence[Sequence[int]]) -> "Layout":
        """Return the layout after each axis is split into the sizes in its part."""
        # Strides may say it again: a split can undo the flattening that made the list.
        return fewest(self.ranks, [size for part in parts for size in part])

    def flat(self, sizes: Sequence[int]) -> "Layout":
        """Return the layout along one axis: were that strided, this one would have been strided too."""
        return self


Layout = Strided | Listed


def fewest(ranks: tuple[int, ...], sizes: Sequence[int]) -> Layout:
    """Return the layout that says ``ranks`` with the fewest numbers: strides where there are some."""
    steps = row_major(sizes)
    strides = [ranks[step] - ranks[0] if size > 1 else 0 for size, step in zip(sizes, steps, strict=True)]
    strided = Strided(ranks[0], tuple(strides))
    return strided if all(map(eq, strided.base_ranks(sizes), ranks)) else Listed(ranks)
