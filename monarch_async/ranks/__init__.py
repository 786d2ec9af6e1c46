"""Coordinates: which member of a mesh is meant, and in what order.

A mesh is an n-d array of members. This floor holds the arithmetic of that array and nothing else: no members,
no addresses, no I/O. Everything above (casts, gathers, value meshes, placement) asks it the same two
questions: which members does this slice select, and where in the slice does this member's reply belong.

Ideas
- An `Extent` names and sizes the axes: ``hosts=2 gpus=4``. A *rank* counts members flat and row-major (the
  last axis runs fastest); a `Point` is one rank with its coordinates by name.
- A mesh as it was spawned fixes the *base ranks*, 0 to n - 1. Every slice of it, and every slice of a slice,
  is a `Region`: an extent of its own, and the base rank of each of its members in row-major order of that
  extent. So addressing never depends on the road by which a slice was reached, and two regions that select
  the same members in the same shape are equal.
- A region is an offset and a stride for each axis, exactly as a numpy view is. Slicing therefore costs the
  same for 8 members and for 131,072. Only where strides cannot say it (flattening a region with gaps) are the
  ranks listed.

What it refuses
- Empty selections: a call of no members answers at once with nothing, which hides the mistake in the slice;
  the slice raises instead.
- Fancy indexing by lists and masks: an index array cannot be undone into the axes people named. Slice by
  steps, or ``split`` an axis first and slice what comes out.
- Joining two regions: members of one cast share one order, and a union has none that both sides would expect.
- numpy: it costs more to import than this package may, and answers in integers that do not pickle small.

Reading order
- ``extent.py``  `Extent`, `Point`, and how an index counts from the end
- ``layout.py``  how a region writes its base ranks down: strided or listed
- ``region.py``  `Region`: slice, flatten, split, rename
"""

from monarch_async.ranks.extent import Extent, Point
from monarch_async.ranks.region import Region

__all__ = ["Extent", "Point", "Region"]
