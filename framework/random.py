"""Random tensors and the generators they are drawn from.

A generator is a seed and a count of draws; each draw is one Philox stream (kernels/philox.py), the same in
every back end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from compiler.ops import random as distributions
from compiler.ops.arithmetic import remainder
from compiler.ops.bits import bitwise_or, shift_left
from framework.access import host
from framework.device import device, number_of, place_of
from framework.elementwise import add, div, log1p, lt, mul, neg
from framework.inplace import assign
from framework.promotion import convert, promoted
from framework.size import shape_argument
from framework.state import ambient, guarded, is_recording, python_effect
from framework.tensor import Tensor, concrete, wrap
from framework.transfer import creating
from framework.views import broadcast_shapes, expand
from kernels import dtypes
from kernels.dtypes import DType
from kernels.gpu import arrays, ordering


class Generator:
    """A source of random streams: `seed_value` names it, `offset` counts the draws made."""

    def __init__(self, device: Any = None) -> None:
        self.number = number_of(device)
        self.seed_value = 67280421310721
        self.offset = 0

    @property
    def device(self) -> device:
        """Where draws are made; they are the same everywhere."""
        return place_of(self.number)

    @python_effect
    def manual_seed(self, seed: int) -> Generator:
        """Start again from `seed`; returns the generator."""
        seed = int(seed)
        if not -(2**63) <= seed < 2**64:
            raise RuntimeError(f"Overflow when unpacking long long: a seed has 64 bits, got {seed}")
        self.seed_value = seed - 2**64 if seed >= 2**63 else seed
        self.offset = 0
        return self

    @python_effect
    def seed(self) -> int:
        """Start again from an unpredictable seed, which is returned."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        return self.seed_value

    def initial_seed(self) -> int:
        """The seed last set."""
        return guarded(lambda: self.seed_value % 2**64)

    def get_state(self) -> Tensor:
        """The whole state as a uint8 tensor."""
        return wrap(np.array([self.seed_value, self.offset], np.int64).view(np.uint8).copy())

    @python_effect
    def set_state(self, state: Tensor) -> Generator:
        """Continue from a state of `get_state`."""
        data = host(state)
        if data.dtype != np.uint8 or data.size != 16:
            raise RuntimeError(
                f"a generator state is 16 bytes of uint8 from get_state, got {state.dtype} "
                f"{list(state.shape)}"
            )
        self.seed_value, self.offset = (int(n) for n in np.ascontiguousarray(data).view(np.int64))
        return self


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator, which is returned."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default generator unpredictably; the seed is returned."""
    return default_generator.seed()


def initial_seed() -> int:
    """The default generator's seed."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The default generator's state."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Continue the default generator from a state."""
    default_generator.set_state(new_state)


def stream(generator: Generator | None) -> tuple[Any, Any]:
    """Seed and offset of the next draw; under capture values that each replay moves on."""
    generator = generator or default_generator
    if ambient.tracer is not None:
        return ambient.tracer.stream(generator)
    offset = generator.offset
    generator.offset += 1
    return np.asarray(generator.seed_value, np.int64), np.asarray(offset, np.int64)


def _stream_on(generator: Generator | None, number: int | None) -> tuple[Any, Any]:
    """`stream`, for draws on GPU `number`."""
    if number is None:
        return stream(generator)
    generator = generator or default_generator
    pair = arrays.put(np.array([generator.seed_value, generator.offset], np.int64), number)
    generator.offset += 1
    return pair[0], pair[1]


def _number(t: Tensor) -> int | None:
    """The GPU to draw on for a tensor; none in a recording, whose draws are where its program is."""
    return None if t._data is None or is_recording() else arrays.number_of(t._data)


def _uniform(
    shape: tuple[int, ...], dtype: DType, generator: Generator | None, number: int | None = None
) -> Tensor:
    _require_floating("rand", dtype)
    return wrap(distributions.uniform(*_stream_on(generator, number), shape=shape, dtype=dtype))


def _normal(
    shape: tuple[int, ...], dtype: DType, generator: Generator | None, number: int | None = None
) -> Tensor:
    _require_floating("randn", dtype)
    return wrap(distributions.normal(*_stream_on(generator, number), shape=shape, dtype=dtype))


def _require_floating(name: str, dtype: DType) -> None:
    if not dtype.is_floating_point:
        raise RuntimeError(
            f"{name} draws floating numbers, not {dtype.name}; use randint, or convert the result"
        )


def _bits(shape: tuple[int, ...], generator: Generator | None, number: int | None = None) -> Any:
    return distributions.random_bits(*_stream_on(generator, number), shape=shape)


def _finished(t: Tensor, requires_grad: bool) -> Tensor:
    return t.requires_grad_(True) if requires_grad else t


