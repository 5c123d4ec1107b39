"""The words of a generated kernel on NumPy vectors: the plain twin of `kernels.cpu.vocabulary`, name by name.

A value is an array of `lanes()` elements, a 16-bit float in float32. Memory is what `memory.using` allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels import dtypes
from kernels.cpu.plain.lanes import NumpyLanes
from kernels.cpu.plain.memory import current
from kernels.cpu.target import lanes
from kernels.cpu.vector_math import MEANING
from kernels.dtypes import DType
from kernels.scalar import NumpyScalars
from kernels.spec import COMBINE, identity

Array = np.ndarray[Any, Any]
Word = Callable[..., Any]
LANES = lanes()
EXPORTS: dict[str, Word] = {}
WORDS: dict[str, Word] = {}
_INT64 = np.dtype(np.int64)
_BFLOAT16_BITS = np.dtype(np.uint16)

# Integers: the table, and index arithmetic


def entry(table: int, index: int) -> int:
    """The 64-bit entry `index` of the table at address `table`."""
    return int(current().at(table + 8 * index, 1, _INT64)[0])


def prefetch(address: int) -> None:
    """Nothing: there is no cache to fill."""


def quotient(x: int, y: int) -> int:
    """x // y."""
    return x // y


def mask(count: int) -> Array:
    """The mask of the first `count` lanes."""
    return np.arange(LANES) < count


def steps(start: int, stride: int) -> Array:
    """start, start + stride, start + 2 * stride, … as int64 lanes."""
    return start + stride * np.arange(LANES, dtype=np.int64)


def lane(vector: Array) -> int:
    """The first of int64 lanes, as a number."""
    return int(vector[0])


EXPORTS |= {
    "entry": entry,
    "lane": lane,
    "prefetch": prefetch,
    "prefetch_for_write": prefetch,
    "quotient": quotient,
    "mask": mask,
    "steps": steps,
}

# Memory


def to_register(dtype: DType, stored: Array) -> Array:
    """Elements as they lie in memory in the form that words take."""
    if dtype is dtypes.bool_:
        return stored.view(np.uint8) != 0
    if dtype is dtypes.bfloat16:
        return (stored.view(_BFLOAT16_BITS).astype(np.uint32) << 16).view(np.float32)
    return stored.astype(dtype.arithmetic.numpy)


def to_memory(dtype: DType, value: Array) -> Array:
    """The inverse; 16-bit floats are rounded to nearest even."""
    if dtype is not dtypes.bfloat16:
        return value.astype(dtype.numpy)
    bits = value.view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)
    chosen = np.where(np.isnan(value), bits | np.uint32(0x400000), rounded)
    return (chosen >> 16).astype(np.uint16).view(dtype.numpy)


def read(dtype: DType, base: int, offsets: Array, active: Array) -> Array:
    """Elements at offsets from an address; lanes that are not active are zero and touch no memory."""
    found = np.zeros(len(offsets), dtype.numpy)
    memory, size = current(), dtype.itemsize
    for lane in np.flatnonzero(active):
        found[lane] = memory.at(base + int(offsets[lane]) * size, 1, dtype.numpy)[0]
    return to_register(dtype, found)


def _memory_words(dtype: DType) -> None:
    kind, size = dtype.numpy, dtype.itemsize

    def load(base: int, offset: int, active: Array) -> Array:
        count = int(np.count_nonzero(active))
        if not active[:count].all():
            return read(dtype, base, offset + np.arange(LANES), active)
        found = np.zeros(LANES, kind)
        if count:
            found[:count] = current().at(base + offset * size, count, kind)
        return to_register(dtype, found)

    def load_one(base: int, offset: int) -> Array:
        return np.repeat(to_register(dtype, current().at(base + offset * size, 1, kind)), LANES)

    def gather(base: int, offsets: Array, active: Array) -> Array:
        return read(dtype, base, offsets, active)

    def store(base: int, offset: int, value: Array, active: Array) -> None:
        count = int(np.count_nonzero(active))
        if not active[:count].all():
            scatter(base, offset + np.arange(LANES), value, active)
        elif count:
            current().at(base + offset * size, count, kind)[:] = to_memory(dtype, value)[:count]

    def store_one(base: int, offset: int, value: Array) -> None:
        current().at(base + offset * size, 1, kind)[0] = to_memory(dtype, value)[0]

    def scatter(base: int, offsets: Array, value: Array, active: Array) -> None:
        stored = to_memory(dtype, value)
        for lane in np.flatnonzero(active):
            current().at(base + int(offsets[lane]) * size, 1, kind)[0] = stored[lane]

    def constant(value: Any) -> Array:
        return np.full(LANES, np.asarray(value).astype(dtype.arithmetic.numpy))

    words = {"load": load, "load_one": load_one, "gather": gather, "store": store, "store_one": store_one}
    words |= {"scatter": scatter, "constant": constant}
    EXPORTS.update({f"{verb}_{dtype.name}": word for verb, word in words.items()})


