"""`ray.internal.free`: let go of objects now, whoever still has references to them."""

from collections.abc import Sequence
from typing import Any

from monarch_async.ray.object_ref import ObjectRef
from monarch_async.ray.runtime import current


def free(object_refs: ObjectRef[Any] | Sequence[ObjectRef[Any]], local_only: bool = False) -> None:
    """Free the memory of these objects: who gets one of them afterwards has an `ObjectFreedError`.

    There is seldom a reason to: an object goes with the last reference to it.

    Args:
        object_refs: one or several.
        local_only: the same here: an object is with its owner, and in shared memory where it was read.
    """
    refs = [object_refs] if isinstance(object_refs, ObjectRef) else list(object_refs)
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"free() takes object references, not {type(ref).__name__}: {ref!r}")
    current().free(refs)
