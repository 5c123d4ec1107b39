"""Which calls a recording with symbolic sizes serves, and when one is made.

Calls that differ only in sizes of row-major tensors or in ints are one family. Its first call is recorded as
it is; when another comes, what differs becomes symbolic. Knows what recordings answer, not how.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from compiler.types import contiguous_strides
from framework.capture.recording import Draft, Place, Recording
from framework.capture.variant import Variant
from framework.tensor import Tensor

# Programs for single sizes that are kept for one function; a recording makes those that were dropped again.
MOST_INSTANCES = 128
# Calls whose sizes are remembered, to tell what varies.
MOST_SEEN = 16


class Family:
    """Calls that differ only in numbers at `places`."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self.seen: list[tuple[int, ...]] = []
        self.recordings: list[Recording] = []
        # Set when recording with symbols failed where recording without them did not.
        self.fixed = False
        # Numbers that a recording's conditions admit and that it could not be made into a program for.
        self.unfit: set[tuple[int, ...]] = set()

    def groups(self, now: tuple[int, ...]) -> list[list[int]]:
        """The places that vary, those together whose numbers were always equal."""
        columns: dict[tuple[int, ...], list[int]] = {}
        for number, column in enumerate(zip(*self.seen, now, strict=True)):
            if len(set(column)) > 1:
                columns.setdefault(column, []).append(number)
        return list(columns.values())

    def note(self, now: tuple[int, ...]) -> None:
        """Remember the numbers of a call that was recorded."""
        if now not in self.seen:
            self.seen = [*self.seen[-MOST_SEEN:], now]


class Shapes:
    """The families of one function, and the instances that live."""

    def __init__(self) -> None:
        self.families: dict[Any, Family] = {}
        # With the number of calls each had when it was last looked at.
        self.instances: OrderedDict[tuple[Any, int], tuple[Any, Variant, int]] = OrderedDict()

    def find(self, entries: dict[Any, Any], key: Any, leaves: list[Any]) -> bool:
        """Whether a recording serves a call that no known program does; its instance is entered under `key`.

        `entries` is the function's table of `Entry` by key.
        """
        where, _, now = _pattern(key, leaves)
        family = self.families.get(where)
        if family is None:
            return False
        entry = entries.get(key)
        known = () if entry is None else tuple(v.recording for v in entry.variants)
        for recording in family.recordings:
            if recording in known or recording.latest is None or now in family.unfit:
                continue
            values = recording.values_of(now)
            if values is None or not recording.latest.holds(leaves):
                continue
            try:
                variant = recording.instance(leaves, values)
            except Exception:  # noqa: BLE001 -- recorded as it is, the call says what is the matter
                family.unfit.add(now)
                if len(family.unfit) > MOST_SEEN:
                    family.recordings.remove(recording)
                    return False
                continue
            # This also binds the tensors that the program holds.
            if variant.holds(leaves):
                self.enter(entries, key, variant)
                return True
        return False

    def enter(self, entries: dict[Any, Any], key: Any, variant: Variant) -> None:
        """Enter a program under `key`; beyond the most instances drop one that was not called lately."""
        entry = entries[key]
        entry.variants = [*entry.variants, variant]
        if variant.recording is None:
            return
        self.instances[key, id(variant.recording)] = entry, variant, -1
        while len(self.instances) > MOST_INSTANCES:
            where, (entry, old, calls) = self.instances.popitem(last=False)
            if old.calls != calls or old is variant:
                self.instances[where] = entry, old, old.calls
                continue
            entry.variants = [v for v in entry.variants if v is not old]
            if not entry.variants and not entry.driven:
                entries.pop(where[0], None)

    def draft(self, key: Any, leaves: list[Any]) -> Draft | None:
        """What to make symbolic in a call that is about to be recorded; None: nothing."""
        where, _, now = _pattern(key, leaves)
        family = self.families.get(where)
        if family is None or family.fixed or now in family.unfit:
            return None
        groups = family.groups(now)
        return Draft(family.places, groups, now, leaves) if groups else None

    def recorded(self, key: Any, leaves: list[Any], draft: Draft | None, variant: Variant) -> None:
        """Note a call that was recorded, with symbols if its variant says so, which `draft` had asked for."""
        where, places, now = _pattern(key, leaves)
        family = self.families.setdefault(where, Family(places))
        family.note(now)
        if variant.recording is not None:
            family.recordings.append(variant.recording)
        elif draft is not None and draft.is_unfit:
            family.unfit.add(now)
        elif draft is not None:
            family.fixed = True

    def forget(self, key: Any, leaves: list[Any], variant: Variant) -> None:
        """Make no more instances of the recording behind `variant`."""
        if variant.recording is not None:
            where, _, _ = _pattern(key, leaves)
            self.families[where].recordings.remove(variant.recording)
            self.instances.pop((key, id(variant.recording)), None)


def _pattern(key: Any, leaves: list[Any]) -> tuple[Any, list[Place], tuple[int, ...]]:
    """A key of what a call shares with its family, the places of the numbers that it does not, and these."""
    structure, kinds, *rest = key
    places: list[Place] = []
    now: list[int] = []
    pattern: list[Any] = []
    for number, (x, kind) in enumerate(zip(leaves, kinds, strict=True)):
        data = x._data if isinstance(x, Tensor) else None
        if data is not None and _is_row_major(data):
            places += [(number, axis) for axis in range(data.ndim)]
            now += data.shape
            pattern.append((data.ndim, kind[1], *kind[3:]))
        elif type(x) is int:
            places.append((number, -1))
            now.append(x)
            pattern.append(int)
        else:
            pattern.append(kind)
    return (structure, tuple(pattern), *rest), places, tuple(now)


def _is_row_major(array: Any) -> bool:
    # Where nothing lies it lies in order.
    size = array.itemsize
    return not array.size or array.strides == tuple([n * size for n in contiguous_strides(array.shape)])