def _scatter_add(dtype: DType) -> Word:
    def scatter_add(base: int, offsets: Array, value: Array, active: Array) -> None:
        for lane in np.flatnonzero(active):
            place = current().at(base + int(offsets[lane]) * dtype.itemsize, 1, dtype.numpy)
            place += value[lane]

    return scatter_add


def _cast(source: DType, target: DType) -> Word:
    def cast(value: Array) -> Array:
        if target is dtypes.bool_:
            return value != 0
        if value.dtype.kind == "f" and not target.is_floating_point and target is not dtypes.int32:
            value = value.astype(np.int64)  # as C does for narrow and unsigned targets: -1.0 to uint8 is 255
        value = value.astype(target.arithmetic.numpy)
        return to_register(target, to_memory(target, value)) if target.compute else value

    return cast


for _dtype in dtypes.DTYPES.values():
    _memory_words(_dtype)
    for _target in dtypes.DTYPES.values():
        EXPORTS[f"cast_{_dtype.name}_{_target.name}"] = _cast(_dtype, _target)
    if _dtype.compute is None and _dtype is not dtypes.bool_:
        WORDS[f"scatter_add_{_dtype.name}"] = _scatter_add(_dtype)

# The scalar vocabulary


def _by_kind(name: str) -> Word:
    """The function of vector_math for floats, NumPy's for integers and bool."""
    floating, other = MEANING.get(name), getattr(NumpyScalars(), name)
    if name in ("floor", "ceil", "trunc", "round"):
        other = np.array  # an integer is whole

    def word(*operands: Array) -> Array:
        if floating is not None and operands[-1].dtype.kind == "f":
            return floating(*map(NumpyLanes, operands)).value  # type: ignore[arg-type]
        return np.asarray(other(*operands))

    return word


for _name in (
    "add sub mul div neg abs floor_div remainder fmod maximum minimum sqrt rsqrt exp expm1 log log1p sin cos "
    "tanh erf sigmoid pow floor ceil trunc round eq ne lt le gt ge and_ or_ xor invert shift_left "
    "shift_right random_bits"
).split():
    WORDS[_name] = _by_kind(_name)
WORDS["where"] = np.where


def _across_lanes(combine: str) -> Word:
    """All lanes combined in a fixed tree, the result in every lane."""

    def reduce(x: Array) -> Array:
        step = LANES // 2
        while step:
            x = WORDS[COMBINE[combine]](x, np.roll(x, -step))
            step //= 2
        return x

    return reduce


for _name in COMBINE:
    WORDS[f"reduce_{_name}"] = _across_lanes(_name)


def _recurrence(before: Array, factor: Array, x: Array) -> Array:
    """factor * before + x, and x where nothing or zero came before."""
    return np.where(before == 0, x, factor * before + x)


def _lane_by_lane(word: Word, before: Array, *operands: Array) -> Array:
    """What a word gives for each lane after the other, each time with what it gave before."""
    result = operands[-1].copy()
    for lane in range(LANES):
        before = word(before, *(np.repeat(x[lane], LANES) for x in operands))
        result[lane] = before[0]
    return result


def _scan(combine: str) -> Word:
    """Each lane combined with all before it, and with `before`."""

    def scan(before: Array, x: Array) -> Array:
        word, step = WORDS[COMBINE[combine]], 1
        if x.dtype.kind == "f" and combine in ("add", "mul"):
            return _lane_by_lane(word, before, x)
        while step < LANES:
            nothing = np.full(step, identity(combine, dtypes.of_numpy(x.dtype)), x.dtype)
            x, step = word(x, np.concatenate([nothing, x[:-step]])), 2 * step
        return word(before, x)

    return scan


for _name, _function in COMBINE.items():
    WORDS[f"scan_{_function}"] = _scan(_name)
WORDS |= {
    "recurrence": _recurrence,
    "scan_recurrence": lambda before, factor, x: _lane_by_lane(_recurrence, before, factor, x),
    "last_lane": lambda x: np.repeat(x[-1], LANES),
}

# Generated sources import words by name from this module.
globals().update(EXPORTS | WORDS)