def rand(
    *size: Any,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Tensor:
    """Uniform on [0, 1)."""
    shape, number = shape_argument(size), creating(device)
    return _finished(_uniform(shape, dtype or ambient.default_dtype, generator, number), requires_grad)


def randn(
    *size: Any,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Tensor:
    """Normal with mean 0 and deviation 1."""
    shape, number = shape_argument(size), creating(device)
    return _finished(_normal(shape, dtype or ambient.default_dtype, generator, number), requires_grad)


def rand_like(
    input: Tensor,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
    **layout: Any,
) -> Tensor:
    """Uniform on [0, 1) in the shape and dtype of `input`."""
    number = creating(input.device if device is None else device)
    return _finished(_uniform(tuple(input.shape), dtype or input.dtype, generator, number), requires_grad)


def randn_like(
    input: Tensor,
    *,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
    **layout: Any,
) -> Tensor:
    """Standard normal in the shape and dtype of `input`."""
    number = creating(input.device if device is None else device)
    return _finished(_normal(tuple(input.shape), dtype or input.dtype, generator, number), requires_grad)


def _integers(
    low: int, high: int, shape: tuple[int, ...], generator: Generator | None, number: int | None = None
) -> Tensor:
    if high <= low:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    span = high - low
    bits = _bits(shape, generator, number)
    if span > 2**32:
        # Two words, of which 62 bits stay non-negative.
        bits = bitwise_or(shift_left(remainder(_bits(shape, generator, number), 2**30), 32), bits)
    drawn = wrap(remainder(bits, span)) if span & (span - 1) or span < 2**32 else wrap(bits)
    return add(drawn, low) if low else drawn


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Tensor:
    """Integers from `low` (0) up to but without `high`: `randint(high, size)` or `randint(low, high,
    size)`."""
    number = creating(device)
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    drawn = _integers(int(low), int(high), shape_argument((size,)), generator, number)
    return _finished(convert(drawn, dtype or dtypes.int64), requires_grad)


def randint_like(
    input: Tensor, low: int, high: int | None = None, *, dtype: DType | None = None, **options: Any
) -> Tensor:
    """Integers from `low` up to but without `high`, in the shape and dtype of `input`."""
    low, high = (0, low) if high is None else (low, high)
    options.setdefault("device", input.device)
    return randint(low, high, tuple(input.shape), dtype=dtype or input.dtype, **options)


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **layout: Any,
) -> Tensor:
    """The integers 0 to n - 1 in random order."""
    number = creating(device)
    order = _ordered_by(concrete(wrap(_bits((n, 2), generator, number))))
    return _finished(convert(wrap(order), dtype or dtypes.int64), requires_grad)


@arrays.located
def _ordered_by(words: Any) -> Any:
    """The rows' order by two words of 32 bits each."""
    keys = ((words[:, 0] - 2**31) << 32) + words[:, 1]
    return ordering.order(keys, 0) if arrays.is_device(keys) else np.argsort(keys, kind="stable")


def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability each element gives (or with `p`), else 0."""
    uniform = _uniform(tuple(input.shape), _float_of(input), generator, _number(input))
    drawn = lt(uniform, input.detach() if p is None else p)
    return convert(drawn, input.dtype)


def _float_of(x: Tensor) -> DType:
    return x.dtype if x.dtype.is_floating_point else ambient.default_dtype


def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: Any = None,
    **layout: Any,
) -> Tensor:
    """Normal with the mean and deviation each element (or number) gives."""
    if not isinstance(mean, Tensor) and not isinstance(std, Tensor):
        if size is None:
            raise TypeError("normal(mean, std) of two numbers needs a size, e.g. normal(0., 1., (2, 3))")
        drawn = _normal(shape_argument((size,)), dtype or ambient.default_dtype, generator, creating(device))
        return add(mul(drawn, std), mean)
    mean, std = promoted(mean, std)
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    shape = tuple(broadcast_shapes(*(tuple(x.shape) for x in tensors)))
    return add(mul(_normal(shape, tensors[0].dtype, generator, _number(tensors[0])), std), mean)


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """`num_samples` positions per row, drawn with probabilities in proportion to the row."""
    # The last axis has what is drawn from.
    uniform = partial(_uniform, dtype=dtypes.float64, generator=generator, number=_number(input))
    return wrap(_drawn(concrete(input), input, num_samples, replacement, uniform))


@arrays.located
def _drawn(data: Any, input: Tensor, count: int, replacement: bool, uniform: Callable[..., Any]) -> Any:
    """Positions drawn in every row of weights, by uniform numbers."""
    weights = data.astype(np.float64)
    _require_distribution(input, weights, count, replacement)
    rows, there = weights.reshape(-1, weights.shape[-1]), arrays.is_device(data)
    if replacement or count == 1:
        totals = ordering.running("add", rows, 1) if there else np.cumsum(rows, -1)
        u = concrete(uniform((rows.shape[0], count))) * totals[:, -1:]
        # The last element that can be drawn: rounding may take u to the total itself.
        last = rows.shape[-1] - 1 - np.argmax((np.flip(rows, 1) > 0).astype(np.int8), -1)[:, None]
        found = ordering.searched(totals, u, True) if there else _searched(totals, u)
        drawn = np.minimum(found, last)
    else:
        # Efraimidis and Spirakis 2006: the largest of -log(u) / weight, reversed, is a draw without
        # replacement. Elements of weight 0 come last.
        u = concrete(uniform(rows.shape))
        with np.errstate(divide="ignore", invalid="ignore"):
            keys = -np.log1p(-u) / rows
        order = ordering.order(keys, 1) if there else np.argsort(keys, -1, kind="stable")
        drawn = order[:, :count]
    return arrays.row_major(drawn, np.int64).reshape(*weights.shape[:-1], count)


def _searched(totals: Any, values: Any) -> Any:
    """Where each value lies in its row of running totals."""
    found = np.zeros(values.shape, np.int64)
    for row, (total, x) in enumerate(zip(totals, values, strict=True)):
        found[row] = np.searchsorted(total, x, "right")
    return found


def _require_distribution(
    input: Tensor, weights: np.ndarray[Any, Any], count: int, replacement: bool
) -> None:
    if weights.ndim not in (1, 2) or not input.dtype.is_floating_point:
        raise RuntimeError(
            f"multinomial needs 1 or 2 dimensions of floats, got {input.dtype} {list(input.shape)}"
        )
    if count <= 0:
        raise RuntimeError(f"cannot sample n_sample <= 0 samples, got {count}")
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    if np.any(weights.sum(-1) <= 0):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    if not replacement and weights.shape[-1] < count:
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")


def uniform_(t: Tensor, a: float = 0, b: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Fill with uniform numbers on [a, b)."""
    drawn = _uniform(tuple(t.shape), t.dtype, generator, _number(t))
    scaled = drawn if a == 0 and b == 1 else add(mul(drawn, b - a), a)
    return assign(t, scaled, "uniform_")


def normal_(t: Tensor, mean: float = 0, std: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Fill with normal numbers."""
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    drawn = _normal(tuple(t.shape), t.dtype, generator, _number(t))
    return assign(t, drawn if mean == 0 and std == 1 else add(mul(drawn, std), mean), "normal_")


def log_normal_(t: Tensor, mean: float = 1, std: float = 2, *, generator: Generator | None = None) -> Tensor:
    """Fill with exponentials of normal numbers."""
    drawn = _normal(tuple(t.shape), t.dtype, generator, _number(t))
    return assign(t, add(mul(drawn, std), mean).exp(), "log_normal_")


def exponential_(t: Tensor, lambd: float = 1, *, generator: Generator | None = None) -> Tensor:
    """Fill with exponentially distributed numbers of rate `lambd`."""
    if lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    drawn = _uniform(tuple(t.shape), t.dtype, generator, _number(t))
    return assign(t, div(neg(log1p(neg(drawn))), lambd), "exponential_")


def bernoulli_(t: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Fill with ones of probability `p` (a number or a tensor) and zeros."""
    drawn = _uniform(tuple(t.shape), _float_of(t), generator, _number(t))
    limit = expand(p.detach(), t.shape) if isinstance(p, Tensor) else p
    return assign(t, lt(drawn, limit), "bernoulli_")


def random_(
    t: Tensor, low: int | None = None, high: int | None = None, *, generator: Generator | None = None
) -> Tensor:
    """Fill with integers from `low` (0) up to but without `high` (the largest the dtype holds exactly, plus
    one)."""
    if high is None:
        low, high = (0, low) if low is not None else (0, _exact_limit(t.dtype))
    drawn = _integers(int(low or 0), int(high), tuple(t.shape), generator, _number(t))
    return assign(t, drawn, "random_")


def _exact_limit(dtype: DType) -> int:
    if dtype.is_floating_point:
        return 2 ** {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}[dtype.name]
    return 2 if dtype is dtypes.bool_ else min(int(np.iinfo(dtype.numpy).max) + 1, 2**62)


class fork_rng:  # noqa: N801 -- PyTorch's name
    """Restore the default generator when the `with` block ends."""

    def __init__(self, devices: Any = (), enabled: bool = True) -> None:
        self.enabled = enabled

    def __enter__(self) -> None:
        self.state = get_rng_state()

    def __exit__(self, *exception: object) -> None:
        if self.enabled:
            set_rng_state(self.state)
