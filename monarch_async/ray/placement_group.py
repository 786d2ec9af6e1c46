"""Placement groups as programs have them: `placement_group`, and the `PlacementGroup` that names one.

The groups themselves are at the hub (`monarch_async.ray.groups`). Making and removing one only tells it, in order, so
neither waits; one with a name waits to hear that the name was free.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from monarch_async.ray.amounts import Amounts
from monarch_async.ray.entry import Entry
from monarch_async.ray.group import GroupRequest
from monarch_async.ray.groups import own_groups
from monarch_async.ray.object_ref import ObjectRef
from monarch_async.ray.payload import pack
from monarch_async.ray.runtime import current, find
from monarch_async.ray.strategies import PlacementGroupSchedulingStrategy

VALID_PLACEMENT_GROUP_STRATEGIES = {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}


ID_BYTES = 18  #: of the id of a group, as Ray's have


@dataclass(frozen=True, slots=True)
class PlacementGroupID:
    """Random bytes; none where it is nil."""

    _bytes: bytes

    def binary(self) -> bytes:
        """Return the bytes."""
        return self._bytes

    def hex(self) -> str:
        """Return them in hexadecimal digits."""
        return self._bytes.hex()

    def is_nil(self) -> bool:
        """Whether it names no group."""
        return not self._bytes

    @classmethod
    def from_hex(cls, text: str) -> "PlacementGroupID":
        """Return the id of these digits."""
        return cls(bytes.fromhex(text))

    @classmethod
    def nil(cls) -> "PlacementGroupID":
        """Return the id of no group."""
        return cls(b"")

    def __repr__(self) -> str:
        return f"PlacementGroupID({self.hex()})"


class PlacementGroup:
    """Names a placement group: hashable, and pickles. Groups of one id are equal."""

    def __init__(self, id: PlacementGroupID, bundle_cache: Sequence[Mapping[str, float]] | None = None) -> None:
        """``bundle_cache``: what it asks for; fetched when first wanted where not given."""
        self.id = id
        self.bundle_cache = None if bundle_cache is None else [dict(spec) for spec in bundle_cache]

    @staticmethod
    def empty() -> "PlacementGroup":
        """Return the name of no group."""
        return PlacementGroup(PlacementGroupID.nil(), [])

    @property
    def is_empty(self) -> bool:
        """Whether it names no group."""
        return self.id.is_nil()

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """What each bundle asks for, in Ray's names."""
        if self.bundle_cache is None:
            row: Mapping[str, Any] = current().ask_hub("placement_group.table", self.id.binary())
            self.bundle_cache = list(row.get("bundles", {}).values())
        return self.bundle_cache

    @property
    def bundle_count(self) -> int:
        """How many bundles it has."""
        return len(self.bundle_specs)

    def ready(self) -> ObjectRef["PlacementGroup"]:
        """Return a reference to this, which is there once the group is."""
        runtime = current()
        entry = runtime.new_entry("PlacementGroup.ready")
        runtime.post(lambda: runtime.start(self._follow(entry)))
        return ObjectRef(entry)

    async def _follow(self, entry: Entry) -> None:
        try:
            await entry.runtime.hub("placement_group.created", self.id.binary())
        except Exception as error:
            entry.fail(error)
        else:
            entry.complete(pack(self, "a placement group"))

    def wait(self, timeout_seconds: float = 30) -> bool:
        """Wait until it is there; return whether that was in time. Raises TaskPlacementGroupRemoved."""
        groups = own_groups()
        if groups is not None and groups.is_created(self.id.binary()):
            return True
        return current().ask_hub("placement_group.wait", self.id.binary(), timeout_seconds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex() or 'none'})"


def placement_group(
    bundles: list[dict[str, float]],
    strategy: str | None = None,
    name: str = "",
    lifetime: str | None = None,
    _soft_target_node_id: str | None = None,
    bundle_label_selector: list[dict[str, str]] | None = None,
    topology_strategy: dict[str, str] | None = None,
) -> PlacementGroup:
    """Ask for bundles of resources, all at once, and return at once; see `PlacementGroup.ready`.

    Args:
        bundles: what each is to have, such as ``{"CPU": 1, "GPU": 1}``.
        strategy: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD; PACK where not given.
        name: for `get_placement_group`, unique in the namespace.
        lifetime: ``"detached"`` is the same as None here: it ends with the driver. Detached actors in it do not, on
            hosts that were joined: what it has there is held until the last of them ends.
        _soft_target_node_id: rather on this node.
        bundle_label_selector: labels of the hosts of each bundle; they must be the same for all.
        topology_strategy: not offered.
    """
    specs = _checked_bundles(bundles)
    strategy = "PACK" if strategy is None else strategy
    if strategy not in VALID_PLACEMENT_GROUP_STRATEGIES:
        known = ", ".join(sorted(VALID_PLACEMENT_GROUP_STRATEGIES))
        raise ValueError(f"strategy={strategy!r} of a placement group: expected one of {known}")
    if lifetime not in (None, "detached"):
        raise ValueError(f"lifetime={lifetime!r} of a placement group: expected 'detached' or None")
    if topology_strategy:
        raise NotImplementedError("topology_strategy= is not offered: natively, label the hosts: Demand(labels=...)")
    if _soft_target_node_id is not None and strategy != "STRICT_PACK":
        raise ValueError("_soft_target_node_id= is only for a placement group of strategy STRICT_PACK")
    labels = _checked_labels(bundle_label_selector, len(specs))
    runtime = current()
    id, prefers = os.urandom(ID_BYTES), _soft_target_node_id or ""
    request = GroupRequest(id, specs, strategy, name, runtime.namespace, prefers, labels)
    if name:
        current().ask_hub("placement_group.create", request)
    else:
        _tell("placement_group.create", request)
    return PlacementGroup(PlacementGroupID(request.id), specs)


