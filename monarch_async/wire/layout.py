"""What a registration is made of: nested dicts, lists and tuples of arrays, and where each lies in the region.

Memory is described as it is, never copied: what a peer writes must be what the owner sees. Arrays that share memory
(tied weights, views of one flat buffer) share it in the region too. The rest is arithmetic: which bytes of the region a
whole, a part or a slice of it is, and where here they come from or go to.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from monarch_async.errors import BadCall, BufferMismatch, UnknownPart
from monarch_async.wire.accelerator import AcceleratorMemory
from monarch_async.wire.array import Leaf, Memory, allocate, dense_like, find_memory, memory_at
from monarch_async.wire.exchange import Pair
from monarch_async.wire.strided import Index, Strided, Take

#: How deep dicts and lists may be nested: more is one that contains itself.
_DEEPEST = 100


class Branch(NamedTuple):
    """A dict, list or tuple. ``kind`` is the class its copies are made of."""

    kind: type
    keys: tuple[Hashable, ...]  #: 0, 1, ... where it is no dict
    children: tuple["Branch | int", ...]  #: an int is the index of a leaf

    def make(self, children: Sequence[object]) -> object:
        """Return one with these children."""
        if issubclass(self.kind, Mapping):
            return self.kind(zip(self.keys, children, strict=True))  # type: ignore[call-arg]
        return self.kind(*children) if hasattr(self.kind, "_fields") else self.kind(children)  # type: ignore[call-arg]


Tree = Branch | int


class Layout(NamedTuple):
    """A tree, and its leaves in order. Pickles."""

    tree: Tree
    leaves: tuple[Leaf, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, shared ones as often as they occur."""
        return sum(leaf.place.nbytes for leaf in self.leaves)

    @property
    def single(self) -> Leaf | None:
        """The leaf, where there is no tree around it."""
        return self.leaves[0] if isinstance(self.tree, int) else None

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The keys of its outermost dict, or the indices of a list."""
        return self.tree.keys if isinstance(self.tree, Branch) else ()

    def part(self, key: Hashable, what: str) -> "Layout":
        """Return the layout of what ``value[key]`` is. Raises UnknownPart, about ``what``."""
        if not isinstance(self.tree, Branch):
            raise UnknownPart(what, f"it is one array and has no part {key!r}: use slice= to fetch some of it")
        if isinstance(key, int) and key < 0 and not issubclass(self.tree.kind, Mapping):
            key += len(self.tree.keys)
        if key not in self.tree.keys:
            some = ", ".join(map(repr, self.tree.keys[:8])) + (", ..." if len(self.tree.keys) > 8 else "")
            raise UnknownPart(what, f"it has no part {key!r}; it has: {some or 'none'}")
        chosen = self.tree.children[self.tree.keys.index(key)]
        used: list[Leaf] = []
        return Layout(_renumber(chosen, self.leaves, used), tuple(used))

    def sliced(self, index: Index, what: str) -> "Layout":
        """Return the layout of what ``array[index]`` is. Raises BufferMismatch; BadCall where it is no single array."""
        leaf = self.single
        if leaf is None:
            raise BadCall(what, "slice= is for one array: choose a part first, handle[key].fetch(slice=...)")
        return Layout(0, (leaf._replace(place=leaf.place.take(index, what)),))


class Registered(NamedTuple):
    """What `register` needs to know of a value: ``spans`` end to end are the region; ``anchors`` keep them in place.

    Where some of it is on a device, all of it is ``beyond``, and there are no spans.
    """

    layout: Layout
    spans: list[memoryview]
    is_writable: bool
    anchors: list[object]
    beyond: AcceleratorMemory | None = None


def describe(value: object, what: str) -> Registered:
    """Return where a value's arrays lie, on whichever devices.

    Raises BadCall, naming the place in ``value`` of what is none, and NoTransport for a device that has no streams.
    """
    return lay_out_arrays(*find_arrays(value, what))


def find_arrays(value: object, what: str) -> tuple[Tree, list[Memory]]:
    """Return what a value is made of. Raises BadCall of ``what``, naming the place in ``value`` of what is no array."""
    found: list[Memory] = []
    return _plant(value, "it", what, found, 0), found


def lay_out_arrays(tree: Tree, found: Sequence[Memory]) -> Registered:
    """Return where the arrays of a tree lie. Raises as `describe`."""
    places, spans = _lay_out(found)
    leaves = [
        Leaf(memory.library, memory.dtype, memory.place.moved(start), memory.device)
        for memory, start in zip(found, places, strict=True)
    ]
    layout, is_writable = Layout(tree, tuple(leaves)), all(memory.is_writable for memory in found)
    anchors = [memory.anchor() for memory in found]
    if any(not memory.is_here for memory, _, _ in spans):
        beyond = AcceleratorMemory([memory.part(address, size) for memory, address, size in spans])
        return Registered(layout, [], is_writable, anchors, beyond)
    return Registered(layout, [memory_at(address, size) for _, address, size in spans], is_writable, anchors)


def pair_up(layout: Layout, value: object, where: str, role: str) -> list[Pair]:
    """Return each leaf with its counterpart in ``value``.

    Raises BufferMismatch where structure, dtype or shape differ, BadCall where something is no array; both say where
    in ``role`` that is: "out" or "source".
    """
    pairs = []
    for index, here, path in _walk(layout.tree, value, role, where):
        leaf, memory = layout.leaves[index], find_memory(here, path, where)
        if memory.place.shape != leaf.place.shape:
            raise BufferMismatch(where, f"its shape is {leaf.place.shape}, that of {path} {memory.place.shape}")
        if memory.dtype != leaf.dtype:
            raise BufferMismatch(where, f"its dtype is {leaf.dtype}, that of {path} {memory.dtype}")
        pairs.append(Pair(leaf.place, memory))
    return pairs


def new_pairs(layout: Layout, take: Take, device: str | None, where: str) -> tuple[list[Pair], Callable[[], object]]:
    """Return each leaf with new memory for it, and what makes the result of that once it is filled.

    Leaves that are the same memory of the owner's become the same memory of the result. Raises NoTransport where
    ``device`` is not to be had.
    """
    made: dict[Leaf, Memory] = {}
    for leaf in layout.leaves:
        if leaf not in made:
            made[leaf] = allocate(leaf, dense_like(leaf.place), take, device, where)

    def finish() -> object:
        return _grow(layout.tree, [made[leaf].value for leaf in layout.leaves])

    return [Pair(leaf.place, memory) for leaf, memory in made.items()], finish


def condensed(layout: Layout, alignment: int) -> tuple[Layout, dict[Leaf, Strided], int]:
    """Return the layout of a copy without gaps, where in it each different leaf is, and how many bytes it has."""
    places: dict[Leaf, Strided] = {}
    end = 0
    for leaf in layout.leaves:
        if leaf not in places:
            places[leaf] = dense_like(leaf.place).moved(end)
            end += -(-leaf.place.nbytes // alignment) * alignment
    leaves = tuple([leaf._replace(place=places[leaf]) for leaf in layout.leaves])
    return Layout(layout.tree, leaves), places, end


def grow(layout: Layout, make: Callable[[Leaf], object]) -> object:
    """Return a value of this layout; ``make`` is called for each different leaf."""
    values = {leaf: make(leaf) for leaf in dict.fromkeys(layout.leaves)}
    return _grow(layout.tree, [values[leaf] for leaf in layout.leaves])


# -- trees -------------------------------------------------------------------------------------------------------------


def _plant(value: object, path: str, what: str, found: list[Memory], depth: int) -> Tree:
    """Return the tree that ``value`` is, and append its arrays to ``found``."""
    if depth > _DEEPEST:
        raise BadCall(what, f"more than {_DEEPEST} dicts and lists in each other: does one contain itself?")
    if isinstance(value, Mapping):
        kind: type = OrderedDict if isinstance(value, OrderedDict) else dict
        keys, children = tuple(value.keys()), list(value.values())
    elif isinstance(value, list | tuple):
        is_named = isinstance(value, tuple) and hasattr(value, "_fields")
        kind = type(value) if is_named else list if isinstance(value, list) else tuple
        keys, children = tuple(range(len(value))), list(value)
    else:
        found.append(find_memory(value, path, what))
        return len(found) - 1
    planted = [
        _plant(child, f"{path}[{key!r}]", what, found, depth + 1) for key, child in zip(keys, children, strict=True)
    ]
    return Branch(kind, keys, tuple(planted))


def _grow(tree: Tree, values: Sequence[object]) -> object:
    if isinstance(tree, int):
        return values[tree]
    return tree.make([_grow(child, values) for child in tree.children])


def _renumber(tree: Tree, leaves: Sequence[Leaf], used: list[Leaf]) -> Tree:
    if isinstance(tree, int):
        used.append(leaves[tree])
        return len(used) - 1
    return tree._replace(children=tuple(_renumber(child, leaves, used) for child in tree.children))


def _walk(tree: Tree, value: Any, path: str, what: str) -> Iterator[tuple[int, object, str]]:
    """Yield (leaf index, counterpart, its path). Raises BufferMismatch where ``value`` is another structure."""
    if isinstance(tree, int):
        yield tree, value, path
        return
    if issubclass(tree.kind, Mapping):
        if not isinstance(value, Mapping):
            raise BufferMismatch(what, f"{path} is a {type(value).__qualname__}, and it has a dict there")
        if value.keys() != set(tree.keys):
            missing, more = set(tree.keys) - value.keys(), value.keys() - set(tree.keys)
            texts = [f"lacks {sorted(map(repr, missing))}"] if missing else []
            texts += [f"has {sorted(map(repr, more))} too many"] if more else []
            raise BufferMismatch(what, f"{path} {' and '.join(texts)}")
    elif not isinstance(value, list | tuple) or len(value) != len(tree.keys):
        size = f" of {len(value)}" if isinstance(value, list | tuple) else ""
        expected = f"a {tree.kind.__qualname__} of {len(tree.keys)}"
        raise BufferMismatch(what, f"{path} is a {type(value).__qualname__}{size}, and it has {expected} there")
    for key, child in zip(tree.keys, tree.children, strict=True):
        yield from _walk(child, value[key], f"{path}[{key!r}]", what)  # type: ignore[index]


# -- the region --------------------------------------------------------------------------------------------------------


class _Span:
    """Memory of one device, or of this machine. ``memory`` is an array whose storage all of it is in, on a device."""

    __slots__ = ("address", "end", "first", "memory", "storage")

    def __init__(self, memory: Memory, storage: int, first: int) -> None:
        self.memory, self.storage, self.first = memory, storage, first  # storage: of the last; first: user of it
        self.address, self.end = memory.address, memory.address + memory.extent

    def takes(self, memory: Memory, storage: int) -> bool:
        """Whether the next array, by address, belongs in it."""
        if memory.device != self.memory.device:
            return False
        if not memory.is_here:
            return storage == self.storage and memory.address <= self.end
        return memory.address < self.end or (memory.address == self.end and storage == self.storage)


def _lay_out(found: Sequence[Memory]) -> tuple[list[int], list[tuple[Memory, int, int]]]:
    """Return where in the region the extent of each array begins, and (array, address, size) of the spans that make it.

    Arrays that overlap, or lie side by side in one tensor's storage, are in one span. Spans are in the order in which
    the arrays use them first, so that reading everything reads from start to end.
    """
    spans: list[_Span] = []
    span_of: dict[int, _Span] = {}
    for index in sorted(range(len(found)), key=lambda index: (found[index].device, found[index].address)):
        memory = found[index]
        if not memory.extent:
            continue
        storage = memory.storage()
        if spans and spans[-1].takes(memory, storage):
            span = spans[-1]
            span.end, span.storage = max(span.end, memory.address + memory.extent), storage
            span.first = min(span.first, index)
        else:
            spans.append(_Span(memory, storage, index))
        span_of[index] = spans[-1]
    spans.sort(key=lambda span: span.first)
    offsets, offset = {}, 0
    for span in spans:
        offsets[id(span)] = offset
        offset += span.end - span.address
    places = []
    for index, memory in enumerate(found):
        span = span_of.get(index)
        places.append(0 if span is None else offsets[id(span)] + memory.address - span.address)
    return places, [(span.memory, span.address, span.end - span.address) for span in spans]