def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Remove a group: what runs there ends. Returns at once; twice is fine."""
    _tell("placement_group.remove", placement_group.id.binary())


def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """Return the group that has this name in the namespace. Raises ValueError where there is none."""
    if not placement_group_name:
        raise ValueError("expected the name of a placement group")
    found: GroupRequest | None = current().ask_hub("placement_group.find", placement_group_name, current().namespace)
    if found is None:
        raise ValueError(f"there is no placement group {placement_group_name!r} in this namespace")
    return PlacementGroup(PlacementGroupID(found.id), found.specs)


def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Return what is known of a group; of all, by the hexadecimal digits of their ids, where none is given."""
    id = placement_group.id.binary() if placement_group is not None else None
    return current().ask_hub("placement_group.table", id)


def get_current_placement_group() -> PlacementGroup | None:
    """Return the group in which the task or actor runs that asks; None where it is in none, and in the driver."""
    runtime = find()
    id = runtime.context.placement_group if runtime is not None else ""
    return PlacementGroup(PlacementGroupID.from_hex(id)) if id else None


class _Options(Protocol):
    @property
    def scheduling_strategy(self) -> object: ...


Said = TypeVar("Said", bound=_Options)


def with_strategy_here(options: Said, amounts: Amounts, what: str) -> Said:
    """Return the options of something that is started here, with what it inherits, after a check.

    Where nothing is said of where it goes, that is the group of who starts it, if that captures what is started there;
    a strategy that names no group is how to say that it goes to none.
    Raises ValueError where the group has no such bundle, or none that is large enough for ``amounts``.
    """
    strategy = options.scheduling_strategy
    if strategy is None or strategy == "DEFAULT":
        runtime = find()
        if runtime is None or not runtime.context.captures:
            return options
        strategy = PlacementGroupSchedulingStrategy(get_current_placement_group(), -1, True)
        options = replace(options, scheduling_strategy=strategy)  # type: ignore[type-var]  # they are dataclasses
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        if strategy.placement_group is None:
            return replace(options, scheduling_strategy=None)  # type: ignore[type-var]
        check_fits(strategy.placement_group, strategy.placement_group_bundle_index, amounts, what)
    return options


def check_fits(group: PlacementGroup, bundle: int, amounts: Amounts, what: str) -> None:
    """Raise ValueError where a group has no such bundle (-1: any), or none that is large enough."""
    specs = group.bundle_specs
    if isinstance(bundle, bool) or not isinstance(bundle, int) or not -1 <= bundle < len(specs):
        raise ValueError(
            f"placement group bundle index {bundle!r} of {what}: the group has {len(specs)}, from 0 on; -1 is any"
        )
    among = specs if bundle == -1 else [specs[bundle]]
    if not any(amounts.fits_within(Amounts.of_spec(spec)) for spec in among):
        where = "any bundle" if bundle == -1 else f"bundle {bundle}"
        name = f"placement group {group.id.hex()}"
        raise ValueError(f"{what} needs {amounts.as_ray()}, which does not fit into {where} of {name}: {among}")


def _checked_bundles(bundles: object) -> tuple[dict[str, float], ...]:
    if not isinstance(bundles, list):
        raise ValueError(f"bundles={bundles!r}: expected a list of dicts, such as [{{'CPU': 1}}]")
    if not bundles:
        raise ValueError("bundles=[]: a placement group has one or more")
    for bundle in bundles:
        if not isinstance(bundle, dict) or not bundle:
            raise ValueError(f"{bundle!r} of bundles: expected amounts by name, such as {{'CPU': 1}}")
        for name, amount in bundle.items():
            if not isinstance(name, str) or isinstance(amount, bool) or not isinstance(amount, int | float):
                raise ValueError(f"{bundle!r} of bundles: expected amounts by name, such as {{'CPU': 1}}")
            if amount < 0:
                raise ValueError(f"{bundle!r} of bundles: {name} is negative")
        if not any(bundle.values()):
            raise ValueError(f"{bundle!r} of bundles: it asks for nothing")
        gpus = bundle.get("GPU", 0)
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(f"{bundle!r} of bundles: GPU is a whole number, or a fraction of one")
        if 0 < bundle.get("memory", 1) < 1:
            warnings.warn(f"{bundle!r} of bundles: memory is in bytes", stacklevel=3)
    return tuple([{name: float(amount) for name, amount in bundle.items()} for bundle in bundles])


def _checked_labels(selectors: list[dict[str, str]] | None, count: int) -> dict[str, str]:
    if not selectors:
        return {}
    if len(selectors) != count:
        raise ValueError(f"bundle_label_selector has {len(selectors)} entries for {count} bundles")
    if any(selector != selectors[0] for selector in selectors):
        raise NotImplementedError(
            "bundle_label_selector= that differs between bundles is not offered: natively, place a Demand(labels=) for"
            " each kind"
        )
    return dict(selectors[0])


def _tell(operation: str, *args: object) -> None:
    """Say it before anything that is said after this, also by a coroutine that ends at once."""
    runtime = current()
    if runtime.is_on_loop:
        runtime.tell_hub(operation, *args)
    else:
        runtime.post(runtime.tell_hub, operation, *args)
